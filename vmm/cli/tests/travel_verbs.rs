//! The verbs of the command line that go to places in a recording: search, state, checkpoints, replay from
//! somewhere.

mod common;

use std::path::Path;

use common::ttvm;
use serde_json::Value;
use tiny_guest::{STIRRED, record_with_checkpoints, typed};
use vmm::position::Count;

const ROUNDS: u32 = 20_000;

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let (code, out, told) = ttvm(directory, arguments);
    assert_eq!(code, 0, "{arguments:?}: {out}{told}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
}

fn recording() -> (tempfile::TempDir, u64) {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(5_000, "a"), (90_000, "b")]);
    let (_, end) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, keys, &[30_000, 105_000]);
    (directory, end.at.count.number())
}

#[test]
fn search_and_state_agree_about_a_write() {
    let (directory, end) = recording();
    let condition = format!("write-phys:{STIRRED:#x}+0x1000");
    let all =
        json(directory.path(), &["search", "r.ttvm", &condition, "--all", "--json", "--limit", "1000000"]);
    let hits = all["hits"].as_array().unwrap();
    assert!(hits.len() > 30, "{} hits", hits.len());
    let place = |hit: &Value| hit["instruction"].as_u64().unwrap();
    let last = json(directory.path(), &["search", "r.ttvm", &condition, "--json"]);
    assert_eq!(place(&last["hits"][0]), place(&hits[hits.len() - 1]));
    let first = json(directory.path(), &["search", "r.ttvm", &condition, "--forward", "--json"]);
    assert_eq!(place(&first["hits"][0]), place(&hits[0]) + 1, "forward stops behind the write");
    // The memory changes between before and after.
    let memory = |at: u64| {
        let range = format!("{STIRRED:#x}:0x1000");
        let arguments = ["state", "r.ttvm", "--at", &format!("insn:{at}"), "--physical", &range, "--json"]
            .map(str::to_string);
        let state = json(directory.path(), &arguments.each_ref().map(String::as_str));
        assert_eq!(state["instruction"].as_u64(), Some(at));
        state["physical"][0]["bytes"].as_str().unwrap().to_string()
    };
    let at = place(&hits[hits.len() / 2]);
    assert_ne!(memory(at), memory(at + 1));
    assert!(at + 1 < end);
    let (code, out, _) = ttvm(directory.path(), &["search", "r.ttvm", "break:0x12345"]);
    assert_eq!((code, out.trim()), (1, "nowhere in that part of the recording"));
    let (code, _, told) = ttvm(directory.path(), &["search", "r.ttvm", "brake:0x12345"]);
    assert!(code == 2 && told.contains("is no condition"), "{code}: {told}");
}

#[test]
fn a_count_or_a_time_names_the_first_instruction_that_reaches_it() {
    let (directory, end) = recording();
    let state = |at: &str| json(directory.path(), &["state", "r.ttvm", "--at", at, "--json"]);
    let at_end = state("end");
    let last = at_end["branches"].as_u64().unwrap();
    let mut numbers = tiny_guest::Numbers(7);
    let counts: Vec<u64> = (0..20).map(|_| numbers.below(last) + 1).chain([1, last]).collect();
    for count in counts {
        let found = state(&format!("branch:{count}"))["instruction"].as_u64().unwrap();
        let branches = |at: u64| state(&format!("insn:{at}"))["branches"].as_u64().unwrap();
        assert_eq!((branches(found - 1), branches(found)), (count - 1, count), "branch {count} at {found}");
    }
    let half = (at_end["guest_seconds"].as_f64().unwrap() * 5e5).floor() / 1e6;
    let found = state(&format!("{half}s"))["instruction"].as_u64().unwrap();
    let seconds = |at: u64| state(&format!("insn:{at}"))["guest_seconds"].as_f64().unwrap();
    assert!(found < end && seconds(found - 1) < half && seconds(found) >= half, "{half} s at {found}");
    for beyond in [format!("branch:{}", last + 1), format!("{}s", half * 2.1), "syscall:1".to_string()] {
        let (code, _, told) = ttvm(directory.path(), &["state", "r.ttvm", "--at", &beyond]);
        assert!(code == 2 && told.contains("ends before"), "{code}: {told}");
    }
}

#[test]
fn checkpoints_are_listed_added_and_removed() {
    let (directory, end) = recording();
    let list = || {
        let rows = json(directory.path(), &["checkpoints", "r.ttvm", "list", "--json"]);
        let rows = rows.as_array().unwrap().clone();
        rows.iter().map(|row| row["instruction"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let before = list();
    assert!(before.len() >= 3, "{before:?}");
    let middle = end / 2 + 1;
    assert!(!before.contains(&middle));
    let position = format!("insn:{middle}");
    let (code, _, told) = ttvm(directory.path(), &["checkpoints", "r.ttvm", "add", &position]);
    assert_eq!(code, 0, "{told}");
    let mut expected = before.clone();
    expected.push(middle);
    expected.sort_unstable();
    assert_eq!(list(), expected);
    let (code, _, told) = ttvm(directory.path(), &["checkpoints", "r.ttvm", "add", &position]);
    assert!(code == 2 && told.contains("already"), "{code}: {told}");
    let (code, out, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert!(code == 0 && out.contains(&format!("{} compared", expected.len())), "{code}: {out}{told}");
    for at in before {
        let (code, _, told) = ttvm(directory.path(), &["checkpoints", "r.ttvm", "remove", &at.to_string()]);
        assert_eq!(code, 0, "{told}");
    }
    assert_eq!(list(), [middle]);
    let (code, _, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert_eq!(code, 0, "{told}");
    let (code, _, told) = ttvm(directory.path(), &["checkpoints", "r.ttvm", "remove", "77"]);
    assert!(code == 2 && told.contains("no checkpoint at instruction 77"), "{code}: {told}");
}

#[test]
fn a_part_of_a_recording_replays() {
    let (directory, end) = recording();
    let whole = ttvm(directory.path(), &["replay", "r.ttvm"]).1;
    let half = format!("insn:{}", end / 4);
    let (code, first, _) = ttvm(directory.path(), &["replay", "r.ttvm", "--to", &half]);
    assert_eq!(code, 0);
    let (code, second, told) = ttvm(directory.path(), &["replay", "r.ttvm", "--from", &half]);
    assert_eq!((code, first + &second), (0, whole), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["replay", "r.ttvm", "--from", "end", "--to", "start"]);
    assert!(code == 2 && told.contains("before"), "{code}: {told}");
}

#[test]
fn a_guest_without_a_known_kernel_has_neither_processes_nor_symbols() {
    let (directory, _) = recording();
    let (code, out, told) = ttvm(directory.path(), &["state", "r.ttvm", "--processes"]);
    assert!(
        code == 2 && out.is_empty() && told.contains("there are no processes to show: no kernel"),
        "{code}: {told}"
    );
    let (code, out, told) = ttvm(directory.path(), &["symbols", "r.ttvm", "--like", "vmlinux"]);
    assert!(code == 2 && out.is_empty() && told.contains("no kernel with a symbol table"), "{code}: {told}");
    let (code, _, told) = ttvm(directory.path(), &["symbols", "r.ttvm"]);
    assert!(code == 2 && told.contains("--output"), "{code}: {told}");
}
