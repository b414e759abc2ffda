//! Takes checkpoints while a machine records: runs it in slices, and hands what was written since the last checkpoint to
//! a writer in the background. The guest cannot notice; where checkpoints fall follows from the run alone, not from how
//! fast the host is.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{BackgroundWriter, Policy, Store};

use crate::checkpoints::{CheckpointHead, state_bytes};
use crate::error::Error;
use crate::inputs::Inputs;
use crate::machine::{Machine, Outcome, RunStop};
use crate::player::Cursor;
use crate::position::Moment;
use crate::recording::CHECKPOINTS;
use crate::trail::Trail;

/// How often a recorder takes checkpoints, and what it keeps.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Virtual time between two checkpoints.
    pub interval_ns: u64,
    /// Steps between two checkpoints at least, however much virtual time an idle guest lets pass, or however many
    /// pages a busy one writes.
    pub min_steps: u64,
    /// Steps between two looks at whether a checkpoint is due.
    pub slice_steps: u64,
    /// What is kept of them.
    pub policy: Policy,
}

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        CheckpointOptions {
            interval_ns: 1_000_000_000,
            min_steps: 50_000_000,
            // Some tens of milliseconds.
            slice_steps: 10_000_000,
            policy: Policy::default(),
        }
    }
}

/// What a checkpoint costs for each page in it, in steps that the engine could execute meanwhile.
const PAGE_COST_STEPS: u64 = 1_200;
/// The share of the run's time that checkpoints may take: one in so many.
const COST_SHARE: u64 = 32;
/// Written disk blocks that are held in memory until a checkpoint is taken for their sake: 16 MiB.
const MAX_HELD_BLOCKS: usize = 4096;

/// Decides when a checkpoint is due.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    interval_ns: u64,
    min_steps: u64,
    last: Moment,
    /// Steps that the last checkpoint's cost asks for until the next.
    rest_steps: u64,
}

impl Pace {
    fn due(&self, now: Moment, held_blocks: usize) -> bool {
        let steps = now.steps - self.last.steps;
        let wanted = now.time_ns - self.last.time_ns >= self.interval_ns;
        held_blocks >= MAX_HELD_BLOCKS || (wanted && steps >= self.min_steps.max(self.rest_steps))
    }

    fn taken(&mut self, now: Moment, pages: u64) {
        self.last = now;
        self.rest_steps = pages * PAGE_COST_STEPS * COST_SHARE;
    }
}

/// Inputs that write the log which checkpoints point into.
pub trait Logged: Inputs {
    /// How far a player of this log is that stands where the machine stands.
    fn cursor(&self) -> Cursor;
}

/// Records a machine from its first instruction to its end into the recording at `path`, with checkpoints.
pub fn record(
    machine: &mut Machine,
    recorder: &mut impl Logged,
    path: &Path,
    options: CheckpointOptions,
) -> Result<Outcome, Error> {
    let slice_steps = options.slice_steps;
    let mut checkpointer = Checkpointer::new(&path.join(CHECKPOINTS), options, machine)?;
    let outcome = loop {
        let until = machine.moment().steps.saturating_add(slice_steps);
        if let RunStop::Ended(outcome) = machine.run(until, recorder)? {
            break outcome;
        }
        checkpointer.look(machine, recorder)?;
    };
    checkpointer.finish(machine, recorder)?;
    Ok(outcome)
}

/// See the module.
pub struct Checkpointer {
    writer: BackgroundWriter,
    pace: Pace,
    trail: Trail,
    told_full: bool,
}

impl Checkpointer {
    /// Begins with a machine at its first instruction, and a store that does not exist yet.
    pub fn new(
        directory: &Path,
        options: CheckpointOptions,
        machine: &mut Machine,
    ) -> Result<Checkpointer, Error> {
        let (ram_pages, disk_blocks) = machine.page_counts();
        let store = Arc::new(Store::create(directory, ram_pages, disk_blocks)?);
        machine.attach_store(store.clone());
        // What the loader wrote is there again in every replay.
        machine.take_written(|_, _, _| Ok(()))?;
        let mut trail = Trail::default();
        trail.checkpoint(machine);
        let CheckpointOptions { interval_ns, min_steps, policy, .. } = options;
        let pace = Pace { interval_ns, min_steps, ..Pace::default() };
        Ok(Checkpointer { writer: BackgroundWriter::start(store, policy)?, pace, trail, told_full: false })
    }

    /// To be called now and then, while the machine stands still: takes a checkpoint if one is due.
    pub fn look(&mut self, machine: &mut Machine, log: &impl Logged) -> Result<(), Error> {
        if self.pace.due(machine.moment_in_instructions(), machine.written_blocks()) {
            self.take(machine, log)?;
            self.trail.checkpoint(machine);
        } else {
            self.trail.mark(machine, log.cursor());
        }
        Ok(())
    }

    fn take(&mut self, machine: &mut Machine, log: &impl Logged) -> Result<(), Error> {
        for done in self.writer.take_done() {
            machine.adopt_blocks(done.disk);
        }
        let at = machine.moment_in_instructions();
        let writer = &mut self.writer;
        writer.begin(at.steps, at.time_ns)?;
        let pages = machine.take_written(|space, page, contents| Ok(writer.page(space, page, contents)?))?;
        let head = CheckpointHead::of(machine, log.cursor());
        writer.finish(head.to_bytes(), state_bytes(&machine.state()))?;
        self.pace.taken(at, pages);
        if self.writer.is_full() && !std::mem::replace(&mut self.told_full, true) {
            log::warn!("no more checkpoints fit below --max-size; the recording goes on without new ones");
        }
        Ok(())
    }

    /// Takes the last checkpoints: shortly before the end, and where the run ended, if that is a place which
    /// replay reaches in the same state. Waits until everything is stored.
    pub fn finish(mut self, machine: &mut Machine, log: &impl Logged) -> Result<(), Error> {
        std::mem::take(&mut self.trail).store(machine.moment_in_instructions(), &mut self.writer)?;
        // Where the run was ended from outside, or by idling, time may have passed since the place was reached.
        if !matches!(machine.outcome(), None | Some(Outcome::Ended | Outcome::IdleForever)) {
            self.take(machine, log)?;
        }
        self.writer.close()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(steps: u64, idle_ns: u64) -> Moment {
        Moment { steps, time_ns: steps + idle_ns }
    }

    #[test]
    fn checkpoints_come_by_virtual_time_but_no_faster_than_they_can_be_afforded() {
        let min_steps = 50_000_000;
        let mut pace = Pace { interval_ns: 1_000_000_000, min_steps, ..Pace::default() };
        assert!(!pace.due(at(999_999_999, 0), 0));
        assert!(pace.due(at(1_000_000_000, 0), 0));
        assert!(!pace.due(at(min_steps - 1, 5_000_000_000), 0), "idling is free, checkpoints are not");
        assert!(pace.due(at(min_steps, 5_000_000_000), 0));
        assert!(pace.due(at(5, 0), MAX_HELD_BLOCKS));
        pace.taken(at(1_000_000_000, 0), 50_000);
        let earliest = 1_000_000_000 + 50_000 * PAGE_COST_STEPS * COST_SHARE;
        assert!(!pace.due(at(earliest - 1, 0), 0));
        assert!(pace.due(at(earliest, 0), 0));
    }
}
