//! Finds out whether a processor spins. Such a processor executes the same instructions again and again, until
//! another processor writes the value that it waits for.
//!
//! A kernel's spin loops have PAUSE, which yields. Other code may spin without PAUSE. Once in a turn, the general
//! registers, the flags and RIP are compared with their values [`ROUNDS_STEPS`] steps earlier. If all are equal,
//! the processor is taken to spin. So the result depends only on the machine's state, and not on where a run is
//! cut.

/// Number of steps of a turn before the first *look*, which computes a hash of the registers. A look takes as much
/// time as a few hundred instructions.
const CALM_STEPS: u64 = 10_000;
/// Number of steps from the first look to the second one. A spin is found if the number of steps in one round of
/// the loop divides 5040. The divisors include 1 to 10, 12, 14, 15, 16 and 18.
const ROUNDS_STEPS: u64 = 5_040;
/// Value of `next_look` if no look is due in this turn.
const NEVER: u64 = u64::MAX;

/// The progress of the search for a spin in the present turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpinState {
    /// Number of steps until the next look. `None` if no look is due in this turn.
    pub next_look: Option<u64>,
    /// A hash of the registers at the first look; `None` before that look.
    pub registers: Option<u64>,
}

/// The search for a spin in the present turn.
#[derive(Clone, Debug)]
pub(super) struct Spins {
    end_turns: bool,
    /// The step count of the next look.
    next_look: u64,
    /// A hash of the registers at the first look; `None` before that look.
    registers: Option<u64>,
}

impl Spins {
    /// Creates the search. `end_turns` says whether spins end turns; if not, nothing is searched.
    pub fn new(end_turns: bool) -> Spins {
        Spins { end_turns, next_look: NEVER, registers: None }
    }

    /// Whether a spin ends a turn.
    pub fn end_turns(&self) -> bool {
        self.end_turns
    }

    /// The step count of the next look.
    #[inline(always)]
    pub fn next_look(&self) -> u64 {
        self.next_look
    }

    /// Begins the search in a new turn, at a step count.
    pub fn begin(&mut self, steps: u64) {
        self.rest();
        if self.end_turns {
            self.next_look = steps.saturating_add(CALM_STEPS);
        }
    }

    /// Ends the search for this turn.
    pub fn rest(&mut self) {
        (self.next_look, self.registers) = (NEVER, None);
    }

    /// Looks at the registers, if a look is due at this step count. Returns whether the processor spins.
    pub fn look(&mut self, steps: u64, registers: impl FnOnce() -> u64) -> bool {
        if steps < self.next_look {
            return false;
        }
        let now = registers();
        let Some(earlier) = self.registers else {
            (self.next_look, self.registers) = (steps.saturating_add(ROUNDS_STEPS), Some(now));
            return false;
        };
        self.rest();
        now == earlier
    }

    /// The state of the search at a step count; `None` if spins do not end turns.
    pub fn state(&self, steps: u64) -> Option<SpinState> {
        let next_look = (self.next_look != NEVER).then(|| self.next_look.saturating_sub(steps));
        self.end_turns.then_some(SpinState { next_look, registers: self.registers })
    }

    /// Replaces the state of the search, at a step count.
    pub fn set_state(&mut self, state: Option<&SpinState>, steps: u64) {
        self.rest();
        if let Some(SpinState { next_look, registers }) = state.filter(|_| self.end_turns) {
            self.next_look = next_look.map_or(NEVER, |left| steps.saturating_add(left.max(1)));
            self.registers = *registers;
        }
    }

    /// Adapts the search after the step count was replaced: `from` is the old count, `to` the new count.
    pub fn recounted(&mut self, from: u64, to: u64) {
        if self.next_look != NEVER {
            self.next_look = to.saturating_add(self.next_look.saturating_sub(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search in a turn that begins at this step count.
    fn begun(steps: u64) -> Spins {
        let mut spins = Spins::new(true);
        spins.begin(steps);
        spins
    }

    #[test]
    fn registers_that_come_back_after_5040_steps_are_a_spin() {
        for (first, second, is_spin) in [(7, 7, true), (7, 8, false), (0, 0, true)] {
            let mut spins = begun(100);
            assert_eq!(spins.next_look(), 10_100);
            assert!(!spins.look(10_099, || unreachable!("no look is due")));
            assert!(!spins.look(10_100, || first));
            assert_eq!(spins.next_look(), 15_140);
            assert!(!spins.look(15_139, || unreachable!("no look is due")));
            assert_eq!(spins.look(15_140, || second), is_spin);
            // There is one search in a turn.
            assert_eq!(spins.next_look(), u64::MAX);
            assert!(!spins.look(1 << 40, || unreachable!("no look is due")));
        }
    }

    #[test]
    fn nothing_is_searched_if_spins_do_not_end_turns() {
        let mut spins = Spins::new(false);
        spins.begin(0);
        let earlier = SpinState { next_look: Some(5), registers: Some(1) };
        spins.set_state(Some(&earlier), 0);
        assert_eq!((spins.next_look(), spins.state(0), spins.end_turns()), (u64::MAX, None, false));
    }

    #[test]
    fn a_search_goes_on_from_its_state_at_another_count() {
        let mut spins = begun(0);
        assert_eq!(spins.state(4000), Some(SpinState { next_look: Some(6000), registers: None }));
        spins.look(10_000, || 9);
        let state = SpinState { next_look: Some(5000), registers: Some(9) };
        assert_eq!(spins.state(10_040), Some(state));
        let mut other = begun(3);
        other.set_state(Some(&state), 500);
        assert_eq!(other.state(500), Some(state));
        assert!(other.look(5500, || 9));
        let over = SpinState { next_look: None, registers: None };
        assert_eq!(other.state(6000), Some(over));
        // No look is due, also in the restored search.
        let mut other = begun(3);
        other.set_state(Some(&over), 10);
        assert_eq!((other.next_look(), other.state(10)), (u64::MAX, Some(over)));
        other.recounted(10, 90);
        assert_eq!(other.next_look(), u64::MAX);
        // Without a state, the search is over.
        let mut other = begun(3);
        other.set_state(None, 10);
        assert_eq!(other.next_look(), u64::MAX);
        // A look that is due now comes after the next step.
        other.set_state(Some(&SpinState { next_look: Some(0), registers: None }), 10);
        assert_eq!(other.next_look(), 11);
        spins.recounted(10_040, 40);
        assert_eq!(spins.next_look(), 5040);
    }
}
