//! What a person is shown of a machine and of a recording, as plain data; and the machine and what it did, in the formats of
//! other tools.
//!
//! [`state`] is the machine at one place, [`hits`] are the places where something happens. Both serialize, and both have a text
//! for people. [`witness`] knows the guest's kernel. [`core_file`] and [`trace`] are for other tools.

#![forbid(unsafe_code)]

pub mod console;
pub mod core_file;
pub mod hits;
pub mod memory;
mod perfetto;
pub mod state;
pub mod tasks;
pub mod trace;
pub mod witness;
