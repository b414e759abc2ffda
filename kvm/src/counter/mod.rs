//! The guest's retired conditional branches (Jcc, LOOPcc, JrCXZ, taken or not), counted while the vCPU runs.
//!
//! Conditional branches are the only class of events that processors count exactly. The overflow is not
//! exact: it comes some branches late, occasionally thousands late, and on some hosts never. This code relies
//! on nothing more: an overflow only means that it is time to read the count. The watchdog's signal means the
//! same ([`crate::kick`]).

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

/// The kind of counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The processor's counter.
    Perf,
    /// For tests: the vCPU is single-stepped, or the software CPU executes in its place. Overflows come late or never,
    /// as `Behaviour` says.
    #[doc(hidden)]
    Simulated {
        /// How late overflows come.
        behaviour: Behaviour,
        /// The seed for the lateness of overflows.
        seed: u64,
    },
}

/// Opens a counter of the given kind.
pub(crate) fn open(counter: Counter) -> Result<Box<dyn BranchCounter>, Error> {
    Ok(match counter {
        Counter::Perf => Box::new(Perf::open()?),
        Counter::Simulated { behaviour, seed } => Box::new(Simulated::new(behaviour, seed)),
    })
}
