//! Decides when checkpoints are taken. The decision depends only on the run, not on the host's speed.

use checkpoint::Policy;

use machine::position::Moment;
use machine::unit::Unit;

/// How often a recorder takes checkpoints, and which of them it keeps.
///
/// Checkpoints have a budget in instructions. Each executed instruction adds one to the budget, and each page of a
/// checkpoint costs some thousands. A checkpoint is due when the budget covers the cost of its pages. A run begins with
/// a credit. Without the credit, a booting guest writes so much that the first checkpoint would come after seconds.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Virtual time between two checkpoints.
    pub interval_ns: u64,
    /// Least number of instructions between two checkpoints. Exceptions are the rare checkpoints of an idle guest, and
    /// checkpoints that are taken because too many written disk blocks are in memory.
    pub min_steps: u64,
    /// Cost of a page in instructions. The cost bounds the share of the run's time that checkpoints take.
    pub page_rest_steps: u64,
    /// Cost of a page in virtual time, for machines that count exits.
    pub page_rest_ns: u64,
    /// For the [`trail`](crate::trail): the least number of instructions between two of its states, for each page that
    /// the state copies. The last checkpoint counts as such a state.
    pub trail_rest_steps: u64,
    /// If the last checkpoint is at least this number of instructions before the run's end, the end gets a checkpoint
    /// at any cost. A debugger replays fewer instructions in a fraction of a second.
    pub end_steps: u64,
    /// The budget at the beginning of a run, in instructions. After a checkpoint, the budget or the debt is at most
    /// this number.
    pub credit_steps: u64,
    /// The length of a slice in instructions. After each slice, the recorder decides whether a checkpoint is due.
    pub slice_steps: u64,
    /// The least virtual time of a slice, for machines that count exits. The slice ends at the next exit after this
    /// time. A slice is not a number of exits, because a guest makes thousands of exits in a second, or hardly any.
    pub slice_ns: u64,
    /// The policy that decides which checkpoints are kept.
    pub policy: Policy,
}

impl CheckpointOptions {
    /// The default time between checkpoints. On average, a debugger's first step back replays half of this time.
    pub const INTERVAL_NS: u64 = 250_000_000;
    /// The default share of the run's time that checkpoints may take, in percent.
    pub const OVERHEAD_PERCENT: f64 = 4.0;

    /// The same options, but checkpoints take at most this percentage of the run's time.
    pub fn with_overhead(self, percent: f64) -> CheckpointOptions {
        let rest = |page: f64| (page * 100.0 / percent) as u64;
        CheckpointOptions { page_rest_steps: rest(PAGE_STEPS), page_rest_ns: rest(PAGE_NS), ..self }
    }

    /// The same options, but the cost of checkpoints is not limited.
    pub fn at_any_cost(self) -> CheckpointOptions {
        CheckpointOptions { page_rest_steps: 0, page_rest_ns: 0, ..self }
    }
}

/// The time to store the first version of a page, in steps of the software engine. In this time the page is copied and
/// compressed, and the guest's next write to the page is noticed.
const PAGE_STEPS: f64 = 2_500.0;
/// Virtual time after which a page costs [`LATE_PAGE`] times as much. After this time, most pages have an earlier
/// version, and storing such a page takes some 7,000 steps. Before this time the cost is too low for such pages on
/// purpose, so that short runs have dense checkpoints.
const LATE_NS: u64 = 10_000_000_000;
const LATE_PAGE: i64 = 3;
/// The time in nanoseconds to store a page, for machines that count exits. The virtual time of such machines passes as
/// fast as the host's time.
const PAGE_NS: f64 = 10_000.0;

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        CheckpointOptions {
            interval_ns: CheckpointOptions::INTERVAL_NS,
            min_steps: 50_000_000,
            page_rest_steps: 0,
            page_rest_ns: 0,
            // Copying a page, and noticing the guest's next write to it, takes as long as 2,500 instructions. So the
            // trail takes about 1 % of the run's time.
            trail_rest_steps: 2_500 * 100,
            end_steps: 100_000_000,
            // The cost of 16,000 pages.
            credit_steps: 1_000_000_000,
            // A slice takes some milliseconds of host time.
            slice_steps: 10_000_000,
            slice_ns: 20_000_000,
            policy: Policy::default(),
        }
        .with_overhead(CheckpointOptions::OVERHEAD_PERCENT)
    }
}

/// If the last checkpoint is this virtual time back, a checkpoint is taken at any cost. An idle guest executes few
/// instructions in this time, so its budget hardly grows. A busy guest that does not write gigabytes gets a checkpoint
/// much earlier.
const LONGEST_NS: u64 = 100_000_000_000;
/// If this number of written disk blocks (96 MiB) is in memory, a checkpoint is taken at any cost to store the blocks.
const MAX_HELD_BLOCKS: usize = 24_576;

/// A checkpoint at the end with at most this number of pages is always taken, because it takes only some milliseconds.
const FREE_PAGES: u64 = 1024;

