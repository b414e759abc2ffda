//! Recordings that count exits, recounted in instructions, because travelling and debugging know instruction
//! counts only.
//!
//! Start with [`in_instructions`]: `recount` replays such a recording once and writes a second log;
//! [`folders`] says where that lies and how several sessions share it. What an exit is, and how such a
//! recording is made and replayed, is not here but in [`crate::machine`] and [`crate::recording`].

pub mod folders;
mod recount;

pub use recount::{from_exit, in_instructions, start_of_last};
