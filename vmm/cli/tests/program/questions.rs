//! Tests the verbs that ask the whole run, with guests that imitate Linux. The packages' own tests know more answers; here
//! the program's arguments, exit codes and two forms of output are tested.

use std::path::Path;

use crate::common::ttvm;
use serde_json::Value;
use tiny_guest::linux::callbacks::{self, Pending};
use tiny_guest::linux::{self, CALLS};

/// The number of system calls that the guest makes.
const MADE: u32 = 5;

/// A recording of the guest in `r.ttvm`.
fn recording() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    linux::record(directory.path(), "r.ttvm", MADE, None);
    directory
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let (code, out, told) = ttvm(directory, arguments);
    assert_eq!((code, told.as_str()), (0, ""), "{arguments:?}: {out}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
}

/// The numbers of instructions in a list of rows.
fn instructions(rows: &Value) -> Vec<u64> {
    rows.as_array().unwrap().iter().map(|row| row["instruction"].as_u64().unwrap()).collect()
}

#[test]
fn calls_are_listed() {
    let directory = recording();
    let (code, out, told) = ttvm(directory.path(), &["calls", "r.ttvm", "__switch_to", "pid:6"]);
    assert_eq!(code, 0, "{told}");
    assert_eq!(out.lines().count(), 5, "{out}");
    assert!(out.starts_with("insn:87  0.000000087 s  6 (beta)  __switch_to(rdi = 0x"), "{out}");
    assert!(told.starts_with("ttvm: 5 calls found, 0.000"), "{told}");
    // Each system call switches to the other thread and back.
    let rows = json(directory.path(), &["calls", "r.ttvm", "__switch_to", "--json"]);
    assert_eq!(instructions(&rows["calls"]).len(), 2 * MADE as usize);
    for (arguments, expected) in [
        (&["--limit", "3"][..], &[81, 87, 177][..]),
        (&["--from", "insn:87", "--to", "+100"], &[87, 177, 183]),
        (&["--from", "insn:88", "--to", "insn:178", "--threads", "1"], &[177]),
    ] {
        let all = [&["calls", "r.ttvm", "__switch_to", "--json"], arguments].concat();
        assert_eq!(instructions(&json(directory.path(), &all)["calls"]), expected, "{arguments:?}");
    }
    let (code, out, _) = ttvm(directory.path(), &["calls", "r.ttvm", "__switch_to", "pid:2", "--json"]);
    assert_eq!(code, 1, "{out}");
    for (arguments, why) in [
        (&["no_such_function"][..], "is no function of the guest's kernel"),
        (&["decoy", "colour:red"], "colour:red"),
        (&["decoy", "--limit", "0"], "--limit"),
        (&["__switch_to", "--from", "insn:300", "--to", "insn:100"], "swap the two positions"),
    ] {
        let (code, out, told) = ttvm(directory.path(), &[&["calls", "r.ttvm"], arguments].concat());
        assert!(code == 2 && out.is_empty() && told.contains(why), "{arguments:?}: {code}: {told}");
    }
}

#[test]
fn values_are_listed() {
    let directory = recording();
    let (code, out, told) = ttvm(directory.path(), &["values", "r.ttvm", "calls", "--from", "insn:100"]);
    assert_eq!(code, 0, "{told}");
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some(&*format!("calls at {CALLS:#x}, at first 0x1")));
    assert_eq!(lines.next(), Some("insn:187  0.000000188 s  5 (alpha)  do_syscall_64+0x4c  0x2"));
    assert_eq!(lines.count(), 3);
    assert!(told.starts_with("ttvm: 4 writes found, 0.000"), "{told}");
    let found = json(directory.path(), &["values", "r.ttvm", "calls", "--limit", "2", "--json"]);
    assert_eq!(instructions(&found["writes"]), [91, 187]);
    // Each system call switches to the other thread and back.
    let of = |arguments: &[&str]| {
        let all = [&["values", "r.ttvm", "current_task", "--json"], arguments].concat();
        instructions(&json(directory.path(), &all)["writes"]).len()
    };
    assert_eq!((of(&[]), of(&["pid:6"]), of(&["comm:alpha"])), (10, 5, 5));
    let address = format!("{:#x}", CALLS + 0x100);
    assert_eq!(ttvm(directory.path(), &["values", "r.ttvm", &address]).0, 1, "it is never written");
    let (code, _, told) = ttvm(directory.path(), &["values", "r.ttvm", "nothing"]);
    assert!(code == 2 && told.contains("nothing"), "{told}");
}

