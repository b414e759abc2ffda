//! The candidates for places to stop at. Counts how often the guest passes each candidate.

use std::time::Duration;

use crate::kick::AGAIN;
use crate::vcpu::MAX_BREAKPOINTS;

/// After this many passes, a place is dropped if another place is left.
const OFTEN: u32 = 16;
/// The longest wait that this code assumes a caller to accept.
const MOST_PATIENCE: Duration = Duration::from_millis(20);

/// Number of kicks to wait for a choice, if the caller waits for exits from `due` to `force`. The choice may take
/// as long again as that wait, because a place that costs little is worth it.
pub(in crate::run) fn patience(due: Duration, force: Duration) -> u32 {
    (force.saturating_sub(due).min(MOST_PATIENCE).as_micros() / AGAIN.as_micros()).max(1) as u32
}

/// Places at which the guest can be stopped. The guest will reach at least one of these places.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::run) struct Stopping {
    /// The current candidates.
    candidates: Vec<Candidate>,
    /// Replacements for candidates that are passed often, the next one last.
    others: Vec<u64>,
    /// The last place that was found to be passed often.
    passed_often: Option<u64>,
    decided: bool,
    pub(super) patience: u32,
    kicks_left: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    rip: u64,
    passed: u32,
}

/// The effect of passing time on a choice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Lasts,
    /// One of the places was chosen.
    Decided,
    /// The guest reached no place in time.
    IsOver,
}

impl Stopping {
    /// Stops the guest at this place, if it gets there within `patience` kicks.
    pub(super) fn at(rip: u64, patience: u32) -> Stopping {
        Stopping { decided: true, ..Stopping::at_one_of(&[rip], patience) }
    }

    /// Stops the guest at one of these places, to be chosen later. The first places are tried first.
    pub(super) fn at_one_of(places: &[u64], patience: u32) -> Stopping {
        let others = places.iter().rev().copied().collect();
        let (candidates, passed_often, decided) = (Vec::new(), None, false);
        let mut stopping =
            Stopping { candidates, others, passed_often, decided, patience, kicks_left: patience };
        stopping.fill_up();
        stopping
    }

    fn fill_up(&mut self) {
        while self.candidates.len() < MAX_BREAKPOINTS
            && let Some(rip) = self.others.pop()
        {
            self.candidates.push(Candidate { rip, passed: 0 });
        }
    }

    pub(super) fn places(&self) -> Vec<u64> {
        self.candidates.iter().map(|candidate| candidate.rip).collect()
    }

    /// Notes that the guest reached a place. Returns whether the guest must stop there.
    pub(super) fn comes_to(&mut self, rip: u64) -> bool {
        let Some(at) = self.candidates.iter().position(|candidate| candidate.rip == rip) else {
            return false;
        };
        self.candidates[at].passed += 1;
        if self.decided || self.candidates[at].passed < OFTEN {
            return self.decided;
        }
        if self.candidates.len() == 1 && self.others.is_empty() {
            return true;
        }
        self.passed_often = Some(self.candidates.remove(at).rip);
        self.fill_up();
        false
    }

    pub(super) fn kicked(&mut self) -> Patience {
        self.kicks_left -= 1;
        if self.kicks_left > 0 {
            return Patience::Lasts;
        }
        let seen = self.candidates.iter().filter(|candidate| candidate.passed > 0);
        let seldom = seen.min_by_key(|candidate| candidate.passed).map(|candidate| candidate.rip);
        match seldom.or(self.passed_often).filter(|_| !self.decided) {
            Some(rip) => {
                *self = Stopping::at(rip, self.patience);
                Patience::Decided
            }
            None => Patience::IsOver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of kicks that these tests wait for a choice.
    const SHORT: u32 = 3;

    fn pass_often(stopping: &mut Stopping, rip: u64) {
        (0..OFTEN).for_each(|_| assert!(!stopping.comes_to(rip)));
    }

    fn wait(stopping: &mut Stopping) -> Patience {
        (1..SHORT).for_each(|_| assert_eq!(stopping.kicked(), Patience::Lasts));
        stopping.kicked()
    }

    #[test]
    fn the_place_that_is_passed_seldom_is_taken() {
        let mut stopping = Stopping::at_one_of(&[1, 2, 3, 4], SHORT);
        assert_eq!(stopping.places(), [1, 2, 3]);
        pass_often(&mut stopping, 1);
        assert_eq!(stopping.places(), [2, 3, 4]);
        assert!(!stopping.comes_to(2) && !stopping.comes_to(2) && !stopping.comes_to(3));
        assert!(!stopping.comes_to(9), "a breakpoint that is no more");
        assert_eq!(wait(&mut stopping), Patience::Decided);
        assert_eq!(stopping.places(), [3]);
        assert!(stopping.comes_to(3));
    }

    #[test]
    fn a_place_that_never_comes_is_not_waited_for_for_ever() {
        let mut stopping = Stopping::at_one_of(&[1, 2], SHORT);
        pass_often(&mut stopping, 1);
        assert_eq!(wait(&mut stopping), Patience::Decided);
        assert_eq!(stopping.places(), [1], "better than none");
        assert_eq!(wait(&mut stopping), Patience::IsOver);
        assert_eq!(Stopping::at(1, 1).kicked(), Patience::IsOver);
    }

    #[test]
    fn the_last_of_several_is_taken_when_it_has_been_passed_often() {
        let mut stopping = Stopping::at_one_of(&[1, 2], SHORT);
        pass_often(&mut stopping, 1);
        (1..OFTEN).for_each(|_| assert!(!stopping.comes_to(2)));
        assert!(stopping.comes_to(2));
        assert!(Stopping::at(7, 1).comes_to(7), "the only one at once");
    }

    #[test]
    fn patience_follows_how_long_exits_are_waited_for() {
        let ms = Duration::from_millis;
        assert_eq!(patience(ms(4), ms(5)), 2);
        assert_eq!(patience(ms(4), ms(4)), 1);
        assert_eq!(patience(ms(10), ms(101)), 40);
    }
}
