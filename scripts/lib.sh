# shellcheck shell=bash
# Functions that the scripts here and in guest-images/ share. This file is sourced, never run.

umask 022
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for those who source this
guest_out=$repo/guest-images/out

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Prints the comment at the top of the running script, which is its help text.
show_help() { sed --quiet '2,/^[^#]/ s/^# \{0,1\}//p' "$0"; }

# For scripts without arguments: accepts --help and nothing else.
no_arguments() {
    case "${1:-}" in
    "") ;;
    -h | --help) show_help && exit 0 ;;
    *) say "there is no argument $1; see --help" && exit 2 ;;
    esac
}

as_root() {
    if [ "$(id --user)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$1' needs root: run this as root, or install sudo"
    fi
}

# Runs a command and shows what it printed only if it failed.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then
        rm --force "$log"
    else
        tail --lines=15 "$log" >&2
        rm --force "$log"
        return 1
    fi
}

refresh_package_lists() { quietly as_root apt-get --quiet update; }

# serve_for_gdb TTVM RECORDING SOCKET LOG: starts `ttvm debug` at the recording's end, as process $server, and waits
# until gdb can connect.
serve_for_gdb() {
    "$1" debug "$2" --listen "unix:$3" --at end --once 2>"$4" &
    server=$!
    until grep --quiet '^ttvm: ready' "$4"; do
        kill -0 "$server" 2>/dev/null || die "ttvm debug ended before gdb could attach: $(cat "$4")"
        sleep 0.1
    done
}