#[test]
fn a_tree_of_calls_is_shown() {
    let directory = recording();
    let tree = ["tree", "r.ttvm", "--from", "insn:60", "--to", "+140"];
    let (code, out, told) = ttvm(directory.path(), &tree);
    assert_eq!((code, told.as_str()), (0, "ttvm: 140 instructions observed\n"));
    assert!(out.starts_with("thread 5 (alpha)\ninsn:65  "), "{out}");
    let shape = |arguments: &[&str]| {
        let found = json(directory.path(), &[&tree, &["--json"][..], arguments].concat());
        let calls = found["calls"].as_array().unwrap();
        let inner = calls[1]["calls"].as_array().map_or(0, Vec::len);
        (found["pid"].as_u64(), calls.len(), inner)
    };
    assert_eq!(shape(&[]), (Some(5), 4, 3));
    assert_eq!(shape(&["--depth", "1"]), (Some(5), 4, 0));
    assert_eq!(shape(&["--thread", "6"]).0, Some(6));
    assert_eq!(ttvm(directory.path(), &[&tree, &["--depth", "0"][..]].concat()).0, 2);
}

#[test]
fn a_profile_counts_functions_and_writes_paths() {
    let directory = recording();
    let (code, out, told) =
        ttvm(directory.path(), &["profile", "r.ttvm", "--by", "calls", "--limit", "1", "--folded", "paths"]);
    assert_eq!((code, told.as_str()), (0, "ttvm: these are the first 1 functions; --limit shows more\n"));
    assert!(out.contains("__switch_to") && !out.contains("decoy"), "{out}");
    let folded = std::fs::read_to_string(directory.path().join("paths")).unwrap();
    assert_eq!(folded, "decoy 5\ndo_syscall_64 190\ndo_syscall_64;__switch_to 30\n");
    let first = |arguments: &[&str]| {
        let found = json(directory.path(), &[&["profile", "r.ttvm", "--json"], arguments].concat());
        found["functions"][0]["function"].as_str().unwrap().to_string()
    };
    assert_eq!(first(&[]), "do_syscall_64");
    assert_eq!(first(&["--by", "calls"]), "__switch_to");
    assert_eq!(first(&["--by", "total"]), "do_syscall_64");
    let part = json(directory.path(), &["profile", "r.ttvm", "--json", "--from", "insn:65", "--to", "+8"]);
    // The kernel's entry has three instructions left, and then calls the function.
    let call = serde_json::json!([{"function": "do_syscall_64", "calls": 1, "own": 5, "total": 5}]);
    assert_eq!((&part["functions"], part["outside"].as_u64()), (&call, Some(3)), "{part}");
    let (_, _, told) = ttvm(directory.path(), &["profile", "r.ttvm", "--limit", "3"]);
    assert_eq!(told, "", "there are three functions");
    let (code, _, told) = ttvm(directory.path(), &["profile", "r.ttvm", "--folded", "paths"]);
    assert!(code == 1 && told.contains("it exists"), "{code}: {told}");
}

