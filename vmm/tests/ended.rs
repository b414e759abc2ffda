//! Runs that somebody ended, wherever they were: the end of a recording is a place like any other.

mod tiny_guest;

use tiny_guest::{record_with, stopped};
use vmm::checkpointer::CheckpointOptions;
use vmm::error::Error;
use vmm::inputs::{Event, Idle, Inputs, View};
use vmm::machine::Outcome;
use vmm::player::Scrutiny;
use vmm::position::Moment;
use vmm::recording::Recording;
use vmm::replay::{Replay, ReplayEnd};
use vmm::translate::in_instructions;
use vmm::verify::verify;

/// Ends the run when it has been asked so often: at the machine's own stops, as when its timer ticks.
struct AfterPolls(u64);

impl Inputs for AfterPolls {
    fn poll(&mut self, _view: &View<'_>) -> Result<Option<Event>, Error> {
        self.0 -= 1;
        Ok((self.0 == 0).then_some(Event::Ended))
    }
    fn next_poll(&self, _now: Moment) -> u64 {
        u64::MAX
    }
    fn idle(&mut self, _now: Moment, _deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(Idle::Forever)
    }
}

fn replays(recording: &Recording) {
    let mut replay = Replay::new(recording, Scrutiny::Everything, |_| Ok(())).unwrap();
    assert_eq!(replay.run(None, |_| {}).unwrap(), ReplayEnd::Verified);
    assert!(verify(recording, None, |_, _| {}).unwrap().equal());
}

#[test]
fn a_run_ended_anywhere_replays_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let often = CheckpointOptions {
        interval_ns: 10_000,
        min_steps: 10_000,
        page_rest_steps: 0,
        slice_steps: 7_000,
        ..CheckpointOptions::default()
    };
    for polls in 1..40 {
        for (name, checkpoints) in [("bare", None), ("checkpoints", Some(often.clone()))] {
            let name = format!("{name}-{polls}");
            let (recording, end) =
                record_with(directory.path(), &name, 40_000, AfterPolls(polls), checkpoints);
            assert_eq!(end.outcome, Outcome::Ended);
            replays(&recording);
        }
    }
}

#[test]
fn one_that_counts_exits_too() {
    let directory = tempfile::tempdir().unwrap();
    for exits in 1..60 {
        let (recording, end) = stopped::record_script(directory.path(), exits, vec![(exits, Event::Ended)]);
        assert!(end.outcome == Outcome::Ended && end.at.steps >= exits, "{end:?}");
        replays(&recording);
        replays(&in_instructions(recording, |_| {}).unwrap());
    }
}
