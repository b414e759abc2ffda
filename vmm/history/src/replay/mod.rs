//! Runs a recording again, and compares the machine with the recording.
//!
//! Start with [`begin`], which builds the machine and the player of a recording. [`run`] plays the recording to a
//! place and compares registers during the run. After many disk writes, the replay reads written blocks from the
//! recording's checkpoints (`stored_disk`). [`verify`] compares all checks of the recording, and finds out where a
//! difference began. If two replays differ, [`bisect`] finds the first instruction that the replays execute
//! differently. [`compare_checkpoints`] compares stored checkpoints with a replay; `stretches` verifies on all
//! cores. A replay never goes backward. For going backward there is [`crate::timeline`].

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
