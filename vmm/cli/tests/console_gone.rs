//! Tests that a recording gets its end record, even if the console's reader goes away or a signal ends the run.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use tiny_guest::{open, write_kernel};

const TTVM: &str = env!("CARGO_BIN_EXE_ttvm");

/// A directory with a guest that echoes typed keys, for ever.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::rename(write_kernel(directory.path(), u32::MAX), directory.path().join("kernel")).unwrap();
    directory
}

const RECORD: [&str; 7] = ["record", "-o", "r.ttvm", "--kernel", "kernel", "--memory", "4M"];

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TTVM);
    command.args(arguments).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Types a key and waits for its echo.
fn typed_and_echoed(child: &mut Child, key: u8) {
    child.stdin.as_mut().unwrap().write_all(&[key]).unwrap();
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    assert_eq!(byte[0], key);
}

/// Reads the program's messages until a line contains `part`. Returns all lines so far.
fn told(child: &mut Child, part: &str) -> String {
    let mut told = String::new();
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap());
    while !told.contains(part) {
        assert_ne!(lines.read_line(&mut told).unwrap(), 0, "it ended without '{part}': {told}");
    }
    told
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the recording has its end record, and that its replay prints `console`.
fn assert_whole(directory: &Path, console: &str) {
    assert!(open(&directory.join("r.ttvm")).log.end.is_some());
    let (code, shown, told) = common::ttvm(directory, &["replay", "r.ttvm", "--verify"]);
    assert_eq!((code, shown.as_str()), (0, console), "{told}");
}

#[test]
fn a_guest_goes_on_when_nobody_reads_its_console() {
    let directory = directory();
    let mut child = command(directory.path(), &RECORD).spawn().unwrap();
    typed_and_echoed(&mut child, b'a');
    child.stdout = None;
    child.stdin.as_mut().unwrap().write_all(b"b").unwrap();
    let said = told(&mut child, "the guest goes on without it");
    assert!(said.contains("Broken pipe"), "{said}");
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_whole(directory.path(), "ab");
}

#[test]
fn signals_end_a_recording_in_order() {
    for end in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
        let directory = directory();
        let mut child = command(directory.path(), &RECORD).spawn().unwrap();
        typed_and_echoed(&mut child, b'a');
        signal(&child, end);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{end}: {}", text(&output.stderr));
        assert_whole(directory.path(), "a");
    }
}

#[test]
fn a_reader_that_does_not_read_cannot_keep_a_signal_from_ending_the_run() {
    let directory = directory();
    let mut child = command(directory.path(), &RECORD).spawn().unwrap();
    typed_and_echoed(&mut child, b'a');
    // More keys are typed than a pipe holds. The recorder does not read while it waits, so a separate thread types.
    let mut keys = child.stdin.take().unwrap();
    let typing = std::thread::spawn(move || keys.write_all(&[b'x'; 400_000]));
    let log = directory.path().join("r.ttvm/events.log");
    let mut before = 0;
    loop {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = std::fs::metadata(&log).unwrap().len();
        if now == before {
            break;
        }
        before = now;
    }
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // The recorder has ended, so writing to its standard input may have failed.
    let _ = typing.join().unwrap();
    assert!(open(&directory.path().join("r.ttvm")).log.end.is_some());
}

/// Starts a recording on a new terminal, and closes the terminal after the guest has echoed a key. If `is_its_own`
/// is true, the terminal is the process's controlling terminal, so closing it sends a signal.
fn on_a_terminal_that_is_closed(directory: &Path, is_its_own: bool) -> Child {
    let terminal = nix::pty::openpty(None, None).unwrap();
    // The program must not inherit the terminal's other end. A descriptor made by `try_clone` is closed on exec.
    let mut master = File::from(terminal.master.try_clone().unwrap());
    drop(terminal.master);
    let end = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = if is_its_own { Command::new("setsid") } else { Command::new(TTVM) };
    if is_its_own {
        command.args(["--ctty", TTVM]);
    }
    command.args(RECORD).current_dir(directory).stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(terminal.slave);
    // Until the terminal is raw, it echoes typed keys itself.
    while tcgetattr(&master).unwrap().local_flags.contains(LocalFlags::ECHO) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it made its terminal raw");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The echo of this key can be recognised, because no message contains this key.
    master.write_all(b"~").unwrap();
    let mut byte = [0];
    while byte != *b"~" {
        master.read_exact(&mut byte).unwrap();
    }
    child
}

/// Records on a new terminal until the terminal is raw. Returns the terminal's other end too.
fn on_a_terminal(directory: &Path) -> (Child, File) {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let master = File::from(terminal.master);
    let end = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = Command::new("setsid");
    command.args(["--ctty", TTVM]).args(RECORD).current_dir(directory);
    let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    wait_for_mode(&master, false);
    (child, master)
}

