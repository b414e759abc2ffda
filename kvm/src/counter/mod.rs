//! The guest's retired conditional branches (Jcc, LOOPcc, JrCXZ, taken or not), counted while the vCPU runs.
//!
//! They are the one class of events that processors count exactly. What is not exact is the overflow: it comes some branches
//! late, now and then thousands late, and on some hosts not at all. Nothing here assumes otherwise: an overflow says that it is
//! time to look at the count, and so does the watchdog's signal ([`crate::kick`]).

mod event;
mod perf;
mod selftest;
mod simulated;
mod skid;

use cpu::Cpu;

pub(crate) use perf::Perf;
pub use selftest::{CounterReport, CounterTest, counter_usable, test_counter};
pub(crate) use simulated::Simulated;
pub use skid::Behaviour;
#[cfg(test)]
pub(crate) use skid::Skid;

use crate::error::Error;
use crate::vcpu::{Exit, Vcpu};

/// Who counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The processor.
    Perf,
    /// Tests: the vCPU is stepped, or the software CPU executes in its place. Overflows come late, or never, as `Behaviour`
    /// says.
    #[doc(hidden)]
    Simulated {
        /// How overflows are delivered.
        behaviour: Behaviour,
        /// Which of them how.
        seed: u64,
    },
}

/// A counter of the guest's retired conditional branches. Used on one thread, the one that enters the guest, and, but for
/// [`BranchCounter::enter`], while the guest stands still.
pub(crate) trait BranchCounter: Send {
    /// Another thread may run the vCPU from now on: the calling one. The count goes on.
    fn move_here(&mut self) -> Result<(), Error>;
    /// How many so far. What it counts from is anybody's guess, but fixed.
    fn count(&mut self) -> Result<u64, Error>;
    /// Makes the guest leave some time after so many more (at least one). Replaces what was armed before.
    fn arm(&mut self, branches: u64) -> Result<(), Error>;
    /// Nothing is armed any more.
    fn disarm(&mut self) -> Result<(), Error>;
    /// Whether the overflow came since it was armed.
    fn overflowed(&self) -> bool;
    /// Enters the guest. Processors count by themselves; who does not has to know each instruction.
    fn enter(&mut self, entry: Entry<'_>) -> Exit {
        entry.vcpu.enter(entry.window, entry.cr8)
    }
}

/// What entering the guest takes.
pub(crate) struct Entry<'a> {
    pub(crate) vcpu: &'a mut Vcpu,
    /// Registers may be anything, counts must stay.
    pub(crate) soft: &'a mut Cpu,
    pub(crate) window: bool,
    pub(crate) cr8: u64,
}

/// A counter as asked for.
pub(crate) fn open(counter: Counter) -> Result<Box<dyn BranchCounter>, Error> {
    Ok(match counter {
        Counter::Perf => Box::new(Perf::open()?),
        Counter::Simulated { behaviour, seed } => Box::new(Simulated::new(behaviour, seed)),
    })
}
