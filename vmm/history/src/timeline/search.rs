//! Searches a recording interval by interval. A restorable place has a checkpoint or a snapshot. An interval is the
//! part between two restorable places, and the search runs each interval forward.
//!
//! The result of a search backward is the last hit of the latest interval that has a hit. Intervals are independent, so
//! a long search has workers on every core ([`super::walkers`]). But a search begins on one core. If a hit is near, the
//! work of other cores beyond this hit would be wasted.

use super::stops::{Armed, Hit, Stops};
use super::walker::{SNAPSHOT_SPACING, Walked, Walker};
use crate::workers::{Poll, Scanned, TakeRow};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};

/// The number of checkpoints that a search passes before other cores join in. A recording has three checkpoints close
/// together at its end, and four in each second of a busy guest.
pub(super) const ALONE: usize = 9;
/// The number of steps that a search backward runs before other cores join in, if there are idle walkers. Most hits are
/// near the beginning of the search.
pub(super) const ALONE_STEPS: u64 = 50_000_000;
/// The same number as [`ALONE_STEPS`], but for a search without idle walkers. Making a walker takes as long as
/// searching 200 million steps. If the hit is within this distance, more cores save at most a tenth of the time.
pub(super) const ALONE_STEPS_AT_FIRST: u64 = 1_200_000_000;
/// The length in steps of the first interval of a search backward.
const FIRST_INTERVAL_STEPS: u64 = 100_000;
/// The number of parts of an interval. The scan takes a snapshot between two parts. To go to a hit, the walker runs
/// only the hit's part again.
const PARTS: u64 = 16;

/// The direction of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From earlier to later.
    Forward,
    /// From later to earlier.
    Backward,
}

/// The part of a run between two places. The first place is restorable, or the walker is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The first instruction.
    pub start: Instructions,
    /// The place after the last instruction.
    pub end: Instructions,
}

/// A function that is called at each hit, on any thread, and whose result is collected. The machine is after the event
/// that caused the hit, or before the instruction with a breakpoint.
pub type Look<'a, T> = dyn Fn(&Machine<Instructions>, Hit) -> T + Sync + 'a;

/// A [`Look`] that returns the hit itself.
pub(super) fn the_hit(_: &Machine<Instructions>, hit: Hit) -> Hit {
    hit
}

/// The stops that a search looks for, the hits that it returns, and the function that reads the machine at a hit.
pub(super) struct Question<'a, T> {
    pub stops: &'a Stops,
    pub keep: Keep,
    pub look: &'a Look<'a, T>,
}

/// Which hits of an interval a search returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    First,
    Last,
    /// All hits. The search ends after this number of hits.
    All(usize),
}

impl Keep {
    /// The number of hits after which a search ends.
    pub fn enough(self) -> usize {
        match self {
            Keep::First | Keep::Last => 1,
            Keep::All(limit) => limit,
        }
    }

    /// The end of an interval at which a search enters the interval: its start in a search forward, its end in a search
    /// backward.
    pub fn begin_of(self, interval: &Interval) -> Instructions {
        if self == Keep::Last { interval.end } else { interval.start }
    }
}

impl Walker {
    /// Goes to an interval's start and scans the interval. `row` gets each result, and returns whether to continue. If
    /// a scan forward is interrupted at a place with a breakpoint, this breakpoint has not been reported yet.
    pub fn scan<T>(
        &mut self,
        interval: Interval,
        question: &Question<'_, T>,
        row: &mut TakeRow<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<Instructions>, Error> {
        if question.keep != Keep::Last {
            return self.scan_forward(interval, question, row, poll);
        }
        // Snapshots inside the interval divide it into shorter intervals.
        let mut end = interval.end;
        loop {
            let start = self.nearest(end.saturating_back(ALONE_STEPS)).0.max(interval.start);
            let mut last = None;
            let mut found = |hit| {
                last = Some(hit);
                true
            };
            let scanned = self.scan_forward(Interval { start, end }, question, &mut found, poll)?;
            if matches!(scanned, Scanned::Interrupted(_)) {
                // Which hit is the last is known only at the interval's end, so the whole interval counts as not
                // searched.
                return Ok(Scanned::Interrupted(end));
            }
            if let Some(last) = last {
                row(last);
            } else if start > interval.start {
                end = start;
                continue;
            }
            return Ok(Scanned::Whole);
        }
    }

    fn scan_forward<T>(
        &mut self,
        interval: Interval,
        question: &Question<'_, T>,
        row: &mut TakeRow<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Scanned<Instructions>, Error> {
        if self.position() != interval.start {
            self.restore_nearest(interval.start)?;
            if self.advance(interval.start, SNAPSHOT_SPACING, poll)? == Walked::Interrupted {
                return Ok(Scanned::Interrupted(interval.start));
            }
        }
        let spacing = ((interval.end - interval.start) / PARTS).max(SNAPSHOT_SPACING);
        let armed = Armed::new(question.stops, &mut self.machine);
        // `run` ignores a breakpoint at `origin`. No place has this number, so a breakpoint at the interval's first
        // instruction is a hit too.
        let mut origin = Instructions::MAX;
        loop {
            match self.run(interval.end, &armed, &mut origin, spacing, poll)? {
                Walked::There => return Ok(Scanned::Whole),
                Walked::Interrupted => return Ok(Scanned::Interrupted(self.position())),
                Walked::Hit(hit) => {
                    let look = |machine: &Machine<Instructions>| (question.look)(machine, hit);
                    // A breakpoint is hit before its instruction, so `look` must see the processor that executes
                    // the next step.
                    let is_step = hit.before != hit.after;
                    let seen = if is_step { self.machine.look_as_stepped(look) } else { look(&self.machine) };
                    if !row(seen) {
                        return Ok(Scanned::Whole);
                    }
                }
            }
        }
    }

    /// The next interval before `end`, in a search backward from `origin`. Intervals are short at first,
    /// since most hits are near. Later each interval is a constant share of the part already searched.
    pub fn interval_before(&self, end: Instructions, origin: Instructions) -> Interval {
        let length = ((origin - end) / PARTS).max(FIRST_INTERVAL_STEPS);
        Interval { start: self.nearest(end.saturating_back(length)).0, end }
    }
}
