//! How often checkpoints are taken. It follows from the run alone, not from how fast the host is.

use checkpoint::Policy;

use machine::position::Moment;
use machine::unit::Unit;

/// How often a recorder takes checkpoints, and what it keeps.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Virtual time between two checkpoints.
    pub interval_ns: u64,
    /// Instructions between two checkpoints at least, but for the rare ones of an idle guest, and those that
    /// are taken for the sake of written disk blocks.
    pub min_steps: u64,
    /// Instructions since the last checkpoint, at least, for each page that the next one has: what bounds the
    /// share of the run's time that checkpoints take.
    pub page_rest_steps: u64,
    /// Instructions since the last of the states that are kept in memory for the end, or since the last checkpoint, at
    /// least, for each page that is copied for the next.
    pub trail_rest_steps: u64,
    /// Instructions since the last checkpoint from which on the run's end has one whatever it costs. Fewer are replayed in
    /// less than two seconds even where a Linux 6.12 or 7.2 boots.
    pub end_steps: u64,
    /// Instructions after which a run that has no checkpoint yet gets one on credit, if checkpoints are to come as often as
    /// once a second: the next one waits until both are paid. While a guest boots it writes so much that its first second had
    /// none.
    pub early_steps: u64,
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
            // Storing a page takes as long as some 4,000 steps of the software engine, so this is one part in 64.
            page_rest_steps: 4_000 * 64,
            // Copying one takes as long as 4,000, so this is one part in 250.
            trail_rest_steps: 4_000 * 250,
            end_steps: 1_200_000_000,
            early_steps: 400_000_000,
            // Some milliseconds.
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
/// Written disk blocks that are held in memory until a checkpoint is taken for their sake: 96 MiB.
const MAX_HELD_BLOCKS: usize = 24_576;

/// Pages that the end's checkpoint may have whatever they cost: some milliseconds.
const FREE_PAGES: u64 = 1024;

/// Checkpoints that are to come at least this often have an early one.
const OFTEN_NS: u64 = 1_000_000_000;
/// Pages that the early checkpoint may have: 128 MiB, for which a guest has paid after ten seconds.
const EARLY_PAGES: u64 = 32_768;

/// Decides when a checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace<C> {
    interval_ns: u64,
    min_steps: u64,
    page_rest_steps: u64,
    end_steps: u64,
    /// The early checkpoint is still to come, after so many instructions.
    early_steps: Option<u64>,
    pub last: Moment<C>,
    /// What checkpoints' cost asks for since the last, as far as it is known: [`Unit::cost`].
    rest: u64,
    /// What of its cost was not paid yet when it was taken, if it was the last.
    debt: u64,
}

impl<C: Unit> Pace<C> {
    /// A machine stands where a checkpoint of it is, or at its first instruction.
    pub fn begin(options: &CheckpointOptions, last: Moment<C>) -> Pace<C> {
        let CheckpointOptions { interval_ns, min_steps, page_rest_steps, end_steps, early_steps, .. } =
            *options;
        let is_first = C::NAMES_ONE_PLACE && last.count == C::default();
        let early_steps = (is_first && interval_ns <= OFTEN_NS).then_some(early_steps);
        Pace { interval_ns, min_steps, page_rest_steps, end_steps, early_steps, last, rest: 0, debt: 0 }
    }

