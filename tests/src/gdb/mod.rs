//! Runs scripts of commands in an unmodified gdb that debugs a recording, and compares gdb's answers with expected
//! answers. The expected answers come from a replay in single steps, without time travel.

pub mod batch;
pub mod calls;
pub mod lines;
pub mod session;
pub mod trace;
