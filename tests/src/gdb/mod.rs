//! Unmodified gdb at work on a recording: scripts with what gdb must answer to each command, and references
//! that are made by single-stepping a straight replay.

pub mod batch;
pub mod calls;
pub mod lines;
pub mod session;
pub mod trace;
