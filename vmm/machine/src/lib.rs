//! One machine: engine, memory, devices, clock and disk. All data from outside the machine comes in through its inputs.
//!
//! ```
//! use machine::config::{MachineConfig, MachineOptions};
//! use machine::inputs::PowerOn;
//! use machine::position::{Count, Instructions};
//! use machine::{Machine, RunStop};
//!
//! let folder = tempfile::tempdir()?;
//! let options = MachineOptions {
//!     kernel: tiny_guest::write_kernel(folder.path(), 100),
//!     memory_bytes: 4 << 20,
//!     debug_exit: Some(0x501),
//!     ..MachineOptions::default()
//! };
//! let (config, images) = MachineConfig::from_options(&options)?;
//! let power_on = PowerOn { unix_seconds: 1_700_000_000, seed: [1; 32], columns: 80, rows: 25 };
//! let mut machine = Machine::new(&config, &images, &power_on)?;
//!
//! // Inputs without events.
//! let mut inputs = tiny_guest::Script(Vec::new());
//! assert_eq!(machine.run(Instructions(500), &mut inputs)?, RunStop::Reached);
//! assert_eq!(machine.moment().count, Instructions(500));
//! assert!(matches!(machine.run(Instructions::MAX, &mut inputs)?, RunStop::Ended(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with [`run`], which has [`Machine`] and its run loop, and with [`inputs`]. [`bus`] connects the CPU to the
//! board's devices, and [`clock`] has the virtual time. [`mod@unit`] has the differences between machines that
//! count instructions and machines that count exits. The module `stopping` is for engines that count no
//! instructions. This module stops such an engine between two exits, and finds the same place again in a replay.
//!
//! [`profile`] has the machine's properties that follow from its CPU model. [`start`] has the ways in which a machine
//! starts: at power-on, or in a [`starting_state`].
//!
//! The module `contents` has the contents of RAM and disk, and `states` the rest of a machine's state.
//! [`mod@format`] and [`state_v1`] have the stored form of this rest. [`checks`], [`hashes`], [`ram_digest`] and
//! [`comparable`] compare two machines.
//!
//! [`script`] has inputs that type a given text and do not use the host. [`given_turns`] has inputs that also
//! choose the turns of several processors.
//!
//! This package does not use recordings, and does not distinguish live inputs from a log.

#![forbid(unsafe_code)]

mod asking_bus;
mod between_exits;
pub mod bus;
mod changes;
pub mod checks;
pub mod clock;
pub mod comparable;
pub mod config;
pub mod console_tail;
mod contents;
pub mod contents_hash;
pub mod disk;
pub mod divergence;
pub mod engine;
pub mod error;
pub mod format;
pub mod given_turns;
mod going_on;
mod guest_view;
pub mod hashes;
mod image_file;
pub mod inputs;
mod machine_state;
pub mod new_file;
pub mod notation;
pub mod outcome;
pub mod position;
mod power_on;
pub mod processor;
pub mod processors;
pub mod profile;
pub mod ram_digest;
pub mod run;
pub mod script;
pub mod start;
pub mod starting_state;
pub mod state_v1;
mod states;
mod stopping;
pub mod unit;
pub mod written_pages;

pub use format::Format;
pub use hashes::{Hashes, hash_of, hex, short};
pub use machine_state::MachineState;
pub use outcome::Outcome;
pub use processor::Processor;
pub use profile::{Counter, Profile};
pub use run::{Machine, RunStop};
pub use start::Start;
pub use starting_state::StartingState;
pub use state_v1::MachineStateV1;