/// Decides when a checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace<C> {
    interval_ns: u64,
    min_steps: u64,
    page_rest_steps: u64,
    page_rest_ns: u64,
    end_steps: u64,
    credit: i64,
    pub last: Moment<C>,
    /// The budget right after the last checkpoint, in the unit of [`Unit::cost`]. A negative number is a debt.
    saved: i64,
    /// The cost of a checkpoint when the written pages were last counted. The number of written pages never falls
    /// before the next checkpoint, so the cost is at least this number.
    known_cost: i64,
}

impl<C: Unit> Pace<C> {
    /// Begins at a checkpoint, or at the machine's first instruction.
    pub fn begin(options: &CheckpointOptions, last: Moment<C>) -> Pace<C> {
        let CheckpointOptions {
            interval_ns,
            min_steps,
            page_rest_steps,
            page_rest_ns,
            end_steps,
            credit_steps,
            ..
        } = *options;
        let credit = if C::NAMES_ONE_PLACE { signed(credit_steps) } else { 0 };
        let (saved, known_cost) = (credit, 0);
        Pace {
            interval_ns,
            min_steps,
            page_rest_steps,
            page_rest_ns,
            end_steps,
            credit,
            last,
            saved,
            known_cost,
        }
    }

    /// Whether to take a checkpoint now. `held_blocks` is the number of written disk blocks in memory. `written`
    /// counts the pages to store. `written` is called only if the budget covers the cost of the pages that were
    /// counted last.
    pub fn due<E>(
        &mut self,
        now: Moment<C>,
        held_blocks: usize,
        written: impl FnOnce() -> Result<u64, E>,
    ) -> Result<bool, E> {
        let passed_ns = now.time_ns - self.last.time_ns;
        if held_blocks >= MAX_HELD_BLOCKS || passed_ns >= LONGEST_NS.max(self.interval_ns) {
            return Ok(true);
        }
        if passed_ns < self.interval_ns || self.earned(now) < C::cost(self.min_steps, 0) {
            return Ok(false);
        }
        let saved = self.saved_at(now);
        if !C::NAMES_ONE_PLACE {
            // Before a debugger opens a run that counts exits, ttvm replays the part after the last checkpoint on
            // the software CPU. This replay takes far longer than KVM took to run the part. So the first checkpoint
            // comes at once. After each checkpoint, the next one waits until guest time has covered the cost.
            return Ok(saved >= 0);
        }
        if saved < self.known_cost {
            return Ok(false);
        }
        self.known_cost = self.cost_of(now, written()?);
        Ok(saved >= self.known_cost)
    }

    /// Whether the run's end, at `now`, gets a checkpoint of this number of pages. The end gets a checkpoint if the
    /// budget covers its cost, if the checkpoint has few pages, or if the last checkpoint is far back.
    pub fn due_at_end(&self, now: Moment<C>, pages: u64) -> bool {
        !C::NAMES_ONE_PLACE
            || pages <= FREE_PAGES
            || self.earned(now) >= self.end_steps
            || self.saved_at(now) >= self.cost_of(now, pages)
    }

    /// The amount by which the budget has grown since the last checkpoint.
    fn earned(&self, now: Moment<C>) -> u64 {
        C::cost(now.count - self.last.count, now.time_ns - self.last.time_ns)
    }

    fn saved_at(&self, now: Moment<C>) -> i64 {
        self.saved.saturating_add(signed(self.earned(now)))
    }

    fn cost_of(&self, now: Moment<C>, pages: u64) -> i64 {
        let cost = signed(C::cost(
            pages.saturating_mul(self.page_rest_steps),
            pages.saturating_mul(self.page_rest_ns),
        ));
        if C::NAMES_ONE_PLACE && now.time_ns >= LATE_NS { cost.saturating_mul(LATE_PAGE) } else { cost }
    }

