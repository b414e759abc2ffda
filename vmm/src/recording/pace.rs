//! How often checkpoints are taken. It follows from the run alone, not from how fast the host is.

use checkpoint::Policy;

use crate::machine::unit::Unit;
use crate::position::Moment;

/// How often a recorder takes checkpoints, and what it keeps.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Virtual time between two checkpoints.
    pub interval_ns: u64,
    /// Instructions between two checkpoints at least, but for the rare ones of an idle guest, and those that
    /// are taken for the sake of written disk blocks.
    pub min_steps: u64,
    /// Instructions to the next checkpoint, at least, for each page in the last: what bounds the share of the
    /// run's time that checkpoints take.
    pub page_rest_steps: u64,
    /// Instructions from one of the states that are kept in memory for the end to the next, at least, for
    /// each page that was copied for the first.
    pub trail_rest_steps: u64,
    /// Instructions between two looks at whether a checkpoint is due.
    pub slice_steps: u64,
    /// Virtual time between two looks, at least, where exits are counted: a guest makes thousands of them in
    /// a second, or hardly any. The look comes at the next exit.
    pub slice_ns: u64,
    /// What is kept of them.
    pub policy: Policy,
}

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        CheckpointOptions {
            interval_ns: 1_000_000_000,
            min_steps: 50_000_000,
            // Storing a page takes as long as 2,000 steps of the software engine, so this is one part in a
            // hundred.
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

/// Where exits are counted, [`CheckpointOptions::page_rest_steps`] in time: virtual time passes with the
/// host's there, and KVM gets further in it than the software CPU, so that checkpoints may take one part in
/// 32.
const PAGE_REST_NS: u64 = 10_000 * 32;
/// After this virtual time the next look takes a checkpoint whatever it costs. For an idle guest it passes in
/// no time of the host; a busy guest that does not write gigabytes can afford a checkpoint long before.
const LONGEST_NS: u64 = 100_000_000_000;
/// Written disk blocks that are held in memory until a checkpoint is taken for their sake: 32 MiB.
const MAX_HELD_BLOCKS: usize = 8192;

/// Decides when a checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace<C> {
    interval_ns: u64,
    min_steps: u64,
    page_rest_steps: u64,
    pub last: Moment<C>,
    /// What the last checkpoint's cost asks for until the next, as [`Unit::cost`] has it.
    rest: u64,
}

impl<C: Unit> Pace<C> {
    /// A machine stands where a checkpoint of it is, or at its first instruction.
    pub fn begin(options: &CheckpointOptions, last: Moment<C>) -> Pace<C> {
        let CheckpointOptions { interval_ns, min_steps, page_rest_steps, .. } = *options;
        Pace { interval_ns, min_steps, page_rest_steps, last, rest: 0 }
    }

    /// Whether a checkpoint is to be taken now, where `held_blocks` written disk blocks are held in memory.
    pub fn due(&self, now: Moment<C>, held_blocks: usize) -> bool {
        let passed_ns = now.time_ns - self.last.time_ns;
        let paid = C::cost(now.count - self.last.count, passed_ns);
        let can_be_afforded = paid >= self.rest.max(C::cost(self.min_steps, 0));
        held_blocks >= MAX_HELD_BLOCKS
            || (passed_ns >= self.interval_ns && (can_be_afforded || passed_ns >= LONGEST_NS))
    }

    /// A checkpoint of this number of pages was taken.
    pub fn taken(&mut self, now: Moment<C>, pages: u64) {
        self.last = now;
        self.rest = C::cost(pages * self.page_rest_steps, pages * PAGE_REST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Exits, Instructions};

    fn at(number: u64, idle_ns: u64) -> Moment<Instructions> {
        Moment { count: Instructions(number), time_ns: number + idle_ns }
    }

    #[test]
    fn checkpoints_come_by_virtual_time_but_no_faster_than_they_can_be_afforded() {
        let min_steps = 50_000_000;
        let page_rest_steps = 100_000;
        let options = CheckpointOptions {
            interval_ns: 1_000_000_000,
            min_steps,
            page_rest_steps,
            ..CheckpointOptions::default()
        };
        let mut pace = Pace::begin(&options, Moment::default());
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
        let at = |exits, time_ns| Moment { count: Exits(exits), time_ns };
        let options = CheckpointOptions { interval_ns: 1_000_000_000, ..CheckpointOptions::default() };
        let mut pace = Pace::begin(&options, Moment::default());
        assert!(!pace.due(at(1_000_000, 999_999_999), 0));
        assert!(pace.due(at(1, 1_000_000_000), 0));
        pace.taken(at(1, 1_000_000_000), 10_000);
        let earliest = 1_000_000_000 + 10_000 * PAGE_REST_NS;
        assert!(!pace.due(at(2, earliest - 1), 0));
        assert!(pace.due(at(2, earliest), 0));
        assert!(pace.due(at(2, 1_000_000_001), MAX_HELD_BLOCKS));
    }
}
