#!/bin/sh
# Runs the kernels that `qemu-system-x86_64 -kernel` can load, as a check of the kernels themselves.
set -eu
cd "$(dirname "$0")"
out=${1:-../out/kernels}
printf 'ttvm-module for the test kernels' > "$out/module"
status=0

# run NAME MODULES MIB
run() {
    # QEMU takes one initrd for PVH, and a list of modules for Multiboot. In both cases the kernel gets one module.
    modules=
    if [ "$2" = 1 ]; then modules="-initrd $out/module"; fi
    code=0
    # shellcheck disable=SC2086
    timeout 60 qemu-system-x86_64 -M pc -cpu max -m "$3" -display none -serial stdio -no-reboot \
        -device isa-debug-exit,iobase=0x501 -kernel "$out/$1.elf" $modules \
        -append "ttvm-test modules=$2" || code=$?
    [ "$code" = 33 ] || { echo "$1: exit code $code" >&2; status=1; }
}

run mb1 0 64
run mb1 1 128
run pvh 0 64
run pvh 1 128
run pae 0 64
run pae 1 5120
run real16 0 64
exit "$status"
