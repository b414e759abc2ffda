//! Decides which processor has the next turn, and how long the turn lasts.
//!
//! A *turn of the policy* is a turn that the [`TurnPolicy`] chooses. A *given turn* is a turn that a caller chooses
//! ([`Cpu::give_turns`](super::Cpu::give_turns)). A replay gives the turns that an event of the recording lists.
//! Given turns wait in a queue, and come before all turns of the policy.
//!
//! All turns depend only on the machine's state. The random policy's generator and the queue of given turns are a
//! part of this state ([`TurnState`]). The run loop calls this module only at the ends of turns, so a policy costs
//! no time during a turn.

use std::collections::VecDeque;

use serde::Serialize;

use super::spins::{SpinState, Spins};

/// The shortest turn that ttvm chooses for the policy [`TurnPolicy::Ring`], in steps. Recordings of earlier versions have
/// this length.
pub const TURN_STEPS: u64 = 100_000;

/// The rule that chooses the next turn among the processors that can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnPolicy {
    /// The processors get turns in the order of their numbers. A turn ends at each multiple of
    /// [`TurnRules::ring_steps`].
    #[default]
    Ring,
    /// A random number generator chooses the processor and the length of each turn.
    Random {
        /// The generator's seed. The same seed gives the same turns.
        seed: u64,
    },
}

/// The rules by which several processors take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnRules {
    /// The policy that chooses the next processor.
    pub policy: TurnPolicy,
    /// Number of steps after which every turn of the policy [`TurnPolicy::Ring`] ends. Not zero.
    pub ring_steps: u64,
    /// Whether a processor that spins without PAUSE yields, as at PAUSE.
    pub spins_yield: bool,
}

impl TurnRules {
    /// The rules of a policy, with turns of [`TURN_STEPS`]. Only PAUSE yields.
    pub fn new(policy: TurnPolicy) -> TurnRules {
        TurnRules { policy, ring_steps: TURN_STEPS, spins_yield: false }
    }
}

/// A given turn: a turn that a caller chooses, in place of the policy. The turn ends after its steps, or earlier if the
/// processor halts and another one can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// The processor's number.
    pub processor: u8,
    /// The number of steps in the turn, not zero.
    pub steps: u32,
}

impl Turn {
    /// The largest number of turns that an event of a recording gives.
    pub const MOST_AT_ONCE: usize = 2048;
    /// The largest number of given turns that can wait in the queue. A CPU ignores further given turns.
    pub const MOST_WAITING: usize = 4 * Turn::MOST_AT_ONCE;
    /// If fewer given turns than this number wait during a given turn, the run stops, so that the caller can give
    /// more.
    pub const FEW_WAITING: usize = 64;
}

/// The part of the turns' state that cannot be computed from the step count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnState {
    /// The generator of the random policy; 0 for another policy.
    pub generator: u64,
    /// A turn of [`TurnPolicy::Ring`] ends when the step count modulo [`TurnRules::ring_steps`] has this value. The
    /// value is not 0 if the machine's counts began in the middle of a turn.
    pub phase: u64,
    /// Steps left in the present turn.
    pub left: u64,
    /// Whether the present turn is a given turn, and not a turn of the policy.
    pub is_given: bool,
    /// Given turns that have not begun yet, in their order.
    pub waiting: Vec<Turn>,
    /// The progress of the search for a spin in this turn; `None` if spins do not end turns.
    pub spins: Option<SpinState>,
}

impl TurnState {
    /// The state of turns by these rules at step count 0; `None` if the state can be computed from the step count.
    pub fn at_start(rules: TurnRules) -> Option<TurnState> {
        Turns::new(rules).state(0)
    }
}

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All steps of the turn are executed, or a caller gave turns, which end a turn of the policy early.
    Steps,
    /// The processor executed PAUSE, or spins.
    Yield,
    /// The processor is halted.
    Halt,
}

/// The present turn, and the policy and the given turns that decide the next turns.
pub(super) struct Turns {
    policy: TurnPolicy,
    ring_steps: u64,
    generator: u64,
    phase: u64,
    /// The step count at which the present turn ends.
    ends_at: u64,
    is_given: bool,
    waiting: VecDeque<Turn>,
    spins: Spins,
}

