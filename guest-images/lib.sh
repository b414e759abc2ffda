# shellcheck shell=bash
# What the recipes of this folder share. Sourced, never run.

source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
mkdir --parents "$guest_out"

# record NAME VERSION FILE: notes in out/MANIFEST what a recipe obtained or built, one line per NAME.
record() {
    local manifest=$guest_out/MANIFEST hash
    hash=$(sha256sum "$3" | cut --delimiter=' ' --fields=1)
    touch "$manifest"
    {
        awk -v name="$1" '$2 != name' "$manifest"
        printf '%s  %s  %s\n' "$hash" "$1" "$2"
    } | LC_ALL=C sort --key=2 >"$manifest.new"
    mv "$manifest.new" "$manifest"
}

# recorded_version NAME: the version in the line that `record` wrote for NAME.
recorded_version() { awk -v name="$1" '$2 == name { print $3 }' "$guest_out/MANIFEST"; }

candidate_version() { apt-cache policy "$1" | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'; }

# The version of PACKAGE that apt would install; renews the package lists if it has never heard of it.
newest_version() {
    local version
    version=$(candidate_version "$1")
    if [ -z "$version" ]; then
        refresh_package_lists || die "the package lists could not be renewed: check 'apt-get update' and the network"
        version=$(candidate_version "$1")
    fi
    [ -n "$version" ] || die "apt knows no package $1: add Debian's 'main' to the apt sources and run apt-get update"
    printf '%s\n' "$version"
}

# apt checks what it downloads against the signed lists. As root it would first complain that its own user may
# not write here, so it is told to stay root.
download_here() { quietly apt-get --quiet --option APT::Sandbox::User=root download "$1=$2"; }

# unpack ARCHIVE DIR [FILE]: unpacks a package's archive below DIR, or one file of it. What lies behind that file is not read:
# some archives have gigabytes there.
unpack() {
    if [ "$#" = 2 ]; then
        dpkg --extract "$1" "$2"
    else
        mkdir --parents "$2"
        { dpkg --fsys-tarfile "$1" 2>/dev/null || true; } | tar --extract --directory="$2" --occurrence=1 "./$3"
    fi
}

# fetch_package PACKAGE DIR [FILE]: unpacks the newest PACKAGE, or one file of it, below DIR, replacing it, without installing it
# on this machine. The archive's hash is checked against the signed package lists once more before it is unpacked.
fetch_package() {
    local package=$1 dir=$2 version work expected
    version=$(newest_version "$package")
    work=$(mktemp --directory "$guest_out/fetch.XXXXXX")
    say "getting $package $version"
    if ! (cd "$work" && download_here "$package" "$version") 2>/dev/null; then
        # Debian's mirrors drop a version as soon as a newer one is out: the lists here may be older than that.
        refresh_package_lists || true
        version=$(newest_version "$package")
        (cd "$work" && download_here "$package" "$version") ||
            die "apt-get could not download $package $version: check the network and the apt sources"
    fi
    expected=$(apt-cache show "$package=$version" | awk '$1 == "SHA256:" { print $2; exit }')
    printf '%s  %s\n' "$expected" "$(echo "$work"/*.deb)" | sha256sum --check --status ||
        die "$package $version is not what the package lists promise: run apt-get update and try again"
    record "$package.deb" "$version" "$work"/*.deb
    unpack "$work"/*.deb "$work/root" "${@:3}"
    rm --recursive --force "$dir"
    mv "$work/root" "$dir"
    rm --recursive --force "$work"
}

# The static busybox that runs in the guests; path of the binary on stdout.
busybox_binary() {
    local dir=$guest_out/busybox
    [ -x "$dir/bin/busybox" ] || fetch_package busybox-static "$dir"
    printf '%s\n' "$dir/bin/busybox"
}

# unpacked_kernel DIR NAME: makes of the kernel's packages unpacked in DIR what one boots, and puts it in the place of
# out/kernel-NAME:
#   vmlinuz   the bzImage exactly as Debian ships it
#   vmlinux   the ELF image that is packed inside it
unpacked_kernel() {
    local dir=$guest_out/kernel-$2 release image
    # Newer packages have modules below usr/lib only, and the image beside them.
    [ -e "$1/lib" ] || ln --symbolic usr/lib "$1/lib"
    release=$(ls "$1/lib/modules")
    image=boot/vmlinuz-$release
    [ -e "$1/$image" ] || image=usr/lib/modules/$release/vmlinuz
    ln --symbolic "$image" "$1/vmlinuz"
    "$repo/guest-images/extract-vmlinux" "$1/vmlinuz" "$1/vmlinux"
    # A package as unpacked has no list of what depends on what; installing it would make one.
    /sbin/depmod --basedir "$1" "$release"
    rm --recursive --force "$dir"
    mv "$1" "$dir"
    record "kernel-$2/vmlinuz" "$release" "$dir/vmlinuz"
    record "kernel-$2/vmlinux" "$release" "$dir/vmlinux"
}

kernel_release() { ls "$guest_out/kernel-$1/lib/modules"; }

# module_files FLAVOUR MODULE...: the modules and all they depend on, in loading order, each once. A module that
# is built into this kernel yields nothing; one that the kernel does not have at all is an error.
module_files() {
    local flavour=$1 module release
    shift
    release=$(kernel_release "$flavour")
    for module in "$@"; do
        /sbin/modprobe --config=/dev/null --dirname="$guest_out/kernel-$flavour" --set-version="$release" \
            --show-depends "$module" || die "the $flavour kernel $release has no module $module"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# add_modules TREE LIST FLAVOUR MODULE...: copies modules below TREE/lib/modules and writes their loading order
# to TREE/lib/modules/LIST.
add_modules() {
    local tree=$1/lib/modules list=$2 file name
    shift 2
    mkdir --parents "$tree"
    module_files "$@" >"$tree/$list.files"
    : >"$tree/$list"
    while read -r file; do
        name=$(basename "$file")
        case "$name" in
        *.xz) xz --decompress --stdout "$file" >"$tree/${name%.xz}" ;;
        *.zst) zstd --quiet --decompress --stdout "$file" >"$tree/${name%.zst}" ;;
        *) cp "$file" "$tree/$name" ;;
        esac
        printf '%s.ko\n' "${name%.ko*}" >>"$tree/$list"
    done <"$tree/$list.files"
    rm "$tree/$list.files"
}

# pack_initramfs TREE FILE: the same tree gives the same bytes: sorted, no owners, times or inode numbers.
pack_initramfs() {
    find "$1" -exec chmod u+rwX,go+rX,go-w {} + -exec touch --no-dereference --date=@0 {} +
    (cd "$1" && find . -print0 | LC_ALL=C sort --zero-terminated |
        cpio --null --create --format=newc --reproducible --owner=+0:+0 --quiet) | gzip --best --no-name >"$2.new"
    mv "$2.new" "$2"
}
