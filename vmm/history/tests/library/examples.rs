//! Tests that the programs in `examples` work, on the tiny guest.

// Each example has its own `main`, which these tests do not call.
#[allow(dead_code)]
#[path = "../../examples/record.rs"]
mod record;
#[allow(dead_code)]
#[path = "../../examples/run_backwards.rs"]
mod run_backwards;
#[allow(dead_code)]
#[path = "../../examples/search.rs"]
mod search;
#[allow(dead_code)]
#[path = "../../examples/seek.rs"]
mod seek;

use std::path::{Path, PathBuf};

use history::timeline::Timeline;
use tiny_guest::{ROUND_STEPS, STIRRED, stopped, write_kernel};

const ROUNDS: u32 = 70_000;

/// A recording made by the first example, and the example's output.
fn recorded(directory: &Path) -> (PathBuf, String) {
    let name = directory.join("r.ttvm");
    let said = record::record(&write_kernel(directory, ROUNDS), &name).unwrap();
    (name, said)
}

#[test]
fn a_guest_is_recorded_with_what_is_typed() {
    let directory = tempfile::tempdir().unwrap();
    let (name, said) = recorded(directory.path());
    assert!(said.contains(" instructions; console: hello"), "{said}");
    let error = record::record(&write_kernel(directory.path(), ROUNDS), &name).unwrap_err();
    assert!(error.to_string().contains("never overwrites"), "{error}");
    let again = tempfile::tempdir().unwrap();
    assert_eq!(recorded(again.path()).1, said, "the defaults make equal runs");
}

#[test]
fn a_place_is_gone_to_and_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let (name, _) = recorded(directory.path());
    for place in ["start", "50%", "insn:1000", "end"] {
        let said = seek::seek(&name, place).unwrap();
        assert!(said.contains(": rip 0x100") && said.contains(", then rip 0x100"), "{place}: {said}");
    }
    // The guest's first instruction: mov edx, 0x3f9.
    let said = seek::seek(&name, "start").unwrap();
    assert!(said.contains("instruction 0: rip 0x100020, code [ba, f9, 03, 00, 00,"), "{said}");
    let error = seek::seek(&directory.path().join("none"), "start").unwrap_err();
    assert!(error.to_string().contains("there is no recording here"), "{error}");
}

#[test]
fn running_backwards_and_searching_find_the_same_places() {
    let directory = tempfile::tempdir().unwrap();
    let (name, _) = recorded(directory.path());
    let condition = format!("write:{STIRRED:#x}+4096");
    let (backwards, all) = (
        run_backwards::run_backwards(&name, &condition).unwrap(),
        search::search(&name, &condition).unwrap(),
    );
    let place = |line: &String| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    let last: Vec<u64> = all.iter().rev().take(3).map(place).collect();
    assert_eq!(backwards.iter().map(place).collect::<Vec<_>>(), last);
    assert!(last.len() == 3 && last[0] < ROUND_STEPS * 2 * u64::from(ROUNDS), "{backwards:?}");
    assert!(search::search(&name, "break:no_such_symbol").is_err(), "no kernel knows this name");
}

#[test]
fn a_recording_that_counts_exits_is_recounted_on_opening() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = stopped::record(directory.path(), 1);
    let timeline: Timeline = history::open(&recording.path).unwrap();
    assert!(timeline.end().0 > recording.log.last_moment().count.0);
    let mut exits = 0;
    let again = history::open_recording(&recording.path, |_| exits += 1).unwrap();
    assert!(exits == 0 && again.recounted.is_some(), "the second time it is known");
}