impl Turns {
    /// Creates the turns of a machine at step count 0, and begins the first turn.
    pub fn new(rules: TurnRules) -> Turns {
        let TurnRules { policy, ring_steps, spins_yield } = rules;
        let generator = match policy {
            TurnPolicy::Ring => 0,
            TurnPolicy::Random { seed } => seed,
        };
        let mut turns = Turns {
            policy,
            ring_steps: ring_steps.max(1),
            generator,
            phase: 0,
            ends_at: 0,
            is_given: false,
            waiting: VecDeque::new(),
            spins: Spins::new(spins_yield),
        };
        turns.begin_own(0);
        turns
    }

    /// The step count at which the present turn ends at the latest.
    #[inline(always)]
    pub fn ends_at(&self) -> u64 {
        self.ends_at
    }

    /// The next step count at which the run loop must act: the turn ends at the latest, or [`Turns::spins`] must be
    /// called.
    #[inline(always)]
    pub fn next_look(&self) -> u64 {
        self.ends_at.min(self.spins.next_look())
    }

    /// Checks whether the processor spins, if a check is due at this step count. `registers` computes a hash of the
    /// registers.
    pub fn spins(&mut self, steps: u64, registers: impl FnOnce() -> u64) -> bool {
        self.spins.look(steps, registers)
    }

    /// Whether PAUSE or a spin ends the present turn. False during a given turn.
    pub fn can_be_yielded(&self) -> bool {
        !self.is_given
    }

    /// The number of given turns that have not begun yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the run must stop so that the caller can give more turns.
    pub fn asks_for_more(&self) -> bool {
        self.is_given && self.waiting.len() < Turn::FEW_WAITING
    }

    /// The state of the turns at a step count; `None` if the state can be computed from the step count.
    pub fn state(&self, steps: u64) -> Option<TurnState> {
        let is_ring = self.policy == TurnPolicy::Ring;
        let spins = self.spins.state(steps);
        let follows =
            is_ring && self.phase == 0 && !self.is_given && self.waiting.is_empty() && spins.is_none();
        (!follows).then(|| TurnState {
            generator: self.generator,
            phase: self.phase,
            left: self.ends_at.saturating_sub(steps),
            is_given: self.is_given,
            waiting: self.waiting.iter().copied().collect(),
            spins,
        })
    }

    /// The state of the turns at a step count, for a machine that continues from this point and counts steps from
    /// zero.
    pub fn state_from_zero(&self, steps: u64) -> Option<TurnState> {
        let phase = match self.policy {
            TurnPolicy::Ring => (self.phase + self.ring_steps - steps % self.ring_steps) % self.ring_steps,
            TurnPolicy::Random { .. } => 0,
        };
        let ends_at = self.ends_at.saturating_sub(steps);
        let (generator, waiting) = (self.generator, self.waiting.clone());
        let mut spins = self.spins.clone();
        spins.recounted(steps, 0);
        Turns { generator, phase, ends_at, waiting, spins, ..*self }.state(0)
    }

    /// Replaces the policy, at a step count, and begins a new turn.
    pub fn set_policy(&mut self, policy: TurnPolicy, steps: u64) {
        *self = Turns::new(TurnRules { policy, ..self.rules() });
        self.recounted(0, steps);
    }

    fn rules(&self) -> TurnRules {
        TurnRules { policy: self.policy, ring_steps: self.ring_steps, spins_yield: self.spins.end_turns() }
    }

    /// Replaces the state of the turns, at a step count.
    pub fn set_state(&mut self, state: Option<&TurnState>, steps: u64) {
        let Some(TurnState { generator, phase, left, is_given, waiting, spins }) = state else {
            *self = Turns::new(self.rules());
            return self.recounted(0, steps);
        };
        self.spins.set_state(spins.as_ref(), steps);
        self.ends_at = steps.saturating_add((*left).max(1));
        (self.generator, self.phase, self.is_given) = (*generator, phase % self.ring_steps, *is_given);
        self.waiting = waiting.iter().copied().take(Turn::MOST_WAITING).collect();
    }

    /// Adapts the present turn after the step count was replaced: `from` is the old count, `to` the new count. A
    /// turn of the ring policy then ends at the policy's next regular end after `to`. Every other turn keeps its
    /// number of remaining steps.
    pub fn recounted(&mut self, from: u64, to: u64) {
        self.spins.recounted(from, to);
        match self.policy {
            TurnPolicy::Ring if !self.is_given => self.ends_at = self.end_in_ring(to),
            _ => self.ends_at = to.saturating_add(self.ends_at.saturating_sub(from)),
        }
    }

    /// Adds given turns to the queue. Returns whether the present turn must end now, because it is a turn of the
    /// policy.
    pub fn give(&mut self, turns: &[Turn]) -> bool {
        let room = Turn::MOST_WAITING - self.waiting.len();
        self.waiting.extend(turns.iter().take(room));
        !self.is_given && !self.waiting.is_empty()
    }

