//! Takes checkpoints while a machine records: runs it in slices, and hands what was written since the last checkpoint to
//! a writer in the background. The guest cannot notice; where checkpoints fall follows from the run alone, not from how
//! fast the host is.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{BackgroundWriter, Policy, Store};

use crate::error::Error;
use crate::machine::inputs::Inputs;
use crate::machine::{Machine, Outcome, RunStop};
use crate::position::{Counting, Moment};
use crate::recording::CHECKPOINTS;
use crate::recording::checkpoints::{CheckpointHead, state_bytes};
use crate::recording::player::Cursor;
use crate::recording::trail::Trail;

/// How often a recorder takes checkpoints, and what it keeps.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Virtual time between two checkpoints.
    pub interval_ns: u64,
    /// Instructions between two checkpoints at least, but for the rare ones of an idle guest, and those that are taken for the
    /// sake of written disk blocks.
    pub min_steps: u64,
    /// Instructions to the next checkpoint, at least, for each page in the last: what bounds the share of the run's time that
    /// checkpoints take.
    pub page_rest_steps: u64,
    /// Instructions from one of the states that are kept in memory for the end to the next, at least, for each page that was
    /// copied for the first.
    pub trail_rest_steps: u64,
    /// Instructions between two looks at whether a checkpoint is due.
    pub slice_steps: u64,
    /// Virtual time between two looks, at least, where exits are counted: a guest makes thousands of them in a second, or
    /// hardly any. The look comes at the next exit.
    pub slice_ns: u64,
    /// What is kept of them.
    pub policy: Policy,
}

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        CheckpointOptions {
            interval_ns: 1_000_000_000,
            min_steps: 50_000_000,
            // Storing a page takes as long as 2,000 steps of the software engine, so this is one part in a hundred.
            page_rest_steps: 2_000 * 100,
            // Copying one takes as long as 400, so this is one part in 250.
            trail_rest_steps: 400 * 250,
            // Some tens of milliseconds.
            slice_steps: 10_000_000,
            slice_ns: 20_000_000,
            policy: Policy::default(),
        }
    }
}

/// Where exits are counted, [`CheckpointOptions::page_rest_steps`] in time: virtual time passes with the host's there, and a guest gets
/// further in it, so that one part in 32 is well spent.
const PAGE_REST_NS: u64 = 10_000 * 32;
/// After so much virtual time the next look takes a checkpoint whatever it costs: an idle guest lets it pass in no time of the
/// host, and a busy one that does not write gigabytes can afford one long before.
const LONGEST_NS: u64 = 100_000_000_000;
/// Written disk blocks that are held in memory until a checkpoint is taken for their sake: 32 MiB.
const MAX_HELD_BLOCKS: usize = 8192;

/// Decides when a checkpoint is due.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// What its moments count.
    counting: Counting,
    interval_ns: u64,
    min_steps: u64,
    page_rest_steps: u64,
    last: Moment,
    /// Steps, or nanoseconds where exits are counted, that the last checkpoint's cost asks for until the next.
    rest: u64,
}

impl Pace {
    fn due(&self, now: Moment, held_blocks: usize) -> bool {
        let passed_ns = now.time_ns - self.last.time_ns;
        let can_be_afforded = match self.counting {
            Counting::Instructions => now.steps - self.last.steps >= self.min_steps.max(self.rest),
            Counting::Exits => passed_ns >= self.rest,
        };
        held_blocks >= MAX_HELD_BLOCKS
            || (passed_ns >= self.interval_ns && (can_be_afforded || passed_ns >= LONGEST_NS))
    }