#[test]
fn two_positions_are_compared() {
    let directory = recording();
    let (code, out, told) = ttvm(directory.path(), &["diff", "r.ttvm", "insn:85", "insn:200"]);
    assert!(code == 0 && told.is_empty(), "{told}");
    assert!(out.contains("calls") && out.contains("0x0") && out.contains("0x2"), "{out}");
    let numbers = |arguments: &[&str]| {
        let found = json(directory.path(), &[&["diff", "r.ttvm", "--json"], arguments].concat());
        let place = |side: &str| found[side]["instruction"].as_u64().unwrap();
        let names = found["variables"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
        (place("from"), place("to"), names.map(str::to_string).collect::<Vec<_>>())
    };
    let both = || vec!["calls".to_string(), "current_task".to_string()];
    assert_eq!(numbers(&["insn:85", "insn:200"]), (85, 200, both()));
    assert_eq!(numbers(&["insn:85", "+115"]), (85, 200, both()));
    assert_eq!(numbers(&["insn:200", "insn:85"]), (200, 85, both()));
    assert_eq!(numbers(&["insn:85", "insn:200", "--limit", "1"]), (85, 200, vec!["calls".to_string()]));
    assert_eq!(numbers(&["insn:85", "insn:85"]), (85, 85, vec![]));
    // The second position may be in another recording of the same kernel.
    linux::record(directory.path(), "longer.ttvm", MADE + 1, None);
    let at_ends =
        json(directory.path(), &["diff", "r.ttvm", "end", "end", "--with", "longer.ttvm", "--json"]);
    let calls = &at_ends["variables"][0];
    assert_eq!(
        (&calls["name"], &calls["old"], &calls["new"]),
        (&"calls".into(), &"0x5".into(), &"0x6".into())
    );
}

#[test]
fn values_are_followed_back_and_forth() {
    let directory = recording();
    let (code, out, told) = ttvm(directory.path(), &["who-set", "r.ttvm", "calls", "--at", "insn:200"]);
    assert_eq!(code, 0, "{told}");
    assert!(
        out.starts_with("calls at insn:200 is 0x2 (8 bytes)\ninsn:187  5 (alpha)  do_syscall_64+0x49"),
        "{out}"
    );
    assert!(told.starts_with("ttvm: 1 writes found, 0.000"), "{told}");
    let found = json(directory.path(), &["who-set", "r.ttvm", "calls", "--at", "insn:100", "--json"]);
    assert_eq!((instructions(&found["links"]), &found["value"]), (vec![91], &"0x1".into()));
    // The first system call returns the number of bytes. This value comes from RDX through the saved registers: PUSH, two
    // times MOV, and POP.
    let at = ["who-set", "r.ttvm", "rax", "--at", "insn:130", "--json"];
    let long = json(directory.path(), &at);
    let links = instructions(&long["links"]);
    assert_eq!((links.len(), &long["value"], &long["end"]["kind"]), (5, &"0x5".into(), &"constant".into()));
    let limited = json(directory.path(), &[&at[..], &["--limit", "1"]].concat());
    assert_eq!(
        (instructions(&limited["links"]), &limited["end"]["kind"]),
        (links[..1].to_vec(), &"limit".into())
    );
    let (code, _, told) = ttvm(directory.path(), &["who-set", "r.ttvm", "nothing"]);
    assert!(code == 2 && told.contains("no symbol nothing"), "{told}");
    assert_eq!(ttvm(directory.path(), &["who-set", "r.ttvm", "rax", "--cpu", "1"]).0, 2);

    let from = ["where-to", "r.ttvm", "calls", "--from", "insn:92"];
    let (code, out, told) = ttvm(directory.path(), &from);
    assert!(code == 0 && told.contains(" copies and uses found, 0.000"), "{out}{told}");
    assert!(out.contains("insn:187"), "the next increment uses the value: {out}");
    let before = json(directory.path(), &[&from, &["--to", "+50", "--json"][..]].concat());
    assert_eq!(before["passages"].as_array().unwrap().len(), 0, "{before}");
}

#[test]
fn callbacks_go_back_to_their_origin() {
    let directory = tempfile::tempdir().unwrap();
    let (_, places) = callbacks::record(directory.path(), "r.ttvm", Pending::Variable);
    let hit = ["search", "r.ttvm", &format!("break:{:#x}", places["work_runs"]), "--forward", "--json"];
    let hits = json(directory.path(), &hit.each_ref().map(|word| &**word));
    let at = format!("insn:{}", hits["hits"][0]["instruction"]);
    let (code, out, told) = ttvm(directory.path(), &["origin", "r.ttvm", "--at", &at]);
    assert_eq!(code, 0, "{out}{told}");
    assert!(out.contains("work item work_runs(") && out.contains("timer timer_ticks("), "{out}");
    assert!(told.starts_with("ttvm: 2 callbacks found, 0.0"), "{told}");
    let one =
        json(directory.path(), &["origin", "r.ttvm", "work_runs", "--at", &at, "--limit", "1", "--json"]);
    assert_eq!(one["links"].as_array().unwrap().len(), 1);
    assert_eq!((&one["links"][0]["function"], &one["end"]["kind"]), (&"work_runs".into(), &"limit".into()));
    let (code, _, told) = ttvm(directory.path(), &["origin", "r.ttvm", "free_object", "--at", &at]);
    assert!(code == 2 && told.contains("free_object"), "{code}: {told}");
}

#[test]
fn the_board_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    tiny_guest::record(directory.path(), "r.ttvm", 2_000, Vec::new());
    let (code, out, told) = ttvm(directory.path(), &["board", "r.ttvm", "--at", "insn:5000"]);
    assert!(code == 0 && told.is_empty() && out.contains(": local APIC "), "{out}{told}");
    let board = json(directory.path(), &["board", "r.ttvm", "--at", "insn:5000", "--json"]);
    assert_eq!(board["instruction"], 5000);
    // The guest starts the PIT's first channel with 60 counts.
    assert_eq!(board["pit"][0]["reload"], 60, "{}", board["pit"]);
    assert_eq!(board["local_apics"].as_array().unwrap().len(), 1);
}

#[test]
fn an_object_needs_a_kernel_with_known_types() {
    let directory = recording();
    for address in [format!("{:#x}", linux::task(5)), "calls".to_string(), "rsp".to_string()] {
        let (code, out, told) = ttvm(directory.path(), &["object", "r.ttvm", &address]);
        assert!(code == 2 && out.is_empty() && told.starts_with("ttvm: "), "{address}: {code}: {out}{told}");
    }
}

#[test]
fn a_search_lists_system_calls_with_their_arguments() {
    let directory = recording();
    let (code, out, told) = ttvm(directory.path(), &["search", "r.ttvm", "syscall", "--all"]);
    assert_eq!(code, 0, "{told}");
    let calls: Vec<&str> = out.lines().filter(|line| line.contains("  5 (alpha)  ")).collect();
    let [write, read] = ["write(1, \"hello\", 5) = 5", "read(1, 0x150000, 5) = -ENOENT"];
    assert_eq!(calls.len(), MADE as usize, "{out}");
    for (number, call) in calls.iter().enumerate() {
        assert!(call.contains(if number % 2 == 0 { write } else { read }), "{call}");
    }
    assert!(told.starts_with("ttvm: 5 found, 0.000"), "{told}");
}