    /// Ends the turn at a step count, and begins the next one. Returns the next processor, `None` if the seat does not
    /// change. `can_run` says whether a processor can run. There are `count` processors.
    pub fn next(
        &mut self,
        end: End,
        steps: u64,
        (seat, count): (usize, usize),
        mut can_run: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        if let Some(turn) = self.next_given(count, &mut can_run) {
            self.is_given = true;
            self.ends_at = steps.saturating_add(u64::from(turn.steps.max(1)));
            self.spins.rest();
            let next = usize::from(turn.processor);
            return (next != seat).then_some(next);
        }
        let next = match self.policy {
            TurnPolicy::Ring => {
                (1..count).map(|distance| (seat + distance) % count).find(|&number| can_run(number))
            }
            TurnPolicy::Random { .. } => {
                let others = (0..count).filter(|&number| number != seat || end == End::Steps);
                let able: Vec<usize> = others.filter(|&number| can_run(number)).collect();
                (!able.is_empty()).then(|| able[(self.draw() % able.len() as u64) as usize])
            }
        };
        if next.is_some() || end == End::Steps {
            let nobody_can = next.is_none() && !can_run(seat);
            if nobody_can && !self.waiting.is_empty() {
                // No processor can run. End this turn after one step, so that a given turn can begin as soon as its
                // processor can run.
                (self.is_given, self.ends_at) = (true, steps.saturating_add(1));
                self.spins.rest();
            } else {
                self.begin_own(steps);
            }
        }
        next.filter(|&next| next != seat)
    }

