//! Bringing a guest to a place whose count of branches is known.
//!
//! ```text
//!  count < target - margin   far:    run until the counter overflows, which it does late
//!  count <= target           near:   run from hit to hit of a breakpoint on the place's RIP, and compare
//!  count > target            beyond: overshot; the caller restores what was before, and tries again
//! ```
//!
//! The margin follows how late overflows are: it doubles when one came too late, and shrinks while none does. Very late and
//! lost overflows do not change it: they are rare, and a margin for them would cost more at every landing.
//!
//! A place is where a breakpoint's exit says it is: the instruction there has not begun, so it is no repeated one half done.
//! Where interrupts are held back (a shadow) nothing is a place. How the guest is entered is not known here; see
//! [`Guest`] for what is.

use crate::error::Error;
use engine_contract::{LandingPlace, Landings};

/// What a landing needs of a processor and its counter. It is called while the guest stands still, before each entry.
pub(crate) trait Guest {
    /// Where it stands.
    fn place(&mut self) -> Result<Place, Error>;
    /// Makes it leave some time after this many more branches; for `None`, disarms the counter.
    fn arm(&mut self, branches: Option<u64>) -> Result<(), Error>;
    /// Whether what was armed has come.
    fn overflowed(&mut self) -> bool;
    /// Makes it leave before the instruction at this address; for `None`, at none.
    fn set_breakpoint(&mut self, rip: Option<u64>) -> Result<(), Error>;
    /// Whether a breakpoint on the instruction where it stands is passed over once.
    fn pass_breakpoint(&mut self, pass: bool);
}

/// Where a guest stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) branches: u64,
    pub(crate) rip: u64,
    /// [`cpu::fold_registers`].
    pub(crate) registers: u64,
    /// An interrupt could be taken here, if the guest let it.
    pub(crate) interruptible: bool,
    pub(crate) left: Left,
}

/// What made the guest leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The breakpoint: the instruction has not begun.
    Breakpoint,
    /// A signal: the counter's, or the watchdog's.
    Signal,
    /// Anything else, or it has not been entered.
    Other,
}

/// The end of a landing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// At the landing place.
    Landed,
    /// Behind it.
    Overshot,
}

/// How far ahead of a place the counter is to overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    usual: u64,
    /// Overshots since the last landing.
    in_a_row: u32,
}

impl Margin {
    const LEAST: u64 = 64;
    /// Overflows that are later than this are no reason to ask for more.
    const MOST: u64 = 1 << 13;
    const AT_FIRST: u64 = 512;
    /// After each landing the margin shrinks by one in so many.
    const PATIENCE: u64 = 16;

    pub(crate) fn new() -> Margin {
        Margin { usual: Margin::AT_FIRST, in_a_row: 0 }
    }

    /// One place that is missed again and again is approached more and more slowly, at last from hit to hit only.
    fn branches(&self) -> u64 {
        self.usual << self.in_a_row.min(40)
    }

    fn landed(&mut self) {
        self.in_a_row = 0;
        self.usual = (self.usual - self.usual / Margin::PATIENCE).max(Margin::LEAST);
    }

    /// `skid`: how late the last overflow was, if it came.
    fn overshot(&mut self, skid: Option<u64>) {
        self.in_a_row += 1;
        if skid.is_some_and(|skid| (self.usual..Margin::MOST).contains(&skid)) {
            self.usual = (self.usual * 2).min(Margin::MOST);
        }
    }
}

/// The way to one place.
#[derive(Debug)]
pub(crate) struct Landing {
    goal: LandingPlace,
    target: u64,
    margin: u64,
    /// The count that the armed overflow is due at.
    armed: Option<u64>,
    /// The breakpoint is set.
    near: bool,
    /// How late the overflow on the way was.
    skid: Option<u64>,
}

impl Landing {
    /// A landing at `goal`, whose count of branches is `target`.
    pub(crate) fn new(goal: LandingPlace, target: u64, margin: &Margin) -> Landing {
        Landing { goal, target, margin: margin.branches(), armed: None, near: false, skid: None }
    }

    /// An interrupt was delivered: the guest is not where it was.
    pub(crate) fn diverted(&mut self) {
        self.goal.not_here = false;
    }

    /// Whether the guest, which is making an exit, has left the place behind; what the exit asks for must then not be done.
    /// Without a breakpoint, an exit with the place's count may lie on either side of it: the next try will know.
    pub(crate) fn missed(&self, branches: u64) -> bool {
        branches > self.target || branches == self.target && !self.near
    }

    /// Decides what the next entry is for. `Some` says that the landing is at its end, and there is no next entry.
    pub(crate) fn look(
        &mut self,
        guest: &mut impl Guest,
        seen: &mut Landings,
    ) -> Result<Option<Arrival>, Error> {
        let place = guest.place()?;
        self.note_overflow(guest, &place, seen);
        let Some(left) = self.target.checked_sub(place.branches) else {
            return Ok(Some(Arrival::Overshot));
        };
        if left > self.margin {
            self.near = false;
            self.goal.not_here = false;
            guest.set_breakpoint(None)?;
            self.arm(guest, &place, self.target - self.margin)?;
            return Ok(None);
        }
        if self.stands_on_goal(guest, &place, seen) {
            return Ok(Some(Arrival::Landed));
        }
        self.near = true;
        guest.set_breakpoint(Some(self.goal.rip))?;
        // A guest that does not come to the breakpoint again is noticed.
        self.arm(guest, &place, self.target + 1)?;
        Ok(None)
    }

    /// Looks at a hit of the breakpoint; what is not the place is passed.
    fn stands_on_goal(&mut self, guest: &mut impl Guest, place: &Place, seen: &mut Landings) -> bool {
        if place.rip != self.goal.rip {
            return false;
        }
        let rejected = std::mem::take(&mut self.goal.not_here);
        match place.left {
            Left::Breakpoint => seen.hits += 1,
            // It may have begun; if it has not, the breakpoint hits at once.
            Left::Signal => return false,
            Left::Other => {
                guest.pass_breakpoint(rejected);
                return false;
            }
        }
        let here = place.branches == self.target
            && place.registers == self.goal.registers
            && place.interruptible
            && !rejected;
        guest.pass_breakpoint(!here);
        here
    }

    fn arm(&mut self, guest: &mut impl Guest, place: &Place, at: u64) -> Result<(), Error> {
        if self.armed != Some(at) {
            guest.arm(Some(at - place.branches))?;
            self.armed = Some(at);
        }
        Ok(())
    }

    fn note_overflow(&mut self, guest: &mut impl Guest, place: &Place, seen: &mut Landings) {
        let Some(at) = self.armed else { return };
        if guest.overflowed() {
            self.armed = None;
            if !self.near {
                let skid = place.branches.saturating_sub(at);
                self.skid = Some(skid);
                seen.largest_skid = seen.largest_skid.max(skid);
            }
        } else if place.left == Left::Signal && place.branches >= at {
            self.armed = None;
            seen.lost_overflows += 1;
        }
    }

    /// The end: nothing is armed or set any more, and the margin learns from it. `None`: something else ended it.
    pub(crate) fn end(
        &self,
        guest: &mut impl Guest,
        arrival: Option<Arrival>,
        margin: &mut Margin,
        seen: &mut Landings,
    ) -> Result<(), Error> {
        guest.arm(None)?;
        guest.set_breakpoint(None)?;
        match arrival {
            Some(Arrival::Landed) => {
                seen.landed += 1;
                margin.landed();
            }
            Some(Arrival::Overshot) => {
                seen.overshot += 1;
                margin.overshot(self.skid);
            }
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
