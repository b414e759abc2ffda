# shellcheck shell=bash
# Finds the archives from which this machine's apt gets Debian. This file is sourced, never run. Recipes that need an
# archive's address (for debootstrap, or for an apt with its own lists) ask these functions. So no recipe contains an
# archive's address, and the recipes use archives that this machine can reach.

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

archive_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# archives_known_to_apt SUITE: the addresses in apt's sources, whatever the format of their files, one on each line.
# Archives that apt uses for SUITE come first. An archive that apt uses for another suite often has SUITE, too.
archives_known_to_apt() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(CODENAME) $(ORIGIN) $(REPO_URI)' 'Component: main' 'Created-By: Packages' |
        awk -v suite="$1" '$1 == suite { print 1, $3; next } $2 == "Debian" { print 2, $3 }' |
        LC_ALL=C sort --stable --key=1,1 | awk '!seen[$2]++ { print $2 }'
}

# fetch ADDRESS FILE: downloads a file as apt does, with its proxies and passwords.
fetch() { quietly /usr/lib/apt/apt-helper --option APT::Sandbox::User=root download-file "$1" "$2"; }

# Copies the addresses on stdin, and replaces lists of mirrors (`mirror+file:`, `mirror+https:`) by the addresses in
# these lists. Leaves out addresses with access methods that only apt supports.
without_mirror_lists() {
    local address list
    while read -r address; do
        case "$address" in
        mirror+file:*)
            # apt puts a slash after the file's name.
            list=${address#mirror+file:}
            list=/${list#"${list%%[!/]*}"}
            grep --extended-regexp '^[a-z]+:' "${list%/}" || true
            ;;
        mirror+http*://* | mirror://*)
            list=$(mktemp)
            address=${address#mirror+}
            if fetch "${address/#mirror:/http:}" "$list" 2>/dev/null; then grep --extended-regexp '^[a-z]+:' "$list" || true; fi
            rm --force "$list"
            ;;
        *) printf '%s\n' "$address" ;;
        esac
    done | awk '/^(https?|file|copy):/ { sub("^copy:", "file:", $1); sub("/*$", "", $1); print $1 }'
}

# has_suite ADDRESS SUITE: whether the archive answers and has the suite.
has_suite() {
    local file result=0
    file=$(mktemp)
    fetch "$1/dists/$2/Release" "$file" 2>/dev/null || result=1
    rm --force "$file"
    return "$result"
}

# archive_of SUITE: the address of an archive that has the suite, by http, https or as a folder of this machine.
archive_of() {
    local archives archive
    mapfile -t archives < <(archives_known_to_apt "$1" | without_mirror_lists)
    if [ "${#archives[@]}" = 0 ]; then
        refresh_package_lists || die "the package lists could not be renewed: check 'apt-get update' and the network"
        mapfile -t archives < <(archives_known_to_apt "$1" | without_mirror_lists)
    fi
    for archive in "${archives[@]}"; do
        if has_suite "$archive" "$1"; then
            printf '%s\n' "$archive"
            return
        fi
    done
    die "no source of this machine's apt serves Debian's $1 by http, https or from a folder (tried: ${archives[*]:-none}):" \
        "add Debian's 'main' to the sources and run apt-get update"
}

# keyring_of SUITE ARCHIVE: the file of keys that apt's sources name for the archive (Signed-By), or for the list of
# mirrors that names the archive. If gpgv cannot read this file, Debian's own file of keys. If the sources name several
# files, the first one.
keyring_of() {
    local entry named
    # shellcheck disable=SC2016 # apt's own variables
    entry=$(apt-get indextargets --format '$(SOURCESENTRY) $(REPO_URI)' "Codename: $1" 'Component: main' 'Created-By: Packages' |
        awk -v archive="$2" '{ sub("/*$", "", $2) } NR == 1 { first = $1 } $2 == archive { print $1; found = 1; exit } END { if (!found) print first }')
    named=$(signed_by "${entry%:*}" "${entry##*:}" | tr --squeeze-repeats ', ' '\n')
    if [[ $named = *$archive_keyring* ]] || ! grep --max-count=1 '^/.*\.gpg$' <<<"$named"; then
        printf '%s\n' "$archive_keyring"
    fi
}

# signed_by FILE NUMBER: the file of keys in stanza NUMBER of a .sources file, or in line NUMBER of a .list file.
signed_by() {
    case "$1" in
    *.sources) awk -v RS= -v number="$2" 'NR == number' "$1" | sed --quiet --regexp-extended 's/^Signed-By:\s*//Ip' ;;
    *.list) sed --quiet "$2p" "$1" | sed --quiet --regexp-extended 's/.*\bsigned-by=([^] ]*).*/\1/Ip' ;;
    esac
}

# proxy_settings ADDRESS: apt's proxy for the address, if there is one, as an environment variable that other programs
# use.
proxy_settings() {
    local scheme=${1%%:*} proxy=
    case "$scheme" in http | https) ;; *) return ;; esac
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    if [ "$scheme" = https ]; then eval "$(apt-config shell proxy Acquire::https::Proxy)"; fi
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then printf '%s_proxy=%s\n' "$scheme" "$proxy"; fi
}

# start_own_apt SUITE...: makes the folder $work for an apt with only these suites and with its own lists and archives.
# The recipes must not add suites to the machine's own sources. This separate apt checks the same signatures as the
# machine's apt. The caller removes the folder.
start_own_apt() {
    local suite
    work=$(mktemp --directory "$guest_out/fetch.XXXXXX")
    mkdir --parents "$work"/lists/partial "$work"/cache/archives/partial "$work/root"
    for suite in "$@"; do source_line "$suite" || exit; done >"$work/sources.list"
    quietly own_apt apt-get --quiet update || die "the lists of Debian's $* could not be had: check the network"
}

# own_apt PROGRAM ARGUMENT...: runs apt-get or apt-cache with the lists and archives in $work.
own_apt() {
    "$1" --option Dir::Etc::SourceList="$work/sources.list" --option Dir::Etc::SourceParts=/dev/null \
        --option Dir::State::Lists="$work/lists" --option Dir::Cache="$work/cache" --option Debug::NoLocking=1 \
        --option APT::Sandbox::User=root --option Acquire::Languages=none "${@:2}"
}

# source_line SUITE: the line of apt's sources for the suite.
source_line() {
    local archive
    archive=$(archive_of "$1") || return
    printf 'deb [signed-by=%s] %s %s main\n' "$(keyring_of "$1" "$archive")" "$archive" "$1"
}