    /// Returns the first given turn whose processor can run. Removes this turn and all turns before it from the
    /// queue. If no such turn exists, all given turns stay in the queue.
    fn next_given(&mut self, count: usize, can_run: &mut impl FnMut(usize) -> bool) -> Option<Turn> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut known = [None; u8::MAX as usize + 1];
        let first = self.waiting.iter().position(|turn| {
            let number = usize::from(turn.processor);
            number < count && *known[number].get_or_insert_with(|| can_run(number))
        })?;
        self.waiting.drain(..first);
        self.waiting.pop_front()
    }

    /// Begins a turn of the policy. The policy decides the turn's length.
    fn begin_own(&mut self, steps: u64) {
        self.is_given = false;
        self.ends_at = match self.policy {
            TurnPolicy::Ring => self.end_in_ring(steps),
            TurnPolicy::Random { .. } => steps.saturating_add(self.draw_length()),
        };
        self.spins.begin(steps);
    }

    /// The step count at which a turn of the ring policy ends, if the turn contains step `steps`.
    fn end_in_ring(&self, steps: u64) -> u64 {
        let length = self.ring_steps;
        let since = (steps % length + length - self.phase) % length;
        steps.saturating_add(length - since)
    }

    /// The length of a turn: 1 to 262,143 steps. A random number `n` from 0 to 17 gives a random length from 2^n to
    /// 2^(n+1) - 1. So short turns and long turns both occur.
    fn draw_length(&mut self) -> u64 {
        const POWERS: u64 = 18;
        let bits = self.draw();
        let power = 1 << (bits % POWERS);
        power | bits >> 32 & (power - 1)
    }

    /// The generator's next number (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.generator = self.generator.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.generator;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: TurnPolicy = TurnPolicy::Random { seed: 1 };

    fn turn(processor: u8, steps: u32) -> Turn {
        Turn { processor, steps }
    }

    #[test]
    fn the_ring_follows_from_the_count() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Ring));
        assert_eq!((turns.ends_at(), turns.state(5)), (TURN_STEPS, None));
        assert_eq!(turns.next(End::Yield, 7, (1, 4), |number| number != 2), Some(3));
        assert_eq!(turns.ends_at(), TURN_STEPS);
        assert_eq!(turns.next(End::Steps, TURN_STEPS, (3, 4), |number| number == 3), None);
        assert_eq!(turns.ends_at(), 2 * TURN_STEPS);
        turns.recounted(TURN_STEPS, 12 * TURN_STEPS + 1);
        assert_eq!(turns.ends_at(), 13 * TURN_STEPS);
    }

    #[test]
    fn a_seed_decides_processors_and_lengths() {
        let run = |seed| {
            let (mut turns, mut steps, mut seat) =
                (Turns::new(TurnRules::new(TurnPolicy::Random { seed })), 0, 0);
            let taken = (0..5000).map(|_| {
                let length = turns.ends_at() - steps;
                steps = turns.ends_at();
                seat = turns.next(End::Steps, steps, (seat, 4), |number| number != 2).unwrap_or(seat);
                (seat, length)
            });
            taken.collect::<Vec<_>>()
        };
        let taken = run(1);
        assert_eq!(taken, run(1));
        assert_ne!(taken, run(2));
        for seat in [0, 1, 3] {
            let count = taken.iter().filter(|turn| turn.0 == seat).count();
            assert!((1500..1800).contains(&count), "{count}");
        }
        for power in 0..18 {
            let count = taken.iter().filter(|turn| turn.1.ilog2() == power).count();
            assert!((200..360).contains(&count), "{power}: {count}");
        }
    }

    #[test]
    fn a_processor_that_yields_keeps_its_turn_where_no_other_can_run() {
        let mut turns = Turns::new(TurnRules::new(SEED));
        let before = turns.state(0);
        assert_eq!(turns.next(End::Yield, 0, (1, 4), |number| number == 1), None);
        assert_eq!(turns.state(0), before);
        assert_eq!(turns.next(End::Yield, 0, (1, 4), |number| number < 2), Some(0));
        assert_ne!(turns.state(0), before);
    }

    #[test]
    fn given_turns_come_first_and_the_policy_goes_on_behind_them() {
        for policy in [TurnPolicy::Ring, SEED] {
            let mut turns = Turns::new(TurnRules::new(policy));
            let all = |_| true;
            assert!(turns.give(&[turn(3, 10), turn(3, 20), turn(2, 30)]));
            assert_eq!(turns.next(End::Steps, 5, (0, 4), all), Some(3));
            assert_eq!((turns.ends_at(), turns.can_be_yielded(), turns.asks_for_more()), (15, false, true));
            assert!(!turns.give(&[turn(1, 1)]), "a given turn does not end for others");
            assert_eq!(turns.next(End::Steps, 15, (3, 4), all), None);
            assert_eq!(turns.ends_at(), 35);
            assert_eq!(turns.next(End::Halt, 20, (3, 4), all), Some(2));
            assert_eq!(turns.next(End::Steps, 50, (2, 4), all), Some(1));
            let next = turns.next(End::Steps, 51, (1, 4), all);
            assert_eq!((turns.can_be_yielded(), turns.waiting()), (true, 0));
            if policy == TurnPolicy::Ring {
                assert_eq!((next, turns.ends_at(), turns.state(51)), (Some(2), TURN_STEPS, None));
            }
        }
    }

    #[test]
    fn given_turns_of_processors_that_cannot_run_are_skipped_or_wait() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Ring));
        turns.give(&[turn(9, 1), turn(1, 2), turn(2, 3), turn(1, 4)]);
        // There is no processor 9, and processor 1 cannot run.
        assert_eq!(turns.next(End::Steps, 0, (0, 4), |number| number != 1), Some(2));
        assert_eq!((turns.ends_at(), turns.waiting()), (3, 1));
        // Only processor 3 can run: the policy gives it a turn.
        assert_eq!(turns.next(End::Steps, 3, (2, 4), |number| number == 3), Some(3));
        assert_eq!((turns.ends_at(), turns.waiting()), (TURN_STEPS, 1));
        // No processor can run, so the turn ends after one step, and the given turn still waits.
        assert_eq!(turns.next(End::Steps, TURN_STEPS, (3, 4), |_| false), None);
        assert_eq!((turns.ends_at(), turns.waiting()), (TURN_STEPS + 1, 1));
        assert_eq!(turns.next(End::Steps, TURN_STEPS + 1, (3, 4), |_| true), Some(1));
    }

    #[test]
    fn a_state_goes_on_at_any_count() {
        let mut turns = Turns::new(TurnRules::new(SEED));
        turns.give(&[turn(1, 50), turn(2, 60)]);
        turns.next(End::Steps, 100, (0, 4), |_| true);
        let state = turns.state(110).unwrap();
        assert_eq!((state.left, state.is_given, &state.waiting[..]), (40, true, &[turn(2, 60)][..]));
        let mut other = Turns::new(TurnRules::new(SEED));
        other.set_state(Some(&state), 0);
        assert_eq!((other.ends_at(), other.state(0).as_ref()), (40, Some(&state)));
        other.recounted(0, 110);
        for _ in 0..10 {
            let steps = other.ends_at();
            assert_eq!(turns.ends_at(), steps);
            let next = turns.next(End::Steps, steps, (1, 4), |_| true);
            assert_eq!(other.next(End::Steps, steps, (1, 4), |_| true), next);
        }
        assert_eq!(turns.state(1000), other.state(1000));
    }

    #[test]
    fn counts_can_begin_in_the_middle_of_a_turn() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Ring));
        turns.recounted(0, 3 * TURN_STEPS + 10);
        let state = turns.state_from_zero(3 * TURN_STEPS + 10).unwrap();
        assert_eq!((state.phase, state.left), (TURN_STEPS - 10, TURN_STEPS - 10));
        let mut later = Turns::new(TurnRules::new(TurnPolicy::Ring));
        later.set_state(Some(&state), 0);
        for turn in 1..4 {
            assert_eq!(later.ends_at(), turn * TURN_STEPS - 10);
            later.next(End::Steps, later.ends_at(), (0, 2), |_| true);
        }
        // At the end of a turn, counting from zero again makes the phase 0 again. So there is no state to store.
        assert_eq!(later.state_from_zero(TURN_STEPS - 10), None);
        assert_eq!(turns.state_from_zero(3 * TURN_STEPS), None);
        // After the step count is replaced, turns end at the same remainder modulo `TURN_STEPS` as before.
        later.recounted(4 * TURN_STEPS - 10, TURN_STEPS);
        assert_eq!(later.ends_at(), 2 * TURN_STEPS - 10);
    }

    /// The generator is SplitMix64. The first numbers of this seed are known from other programs.
    #[test]
    fn the_turns_of_a_seed_never_change() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Random { seed: 1_234_567 }));
        let all = |_: usize| true;
        let ends = |turns: &Turns, begun: u64| turns.ends_at() - begun;
        // 6457827717110365317 gives the first length.
        assert_eq!(ends(&turns, 0), 535);
        // 3203168211198807973 chooses one of four processors, and 9817491932198370423 the length.
        assert_eq!(turns.next(End::Steps, 535, (0, 4), all), Some(1));
        assert_eq!(ends(&turns, 535), 741);
        // 4593380528125082431 chooses one of the other three processors.
        assert_eq!(turns.next(End::Yield, 600, (1, 4), all), Some(2));
        assert_eq!(ends(&turns, 600), 144_487);
        // 7804594928223864054 chooses processor 1 or 3.
        assert_eq!(turns.next(End::Halt, 700, (2, 4), |number| number != 0), Some(1));
        assert_eq!(ends(&turns, 700), 15);
        // 5078158048327840177 chooses the same processor again.
        assert_eq!(turns.next(End::Steps, 715, (1, 4), all), None);
        assert_eq!(ends(&turns, 715), 7365);
        // No other processor can run: the turn goes on, and the generator rests.
        assert_eq!(turns.next(End::Yield, 720, (1, 4), |number| number == 1), None);
        assert_eq!(ends(&turns, 715), 7365);
        // 15101793978218222876 chooses the only processor that can run.
        assert_eq!(turns.next(End::Steps, 8080, (1, 4), |number| number == 3), Some(3));
        assert_eq!(ends(&turns, 8080), 19_649);
    }

    #[test]
    fn a_ring_may_have_turns_of_any_length_and_phase() {
        let rules = TurnRules { ring_steps: 1000, ..TurnRules::new(TurnPolicy::Ring) };
        let mut turns = Turns::new(rules);
        assert_eq!(turns.ends_at(), 1000);
        turns.next(End::Steps, 1000, (0, 2), |_| true);
        assert_eq!(turns.ends_at(), 2000);
        turns.next(End::Yield, 1999, (1, 2), |_| true);
        assert_eq!(turns.ends_at(), 2000);
        // A machine that goes on at step 1999 counts from zero: its first turn has one step.
        let state = turns.state_from_zero(1999).unwrap();
        assert_eq!((state.phase, state.left, state.generator, state.is_given), (1, 1, 0, false));
        let mut later = Turns::new(rules);
        later.set_state(Some(&state), 0);
        for end in [1, 1001, 2001, 3001] {
            assert_eq!(later.ends_at(), end);
            later.next(End::Steps, end, (0, 2), |_| true);
        }
        // This machine goes on at step 2500, again with a count from zero.
        let again = later.state_from_zero(2500).unwrap();
        assert_eq!((again.phase, again.left), (501, 1501));
        // A phase from a stored state may be too large.
        later.set_state(Some(&TurnState { phase: 7300, left: 5, ..state }), 10_000);
        assert_eq!((later.ends_at(), later.state(10_001).unwrap().phase), (10_005, 300));
        later.next(End::Steps, 10_005, (0, 2), |_| true);
        assert_eq!(later.ends_at(), 10_300);
        // Without a state, turns end at multiples of their length again.
        later.set_state(None, 10_300);
        assert_eq!((later.ends_at(), later.state(10_300)), (11_000, None));
        // Zero would be a length without end.
        assert_eq!(Turns::new(TurnRules { ring_steps: 0, ..rules }).ends_at(), 1);
    }

    #[test]
    fn another_policy_begins_a_new_turn() {
        let rules = TurnRules { ring_steps: 1000, spins_yield: true, ..TurnRules::new(TurnPolicy::Ring) };
        let mut turns = Turns::new(rules);
        turns.give(&[turn(1, 5)]);
        turns.set_policy(TurnPolicy::Random { seed: 1_234_567 }, 400);
        assert_eq!((turns.ends_at(), turns.waiting()), (935, 0));
        let state = turns.state(400).unwrap();
        assert_eq!(state.spins, Some(SpinState { next_look: Some(10_000), registers: None }));
        turns.set_policy(TurnPolicy::Ring, 1400);
        assert_eq!(turns.ends_at(), 2000);
    }

    #[test]
    fn the_caller_is_asked_for_turns_while_few_wait() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Ring));
        turns.give(&vec![turn(1, 1); Turn::FEW_WAITING + 1]);
        assert!(!turns.asks_for_more(), "the present turn is the policy's");
        turns.next(End::Steps, 0, (0, 2), |_| true);
        assert_eq!((turns.waiting(), turns.asks_for_more()), (Turn::FEW_WAITING, false));
        turns.next(End::Steps, 1, (1, 2), |_| true);
        assert_eq!((turns.waiting(), turns.asks_for_more()), (Turn::FEW_WAITING - 1, true));
        assert!(!turns.give(&[]));
        assert!(!Turns::new(TurnRules::new(TurnPolicy::Ring)).give(&[]), "no turn is given");
    }

    #[test]
    fn a_given_turn_with_a_spin_search_rests() {
        let rules = TurnRules { spins_yield: true, ..TurnRules::new(TurnPolicy::Ring) };
        let mut turns = Turns::new(rules);
        assert_eq!(turns.next_look(), 10_000);
        turns.give(&[turn(1, 30_000)]);
        turns.next(End::Steps, 50, (0, 2), |_| true);
        assert_eq!(turns.next_look(), 30_050);
        assert!(!turns.spins(30_050, || 1));
        turns.next(End::Steps, 30_050, (1, 2), |_| true);
        assert_eq!((turns.next_look(), turns.ends_at()), (40_050, TURN_STEPS));
        // The turn ends before the look.
        turns.next(End::Steps, TURN_STEPS - 10, (0, 2), |_| true);
        assert_eq!(turns.next_look(), TURN_STEPS);
        // Nobody can run, and a given turn waits.
        turns.give(&[turn(1, 5)]);
        turns.next(End::Steps, TURN_STEPS, (0, 2), |_| false);
        assert_eq!((turns.next_look(), turns.can_be_yielded()), (TURN_STEPS + 1, false));
        // The search goes on in a machine that counts from zero.
        let turns = Turns::new(rules);
        let state = turns.state_from_zero(4000).unwrap();
        let spins = Some(SpinState { next_look: Some(6000), registers: None });
        assert_eq!((state.left, state.phase, state.spins), (96_000, 96_000, spins));
    }

    #[test]
    fn a_bad_state_is_bounded() {
        let mut turns = Turns::new(TurnRules::new(TurnPolicy::Ring));
        let waiting = vec![turn(0, 0); Turn::MOST_WAITING + 5];
        turns.set_state(
            Some(&TurnState { left: 0, waiting, is_given: true, ..TurnState::default() }),
            u64::MAX,
        );
        assert_eq!((turns.ends_at(), turns.waiting()), (u64::MAX, Turn::MOST_WAITING));
        assert!(!turns.give(&[turn(1, 1)]));
        assert_eq!(turns.waiting(), Turn::MOST_WAITING);
        turns.set_state(Some(&TurnState { waiting: vec![turn(0, 0)], ..TurnState::default() }), 9);
        assert_eq!(turns.ends_at(), 10);
        assert_eq!(turns.next(End::Steps, 10, (1, 4), |_| true), Some(0));
        assert_eq!(turns.ends_at(), 11);
    }
}
