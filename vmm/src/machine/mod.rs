//! One machine: engine, memory, devices, clock and disk, and the one door through which anything from outside comes in.
//!
//! Where to start reading: [`run`] has [`Machine`] and its run loop; [`inputs`] is the door; [`bus`] is what the CPU sees of the
//! board, [`clock`] its time. [`unit`] says what differs by what positions are counted in. What RAM and disk hold is in
//! `contents`, everything else of a state in `states`, and as it is stored in [`state_v1`]; [`checks`], [`hashes`], [`ram_digest`] and [`comparable`] say whether two
//! machines are equal. Nothing here knows of recordings.

pub mod bus;
mod changes;
pub mod checks;
pub mod clock;
pub mod comparable;
pub mod config;
pub mod console_tail;
mod contents;
pub mod disk;
mod guest_view;
pub mod hashes;
pub mod inputs;
pub mod outcome;
mod power_on;
pub mod ram_digest;
pub mod run;
pub mod state_v1;
mod states;
mod stopping;
pub mod unit;
pub mod written_pages;

pub use hashes::{Hashes, hash_of, hex, short};
pub use outcome::Outcome;
pub use run::{Machine, RunStop};
pub use state_v1::MachineStateV1;
pub use states::MachineState;