    /// Whether a checkpoint is to be taken now, where `held_blocks` written disk blocks are held in memory. `written` counts
    /// the pages that it would have, which is asked only where the pages counted before can be afforded.
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
        let paid = C::cost(now.count - self.last.count, passed_ns);
        if self.early_steps.is_some_and(|steps| paid >= steps) {
            self.rest = self.cost_of(written()?);
            let is_affordable = self.rest <= self.cost_of(EARLY_PAGES);
            self.early_steps = self.early_steps.filter(|_| is_affordable);
            return Ok(is_affordable);
        }
        if passed_ns < self.interval_ns || paid < self.rest.max(C::cost(self.min_steps, 0)) {
            return Ok(false);
        }
        if !C::NAMES_ONE_PLACE {
            // What is recorded here is recounted from a checkpoint on before it can be debugged, which takes far longer than
            // running it did: the first checkpoint is not waited for, and each is paid afterwards.
            return Ok(true);
        }
        self.rest = self.debt + self.cost_of(written()?);
        Ok(paid >= self.rest)
    }

    /// Whether the run's end, which is here, is to have a checkpoint, of so many pages: it can be afforded, or the way to the
    /// end would be long without it.
    pub fn due_at_end(&self, now: Moment<C>, pages: u64) -> bool {
        let (steps, passed_ns) = (now.count - self.last.count, now.time_ns - self.last.time_ns);
        let paid = C::cost(steps, passed_ns);
        !C::NAMES_ONE_PLACE
            || pages <= FREE_PAGES
            || paid >= self.end_steps
            || paid >= self.debt + self.cost_of(pages)
    }

    fn cost_of(&self, pages: u64) -> u64 {
        C::cost(pages * self.page_rest_steps, pages * PAGE_REST_NS)
    }

    /// A checkpoint of this number of pages was taken.
    pub fn taken(&mut self, now: Moment<C>, pages: u64) {
        let cost = self.cost_of(pages);
        let paid = C::cost(now.count - self.last.count, now.time_ns - self.last.time_ns);
        let is_early = self.early_steps.take().is_some_and(|steps| paid >= steps);
        self.debt = if is_early { cost.saturating_sub(paid) } else { 0 };
        self.rest = if C::NAMES_ONE_PLACE { 0 } else { cost };
        self.last = now;
    }
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
            early_steps: u64::MAX,
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
        assert!(!due(at(min_steps - 1, 5_000_000_000), 0, 1), "idling is free, checkpoints are not");
        assert!(due(at(min_steps, 5_000_000_000), 0, 1));
        assert!(due(at(min_steps + 5, 5_000_000_000), MAX_HELD_BLOCKS, 50_000));
        let last = min_steps + 5;
        let at = |number| at(last + number, 5_000_000_000);
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
    fn the_first_comes_early_on_credit_and_those_that_follow_wait_until_it_is_paid() {
        let options = CheckpointOptions {
            page_rest_steps: 100_000,
            end_steps: u64::MAX,
            ..CheckpointOptions::default()
        };
        let early = options.early_steps;
        let (pages, cost) = (20_000, 20_000 * 100_000);
        let mut pace = Pace::begin(&options, Moment::default());
        let due = |pace: &mut Pace<Instructions>, at, pages| pace.due(at, 0, || Ok::<_, ()>(pages)).unwrap();
        assert!(!due(&mut pace, at(early - 1, 0), 1), "idle or not, it is not time yet");
        assert!(due(&mut pace, at(early, 0), pages));
        pace.taken(at(early, 0), pages);
        let next = 2 * cost;
        assert!(!pace.due_at_end(at(next - 1, 0), pages));
        assert!(!due(&mut pace, at(next - 1, 0), pages));
        assert!(due(&mut pace, at(next, 0), pages));
        pace.taken(at(next, 0), pages);
        assert!(due(&mut pace, at(next + cost, 0), pages), "all is paid");

        let mut pace = Pace::begin(&options, Moment::default());
        pace.taken(at(1, 0), 1);
        assert!(!due(&mut pace, at(1 + early, 0), 1), "one came already, for the sake of written blocks");
        let mut pace = Pace::begin(&options, Moment::default());
        assert!(!due(&mut pace, at(early, 0), EARLY_PAGES + 1), "too dear");
        assert!(!due(&mut pace, at(early + 1, 0), 1), "it was asked for once");
        let seldom = CheckpointOptions { interval_ns: OFTEN_NS + 1, ..options };
        assert!(!due(&mut Pace::begin(&seldom, Moment::default()), at(early, 0), 1));
        assert!(
            !due(&mut Pace::begin(&options, at(1, 0)), at(early + 1, 0), 1),
            "it goes on with a checkpoint"
        );
    }

    #[test]
    fn the_end_has_one_where_it_can_be_afforded_or_is_far() {
        let options =
            CheckpointOptions { page_rest_steps: 100, end_steps: 1_000_000, ..CheckpointOptions::default() };
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
        let earliest = 1_000_000_000 + 10_000 * PAGE_REST_NS;
        assert!(!due(&mut pace, at(2, earliest - 1), 0));
        assert!(due(&mut pace, at(2, earliest), 0));
        assert!(due(&mut pace, at(2, 1_000_000_001), MAX_HELD_BLOCKS));
    }
}
