//! Tests the verbs of the command line that go to places in a recording: search, state, checkpoints, and replay from a
//! place.

use std::path::Path;
use std::process::Command;

use crate::common::ttvm;
use machine::inputs::Event;
use machine::position::Count;
use nix::sys::signal::Signal;
use serde_json::Value;
use tiny_guest::{STIRRED, record_asleep, record_long, record_with_checkpoints, typed};

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
    // The memory before a write differs from the memory after this write.
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
fn a_state_names_the_processor_if_there_are_several() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = tiny_guest::write_kernel(directory.path(), ROUNDS);
    for (name, processors) in [("one.ttvm", "1"), ("two.ttvm", "2")] {
        let record = ["record", "-o", name, "--kernel", kernel.to_str().unwrap(), "--memory", "4M"];
        let more = ["--cpus", processors, "--max-instructions", "5000"];
        let (code, _, told) = ttvm(directory.path(), &[&record[..], &more].concat());
        assert_eq!(code, 0, "{told}");
    }
    // The second processor never starts.
    assert_eq!(json(directory.path(), &["state", "two.ttvm", "--json"])["processor"], 0);
    let (_, out, _) = ttvm(directory.path(), &["state", "two.ttvm"]);
    assert!(out.contains("\non processor 0\n") && out.contains("\n  1  not started\n"), "{out}");
    let (_, out, _) = ttvm(directory.path(), &["state", "two.ttvm", "--cpu", "1"]);
    assert!(out.contains("\non processor 1, not started\n"), "{out}");
    for (name, all) in [("one.ttvm", "only processor 0"), ("two.ttvm", "processors 0 to 1")] {
        let expected = format!("ttvm: there is no processor 2: this machine has {all}\n");
        for arguments in [&["state", name, "--cpu", "2"][..], &["search", name, "syscall", "cpu:2"]] {
            let (code, _, told) = ttvm(directory.path(), arguments);
            assert_eq!((code, told.as_str()), (2, expected.as_str()), "{arguments:?}");
        }
    }
    assert!(json(directory.path(), &["state", "one.ttvm", "--json"]).get("processor").is_none());
    let (_, out, _) = ttvm(directory.path(), &["state", "one.ttvm"]);
    assert!(!out.contains("on processor"), "{out}");
}

