//! Tests that the end of a recording can be cut out as a recording of its own. The new recording has the same events
//! after the cut and the same end.

use std::path::Path;

use history::cut::{CutOut, cut_out_end};
use history::replay::ReplayEnd;
use history::timeline::Timeline;
use machine::error::Error;
use machine::outcome::Outcome;
use machine::position::{Count, Instructions};
use machine::start::Start;
use recording::{Cut, EVENTS, Recording};
use tiny_guest::{open, record, record_calls, replayed_from, typed};

const ROUNDS: u32 = 30_000;

fn cut(recording: &Recording<Instructions>, last_ns: u64, folder: &Path) -> CutOut {
    cut_out_end(recording, last_ns, false, folder, &mut || false, &mut |_, _| false)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The console output of a replay from `from` on. Checks that the replay is equal up to the recording's end.
fn printed(recording: &Recording<Instructions>, from: Instructions) -> String {
    let (console, _, end) = replayed_from(recording, from);
    assert!(matches!(end, ReplayEnd::Verified | ReplayEnd::Stopped), "{end:?}");
    String::from_utf8_lossy(&console).into_owned()
}

/// RAM and registers at a place.
fn at(recording: &Recording<Instructions>, place: Instructions) -> (Vec<u8>, u64, [u64; 16]) {
    let mut timeline = Timeline::open_with(recording, 1).unwrap();
    timeline.seek(place, &mut || false).unwrap();
    let mut ram = vec![0; timeline.machine().ram().size_bytes() as usize];
    timeline.machine().ram().read_bytes(0, &mut ram);
    let registers = timeline.registers();
    (ram, registers.rip, registers.gpr)
}

#[test]
fn the_end_of_a_recording_replays_as_in_the_whole() {
    let directory = tempfile::tempdir().unwrap();
    let script = typed(&[(1_000, "a"), (100_000, "b"), (200_000, "c"), (250_000, "d")]);
    let (whole, end) = record(directory.path(), "r.ttvm", ROUNDS, script);
    let total = end.at.count.number();
    for (last_ns, text) in [(total - 150_000, "cd"), (total - 240_000, "d"), (20_000, "")] {
        let folder = directory.path().join(format!("last-{last_ns}.ttvm"));
        let CutOut { cut, length, disk_blocks } = cut(&whole, last_ns, &folder);
        assert_eq!(cut, Cut { instructions: total - last_ns, free_pages: 0 });
        assert_eq!((length.number(), disk_blocks), (last_ns, 0));
        let part = open(&folder);
        assert_eq!(part.manifest.cut, Some(cut));
        let own = printed(&part, Instructions(0));
        assert_eq!(own, printed(&whole, Instructions(cut.instructions)));
        assert!(own.ends_with(text), "{own:?}");
        let place = Instructions(last_ns / 3);
        assert!(at(&part, place) == at(&whole, place + cut.instructions), "the last {last_ns} ns");
        assert_eq!(part.log.last_moment().time_ns, whole.log.last_moment().time_ns);
    }
}

#[test]
fn more_than_there_is_is_all_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, end) = record_calls(directory.path(), "r.ttvm", 300, None);
    let folder = directory.path().join("all.ttvm");
    let CutOut { cut, length, .. } = cut(&whole, u64::MAX, &folder);
    assert_eq!((cut.instructions, length), (0, end.at.count));
    let part = open(&folder);
    assert_eq!(printed(&part, Instructions(0)), printed(&whole, Instructions(0)));
    assert_eq!(part.log.end.as_ref().unwrap().outcome, Outcome::Panic);
    // Cuts the cut recording again.
    let folder = directory.path().join("less.ttvm");
    let less = self::cut(&part, 1_000, &folder);
    assert_eq!(less.length, Instructions(1_000));
    printed(&open(&folder), Instructions(0));
}

/// The log of the whole recording has no end, as if its recorder had been killed.
#[test]
fn the_end_of_a_log_that_was_cut_off_is_as_if_a_signal_had_ended_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, _) = record(directory.path(), "r.ttvm", ROUNDS, typed(&[(200_000, "c")]));
    let log = std::fs::read(whole.path.join(EVENTS)).unwrap();
    std::fs::write(whole.path.join(EVENTS), &log[..log.len() - 40]).unwrap();
    let whole = open(&whole.path);
    assert!(whole.log.end.is_none());
    let last = whole.log.last_moment().count;
    let folder = directory.path().join("last.ttvm");
    let CutOut { cut, length, .. } = cut(&whole, 120_000, &folder);
    assert_eq!(length + cut.instructions, last);
    let part = open(&folder);
    assert_eq!(part.log.end.as_ref().unwrap().outcome, Outcome::Interrupted);
    printed(&part, Instructions(0));
    assert!(at(&part, length) == at(&whole, last));
}

#[test]
fn what_is_cut_out_needs_no_image_and_takes_no_folder_that_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, _) = record(directory.path(), "r.ttvm", ROUNDS, Vec::new());
    let folder = directory.path().join("last.ttvm");
    cut(&whole, 50_000, &folder);
    let again = cut_out_end(&whole, 50_000, false, &folder, &mut || false, &mut |_, _| false)
        .unwrap_err()
        .to_string();
    assert!(again.contains("never overwrites"), "{again}");
    let Start::State { booted, .. } = &open(&folder).manifest.machine.start else {
        panic!("it starts in a state")
    };
    std::fs::remove_file(&booted.kernel.path).unwrap();
    printed(&open(&folder), Instructions(0));

    let stopped = directory.path().join("stopped.ttvm");
    let error =
        cut_out_end(&open(&folder), 50_000, false, &stopped, &mut || true, &mut |_, _| false).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(!stopped.exists());
}
