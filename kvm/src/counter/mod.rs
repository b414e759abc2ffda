//! The guest's retired conditional branches (Jcc, LOOPcc, JrCXZ, taken or not), counted while the vCPU runs.
//!
//! They are the one class of events that processors count exactly. What is not exact is the overflow: it comes some branches
//! late, now and then thousands late, and on some hosts not at all. Nothing here assumes otherwise: an overflow says that it is
//! time to look at the count, and so does the watchdog's signal ([`crate::kick`]).

pub(crate) mod branch_counter;
mod event;
mod perf;
mod selftest;
mod simulated;
mod skid;

pub use selftest::{CounterReport, CounterTest, counter_usable, test_counter};
pub use skid::Behaviour;
#[cfg(test)]
pub(crate) use skid::Skid;

use crate::error::Error;
use branch_counter::BranchCounter;
use perf::Perf;
use simulated::Simulated;

/// What counts.
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

/// A counter as asked for.
pub(crate) fn open(counter: Counter) -> Result<Box<dyn BranchCounter>, Error> {
    Ok(match counter {
        Counter::Perf => Box::new(Perf::open()?),
        Counter::Simulated { behaviour, seed } => Box::new(Simulated::new(behaviour, seed)),
    })
}
