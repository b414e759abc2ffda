//! gdb's remote serial protocol, forwards and backwards, over a small [`DebugTarget`] trait.
//!
//! An unmodified gdb attaches with `target remote`, and can then step, continue, set breakpoints and
//! watchpoints in both directions of a recorded run, read and write registers and memory, and send `monitor`
//! commands. The packets' meaning is the `gdbstub` crate's business; this crate adds what a debugger of fixed
//! histories needs around it:
//!
//! - damaged or nonsensical packets are answered and never end the session, let alone the program;
//! - breakpoints and watchpoints reach the target lazily, because gdb takes all of them out and puts them
//!   back at every stop;
//! - refusals ("the recorded past cannot be changed") reach the person at gdb as sentences;
//! - ^C interrupts a run through a poll function that the target calls, and how far a long run is gets printed meanwhile;
//! - conditions of breakpoints are evaluated by the target while it runs, not by gdb after a stop;
//! - threads of the guest's system that do not run can be looked at as threads beside the CPU;
//! - control registers and segment bases are part of the register file.
//!
//! The crate knows nothing of engines, logs or positions, starts no threads and never looks at a clock.
//! It follows the appendix "GDB Remote Serial Protocol" of the gdb manual, as gdb 13 speaks it.
//!
//! ```text
//!   Listener ── accept ──► Link (bytes ⇄ packets, ^C) ──► session ──► gdbstub ──► Adapter ──► DebugTarget
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod arch;
mod condition;
mod description;
mod frame;
mod link;
mod listener;
mod owner;
mod registers;
mod session;
mod stops;
mod target;
mod turn_away;

pub use condition::{Condition, ReadMemory};
pub use link::Transport;
pub use listener::{ListenError, Listener, Reach, Stream};
pub use registers::Registers;
pub use session::{SessionEnd, serve, serve_stream};
pub use target::{
    DebugTarget, Poll, Progress, Refusal, SleepingThread, Stop, Threads, WatchKind, Watchpoint,
};
pub use turn_away::turn_away;
