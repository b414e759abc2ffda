//! Unmodified gdb at work on a recording: scripts with gdb's expected answer to each command. The references come from
//! a straight replay in single steps.

pub mod batch;
pub mod calls;
pub mod lines;
pub mod session;
pub mod trace;
