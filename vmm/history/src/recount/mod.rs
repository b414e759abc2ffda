//! Recounts recordings of exits in instructions, because time travel and debugging need instruction counts.
//!
//! Start with [`in_instructions`]: `counting` replays such a recording once and writes a second log. [`folders`]
//! decides where that log lies and how several sessions share it. [`machine`] and [`recording`] define exits, and
//! make and replay recordings of exits.

mod counting;
pub mod folders;

pub use counting::{from_exit, in_instructions, start_of_last};