    fn taken(&mut self, now: Moment, pages: u64) {
        self.last = now;
        self.rest = match self.counting {
            Counting::Instructions => pages * self.page_rest_steps,
            Counting::Exits => pages * PAGE_REST_NS,
        };
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
    let CheckpointOptions { interval_ns, slice_steps, slice_ns, .. } = options;
    let counting = machine.counting();
    let mut checkpointer = Checkpointer::new(&path.join(CHECKPOINTS), options, counting, machine)?;
    let outcome = loop {
        let now = machine.moment();
        let stop = match counting {
            Counting::Instructions => machine.run(now.steps.saturating_add(slice_steps), recorder)?,
            Counting::Exits => machine.run_past(now.time_ns + slice_ns.min(interval_ns), recorder)?,
        };
        if let RunStop::Ended(outcome) = stop {
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
    /// `None` where exits are counted: nobody steps backward from there, but from what is translated.
    trail: Option<Trail>,
    told_full: bool,
}

impl Checkpointer {
    /// Begins with a machine at its first instruction, and a store that does not exist yet. The checkpoints' positions are in
    /// `counting`.
    pub fn new(
        directory: &Path,
        options: CheckpointOptions,
        counting: Counting,
        machine: &mut Machine,
    ) -> Result<Checkpointer, Error> {
        let (ram_pages, disk_blocks) = machine.page_counts();
        let store = Arc::new(Store::create(directory, ram_pages, disk_blocks)?);
        machine.attach_store(store.clone());
        // What the loader wrote is there again in every replay.
        machine.begin_written();
        Checkpointer::on(store, options, counting, machine)
    }

    /// Goes on with a store that has a checkpoint of the machine as it is here, and is attached to it.
    pub fn on(
        store: Arc<Store>,
        options: CheckpointOptions,
        counting: Counting,
        machine: &mut Machine,
    ) -> Result<Checkpointer, Error> {
        let CheckpointOptions { interval_ns, min_steps, page_rest_steps, trail_rest_steps, policy, .. } =
            options;
        let last = machine.moment_in(counting);
        let pace = Pace { counting, interval_ns, min_steps, page_rest_steps, last, rest: 0 };
        let trail = (counting == Counting::Instructions).then(|| Trail::begin(machine, trail_rest_steps));
        Ok(Checkpointer { writer: BackgroundWriter::start(store, policy)?, pace, trail, told_full: false })
    }

    /// To be called now and then, while the machine stands still: takes a checkpoint if one is due.
    pub fn look(&mut self, machine: &mut Machine, log: &impl Logged) -> Result<(), Error> {
        let is_due = self.pace.due(machine.moment_in(self.pace.counting), machine.written_blocks());
        if is_due {
            self.take(machine, log)?;
        }
        match (&mut self.trail, is_due) {
            (Some(trail), true) => trail.checkpoint(machine),
            (Some(trail), false) => trail.mark(machine, log.cursor()),
            (None, _) => {}
        }
        Ok(())
    }

    fn take(&mut self, machine: &mut Machine, log: &impl Logged) -> Result<(), Error> {
        for done in self.writer.take_done() {
            machine.adopt_blocks(done.disk);
        }
        let at = machine.moment_in(self.pace.counting);
        let writer = &mut self.writer;
        writer.begin(at.steps, at.time_ns)?;
        let pages = machine.take_written(|space, page, contents| Ok(writer.page(space, page, contents)?))?;
        let head = CheckpointHead::of(machine, self.pace.counting, log.cursor());
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
        let at = machine.moment_in(self.pace.counting);
        if let Some(trail) = self.trail.take() {
            trail.store(at, &mut self.writer)?;
        }
        // Where the run was ended from outside, or by idling, time may have passed since the place was reached. And a guest
        // may shut down without another exit.
        let is_taken = self.pace.counting == Counting::Exits && self.pace.last.steps == at.steps;
        let by_itself = !matches!(machine.outcome(), None | Some(Outcome::Ended | Outcome::IdleForever));
        if by_itself && !is_taken {
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
        let page_rest_steps = 100_000;
        let mut pace = Pace { interval_ns: 1_000_000_000, min_steps, page_rest_steps, ..Pace::default() };
        assert!(!pace.due(at(999_999_999, 0), 0));
        assert!(pace.due(at(1_000_000_000, 0), 0));
        assert!(!pace.due(at(min_steps - 1, 5_000_000_000), 0), "idling is free, checkpoints are not");
        assert!(pace.due(at(min_steps, 5_000_000_000), 0));
        assert!(pace.due(at(5, 0), MAX_HELD_BLOCKS));
        pace.taken(at(1_000_000_000, 0), 50_000);
        let earliest = 1_000_000_000 + 50_000 * page_rest_steps;
        assert!(!pace.due(at(earliest - 1, 0), 0));
        assert!(pace.due(at(earliest, 0), 0));
        assert!(!pace.due(at(1_000_000_005, LONGEST_NS - 6), 0));
        assert!(
            pace.due(at(1_000_000_005, LONGEST_NS), 0),
            "an idle guest's checkpoints are far apart, but come"
        );
    }

    #[test]
    fn where_exits_are_counted_checkpoints_cost_time() {
        let at = |exits, time_ns| Moment { steps: exits, time_ns };
        let mut pace = Pace { counting: Counting::Exits, interval_ns: 1_000_000_000, ..Pace::default() };
        assert!(!pace.due(at(1_000_000, 999_999_999), 0));
        assert!(pace.due(at(1, 1_000_000_000), 0));
        pace.taken(at(1, 1_000_000_000), 10_000);
        let earliest = 1_000_000_000 + 10_000 * PAGE_REST_NS;
        assert!(!pace.due(at(2, earliest - 1), 0));
        assert!(pace.due(at(2, earliest), 0));
        assert!(pace.due(at(2, 1_000_000_001), MAX_HELD_BLOCKS));
    }
}