/// Waits until the terminal echoes typed keys (`echoes` is true), as with a shell, or does not echo them.
fn wait_for_mode(terminal: &File, echoes: bool) {
    while tcgetattr(terminal).unwrap().local_flags.contains(LocalFlags::ECHO) != echoes {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_terminal_is_put_back_by_a_stop_and_taken_again_when_the_run_goes_on() {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let directory = directory();
    let (mut child, mut terminal) = on_a_terminal(directory.path());
    let pid = Pid::from_raw(child.id() as i32);
    // The test stops the run by a signal, by a key, and by a signal that no program can catch. After each stop, a shell
    // restores the terminal.
    for way in ["SIGTSTP", "Ctrl-A z", "SIGSTOP"] {
        let cooked = tcgetattr(&terminal).unwrap();
        match way {
            "SIGTSTP" => signal(&child, Signal::SIGTSTP),
            "SIGSTOP" => signal(&child, Signal::SIGSTOP),
            _ => terminal.write_all(b"\x01z").unwrap(),
        }
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP), "{way}");
        let echoes = tcgetattr(&terminal).unwrap().local_flags.contains(LocalFlags::ECHO);
        assert_eq!(echoes, way != "SIGSTOP", "{way}");
        let mut shells = cooked;
        shells.local_flags.insert(LocalFlags::ECHO | LocalFlags::ICANON);
        nix::sys::termios::tcsetattr(&terminal, nix::sys::termios::SetArg::TCSANOW, &shells).unwrap();
        signal(&child, Signal::SIGCONT);
        wait_for_mode(&terminal, false);
    }
    signal(&child, Signal::SIGQUIT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(tcgetattr(&terminal).unwrap().local_flags.contains(LocalFlags::ECHO));
    assert!(open(&directory.path().join("r.ttvm")).log.end.is_some());
}

#[test]
fn a_terminal_that_is_closed_ends_the_recording_in_order() {
    let directory = directory();
    let mut child = on_a_terminal_that_is_closed(directory.path(), true);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(open(&directory.path().join("r.ttvm")).log.end.is_some());
}

#[test]
fn a_terminal_that_is_closed_without_a_signal_leaves_the_guest_running() {
    let directory = directory();
    let mut child = on_a_terminal_that_is_closed(directory.path(), false);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the guest still runs");
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(open(&directory.path().join("r.ttvm")).log.end.is_some());
}

#[test]
fn a_run_goes_on_without_its_outputs() {
    let directory = directory();
    std::os::unix::fs::symlink("/dev/full", directory.path().join("full")).unwrap();
    let arguments = [
        "run",
        "--kernel",
        "kernel",
        "--memory",
        "4M",
        "--max-instructions",
        "3000000",
        "--console-log",
        "full",
    ];
    let mut child = command(directory.path(), &arguments)
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"abc").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("the guest goes on without").count(), 2, "{said}");
}

#[test]
fn a_keyboard_that_cannot_be_read_is_one_on_which_nothing_is_typed() {
    // Reading address 0 of a process fails with EIO, as on a closed terminal. ttvm does not complain about a keyboard
    // that was closed.
    for (keyboard, is_told) in [("/", true), ("/proc/self/mem", false)] {
        let directory = directory();
        let output = command(directory.path(), &[&RECORD[..], &["--max-instructions", "3000000"]].concat())
            .stdin(File::open(keyboard).unwrap())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{keyboard}: {said}");
        assert_eq!(said.contains("cannot read standard input"), is_told, "{keyboard}: {said}");
        assert_whole(directory.path(), "");
    }
}

#[test]
fn how_idle_time_passes_is_said_at_the_start() {
    let directory = directory();
    let said = |stdin: Stdio, more: &[&str]| {
        let run = ["run", "--kernel", "kernel", "--memory", "4M", "--max-instructions", "1000"];
        let output: Output =
            command(directory.path(), &[&run[..], more].concat()).stdin(stdin).output().unwrap();
        text(&output.stderr).lines().next().unwrap().to_string()
    };
    let (_keyboard, pipe) = std::io::pipe().map(|(read, write)| (write, read)).unwrap();
    for (stdin, more, expected) in [
        (Stdio::null(), &[][..], "is skipped, because nobody can type"),
        (Stdio::null(), &["--paced"], "passes in real time, as --paced says"),
        (Stdio::null(), &["--unpaced"], "is skipped, as --unpaced says"),
        (Stdio::from(pipe), &[], "passes in real time until standard input ends"),
    ] {
        let line = said(stdin, more);
        assert!(line.starts_with("ttvm: the guest's idle time ") && line.contains(expected), "{line}");
    }
    let both =
        command(directory.path(), &["run", "--kernel", "kernel", "--paced", "--unpaced"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));
}
