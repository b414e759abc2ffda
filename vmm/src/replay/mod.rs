//! Running a recording again: [`run`] plays it and compares, [`verify`] does so with everything that was noted and says where a
//! difference began, which [`bisect`] finds to the instruction where two replays can be had live. [`compare_checkpoints`] holds
//! stored checkpoints against a replay.

pub mod begin;
pub mod bisect;
pub mod compare_checkpoints;
pub mod registers;
mod run;
pub mod verify;

pub use begin::{open, open_on};
pub use run::{Fault, Replay, ReplayEnd, last_place, replay};
