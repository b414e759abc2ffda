//! Brings a guest to a place whose count of branches is known.
//!
//! ```text
//!  count < target - margin   far:    run until the counter overflows, which it does late
//!  count <= target           near:   run from hit to hit of a breakpoint on the place's RIP, and compare
//!  count > target            beyond: overshot; the caller restores what was before, and tries again
//! ```
//!
//! The margin adapts to the lateness of overflows: it doubles after an overflow that came too late, and
//! shrinks while none does. Very late and lost overflows do not change the margin. Such overflows are
//! rare, and a margin for them would cost more at every landing.
//!
//! At a place, the guest has exited by a breakpoint: the instruction there has not begun. So a place is never
//! inside a half-done repeated instruction. A point in an interrupt shadow is never a place. This module does not
//! know how the guest is entered; [`Guest`] is its interface.

use crate::error::Error;
use engine_contract::{LandingPlace, Landings};

/// A landing's interface to a processor and its counter. The landing calls the interface while the guest
/// stands still, before each entry.
pub(crate) trait Guest {
    /// The guest's current place.
    fn place(&mut self) -> Result<Place, Error>;
    /// Makes the guest leave some time after this many more branches. `None` disarms the counter.
    fn arm(&mut self, branches: Option<u64>) -> Result<(), Error>;
    /// Whether the armed overflow has come.
    fn overflowed(&mut self) -> bool;
    /// Makes the guest leave before the instruction at this address. `None` removes the breakpoint.
    fn set_breakpoint(&mut self, rip: Option<u64>) -> Result<(), Error>;
    /// Sets whether a breakpoint at the current instruction is passed over once.
    fn pass_breakpoint(&mut self, pass: bool);
}

/// The place where a guest stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) branches: u64,
    pub(crate) rip: u64,
    /// [`cpu::fold_registers`].
    pub(crate) registers: u64,
    /// Whether the guest could take an interrupt at this place if its interrupt flag were set.
    pub(crate) interruptible: bool,
    pub(crate) left: Left,
}

/// The reason why the guest left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The guest hit the breakpoint: the instruction at RIP has not begun.
    Breakpoint,
    /// A signal of the counter or the watchdog stopped the guest.
    Signal,
    /// Any other reason, or the guest has not been entered.
    Other,
}

/// The result of a landing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The guest is at the landing place.
    Landed,
    /// The guest is beyond the landing place.
    Overshot,
}

/// The number of branches before a place at which the counter must overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    usual: u64,
    /// Number of overshots since the last successful landing.
    in_a_row: u32,
}

impl Margin {
    const LEAST: u64 = 64;
    /// Overflows that are later than this do not increase the margin.
    const MOST: u64 = 1 << 13;
    const AT_FIRST: u64 = 512;
    /// Each landing shrinks the margin by one part in this many.
    const PATIENCE: u64 = 16;

    pub(crate) fn new() -> Margin {
        Margin { usual: Margin::AT_FIRST, in_a_row: 0 }
    }

    /// The margin for the next try. The margin doubles each time that the guest overshoots the same place. After
    /// enough overshots, the margin is so large that the landing only goes from hit to hit of the breakpoint.
    fn branches(&self) -> u64 {
        self.usual << self.in_a_row.min(40)
    }

    fn landed(&mut self) {
        self.in_a_row = 0;
        self.usual = (self.usual - self.usual / Margin::PATIENCE).max(Margin::LEAST);
    }

    /// Adapts the margin after the guest overshot the place. `skid` is how late the last overflow was, if it came.
    fn overshot(&mut self, skid: Option<u64>) {
        self.in_a_row += 1;
        if skid.is_some_and(|skid| (self.usual..Margin::MOST).contains(&skid)) {
            self.usual = (self.usual * 2).min(Margin::MOST);
        }
    }
}

/// A landing in progress.
#[derive(Debug)]
pub(crate) struct Landing {
    goal: LandingPlace,
    target: u64,
    margin: u64,
    /// The count at which the armed overflow is due.
    armed: Option<u64>,
    /// Whether the breakpoint is set.
    near: bool,
    /// How late the overflow of this try was.
    skid: Option<u64>,
}

impl Landing {
    /// A landing at `goal`, whose count of branches is `target`.
    pub(crate) fn new(goal: LandingPlace, target: u64, margin: &Margin) -> Landing {
        Landing { goal, target, margin: margin.branches(), armed: None, near: false, skid: None }
    }

    /// Notes that an interrupt was delivered, so the guest has moved.
    pub(crate) fn diverted(&mut self) {
        self.goal.not_here = false;
    }

    /// Whether the guest, which is making an exit, has passed the place. The exit must then not be handled. Without a
    /// breakpoint, an exit with the place's count may be on either side of the place; the next try will decide.
    pub(crate) fn missed(&self, branches: u64) -> bool {
        branches > self.target || branches == self.target && !self.near
    }

    /// Prepares the next entry. Returns `Some` if the landing is over and there is no next entry.
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
        // With this overflow, the landing notices a guest that does not reach the breakpoint again.
        self.arm(guest, &place, self.target + 1)?;
        Ok(None)
    }

    /// Whether the guest stands at the place. The guest passes other hits of the breakpoint.
    fn stands_on_goal(&mut self, guest: &mut impl Guest, place: &Place, seen: &mut Landings) -> bool {
        if place.rip != self.goal.rip {
            return false;
        }
        let rejected = std::mem::take(&mut self.goal.not_here);
        match place.left {
            Left::Breakpoint => seen.hits += 1,
            // After a signal, the instruction at RIP may have begun. If not, its breakpoint hits at the next entry.
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

    /// Ends the landing: disarms the counter, removes the breakpoint and adapts the margin. `None` means that something
    /// else ended the landing.
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
