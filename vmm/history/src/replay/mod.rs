//! Runs a recording again, and compares.
//!
//! Start with [`begin`], which builds the machine and the player of a recording. [`run`] plays it to a place and
//! compares registers on the way; after many disk writes it reads the blocks from the recording's checkpoints
//! (`stored_disk`). [`verify`] compares everything that the recording noted, and tells where a difference began. If
//! two replays differ, [`bisect`] finds the first instruction that differs. [`compare_checkpoints`] compares stored
//! checkpoints with a replay; `stretches` does both on all cores. This module never goes backward; [`crate::timeline`]
//! does.

pub mod begin;
pub mod bisect;
pub mod compare_checkpoints;
pub mod registers;
mod run;
mod stored_disk;
mod stretches;
pub mod verify;

pub use begin::{open, open_on};
pub use run::{Fault, Replay, ReplayEnd, last_place, replay};
