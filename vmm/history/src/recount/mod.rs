//! Recounts recordings that count exits, because time travel and debugging need counts of instructions.
//!
//! Start with [`in_instructions`]: `counting` replays such a recording once and writes a second log. [`folders`]
//! chooses the folder of this log, and lets several sessions share it. [`machine`] defines exits, and [`recording`]
//! makes and replays recordings that count exits.

mod counting;
pub mod folders;

pub use counting::{from_exit, in_instructions, start_of_last};
