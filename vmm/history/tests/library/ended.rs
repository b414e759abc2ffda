//! Tests runs that the user or a limit ended at any place. A timeline can go to the end of such a recording, just
//! as it goes to any other place.

use std::cell::Cell;

use history::recount::in_instructions;
use history::replay::verify::verify;
use history::replay::{Replay, ReplayEnd};
use machine::Outcome;
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Count, Exits, Instructions, Moment};
use machine::unit::Unit;
use recording::Recording;
use recording::pace::CheckpointOptions;
use recording::player::Scrutiny;
use tiny_guest::{record_with, stopped};

/// Ends the run after this many polls. Polls come at the machine's own stops, for example when its timer ticks.
struct AfterPolls<'a> {
    polls: u64,
    /// The machine's next deadline.
    deadline_ns: Cell<Option<u64>>,
    /// How many runs ended exactly at a deadline.
    ended_at_deadline: &'a Cell<u32>,
}

impl Inputs<Instructions> for AfterPolls<'_> {
    fn poll(&mut self, view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        self.polls -= 1;
        let ends = self.polls == 0;
        if ends && self.deadline_ns.get() == Some(view.moment.time_ns) {
            self.ended_at_deadline.set(self.ended_at_deadline.get() + 1);
        }
        Ok(ends.then_some(Event::Ended))
    }
    fn leave(&self, _now: Moment<Instructions>, deadline_ns: Option<u64>) -> Leave {
        self.deadline_ns.set(deadline_ns);
        Leave::AtExits
    }
    fn next_poll(&self, _now: Moment<Instructions>) -> Instructions {
        Instructions::MAX
    }
    fn idle(&mut self, _now: Moment<Instructions>, _deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(Idle::Forever)
    }
}

fn replays<C: Unit>(recording: &Recording<C>) {
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
        trail_rest_steps: 0,
        slice_steps: 7_000,
        ..CheckpointOptions::default()
    };
    let ended_at_deadline = Cell::new(0);
    for polls in 1..40 {
        for (name, checkpoints) in [("bare", None), ("checkpoints", Some(often.clone()))] {
            let name = format!("{name}-{polls}");
            let inputs =
                AfterPolls { polls, deadline_ns: Cell::new(None), ended_at_deadline: &ended_at_deadline };
            let (recording, end) = record_with(directory.path(), &name, 40_000, inputs, checkpoints);
            assert_eq!(end.outcome, Outcome::Ended);
            replays(&recording);
        }
    }
    assert!(ended_at_deadline.get() > 3, "only {} ended just when a timer came due", ended_at_deadline.get());
}

#[test]
fn one_that_counts_exits_too() {
    let directory = tempfile::tempdir().unwrap();
    for exits in 1..60 {
        let (recording, end) = stopped::record_script(directory.path(), exits, vec![(exits, Event::Ended)]);
        assert!(end.outcome == Outcome::Ended && end.at.count >= Exits(exits), "{end:?}");
        replays(&recording);
        replays(&in_instructions(recording, |_| {}).unwrap());
    }
}
