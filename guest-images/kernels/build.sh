#!/bin/sh
# Builds the test kernels into ../out/kernels (or the folder given). Needs gcc and binutils for x86.
set -eu
cd "$(dirname "$0")"
out=${1:-../out/kernels}
mkdir -p "$out"

flags="-std=gnu11 -O1 -g0 -Wall -Wextra -Wno-main -Werror -ffreestanding -fno-pic -fno-stack-protector
    -fno-asynchronous-unwind-tables -fcf-protection=none -mgeneral-regs-only -Wno-array-bounds"

# kernel BITS NAME ENTRY SOURCE...: builds a kernel from its sources
kernel() {
    bits=$1 name=$2 entry=$3
    shift 3
    objects=
    for source in "$@" common.c; do
        object="$out/$name-${source%.*}.o"
        # shellcheck disable=SC2046,SC2086
        gcc -m"$bits" $flags $([ "$bits" = 64 ] && echo -mno-red-zone) -c "$source" -o "$object"
        objects="$objects $object"
    done
    emulation=$([ "$bits" = 64 ] && echo elf_x86_64 || echo elf_i386)
    # shellcheck disable=SC2086
    ld -m "$emulation" -n --build-id=none --no-warn-rwx-segments -e "$entry" -T kernel.ld $objects -o "$out/$name.elf"
    # shellcheck disable=SC2086
    rm -f $objects
}

kernel 32 mb1 entry32 mb1_header.S entry32.S mb1.c
kernel 32 mb2 entry32 mb2_header.S entry32.S mb2.c
kernel 32 pvh entry32 pvh_note.S entry32.S pvh.c
kernel 32 pae entry32 mb1_header.S entry32.S pae.c
kernel 32 real16 entry32 mb1_header.S entry32.S real16_trip.S real16.c
kernel 32 travel entry32 mb1_header.S entry32.S travel.c
kernel 64 elf64 entry64 entry64.S elf64.c
