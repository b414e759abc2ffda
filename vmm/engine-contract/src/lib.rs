//! The words between a machine and its engine: when to leave the guest, and why the engine left it.
//!
//! ```
//! use engine_contract::{End, LandingPlace, Leave};
//!
//! // Leave the guest between two exits, after its 42nd conditional branch.
//! let place = LandingPlace { rip: 0x1000, registers: 3, branches: Some(42), ..LandingPlace::default() };
//! let leave = Leave::At(place);
//!
//! /// Whether the guest may stand where it was to be left.
//! fn has_arrived(end: End, leave: Leave) -> bool {
//!     matches!((end, leave), (End::LandingPlace, Leave::At(_)))
//! }
//! assert!(has_arrived(End::LandingPlace, leave) && !has_arrived(End::Overshot, leave));
//! ```
//!
//! Engines that count instructions stop at a count. Others leave the guest at its exits, when time is up, or at a
//! [`LandingPlace`]. The package `machine` has the trait that engines implement. These words are a package of their
//! own, because the package `kvm` uses them too and does not know `machine`.

#![forbid(unsafe_code)]

mod statistics;

use std::time::Duration;

use cpu::Stop;

pub use statistics::{Landings, Statistics};

/// When to leave the guest, apart from what the bus and counts ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// At the exits that the bus ends a run at, and not otherwise.
    AtExits,
    /// In real time: at the first exit after `due`, or, if none comes for so long, wherever the guest is
    /// after `force`.
    After {
        /// From now.
        due: Duration,
        /// From now.
        force: Duration,
        /// Whether a replay must find the place after `force` again. For that the machine looks at the pages
        /// that were written; engines do nothing for it.
        note: bool,
    },
    /// At a landing place, before the next exit.
    At(LandingPlace),
}

/// A place where a guest was stopped between two exits, by what its registers held there.
///
/// Registers may be the same at several such places. The engine stops at each one, and the machine decides by
/// what else is known whether it is the one; if nothing differs at all, either will do, because the future is
/// the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LandingPlace {
    /// Linear address of the next instruction.
    pub rip: u64,
    /// The general registers there, folded (`cpu::fold_registers`).
    pub registers: u64,
    /// The guest's retired conditional branches there ([`cpu::Cpu::branches`]), if they were counted. An
    /// engine that counts them too finds the place by them; others do without.
    pub branches: Option<u64>,
    /// The machine has looked at the place where the guest stands now, and it is not the landing place.
    pub not_here: bool,
    /// First bytes of the hash of the CPU's state there: for the machine, not for the engine.
    pub cpu_hash: [u8; 8],
    /// The digest of RAM there: for the machine, not for the engine.
    pub ram_digest: [u8; 16],
}

/// Why an engine left the guest, which stands between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As the software CPU says it.
    Stop(Stop),
    /// Time was up, and no exit came.
    Forced,
    /// The guest may be at the landing place.
    LandingPlace,
    /// The guest went beyond the landing place, whose count of branches it has passed. Nothing of what it asked for
    /// there was done. Its state is of no use: restore registers and RAM as they were before, and run to the
    /// landing place again.
    Overshot,
}
