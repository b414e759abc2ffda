//! Tests the verbs of the command line that work on recordings.

use crate::common::ttvm;
use machine::position::Count;
use recording::OLDEST_FORMAT;
use serde_json::Value;
use tiny_guest::{STIRRED, record, record_with_checkpoints, typed};

const ROUNDS: u32 = 20_000;

#[test]
fn info_says_everything_in_json() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a"), (9_000, "b")]));
    let (code, out, _) = ttvm(directory.path(), &["info", "r.ttvm", "--json"]);
    let info: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    for (field, expected) in [
        ("format_version", OLDEST_FORMAT.into()),
        ("engine", "soft".into()),
        ("counter", "steps".into()),
        ("cpu_model", "ttvm-v2.1".into()),
        ("complete", true.into()),
        ("ended", end.outcome.to_string().into()),
        ("instructions", end.at.count.number().into()),
        ("branches", end.branches.into()),
        ("guest_seconds", (end.at.time_ns as f64 / 1e9).into()),
        ("events", serde_json::json!({"power-on": 1, "console-input": 2})),
        ("checks", recording.log.check_count().into()),
        ("log_bytes", recording.log.bytes.into()),
        ("console_bytes", 2.into()),
    ] {
        assert_eq!(info[field], expected, "{field}");
    }
    assert!(info["log_bytes_per_guest_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn verify_names_the_instruction_at_which_memory_failed() {
    let directory = tempfile::tempdir().unwrap();
    let (_, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a")]));
    let (code, out, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}{told}");
    let steps = end.at.count.number() / 2;
    let fault = format!("{steps}:{}:5", STIRRED + 0x1234);
    let (code, out, _) = ttvm(directory.path(), &["verify", "r.ttvm", "--inject-fault", &fault]);
    assert_eq!(code, 3);
    for expected in [
        "the replay diverged".to_string(),
        format!("first instruction that differs: insn:{steps} at rip 0x"),
        "the byte at physical address 0x201234".to_string(),
    ] {
        assert!(out.contains(&expected), "{expected}: {out}");
    }
}

#[test]
fn both_tiers_are_compared_and_the_first_instruction_that_differs_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (_, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a")]));
    let (code, out, told) = ttvm(directory.path(), &["verify", "r.ttvm", "--tiers", "1000"]);
    let places = end.at.count.number() / 1000 + 1;
    assert!(code == 0 && out.contains(&format!("equal at all of {places} places")), "{out}{told}");
    let steps = end.at.count.number() / 3;
    let fault = format!("{steps}:{}:5", STIRRED + 0x1234);
    let (code, out, _) =
        ttvm(directory.path(), &["verify", "r.ttvm", "--tiers", "1000", "--inject-fault", &fault]);
    assert!(code == 3 && out.contains(&format!("insn:{steps} at rip 0x")), "{out}");
    assert!(out.contains("the byte at physical address 0x201234"), "{out}");
    let (code, _, _) = ttvm(directory.path(), &["verify", "r.ttvm", "--tiers", "0"]);
    assert_eq!(code, 2);
}

#[test]
fn log_lists_events_and_says_where_recordings_part() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "l.ttvm", ROUNDS, typed(&[(5_000, "a"), (9_000, "b")]));
    record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a"), (9_000, "c")]));
    let (_, out, _) = ttvm(directory.path(), &["log", "l.ttvm", "--json"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["power-on", "console-input", "console-input", "end"]);
    assert_eq!(lines[2]["instruction"], 9_000);
    let (_, out, _) = ttvm(directory.path(), &["log", "l.ttvm", "--checks"]);
    assert!(
        out.contains("console-input \"b\"") && out.lines().filter(|l| l.contains("check cpu")).count() > 5
    );
    let (code, out, _) = ttvm(directory.path(), &["log", "l.ttvm", "--diff", "l.ttvm"]);
    assert_eq!(code, 0, "{out}");
    let (code, out, _) = ttvm(directory.path(), &["log", "l.ttvm", "--diff", "r.ttvm"]);
    assert!(code == 3 && out.contains("part at instruction 9000: event 2"), "{out}");
    let (code, out, _) = ttvm(directory.path(), &["verify", "l.ttvm", "--against", "r.ttvm"]);
    assert!(code == 3 && out.contains("insn:9000 "), "{out}");
    let (code, out, told) = ttvm(directory.path(), &["diff", "l.ttvm", "--with", "r.ttvm", "--json"]);
    assert_eq!(code, 0, "{told}");
    let runs: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(runs["from_the_start"], false, "{out}");
    let found = [&runs["equal"], &runs["instruction"], &runs["difference"]["from"]["instruction"]];
    assert_eq!(found, [&Value::from(false), &Value::from(9_000), &Value::from(9_001)], "{out}");
    let (code, out, _) = ttvm(directory.path(), &["diff", "l.ttvm", "--with", "r.ttvm"]);
    assert!(code == 0 && out.contains("differ after this instruction:\ninsn:9000  "), "{out}");
    let (code, out, _) = ttvm(directory.path(), &["diff", "l.ttvm", "--with", "l.ttvm"]);
    assert_eq!((code, &*out), (0, "the two runs are equal\n"));
    record(directory.path(), "longer.ttvm", ROUNDS + 1, typed(&[]));
    let (code, out, _) = ttvm(directory.path(), &["diff", "l.ttvm", "--with", "longer.ttvm"]);
    assert!(code == 0 && out.starts_with("the two runs differ from the start: "), "{out}");
    assert!(out.contains("\nfrom insn:0 at 0.000000000 s to insn:0 at "), "{out}");
    for positions in [&["50%"][..], &["50%", "--with", "r.ttvm"]] {
        let (code, _, told) = ttvm(directory.path(), &[&["diff", "l.ttvm"], positions].concat());
        assert!(code == 2 && told.contains("<POS>"), "{told}");
    }
}

#[test]
fn a_packed_recording_replays_without_the_originals() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, end) = record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a")]));
    let (code, _, told) = ttvm(directory.path(), &["pack", "r.ttvm", "-o", "packed"]);
    assert_eq!(code, 0, "{told}");
    std::fs::remove_file(&recording.manifest.machine.start.booted().kernel.path).unwrap();
    std::fs::remove_dir_all(&recording.path).unwrap();
    let (code, _, told) = ttvm(directory.path(), &["unpack", "packed", "-o", "u.ttvm"]);
    assert_eq!(code, 0, "{told}");
    std::fs::rename(directory.path().join("u.ttvm"), directory.path().join("moved.ttvm")).unwrap();
    let (code, out, told) = ttvm(directory.path(), &["replay", "moved.ttvm", "--verify"]);
    assert!(
        code == 0
            && told
                .contains(&format!("to the end: console, counts and hashes are equal, at {}", end.at.count)),
        "{told}"
    );
    assert_eq!(out, "a");
    let (code, _, told) =
        ttvm(directory.path(), &["unpack", "packed", "-o", "again.ttvm", "--max-size", "100"]);
    assert!(
        code == 4 && told.contains("--max-size") && !directory.path().join("again.ttvm").exists(),
        "{told}"
    );
}

