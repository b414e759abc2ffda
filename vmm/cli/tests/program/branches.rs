//! Tests `ttvm run --snapshot-from --branches`: many live machines that start from one place.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use history::timeline::Timeline;
use machine::error::exit_code;
use machine::hashes::hex;
use machine::position::Count;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tiny_guest::{DENSE, Script, open, record, record_calls, several, typed};

use crate::common::ttvm;

/// Runs branches of `r.ttvm`, and returns the exit code and each branch's report.
fn branches(path: &Path, count: u32, more: &[&str]) -> (i32, Vec<Value>) {
    let count = count.to_string();
    let arguments = ["run", "--snapshot-from", "r.ttvm", "--branches", &count, "--json", "-o", "consoles"];
    let (code, out, said) = ttvm(path, &[&arguments[..], more].concat());
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap_or_else(|why| panic!("{why}: {out} {said}"));
    assert!(said.contains(&format!("{count} branches ended")), "{said}");
    (code, rows)
}

fn console(path: &Path, branch: u32) -> String {
    std::fs::read_to_string(path.join(format!("consoles/branch-{branch:03}.log"))).unwrap()
}

#[test]
fn branches_that_differ_by_nothing_do_what_one_run_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record_calls(path, "r.ttvm", 3_000, None);
    let (one, live, said) = ttvm(path, &["run", "--snapshot-from", "r.ttvm", "--at", "37%"]);
    let (code, rows) =
        branches(path, 10, &["--at", "37%", "--jobs", "10", "--vary", "nothing", "--state-hash"]);
    assert_eq!((code, one, rows.len()), (exit_code::FAILED, exit_code::FAILED, 10), "the guest panics");
    for (row, number) in rows.iter().zip(1..) {
        assert_eq!((row["branch"].as_u64(), console(path, number)), (Some(u64::from(number)), live.clone()));
        let length = format!("after {} instructions", row["instructions"]);
        assert!(said.contains(&length) && said.contains(row["ended"].as_str().unwrap()), "{said} {row}");
        assert_eq!((&row["state_hash"], &row["panic"]), (&rows[0]["state_hash"], &rows[0]["panic"]));
    }
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&path.join("consoles").metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_branch_has_the_state_of_a_recorded_run_from_the_same_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record(path, "r.ttvm", 40_000, typed(&[(5_000, "a"), (300_000, "b")]));
    let limits = ["--at", "insn:100000", "--max-instructions", "123457"];
    let again = ["record", "--snapshot-from", "r.ttvm", "-o", "n.ttvm"];
    assert_eq!(ttvm(path, &[&again[..], &limits].concat()).0, exit_code::DONE);
    let expected = hash_at_end(&path.join("n.ttvm"), 123_457);
    let (code, rows) = branches(path, 3, &[&limits[..], &["--vary", "nothing", "--state-hash"]].concat());
    assert_eq!(code, exit_code::DONE);
    for row in &rows {
        assert_eq!(
            (row["instructions"].as_u64(), row["state_hash"].as_str()),
            (Some(123_457), Some(&*expected))
        );
    }
    std::fs::remove_dir_all(path.join("consoles")).unwrap();
    let (_, rows) = branches(path, 3, &[&limits[..], &["--state-hash"]].concat());
    let mut states: Vec<String> = rows.iter().map(|row| row["state_hash"].to_string()).collect();
    states.sort();
    states.dedup();
    assert_eq!(states.len(), 3, "each entropy device has another seed");
}

/// The hash that `--state-hash` prints for a machine at the recording's end. The recording must end at position
/// `instruction`.
fn hash_at_end(recording: &Path, instruction: u64) -> String {
    let mut timeline = Timeline::open(&open(recording)).unwrap();
    timeline.seek(timeline.end(), &mut || false).unwrap();
    assert_eq!(timeline.position().number(), instruction);
    let hashes = timeline.machine_mut().hashes();
    let all = [&hashes.cpu[..], &hashes.devices, &hashes.ram, &hashes.disk].concat();
    hex(&blake3::hash(&all).as_bytes()[..16])
}

