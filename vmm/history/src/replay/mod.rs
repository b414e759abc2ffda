//! Running a recording again, and comparing.
//!
//! Start with [`begin`], which builds the machine and the player of a recording. [`run`] plays it to a place
//! and compares registers on the way; what it writes to the disk lies in the recording's checkpoints where that
//! is much (`stored_disk`). [`verify`] compares everything that was noted, and says where a difference began;
//! where two replays differ, [`bisect`] finds the first instruction that differs. [`compare_checkpoints`] compares
//! stored checkpoints with a replay; `stretches` does both on all cores. Nothing here goes backward: that is [`crate::timeline`].

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
