//! Recordings that count exits, recounted in instructions: travelling and debugging know instruction counts only.
//!
//! [`recount`] replays such a recording once and writes a second log; [`folders`] says where that lies and how it gets there.

pub mod folders;
mod recount;

pub use recount::{from_exit, in_instructions, start_of_last};
