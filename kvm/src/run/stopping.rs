//! Stopping a guest that makes no exits, for somebody who lives in real time.
//!
//! A kick says that time is up. From where it found the guest, breakpoints are set on places where it can be stopped. Whoever
//! looks for the place again without a count of branches is stopped each time that the guest passes it, so not the first
//! place that is passed is taken but, of a few, one that is passed seldom: behind a loop rather than in it, in a caller rather
//! than in a function that is called in a loop.

use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;

use super::{KvmCpu, RESUME_FLAG, Run};
use crate::error::Error;
use crate::kick::AGAIN;
use crate::state::nothing_under_way;
use crate::vcpu::MAX_BREAKPOINTS;
use engine_contract::End;

mod place;

/// A place that is passed so often while others are not is not taken.
const OFTEN: u32 = 16;
/// So many callers are thought of.
const MOST_CALLERS: usize = 12;
/// However long somebody would wait.
const MOST_PATIENCE: Duration = Duration::from_millis(20);
/// In kicks: a loop that ends by itself is waited for half a second.
const LONGEST_DELAY: u32 = 1000;

const LONG_CODE: u16 = 1 << 13;
const BIG_CODE: u16 = 1 << 14;

/// How many kicks a choice is given time for, where exits are waited for from `due` to `force`: a place that costs little is
/// worth waiting as long again.
pub(super) fn patience(due: Duration, force: Duration) -> u32 {
    (force.saturating_sub(due).min(MOST_PATIENCE).as_micros() / AGAIN.as_micros()).max(1) as u32
}

/// Places of which one is to be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stopping {
    /// Those that are waited for.
    candidates: Vec<Candidate>,
    /// Those that take the place of candidates that are passed often, the next one last.
    others: Vec<u64>,
    /// The one that was last found to be passed often.
    passed_often: Option<u64>,
    decided: bool,
    patience: u32,
    kicks_left: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    rip: u64,
    passed: u32,
}

/// What becomes of a choice when time passes.
#[derive(Debug, PartialEq, Eq)]
enum Patience {
    Lasts,
    /// One was decided for.
    Decided,
    /// The guest never came there.
    IsOver,
}

impl Stopping {
    /// The guest stops at this place, if it comes there within so many kicks.
    fn at(rip: u64, patience: u32) -> Stopping {
        Stopping { decided: true, ..Stopping::at_one_of(&[rip], patience) }
    }

    /// The guest stops at one of these places; which one turns out. The first ones come first.
    fn at_one_of(places: &[u64], patience: u32) -> Stopping {
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

    fn places(&self) -> Vec<u64> {
        self.candidates.iter().map(|candidate| candidate.rip).collect()
    }

    /// The guest comes to a place. Whether it is the one.
    fn comes_to(&mut self, rip: u64) -> bool {
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

    fn kicked(&mut self) -> Patience {
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

impl KvmCpu {
    /// A kick came. If time is up, the guest is sent to a place where it can be stopped.
    pub(super) fn interrupted(&mut self, run: &mut Run<'_>) -> Result<(), Error> {
        let synced = self.vcpu.synced();
        let up = run.due.is_some_and(|due| Instant::now() >= due);
        if !up || !nothing_under_way(&synced.events) || synced.events.interrupt.shadow != 0 || self.halted {
            return Ok(());
        }
        match run.stopping.as_mut().map(Stopping::kicked) {
            Some(Patience::Lasts) => return Ok(()),
            Some(Patience::Decided) => {}
            Some(Patience::IsOver) | None => run.stopping = self.choose(run)?,
        }
        let places = run.stopping.as_ref().map_or(Vec::new(), Stopping::places);
        self.vcpu.set_breakpoints(&places)
    }

    /// Chooses places for a guest that stands still: good ones, or, where those were waited for in vain, the nearest.
    fn choose(&mut self, run: &Run<'_>) -> Result<Option<Stopping>, Error> {
        let state = self.look()?;
        let code = &state.segments[cpu::SegReg::Cs as usize];
        let flat = code.base == 0 || code.attributes & LONG_CODE != 0;
        if !flat {
            // Real mode and the like: boot code, which makes exits soon.
            return Ok(None);
        }
        let bits = match code.attributes & (LONG_CODE | BIG_CODE) {
            0 => 16,
            BIG_CODE => 32,
            _ => 64,
        };
        let read = |at: u64, to: &mut [u8]| self.cpu().core().peek(at, to);
        // By a count of branches any place is found as easily.
        let any = self.counts_branches() || bits != 64;
        let delay_waited_for =
            run.stopping.as_ref().is_some_and(|stopping| stopping.patience == LONGEST_DELAY);
        if !any
            && !delay_waited_for
            && let Some(rip) = place::behind_delay(state.rip, read)
        {
            return Ok(Some(Stopping::at(place::choose(rip, bits, false, read), LONGEST_DELAY)));
        }
        if any || run.stopping.is_some() {
            return Ok(Some(Stopping::at(place::choose(state.rip, bits, false, read), 1)));
        }
        let mut places = vec![place::choose(state.rip, bits, true, read)];
        for site in place::return_sites(state.rip, state.gpr[4], read).take(MOST_CALLERS) {
            let place = place::choose(site, bits, false, read);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(Some(Stopping::at_one_of(&places, run.patience)))
    }

    /// A breakpoint: of the mark, which the loop looks at, or of a place where a forced stop may be.
    pub(super) fn breakpoint(&mut self, run: &mut Run<'_>) -> Result<Option<End>, Error> {
        let synced = self.vcpu.synced();
        let Some(stopping) = &mut run.stopping else {
            self.statistics.breakpoints += 1;
            run.met += 1;
            return Ok(None);
        };
        let can_stop = nothing_under_way(&synced.events) && synced.events.interrupt.shadow == 0;
        if !can_stop || !stopping.comes_to(synced.regs.rip) {
            let places = stopping.places();
            self.vcpu.change(|regs: &mut kvm_regs| regs.rflags |= RESUME_FLAG);
            self.vcpu.set_breakpoints(&places)?;
            return Ok(None);
        }
        run.stopping = None;
        self.vcpu.set_breakpoints(&[])?;
        self.clear_resume_flag();
        self.statistics.forced += 1;
        Ok(Some(End::Forced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kicks.
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
