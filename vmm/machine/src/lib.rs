//! One machine: engine, memory, devices, clock and disk, and the one door through which anything from outside
//! comes in.
//!
//! Start with [`run`], which has [`Machine`] and its run loop, and [`inputs`], which is the door. [`bus`] is
//! what the CPU sees of the board, [`clock`] its time. [`mod@unit`] says what differs between machines that
//! count instructions and those that count exits, [`profile`] what a CPU model decides about its machine; `stopping` is how an engine that counts no instructions is
//! stopped at a place and finds it again. What RAM and disk hold is in `contents`, everything else of a state
//! in `states`, and as it is stored in [`mod@format`] and [`state_v1`]; [`start`] says how a machine starts:
//! at power-on, or in a [`starting_state`]. [`checks`], [`hashes`], [`ram_digest`] and [`comparable`] say whether two machines are equal.
//!
//! Nothing here knows of recordings, or whether the inputs are live or a log.

#![forbid(unsafe_code)]

mod asking_bus;
pub mod bus;
mod changes;
pub mod checks;
pub mod clock;
pub mod comparable;
pub mod config;
pub mod console_tail;
mod contents;
pub mod disk;
pub mod divergence;
pub mod engine;
pub mod error;
pub mod format;
mod going_on;
mod guest_view;
pub mod hashes;
pub mod inputs;
pub mod new_file;
pub mod notation;
pub mod outcome;
pub mod position;
mod power_on;
pub mod profile;
pub mod ram_digest;
pub mod run;
pub mod start;
pub mod starting_state;
pub mod state_v1;
mod states;
mod stopping;
pub mod unit;
pub mod written_pages;

pub use format::Format;
pub use hashes::{Hashes, hash_of, hex, short};
pub use outcome::Outcome;
pub use profile::{Counter, Profile};
pub use run::{Machine, RunStop};
pub use start::Start;
pub use starting_state::StartingState;
pub use state_v1::MachineStateV1;
pub use states::MachineState;
