//! Tests the progress bar that a user sees at a terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use tiny_guest::{LONG_ROUND_STEPS, record, record_long, typed_bytes};

/// The number of rounds of the guest. The interpreter needs more than a second for half of these rounds.
const ROUNDS: u32 = 600;

#[test]
fn what_takes_long_shows_how_far_it_is() {
    let directory = tempfile::tempdir().unwrap();
    record_long(directory.path(), "r.ttvm", ROUNDS);
    let half = format!("insn:{}", u64::from(ROUNDS) * LONG_ROUND_STEPS / 2);
    let all = ["search", "r.ttvm", "break:0x12345", "--all", "--to", &half, "--threads", "1"];
    for arguments in [&["state", "r.ttvm", "--at", &half][..], &all] {
        let shown = on_a_terminal(directory.path(), arguments);
        assert!(shown.contains("replaying") && shown.contains("Minsn"), "{arguments:?}: {shown}");
        assert!(shown.contains(" left"), "{arguments:?}: {shown}");
    }
    let shown = on_a_terminal(directory.path(), &["state", "r.ttvm", "--at", "insn:1000"]);
    assert!(!shown.contains("Minsn"), "{shown}");
}

/// Runs a command with the interpreter on a terminal. Returns what the command wrote to standard error.
fn on_a_terminal(directory: &std::path::Path, arguments: &[&str]) -> String {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
    command.args(arguments).current_dir(directory).env("TTVM_TIER", "interpreter").env("TERM", "xterm");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(terminal.slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // Reading a terminal whose other end is closed fails with EIO: pty(7).
    let _ = File::from(terminal.master).read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

/// Runs a command on a terminal. Returns what the command wrote to standard output.
fn printed_on_a_terminal(directory: &std::path::Path, arguments: &[&str]) -> String {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
    command.args(arguments).current_dir(directory);
    command.stdin(Stdio::null()).stdout(terminal.slave).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // Reading fails with EIO, as in `on_a_terminal`.
    let _ = File::from(terminal.master).read_to_end(&mut shown);
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn a_replay_steers_the_terminal_by_choice_only() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "r.ttvm", 30_000, typed_bytes(5_000, "a\x1b[2J\u{9b}b\r\n"));
    let shown = printed_on_a_terminal(directory.path(), &["replay", "r.ttvm"]);
    assert!(shown.contains("a\\u001b[2J\\u009bb\r") && !shown.contains(['\x1b', '\u{9b}']), "{shown:?}");
    let shown = printed_on_a_terminal(directory.path(), &["replay", "r.ttvm", "--raw-console"]);
    assert!(shown.contains("a\x1b[2J\u{9b}b\r"), "{shown:?}");
}