#[test]
fn a_branch_with_other_turns_can_be_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let processors = several::processors(3);
    several::record(path, "r.ttvm", (8_000, processors), DENSE, None, Script(Vec::new()));
    let limits = ["--at", "insn:50000", "--max-instructions", "100000"];
    let (code, rows) = branches(path, 4, &[&limits[..], &["--vary", "turns", "--state-hash"]].concat());
    assert_eq!(code, exit_code::DONE);
    let hashes: Vec<&str> = rows.iter().map(|row| row["state_hash"].as_str().unwrap()).collect();
    assert!(
        (1..4).all(|number| !hashes[..number].contains(&hashes[number])),
        "each takes other turns: {hashes:?}"
    );
    for (number, expected) in (1..).zip(hashes) {
        let (name, turns) = (format!("n{number}.ttvm"), format!("random:{number}"));
        let again = ["record", "--snapshot-from", "r.ttvm", "-o", &name, "--turns", &turns];
        assert_eq!(ttvm(path, &[&again[..], &limits].concat()).0, exit_code::DONE);
        assert_eq!(hash_at_end(&path.join(&name), 100_000), expected, "branch {number}");
        assert_eq!(ttvm(path, &["verify", &name]).0, exit_code::DONE);
    }
    record(path, "one.ttvm", 1_000, Vec::new());
    for more in [&["--turns", "ring"][..], &["--branches", "2", "-o", "d", "--vary", "turns"]] {
        let (code, _, said) =
            ttvm(path, &[&["run", "--snapshot-from", "one.ttvm", "--at", "50%"], more].concat());
        assert!(code == exit_code::USAGE && said.contains("several processors"), "{code}: {said}");
    }
}

#[test]
fn lines_say_how_each_branch_ended_and_what_is_impossible_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    record(path, "r.ttvm", 40_000, Vec::new());
    let run = |more: &[&str]| ttvm(path, &[&["run", "--snapshot-from", "r.ttvm"][..], more].concat());
    let (code, out, said) = run(&["--at", "50%", "--branches", "4", "-o", "c", "--max-instructions", "10"]);
    assert_eq!(code, exit_code::DONE, "{said}");
    assert_eq!(out.matches("ended at the limit that was set after 10 instructions").count(), 4, "{out}");
    assert!(said.contains("4 branches ended. 4 times: ended at the limit"), "{said}");
    let refused = [
        (&["--branches", "4"][..], exit_code::USAGE, "--output"),
        (&["--branches", "0", "-o", "d"], exit_code::USAGE, "0 is not in"),
        (&["--branches", "4", "-o", "c"], exit_code::FAILED, "exists already"),
        (&["--branches", "4", "-o", "d", "--control", "s"], exit_code::USAGE, "--control"),
        (&["--branches", "4", "-o", "d", "--net", "user"], exit_code::USAGE, "--net"),
        (&["--branches", "4", "-o", "d", "--engine", "kvm"], exit_code::HOST_LACKS_FEATURE, "--engine soft"),
        (&["--branches", "4", "-o", "d", "--at", "end"], exit_code::USAGE, "choose an earlier position"),
        (&["--branches", "4", "-o", "d", "--measure-at", "0"], exit_code::USAGE, "--no-sandbox"),
        (&["--jobs", "4"], exit_code::USAGE, "--branches"),
    ];
    for (arguments, expected, text) in refused {
        let (code, _, said) = run(arguments);
        assert!(code == expected && said.contains(text), "{arguments:?}: {code}: {said}");
        assert!(!path.join("d").exists(), "{arguments:?} leaves a folder behind");
    }
    let (code, _, said) = ttvm(path, &["run", "--kernel", "tiny-40000", "--branches", "4", "-o", "d"]);
    assert!(code == exit_code::USAGE && said.contains("--snapshot-from"), "{said}");
}

#[test]
fn a_signal_ends_all_branches_and_each_says_where() {
    // A terminal sends ^C to the command and to all of its branches.
    for (signal, to_the_group) in [(Signal::SIGTERM, false), (Signal::SIGINT, true)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let endless =
            ["--kernel", "endless", "--memory", "4M", "--max-instructions", "100000", "-o", "e.ttvm"];
        std::fs::rename(tiny_guest::write_kernel(path, u32::MAX), path.join("endless")).unwrap();
        assert_eq!(ttvm(path, &[&["record"][..], &endless].concat()).0, exit_code::DONE);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ttvm"));
        command.args(["run", "--snapshot-from", "e.ttvm", "--branches", "50", "--jobs", "3", "-o", "c"]);
        command.current_dir(path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn().unwrap();
        while !path.join("c/branch-003.log").exists() {
            std::thread::yield_now();
        }
        let process = Pid::from_raw(child.id() as i32);
        if to_the_group {
            killpg(process, signal).unwrap();
        } else {
            kill(process, signal).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(exit_code::DONE), "{signal}: {out} {said}");
        assert_eq!(out.matches("interrupted by a signal after").count(), 3, "{signal}: {out}");
        assert!(said.contains("3 of 50 branches had begun"), "{signal}: {said}");
    }
}
