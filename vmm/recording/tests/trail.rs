//! Tests of the trail: the states that a recorder holds in memory and stores when the run ends.

use machine::position::Count;
use recording::pace::CheckpointOptions;
use tiny_guest::{Script, record_with};

/// Records a run with this cost for each page of a state in the trail. Returns the positions of the checkpoints, and
/// the position of the end.
fn checkpoints(trail_rest_steps: u64) -> (Vec<u64>, u64) {
    let directory = tempfile::tempdir().unwrap();
    // With these options the recording has only the checkpoints at and shortly before the end.
    let options = CheckpointOptions {
        page_rest_steps: u64::MAX / 4096,
        end_steps: 0,
        trail_rest_steps,
        slice_steps: 10_000,
        ..CheckpointOptions::default()
    };
    let (recording, end) = record_with(directory.path(), "r", 20_000, Script(Vec::new()), Some(options));
    let store = recording.checkpoints().unwrap().expect("the end has one");
    (store.entries().iter().map(|entry| entry.position).collect(), end.at.count.number())
}

/// Each state has at least one page.
#[test]
fn states_of_the_end_are_paid_before_they_are_kept() {
    let (free, end) = checkpoints(0);
    assert_eq!(free.len(), 3, "{free:?}");
    assert!(free[0] >= end - 30_000, "{free:?}");
    let (dear, _) = checkpoints(end / 4);
    assert!(dear[0] >= end / 4, "{dear:?}");
    let (unpaid, end) = checkpoints(end + 1);
    assert_eq!(unpaid, [end], "one page already is more than the run pays for");
}
