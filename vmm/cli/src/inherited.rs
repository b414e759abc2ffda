//! Closes inherited descriptors that the user did not give this program on purpose.
//!
//! A shell, an editor or a test may leave files and sockets open. A guest that broke out could use them: the sandbox
//! forbids opening files, but not using open files. So this program closes inherited descriptors before anything else.
//! Descriptors that the command line names stay open: a path like `/dev/fd/63` (a shell's `<(...)`), and a companion's
//! pipe.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

use nix::unistd::close;

/// The last of the three standard descriptors: input, output and errors.
const STANDARD: RawFd = 2;
/// Prefixes of paths that stand for a descriptor of this process (proc(5)).
const NAMES: [&[u8]; 3] = [b"/dev/fd/", b"/proc/self/fd/", b"/proc/thread-self/fd/"];

/// Closes all descriptors above 2 that these arguments do not name. Must be called before this program opens
/// anything, and before it has threads.
pub fn close_all_unnamed(arguments: &[OsString]) {
    let named = named(arguments);
    // On a host without /proc, descriptors stay open.
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open {
        if descriptor > STANDARD && !named.contains(&descriptor) {
            // Ignores a failure, because the descriptor from which the list was read is closed already.
            let _ = close(descriptor);
        }
    }
}

/// The descriptors named in arguments.
fn named(arguments: &[OsString]) -> Vec<RawFd> {
    let paths = arguments.iter().flat_map(|argument| in_paths(argument.as_bytes()));
    let pipes = arguments.windows(2).filter(|pair| pair[0] == "--pipe");
    paths.chain(pipes.filter_map(|pair| number(pair[1].as_bytes()))).collect()
}

/// The descriptors named anywhere in an argument, which may be `--option=PATH`.
fn in_paths(argument: &[u8]) -> Vec<RawFd> {
    let own = format!("/proc/{}/fd/", std::process::id());
    let names = NAMES.into_iter().chain([own.as_bytes()]);
    names
        .flat_map(|name| {
            let begins = argument.windows(name.len()).enumerate().filter(move |(_, window)| *window == name);
            begins.filter_map(move |(at, _)| number(&argument[at + name.len()..]))
        })
        .collect()
}

/// The number at the beginning of a text.
fn number(text: &[u8]) -> Option<RawFd> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    OsStr::from_bytes(&text[..digits]).to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_named_by_paths_and_by_the_companions_pipe() {
        let own = format!("/proc/{}/fd/8", std::process::id());
        let arguments = [
            "ttvm",
            "record",
            "--kernel",
            "/dev/fd/63",
            "--initrd=/proc/self/fd/7",
            &own,
            "/dev/fd/x",
            "9",
            "/dev/fd/99999999999999999999",
            "--pipe",
            "5",
        ];
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        assert_eq!(named(&arguments), [63, 7, 8, 5]);
    }
}