#[test]
fn info_verify_and_pack_know_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let keys = typed(&[(5_000, "a")]);
    let (recording, end) = record_with_checkpoints(directory.path(), "r.ttvm", ROUNDS, keys, &[95_000]);
    let (_, out, _) = ttvm(directory.path(), &["info", "r.ttvm", "--json"]);
    let info: Value = serde_json::from_str(&out).unwrap();
    let store = recording.checkpoints().unwrap().unwrap();
    let positions: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
    assert!(positions.len() > 4 && positions[1] == 95_000, "{positions:?}");
    let count = positions.len();
    let gaps = positions.iter().scan(0, |last, &at| Some(at - std::mem::replace(last, at)));
    let checkpoints = &info["checkpoints"];
    for (field, expected) in [("count", Value::from(count)), ("bytes", store.total_bytes().into())] {
        assert_eq!(checkpoints[field], expected, "{field}");
    }
    let rate = store.total_bytes() as f64 / (end.at.time_ns as f64 / 1e9);
    assert!((checkpoints["bytes_per_guest_second"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
    assert_eq!(checkpoints["first"]["instructions"], positions[0]);
    assert_eq!(checkpoints["last"]["instructions"], end.at.count.number());
    assert_eq!(checkpoints["largest_gap"]["instructions"], gaps.max().unwrap());
    let (_, out, _) = ttvm(directory.path(), &["info", "r.ttvm"]);
    assert!(out.contains(&format!("checkpoints   {count}, {} bytes, ", store.total_bytes())), "{out}");

    let (code, out, _) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert!(
        code == 0 && out.contains(&format!("checkpoints: {count} compared, all equal to the replay")),
        "{out}"
    );
    let (_, out, _) = ttvm(directory.path(), &["verify", "r.ttvm", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["equal"], &report["checkpoints_compared"]), (&true.into(), &count.into()));

    for (arguments, expected) in [(&["--no-checkpoints"][..], 0), (&[][..], count)] {
        let (packed, unpacked) = (format!("packed-{expected}"), format!("u{expected}.ttvm"));
        let pack = [&["pack", "r.ttvm", "-o", &packed][..], arguments].concat();
        assert_eq!(ttvm(directory.path(), &pack).0, 0);
        assert_eq!(ttvm(directory.path(), &["unpack", &packed, "-o", &unpacked]).0, 0);
        let (code, out, _) = ttvm(directory.path(), &["verify", &unpacked, "--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &report["checkpoints_compared"]), (0, &expected.into()));
    }

    let damaged = store.dir().join("00000002.ckpt");
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let (code, _, told) = ttvm(directory.path(), &["verify", "r.ttvm"]);
    assert!(code == 4 && told.contains("00000002.ckpt"), "{told}");
    let (code, _, told) = ttvm(directory.path(), &["replay", "r.ttvm", "--verify", "--quiet"]);
    assert_eq!(code, 0, "{told}");
}

#[test]
fn replay_stops_where_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    record(directory.path(), "r.ttvm", ROUNDS, typed(&[(5_000, "a"), (9_000, "b")]));
    for (position, steps, shown) in
        [("start", 0, ""), ("insn:7000", 7_000, "a"), ("event:2", 9_000, "a"), ("0.0000095s", 9_500, "a")]
    {
        let (code, out, told) = ttvm(directory.path(), &["replay", "r.ttvm", "--to", position]);
        assert_eq!(code, 0, "{told}");
        assert!(told.contains(&format!("and stopped, at {steps} instructions")), "{position}: {told}");
        assert_eq!(out, shown, "{position}");
    }
    let (code, _, told) = ttvm(directory.path(), &["replay", "r.ttvm", "--to", "insn:999999999"]);
    assert!(code == 2 && told.contains("the recording ends before"), "{told}");
}
