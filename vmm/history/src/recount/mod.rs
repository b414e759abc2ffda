//! Recordings that count exits, recounted in instructions, because travelling and debugging know instruction
//! counts only.
//!
//! Start with [`in_instructions`]: `counting` replays such a recording once and writes a second log;
//! [`folders`] says where that lies and how several sessions share it. What an exit is, and how such a
//! recording is made and replayed, is not here but in [`machine`] and [`recording`].

mod counting;
pub mod folders;

pub use counting::{from_exit, in_instructions, start_of_last};
