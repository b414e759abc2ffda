//! Tests `--snapshot-from`, and recordings that begin while a guest runs.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::ttvm;
use machine::error::exit_code;
use tiny_guest::{record, record_calls, typed, write_kernel};

/// Rounds of a guest that runs longer than a test.
const ENDLESS: u32 = u32::MAX;

/// Names and contents of all files in a folder and below it.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => found.push((path.display().to_string(), std::fs::read(path).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn a_recording_goes_on_live_and_is_recorded_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record_calls(path, "r.ttvm", 3_000, None);
    let before = contents(&path.join("r.ttvm"));
    let (_, whole, _) = ttvm(path, &["replay", "r.ttvm"]);
    for at in ["start", "insn:20000", "37%", "syscall:100", "event:0", "-1000", "+10us", "0.00002s"] {
        let (code, out, said) = ttvm(path, &["run", "--snapshot-from", "r.ttvm", "--at", at]);
        assert_eq!(code, exit_code::FAILED, "the guest panics in the end: {said}");
        assert!(!out.is_empty() && whole.ends_with(&out), "{at}: {out}");
    }
    let (code, live, said) =
        ttvm(path, &["record", "--snapshot-from", "r.ttvm", "--at", "50%", "-o", "n.ttvm"]);
    assert!(code == exit_code::FAILED && said.contains("going on from instruction"), "{said}");
    for verb in
        [&["replay", "n.ttvm", "--verify"][..], &["verify", "n.ttvm"], &["state", "n.ttvm", "--at", "37%"]]
    {
        let (code, out, said) = ttvm(path, verb);
        assert_eq!(code, exit_code::DONE, "{verb:?}: {said}");
        assert!(verb[0] != "replay" || out == live);
    }
    let (_, out, _) = ttvm(path, &["info", "n.ttvm"]);
    assert!(out.contains("begins        with the state of another run"), "{out}");
    let (code, _, said) = ttvm(path, &["relink", "n.ttvm", "--kernel", "calls-3000"]);
    assert!(code == exit_code::UNREADABLE_RECORDING && said.contains("needs no kernel"), "{said}");
    assert!(contents(&path.join("r.ttvm")) == before, "the recording was changed");
}

#[test]
fn what_cannot_go_on_is_one_sentence_with_the_right_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record(path, "r.ttvm", 2_000, typed(&[(5_000, "a")]));
    let from =
        |more: &[&'static str]| [&["record", "--snapshot-from", "r.ttvm", "-o", "n.ttvm"][..], more].concat();
    std::fs::create_dir(path.join("there")).unwrap();
    record(path, "damaged.ttvm", 2_000, Vec::new());
    std::fs::write(path.join("damaged.ttvm/events.log"), b"no log").unwrap();
    let manifest = |name: &str, from: &str, to: &str| {
        record(path, name, 2_000, Vec::new());
        let file = path.join(name).join("manifest.json");
        std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace(from, to)).unwrap();
    };
    manifest("other-model.ttvm", "ttvm-v2", "ttvm-v9");
    let other = |recording: &'static str| vec!["run", "--snapshot-from", recording];
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (
            from(&["--at", "insn:99999999"]),
            exit_code::USAGE,
            "the recording ends before instruction 99999999",
        ),
        (from(&["--at", "5s"]), exit_code::USAGE, "the recording ends before 5 s"),
        (from(&["--at", "panic"]), exit_code::USAGE, "did not panic"),
        (from(&["--at", "end"]), exit_code::USAGE, "choose an earlier position"),
        (from(&["--at", "nowhere"]), exit_code::USAGE, "--at"),
        (from(&["--net", "user"]), exit_code::USAGE, "has no network card"),
        (from(&["--engine", "kvm"]), exit_code::HOST_LACKS_FEATURE, "use --engine soft"),
        (from(&["--kernel", "tiny-2000"]), exit_code::USAGE, "--kernel"),
        (from(&["--memory", "8M"]), exit_code::USAGE, "--memory"),
        (from(&["--cmdline", "x"]), exit_code::USAGE, "--cmdline"),
        (from(&["--date", "1"]), exit_code::USAGE, "--date"),
        (vec!["record", "--snapshot-from", "r.ttvm", "-o", "r.ttvm"], exit_code::FAILED, "never overwrites"),
        (vec!["record", "--snapshot-from", "r.ttvm", "-o", "there"], exit_code::FAILED, "never overwrites"),
        (vec!["run", "--kernel", "tiny-2000", "--at", "end"], exit_code::USAGE, "--snapshot-from"),
        (vec!["run", "--kernel", "tiny-2000", "-o", "n.ttvm"], exit_code::USAGE, "use `ttvm record`"),
        (vec!["run", "--kernel", "tiny-2000", "--record-when", "x"], exit_code::USAGE, "--output"),
        (other("missing.ttvm"), exit_code::UNREADABLE_RECORDING, "there is no recording here"),
        (other("damaged.ttvm"), exit_code::UNREADABLE_RECORDING, "events.log"),
        (other("other-model.ttvm"), exit_code::UNREADABLE_RECORDING, "ttvm-v9"),
    ];
    for (arguments, expected, text) in cases {
        let (code, _, said) = ttvm(path, &arguments);
        assert!(code == expected && said.contains(text), "{arguments:?}: {code}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(!path.join("n.ttvm").exists(), "{arguments:?} leaves a folder behind");
    }
    assert_eq!(ttvm(path, &["replay", "r.ttvm", "--verify"]).0, exit_code::DONE);
}