#[test]
fn a_stretch_gets_checkpoints_at_equal_distances() {
    let (directory, end) = recording();
    let list = || {
        let rows = json(directory.path(), &["checkpoints", "r.ttvm", "list", "--json"]);
        rows.as_array().unwrap().iter().map(|row| row["instruction"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let add = |arguments: &[&str]| {
        ttvm(directory.path(), &[&["checkpoints", "r.ttvm", "add"][..], arguments].concat())
    };
    let (before, begin) = (list(), end / 2 + 1);
    let (code, _, told) = add(&["--every", "700", "--from", &format!("insn:{begin}"), "--to", "+7100"]);
    assert!(code == 0 && told.contains("11 checkpoints, "), "{code}: {told}");
    let mut expected: Vec<u64> =
        before.into_iter().chain((0..11).map(|number| begin + 700 * number)).collect();
    expected.sort_unstable();
    assert_eq!(list(), expected);
    // A place that has a checkpoint does not get a second checkpoint.
    let (code, _, told) = add(&["--every", "3500", "--from", &format!("insn:{begin}"), "--to", "+7100"]);
    assert!(code == 0 && told.contains("0 checkpoints, 0 bytes"), "{code}: {told}");
    let (code, out, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert!(code == 0 && out.contains(&format!("{} compared", expected.len())), "{code}: {out}{told}");
    // If a limit of file sizes stops `add`, the checkpoints taken earlier stay.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} checkpoints r.ttvm add --every 900",
        env!("CARGO_BIN_EXE_ttvm")
    );
    let full = Command::new("bash").args(["-c", &limited]).current_dir(directory.path()).output().unwrap();
    let told = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(
        full.status.code() == Some(1) && told.contains("make room on the disk"),
        "{:?}: {told}",
        full.status
    );
    let left = list();
    assert!(expected.iter().all(|at| left.contains(at)), "{left:?}");
    let (code, out, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert!(code == 0 && out.contains(&format!("{} compared", left.len())), "{code}: {out}{told}");
    for wrong in [&["--every", "0"][..], &["--every", "5", "insn:7"], &[], &["--from", "5"]] {
        assert_eq!(add(wrong).0, 2, "{wrong:?}");
    }
}

/// Each checkpoint has its own file.
#[test]
fn a_process_with_fewer_descriptors_than_checkpoints_uses_them_all() {
    let directory = tempfile::tempdir().unwrap();
    tiny_guest::record(directory.path(), "r.ttvm", 8_000, Vec::new());
    let limited = |arguments: &str| {
        let script = format!("ulimit -n 48; exec {} {arguments}", env!("CARGO_BIN_EXE_ttvm"));
        let done = Command::new("bash").args(["-c", &script]).current_dir(directory.path()).output().unwrap();
        let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (done.status.code(), text.concat())
    };
    let (code, told) = limited("checkpoints r.ttvm add --every 500");
    assert_eq!(code, Some(0), "{told}");
    let count = std::fs::read_dir(directory.path().join("r.ttvm/checkpoints")).unwrap().count();
    assert!(count > 150, "{count}");
    for (arguments, answer) in [
        ("verify r.ttvm", "equal to the end"),
        ("state r.ttvm --at 97.7%", "instruction "),
        ("info r.ttvm", ""),
    ] {
        let (code, told) = limited(arguments);
        assert!(code == Some(0) && told.contains(answer), "{arguments}: {told}");
        assert!(!told.contains("open files") && !told.contains("damage"), "{arguments}: {told}");
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

#[test]
fn a_place_where_the_guest_sleeps_is_the_same_to_all() {
    let directory = tempfile::tempdir().unwrap();
    let typed = |text: &str| Event::ConsoleInput(text.as_bytes().to_vec());
    let script = vec![
        (2_000_000, typed("a")),
        (2_000_000, typed("b")),
        (7_000_001, Event::PowerButton),
        (1_234_567_891, typed("c")),
        (3_000_000_000, Event::Limit),
    ];
    record_asleep(directory.path(), "r.ttvm", script);
    let (code, out, told) = ttvm(directory.path(), &["log", "r.ttvm", "--json"]);
    assert_eq!(code, 0, "{told}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7);
    let mut shown = Vec::new();
    for line in &lines {
        let at = line["number"].as_u64().map_or("end".to_string(), |number| format!("event:{number}"));
        let state = json(directory.path(), &["state", "r.ttvm", "--at", &at, "--json"]);
        let seconds = line["time_ns"].as_u64().unwrap() as f64 / 1e9;
        assert_eq!((&state["instruction"], &state["guest_seconds"]), (&line["instruction"], &seconds.into()));
        shown.push((line["instruction"].as_u64().unwrap(), seconds));
    }
    // All events after the first came in while the guest was halted.
    assert!(shown[1..].iter().all(|&(at, _)| at == shown[1].0), "{shown:?}");
    let info = json(directory.path(), &["info", "r.ttvm", "--json"]);
    let state = json(directory.path(), &["state", "r.ttvm", "--json"]);
    assert_eq!(state["guest_seconds"], info["guest_seconds"]);
    assert_eq!(state["outcome"], info["ended"]);
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    let (directory, end) = recording();
    let beyond = format!("insn:{}", end / 2);
    for (arguments, names) in [
        (&["search", "r.ttvm", "syscall", "--all", "--limit", "0"][..], "--limit"),
        (&["search", "r.ttvm", "syscall", "--threads", "0"], "--threads"),
        (
            &["search", "r.ttvm", "syscall", "--all", "--from", "end", "--to", &beyond],
            "swap the two positions",
        ),
        (&["state", "r.ttvm", "--memory", "0x1000:0"], "no range"),
        (&["state", "r.ttvm", "--memory", "0xffffffffffffffff:2"], "no range"),
    ] {
        let (code, out, told) = ttvm(directory.path(), arguments);
        assert!(code == 2 && out.is_empty() && told.contains(names), "{arguments:?}: {code}: {told}");
    }
}

#[test]
fn memory_that_is_not_there_is_said_to_be_missing() {
    let (directory, _) = recording();
    // The guest has 4 MiB, and no page tables.
    for (option, range, bytes, why) in [
        ("--physical", "0x3ffff0:0x20", 16, "there is no RAM at 0x400000"),
        ("--physical", "0xfee00000:4", 0, "there is no RAM at 0xfee00000"),
        ("--memory", "0x3ffff8:16", 8, "0x400000 is mapped to 0x400000, where there is no RAM"),
        ("--memory", "0xfec00000:16", 0, "0xfec00000 is mapped to 0xfec00000, where there is no RAM"),
    ] {
        let (code, out, _) = ttvm(directory.path(), &["state", "r.ttvm", option, range]);
        assert!(code == 0 && out.contains(&format!("  {why}\n")), "{range}: {out}");
        let state = json(directory.path(), &["state", "r.ttvm", option, range, "--json"]);
        let shown = &state[option.trim_start_matches('-')][0];
        assert_eq!(shown["bytes"].as_str().unwrap().len(), 2 * bytes, "{range}");
        assert_eq!(shown["ends"], why);
    }
    let state = json(directory.path(), &["state", "r.ttvm", "--physical", "0x1000:16", "--json"]);
    assert!(state["physical"][0].get("ends").is_none());
}

#[test]
fn memory_that_is_not_mapped_is_said_to_be_unmapped() {
    let directory = tempfile::tempdir().unwrap();
    // The guest's page tables map the first 4 MiB.
    record_long(directory.path(), "r.ttvm", 1);
    for (range, bytes, at) in [
        ("0x3ffff8:16", 8, "0x400000"),
        ("0x400000:16", 0, "0x400000"),
        ("0xffffffff80000000:1", 0, "0xffffffff80000000"),
    ] {
        let why = format!("nothing is mapped at {at}");
        let (code, out, told) = ttvm(directory.path(), &["state", "r.ttvm", "--memory", range]);
        assert!(code == 0 && out.contains(&format!("  {why}\n")), "{range}: {out}{told}");
        let state = json(directory.path(), &["state", "r.ttvm", "--memory", range, "--json"]);
        let shown = &state["memory"][0];
        assert_eq!(
            (shown["bytes"].as_str().unwrap().len(), &shown["ends"]),
            (2 * bytes, &why.into()),
            "{range}"
        );
    }
}

/// Waits until a process handles a signal, and sends it. Does nothing if the process has already ended.
fn interrupt(child: &std::process::Child, signal: Signal) {
    let pid = child.id();
    let catches_or_has_ended = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let mask = u64::from_str_radix(field("SigCgt:"), 16).unwrap();
        mask & 1 << (signal as i32 - 1) != 0 || field("State:").starts_with('Z')
    };
    while !catches_or_has_ended() {
        std::thread::yield_now();
    }
    let pid = nix::unistd::Pid::from_raw(pid as i32);
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Runs ttvm, and sends the signal as soon as ttvm handles it. Returns the exit code and the output.
fn interrupted(directory: &Path, arguments: &[&str], signal: Signal) -> (Option<i32>, String) {
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_ttvm"))
        .current_dir(directory)
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    interrupt(&child, signal);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn an_interrupted_search_says_so_and_where_it_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = tiny_guest::write_kernel(directory.path(), u32::MAX);
    let kernel = kernel.to_str().unwrap();
    let record = ["record", "-o", "r.ttvm", "--kernel", kernel, "--memory", "4M", "--unpaced"];
    let length = 60_000_000;
    let (code, _, told) =
        ttvm(directory.path(), &[&record[..], &["--max-instructions", &length.to_string()]].concat());
    assert_eq!(code, 0, "{told}");
    let ways: [(&[&str], Signal); 3] =
        [(&[], Signal::SIGINT), (&["--forward"], Signal::SIGTERM), (&["--all"], Signal::SIGHUP)];
    for (options, signal) in ways {
        let search = [&["search", "r.ttvm", "break:0x12345"][..], options].concat();
        // On a busy host, a search may end before ^C comes, so the test tries several times.
        let mut attempts = (0..20).map(|_| interrupted(directory.path(), &search, signal));
        let (code, out) = attempts.find(|(code, _)| *code != Some(1)).expect("one of them is in time");
        assert_eq!(code, Some(130), "{options:?}: {out}");
        let from = out.trim().strip_prefix("interrupted: go on with --from ");
        let from = from.unwrap_or_else(|| panic!("{options:?}: {out}"));
        let number: u64 = from.strip_prefix("insn:").unwrap().parse().unwrap();
        assert!(number <= length, "{options:?}: {number}");
        let (code, out, _) = ttvm(directory.path(), &[&search[..], &["--from", from]].concat());
        assert_eq!((code, out.trim()), (1, "nowhere in that part of the recording"), "{options:?}");
    }
}