    /// Notes that a checkpoint of this number of pages was taken.
    pub fn taken(&mut self, now: Moment<C>, pages: u64) {
        let cost = self.cost_of(now, pages);
        self.saved = if C::NAMES_ONE_PLACE {
            // After a checkpoint at any cost, the debt is at most the credit. Otherwise the next checkpoint might come
            // hours later.
            self.saved_at(now).saturating_sub(cost).clamp(-self.credit, self.credit)
        } else {
            -cost
        };
        self.known_cost = 0;
        self.last = now;
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::position::{Exits, Instructions};

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
            credit_steps: 0,
            ..CheckpointOptions::default()
        };
        let mut pace = Pace::begin(&options, Moment::default());
        let mut due = |at, held, pages| -> bool {
            let is_due = pace.due(at, held, || Ok::<_, ()>(pages)).unwrap();
            if is_due {
                pace.taken(at, pages);
            }
            is_due
        };
        assert!(!due(at(999_999_999, 0), 0, 1));
        assert!(!due(at(min_steps - 1, 1_000_000_000), 0, 1), "idling is free, checkpoints are not");
        assert!(due(at(min_steps, 1_000_000_000), 0, 1));
        assert!(due(at(min_steps + 5, 1_000_000_000), MAX_HELD_BLOCKS, 50_000));
        let last = min_steps + 5;
        let at = |number| at(last + number, 1_000_000_000);
        assert!(!due(at(1_000_000_000), 0, 50_000));
        assert!(!due(at(50_000 * page_rest_steps - 1), 0, 1), "they were counted before, and none goes away");
        assert!(!due(at(50_000 * page_rest_steps), 0, 50_001));
        assert!(due(at(50_001 * page_rest_steps), 0, 50_001));
        let now = at(50_001 * page_rest_steps);
        let idled = |ns| Moment { count: now.count, time_ns: now.time_ns + ns };
        assert!(!due(idled(LONGEST_NS - 1), 0, 0));
        assert!(due(idled(LONGEST_NS), 0, 0), "an idle guest's checkpoints are far apart, but come");
    }

    #[test]
    fn the_first_come_on_credit_and_those_that_follow_wait_until_they_are_paid() {
        let credit = 2_000_000_000;
        let options = CheckpointOptions {
            page_rest_steps: 100_000,
            credit_steps: credit,
            end_steps: u64::MAX,
            ..CheckpointOptions::default()
        };
        let interval = options.interval_ns;
        let due = |pace: &mut Pace<Instructions>, at, pages| pace.due(at, 0, || Ok::<_, ()>(pages)).unwrap();
        let mut pace = Pace::begin(&options, Moment::default());
        assert!(!due(&mut pace, at(interval - 1, 0), 1), "it is not time yet");
        assert!(!due(&mut pace, at(interval, 0), 22_501), "too dear");
        assert!(due(&mut pace, at(interval + 100_000, 0), 22_501));
        pace.taken(at(interval + 100_000, 0), 22_501);
        let next = 2 * interval + 100_000;
        assert!(!pace.due_at_end(at(next, 0), 2_501), "the credit is used up");
        assert!(due(&mut pace, at(next, 0), 2_500));
        pace.taken(at(next, 0), 2_500);
        let late = next + 10 * credit;
        pace.taken(at(late, 0), 1);
        assert!(!due(&mut pace, at(late + interval, 0), 7_501), "no more than the credit is saved");
        assert!(
            due(&mut pace, at(late + interval + 300_000, 0), 7_501),
            "a late page costs three times as much"
        );
        // Too many written blocks force a checkpoint.
        pace.taken(at(late + 1, 0), 1_000_000);
        assert!(!due(&mut pace, at(late + credit, 0), 1));
        assert!(due(&mut pace, at(late + credit + 300_001, 0), 1), "a debt is no more than the credit");
    }

    #[test]
    fn the_end_has_one_where_it_can_be_afforded_or_is_far() {
        let options = CheckpointOptions {
            page_rest_steps: 100,
            end_steps: 1_000_000,
            credit_steps: 0,
            ..CheckpointOptions::default()
        };
        let pace = Pace::begin(&options, at(1000, 0));
        assert!(pace.due_at_end(at(1001, 0), FREE_PAGES), "few pages cost next to nothing");
        let pages = FREE_PAGES + 1;
        assert!(!pace.due_at_end(at(999 + 100 * pages, 0), pages));
        assert!(!pace.due_at_end(at(1001, u64::MAX / 2), pages), "idle time is no time of replay");
        assert!(pace.due_at_end(at(1000 + 100 * pages, 0), pages));
        assert!(!pace.due_at_end(at(1_000_999, 0), 10_000));
        assert!(pace.due_at_end(at(1_001_000, 0), 10_000));
        let pace = Pace::begin(&options, Moment { count: Exits(0), time_ns: 0 });
        assert!(
            pace.due_at_end(Moment { count: Exits(1), time_ns: 1 }, pages),
            "a recount starts from there"
        );
    }

    #[test]
    fn where_exits_are_counted_checkpoints_cost_time() {
        let at = |exits, time_ns| Moment { count: Exits(exits), time_ns };
        let options = CheckpointOptions { interval_ns: 1_000_000_000, ..CheckpointOptions::default() };
        let mut pace = Pace::begin(&options, Moment::default());
        let due = |pace: &mut Pace<Exits>, at, held| pace.due(at, held, || Err("not asked")).unwrap();
        assert!(!due(&mut pace, at(1_000_000, 999_999_999), 0));
        assert!(due(&mut pace, at(1, 1_000_000_000), 0));
        pace.taken(at(1, 1_000_000_000), 10_000);
        let earliest = 1_000_000_000 + 10_000 * options.page_rest_ns;
        assert!(!due(&mut pace, at(2, earliest - 1), 0));
        assert!(due(&mut pace, at(2, earliest), 0));
        assert!(due(&mut pace, at(2, 1_000_000_001), MAX_HELD_BLOCKS));
        let mut pace = Pace::begin(&options.at_any_cost(), Moment::default());
        pace.taken(at(1, 1_000_000_000), 10_000);
        assert!(due(&mut pace, at(2, 2_000_000_000), 0), "its interval is kept");
    }
}
