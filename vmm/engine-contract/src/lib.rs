//! The types between a machine and its engine: when to leave the guest, and why the engine left it.
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
//! Engines that count instructions stop at a count. Other engines leave the guest at its exits, when time is
//! up, or at a [`LandingPlace`]. The crate `machine` has the trait that engines implement. These types have
//! their own crate, because the crate `kvm` uses them too and does not depend on `machine`.

#![forbid(unsafe_code)]

mod statistics;

use std::time::Duration;

use cpu::Stop;

pub use statistics::{Landings, Statistics};

/// When the engine leaves the guest. The engine also leaves if the bus requests it, or if the count of instructions
/// reaches a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The engine leaves only at an exit at which the bus ends the engine's run.
    AtExits,
    /// After some real time: at the first exit after `due`. If no exit comes, at any place after `force`.
    After {
        /// Time from now after which the engine leaves at the next exit.
        due: Duration,
        /// Time from now after which the engine leaves without an exit.
        force: Duration,
        /// Whether a replay must find the place of a forced stop again. The machine then also notes which pages
        /// were written. Engines ignore this flag.
        note: bool,
    },
    /// At a landing place, before the next exit.
    At(LandingPlace),
}

/// A place where a guest was stopped between two exits, described by its registers.
///
/// Several places may have the same registers. The engine stops at each of these places, and the machine compares more
/// state to decide whether the guest was stopped there. If several places have equal state, any of them is right,
/// because the future is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LandingPlace {
    /// Linear address of the next instruction.
    pub rip: u64,
    /// A hash of the general registers at the place (`cpu::fold_registers`).
    pub registers: u64,
    /// The guest's retired conditional branches at the place ([`cpu::Cpu::branches`]), if they were counted. An engine
    /// that also counts branches finds the place by this number; other engines ignore the number.
    pub branches: Option<u64>,
    /// Whether the machine has already rejected the guest's current place.
    pub not_here: bool,
    /// The first bytes of the hash of the CPU's state at the place. The machine compares these bytes, and engines
    /// ignore them.
    pub cpu_hash: [u8; 8],
    /// The digest of RAM at the place. The machine compares the digest, and engines ignore it.
    pub ram_digest: [u8; 16],
}

/// Why an engine left the guest. The guest is then between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest stopped for this reason.
    Stop(Stop),
    /// The time `force` has passed without an exit.
    Forced,
    /// The guest's registers are equal to the landing place's registers, so the guest may be there.
    LandingPlace,
    /// The guest went beyond the landing place: it has passed the place's count of branches. The guest's
    /// requests after the place were not served. The guest's state cannot be used: restore the earlier
    /// registers and RAM, and run to the landing place again.
    Overshot,
}