/// A guest that echoes typed keys.
struct Running {
    child: Child,
    keyboard: ChildStdin,
    screen: ChildStdout,
}

impl Running {
    fn start(directory: &Path, arguments: &[&str]) -> Running {
        write_kernel(directory, ENDLESS);
        let kernel = format!("tiny-{ENDLESS}");
        // In a test run in the background, some signals are ignored, and started programs inherit this. So `env` sets
        // the default actions.
        let mut command = Command::new("env");
        command.args([
            "--default-signal=TERM",
            env!("CARGO_BIN_EXE_ttvm"),
            "run",
            "--kernel",
            &kernel,
            "--memory",
            "4M",
        ]);
        command.args(arguments).current_dir(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (keyboard, screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut running = Running { child, keyboard, screen };
        // Keys typed before the guest has set up its port are lost.
        running.types("a");
        running
    }

    /// Types a letter, and waits until the guest has shown it.
    fn types(&mut self, letter: &str) {
        self.keyboard.write_all(letter.as_bytes()).unwrap();
        let mut shown = [0];
        self.screen.read_exact(&mut shown).unwrap();
        assert_eq!(shown, letter.as_bytes());
    }

    fn end(mut self) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), nix::sys::signal::SIGTERM)
            .unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(exit_code::DONE));
    }
}

#[test]
fn a_run_is_recorded_when_it_is_asked_to_and_no_client_holds_it_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut running = Running::start(path, &["--control", "control", "-o", "n.ttvm"]);
    let mode = std::fs::metadata(path.join("control")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // One client sends nothing, one client sends too much, and one client goes away.
    let silent = UnixStream::connect(path.join("control")).unwrap();
    UnixStream::connect(path.join("control")).unwrap().write_all(&[b'x'; 10_000]).unwrap();
    drop(UnixStream::connect(path.join("control")).unwrap());
    running.types("b");
    let (code, out, _) = ttvm(path, &["control", "control", "status"]);
    assert!(code == exit_code::DONE && out.starts_with("not recorded"), "{out}");
    let (code, out, said) = ttvm(path, &["control", "control", "record"]);
    assert!(code == exit_code::DONE && out.starts_with("recorded in n.ttvm from"), "{out} {said}");
    let (code, _, said) = ttvm(path, &["control", "control", "record"]);
    assert!(code == exit_code::FAILED && said.contains("already"), "{said}");
    running.types("c");
    running.types("d");
    let (_, out, _) = ttvm(path, &["control", "control", "status"]);
    assert!(out.starts_with("recorded in n.ttvm since"), "{out}");
    drop(silent);
    running.end();
    let (code, out, said) = ttvm(path, &["replay", "n.ttvm", "--verify"]);
    assert!((code, out.as_str()) == (exit_code::DONE, "cd"), "{out} {said}");
    assert!(!path.join("control").exists(), "the socket is removed");
    let (code, _, said) = ttvm(path, &["control", "control", "status"]);
    assert!(code == exit_code::FAILED && said.contains("start one with --control control"), "{said}");
}

#[test]
fn a_run_is_recorded_from_a_text_on_and_leaves_nothing_where_it_does_not_come() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut running = Running::start(path, &["--record-when", "bc", "-o", "n.ttvm"]);
    ["b", "x", "b", "c", "d", "e"].iter().for_each(|letter| running.types(letter));
    running.end();
    let (code, out, said) = ttvm(path, &["replay", "n.ttvm", "--verify"]);
    assert!((code, out.as_str()) == (exit_code::DONE, "de"), "{out} {said}");
    Running::start(path, &["--record-when", "never", "-o", "none.ttvm"]).end();
    assert!(!path.join("none.ttvm").exists());
}

#[test]
fn a_run_without_a_folder_can_be_asked_and_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let running = Running::start(path, &["--control", "control"]);
    let (code, _, said) = ttvm(path, &["control", "control", "record"]);
    assert!(code == exit_code::FAILED && said.contains("-o NAME.ttvm"), "{said}");
    running.end();
}

#[test]
fn a_disk_without_room_for_the_starting_state_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record_calls(path, "r.ttvm", 3_000, None);
    // With this limit, no file may have even one byte.
    let line = format!(
        "trap '' XFSZ; ulimit -f 0; exec {} record --snapshot-from r.ttvm --at 50% -o n.ttvm 2>&1 | cat",
        env!("CARGO_BIN_EXE_ttvm")
    );
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", &line]).current_dir(path).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.code() == Some(exit_code::FAILED) && said.contains("cannot write n.ttvm/images/start"),
        "{said}"
    );
    assert!(!path.join("n.ttvm").exists(), "a second try finds its name taken");
}
