//! Scratch forks: a debugger changes registers or memory, and the machine goes on from there into a future
//! that was never recorded. Nothing comes into it from outside, it only goes forward, and leaving it puts the
//! machine back into the recorded history at the place where the fork began. The recording never hears of it.

use cpu::CpuState;

use super::stops::{Armed, Stops};
use super::travel::{Timeline, TravelStop};
use super::walker::{POLL_STEPS, Poll};
use machine::RunStop;
use machine::error::Error;
use machine::inputs::{Event, Idle, Inputs, View};
use machine::position::{Count, Instructions, Moment};
use recording::checkpoints::Snapshot;

/// A fork under way.
pub(super) struct Fork {
    /// Where history was left.
    root: Snapshot<Instructions>,
}

/// What a fork gets from outside: time passes, and that is all.
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

impl Timeline {
    /// The place at which the fork began that the machine is in, if it is in one.
    pub fn forked_at(&self) -> Option<Instructions> {
        self.fork.as_ref().map(|fork| Instructions(fork.root.state.counts.steps))
    }

    /// Replaces the CPU's registers. Begins a fork, unless the machine is in one.
    pub fn change_registers(&mut self, state: &CpuState) -> Result<(), Error> {
        self.begin_fork()?;
        self.walker.machine.change_registers(state);
        Ok(())
    }

    /// Writes memory at a linear address as a debugger: all bytes, or none where some of them are not mapped
    /// to RAM, which is `false`. Begins a fork, unless the machine is in one.
    pub fn change_memory(&mut self, address: u64, bytes: &[u8]) -> Result<bool, Error> {
        if !self.walker.machine.can_change_memory(address, bytes.len()) {
            return Ok(false);
        }
        self.begin_fork()?;
        self.walker.machine.change_memory(address, bytes);
        Ok(true)
    }

    /// Goes back to where the fork began; gives where that is, or `None` if the machine is in no fork.
    pub fn leave_fork(&mut self) -> Result<Option<Instructions>, Error> {
        let Some(fork) = &self.fork else { return Ok(None) };
        let root = Instructions(fork.root.state.counts.steps);
        Armed::disarm(&mut self.walker.machine);
        self.walker.restore(&fork.root)?;
        // Only now: had it failed, the machine would still be none that history knows.
        self.fork = None;
        Ok(Some(root))
    }

    fn begin_fork(&mut self) -> Result<(), Error> {
        if self.fork.is_none() {
            self.fork = Some(Fork { root: self.snapshot()? });
            self.walker.machine.go_on_after_end();
        }
        Ok(())
    }

    /// Refuses what makes sense in the recorded history only.
    pub(super) fn must_be_history(&self) -> Result<(), Error> {
        match self.forked_at() {
            None => Ok(()),
            Some(at) => Err(Error::Position(format!(
                "this is a scratch fork of the recording, begun at instruction {at}, and it only goes forward: \
                 'monitor back' returns to the recorded history"
            ))),
        }
    }

    /// Runs a fork on to a place, or to something to stop at.
    pub(super) fn run_fork(
        &mut self,
        target: Instructions,
        stops: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let machine = &mut self.walker.machine;
        let mut origin = machine.moment().count;
        let armed = Armed::new(stops, machine);
        loop {
            let here = machine.moment().count;
            if here >= target {
                return Ok(TravelStop::Reached);
            }
            let stop = machine.run_from(target.min(here + POLL_STEPS), origin, &mut NoInputs)?;
            if stop == RunStop::Breakpoint {
                origin = machine.moment().count;
            }
            if let Some(hit) = armed.hit(&stop, machine) {
                return Ok(TravelStop::Hit(hit.cause));
            }
            if matches!(stop, RunStop::Ended(_)) {
                return Ok(TravelStop::End);
            }
            if machine.moment().count < target && poll() {
                // The next run passes over a breakpoint where it begins.
                let hit = armed.hit(&RunStop::Breakpoint, machine);
                return Ok(hit.map_or(TravelStop::Interrupted, |hit| TravelStop::Hit(hit.cause)));
            }
        }
    }
}
