//! Searches along a recording: interval by interval between places that can be restored, each interval run forward.
//!
//! A search backward wants the last hit of the latest interval that has one. Intervals do not depend on one another, so a
//! long search has workers on every core ([`super::walkers`]). It begins alone, though: what the others do beyond the first
//! hit is lost.

use super::stops::{Armed, Hit, Stops};
use super::walker::{SNAPSHOT_SPACING, Walked, Walker};
use crate::workers::{Poll, Scanned, TakeRow};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};

/// Checkpoints that a search passes before other cores join in. A recording's end has three that are close together.
pub(super) const ALONE: usize = 6;
/// Steps that a search backward looks through at most before other cores join in, where these have walkers: most hits are
/// near.
pub(super) const ALONE_STEPS: u64 = 50_000_000;
/// The same where they have none yet: making a walker takes as long as looking through 200 million.
pub(super) const ALONE_STEPS_AT_FIRST: u64 = 500_000_000;
/// The first interval of a search backward.
const FIRST_INTERVAL_STEPS: u64 = 100_000;
/// Parts of an interval between which its scan leaves snapshots: what lies between them has to be run again to
/// get to a hit.
const PARTS: u64 = 16;

/// Which way a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From earlier to later.
    Forward,
    /// From later to earlier.
    Backward,
}

/// From a place that can be restored, or where a walker stands, to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The first instruction.
    pub start: Instructions,
    /// The instruction behind the last one.
    pub end: Instructions,
}

/// What a search takes down of a hit. Any thread calls it, where the machine stands at the hit: behind what happened, and
/// before an instruction with a breakpoint.
pub type Look<'a, T> = dyn Fn(&Machine<Instructions>, Hit) -> T + Sync + 'a;

/// Takes down the hit and nothing else.
pub(super) fn the_hit(_: &Machine<Instructions>, hit: Hit) -> Hit {
    hit
}

/// What is looked for along intervals.
pub(super) struct Question<'a, T> {
    pub stops: &'a Stops,
    pub keep: Keep,
    pub look: &'a Look<'a, T>,
}

/// Which hits of an interval to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    First,
    Last,
    /// At most this number, and then no more are looked for.
    All(usize),
}

impl Keep {
    /// Hits after which a search needs no more.
    pub fn enough(self) -> usize {
        match self {
            Keep::First | Keep::Last => 1,
            Keep::All(limit) => limit,
        }
    }

    /// Where a search enters an interval.
    pub fn begin_of(self, interval: &Interval) -> Instructions {
        if self == Keep::Last { interval.end } else { interval.start }
    }
}

impl Walker {
    /// Goes to an interval's start and scans the interval. `row` gets what was found, and says whether to go on. A breakpoint
    /// where a scan forward was interrupted is yet to be found.
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
        // Snapshots within a long interval, where there are any, make it a row of short ones.
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
                // The last hit is known at the interval's end only.
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
        // A breakpoint at the interval's very first instruction counts.
        let mut origin = Instructions::MAX;
        loop {
            match self.run(interval.end, &armed, &mut origin, spacing, poll)? {
                Walked::There => return Ok(Scanned::Whole),
                Walked::Interrupted => return Ok(Scanned::Interrupted(self.position())),
                Walked::Hit(hit) => {
                    if !row((question.look)(&self.machine, hit)) {
                        return Ok(Scanned::Whole);
                    }
                }
            }
        }
    }

    /// The interval before `end` that a search backward that began at `origin` looks at next: small at first,
    /// since most hits are near, and a constant share of what was searched already later on.
    pub fn interval_before(&self, end: Instructions, origin: Instructions) -> Interval {
        let length = ((origin - end) / PARTS).max(FIRST_INTERVAL_STEPS);
        Interval { start: self.nearest(end.saturating_back(length)).0, end }
    }
}
