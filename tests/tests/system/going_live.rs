//! Tests that a recorded shell on a stock kernel can continue live from a position of its recording. The text that
//! is typed into the live shell is recorded again.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use machine::inputs::Event;
use machine::script::Script;
use tests::guests::{BUSYBOX, CLOUD, Guest};
use tests::program::ttvm;
use tests::record::{open, record};

/// Runs `ttvm` with this input. Returns the program's output without carriage returns.
fn output(directory: &Path, arguments: &[&str], typed: &str) -> String {
    let mut command = Command::new(ttvm());
    command.args(arguments).current_dir(directory);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ttvm can be run");
    // Write all input at once. The input stays in the pipe until the guest's shell reads.
    child.stdin.take().expect("it was asked for").write_all(typed.as_bytes()).expect("ttvm reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// Returns the position at which this text is typed, in the notation of the command line.
fn key_of(recording: &Path, text: &str) -> String {
    let recording = open(recording);
    let mut events = recording.log.events().map(|record| record.expect("the log is whole"));
    let is_it =
        |event: &Event| matches!(event, Event::ConsoleInput(bytes) if text.as_bytes().starts_with(bytes));
    let number = events.position(|record| is_it(&record.event)).expect("it was typed");
    format!("event:{number}")
}

#[test]
fn a_shell_goes_on_from_a_recording_and_what_is_typed_is_recorded_anew() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let path = directory.path();
    let mut script = Script::shell(&["export word=kept; mount", "poweroff -f"]);
    record(&Guest::linux(&CLOUD, &BUSYBOX, "", 128), &path.join("old.ttvm"), &mut script);
    let typed = "echo word is $word; date +%Y; poweroff -f\n";
    // The position is before the command to power off, while the shell waits for input.
    let at = key_of(&path.join("old.ttvm"), "poweroff -f\n");
    let arguments = ["record", "--snapshot-from", "old.ttvm", "--at", &at, "-o", "new.ttvm"];
    let live = output(path, &arguments, typed);
    assert!(live.contains("\nword is kept\n"), "{live}");
    let year = live.lines().find(|line| line.len() == 4 && line.starts_with("20")).map(str::to_string);
    assert!(year.is_some(), "{live}");
    let replayed = output(path, &["replay", "new.ttvm", "--verify"], "");
    assert!(replayed == live, "{replayed}");
    let found = output(path, &["search", "new.ttvm", "console:word is kept"], "");
    assert!(found.contains("insn:"), "{found}");
    assert!(output(path, &["replay", "old.ttvm", "--verify"], "").contains("mount"));
}
