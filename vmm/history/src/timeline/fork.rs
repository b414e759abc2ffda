//! Forks: a debugger changes registers or memory, and the machine continues into a future that was never recorded. A
//! fork gets no input from outside, and only goes forward. Leaving a fork returns the machine to the place in the
//! recorded history where the fork began. The recording does not change.

use super::stops::{Armed, Stops, TravelStop};
use super::walker::POLL_STEPS;
use crate::workers::Poll;
use cpu::Met;
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Count, Instructions, Moment};
use machine::{Machine, RunStop};
use recording::checkpoints::Snapshot;

/// The fork in which the machine is.
pub(super) struct Fork {
    /// The state at the place where the fork began.
    pub root: Snapshot<Instructions>,
}

/// A fork's inputs. Time passes, and no events come in.
struct NoInputs;

impl Inputs<Instructions> for NoInputs {
    fn poll(&mut self, _view: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
        Ok(None)
    }

    fn next_poll(&self, _now: Moment<Instructions>) -> Instructions {
        Instructions::MAX
    }

    fn idle(&mut self, _now: Moment<Instructions>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(deadline_ns.map_or(Idle::Forever, Idle::Until))
    }
}

impl Fork {
    /// The place where the fork began.
    pub fn begun_at(&self) -> Instructions {
        Instructions(self.root.state.counts.steps)
    }

    /// Runs a fork to a place, or to a stop.
    pub fn run(
        machine: &mut Machine<Instructions>,
        target: Instructions,
        stops: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let mut origin = machine.moment().count;
        let armed = Armed::new(stops, machine);
        loop {
            let here = machine.moment().count;
            if here >= target {
                return Ok(TravelStop::Reached);
            }
            let stop = machine.run_from(target.min(here + POLL_STEPS), origin, &mut NoInputs)?;
            if stop == RunStop::Met(Met::Breakpoint) {
                origin = machine.moment().count;
            }
            if let Some(hit) = armed.hit(&stop, machine) {
                return Ok(TravelStop::Hit(hit.cause));
            }
            if matches!(stop, RunStop::Ended(_)) {
                return Ok(TravelStop::End);
            }
            if machine.moment().count < target && poll() {
                // The next run ignores a breakpoint at its first instruction, so this run must report it.
                let hit = armed.breakpoint_hit(machine);
                return Ok(hit.map_or(TravelStop::Interrupted, |hit| TravelStop::Hit(hit.cause)));
            }
        }
    }
}
