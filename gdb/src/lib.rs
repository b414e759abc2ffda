//! gdb's remote serial protocol, forwards and backwards, over a small [`DebugTarget`] trait.
//!
//! ```no_run
//! use gdb::{DebugTarget, ListenError, Listener};
//!
//! /// Serves one gdb, which attaches with `target remote 127.0.0.1:1234`.
//! fn serve_one(target: &mut dyn DebugTarget) -> Result<(), ListenError> {
//!     let listener = Listener::bind("127.0.0.1:1234")?;
//!     gdb::serve(&listener, target, |_end| false)
//! }
//! ```
//!
//! An unmodified gdb can then step and continue in both directions of a recorded run, with breakpoints and
//! watchpoints. gdb can read and write registers and memory, and send `monitor` commands. The crate `gdbstub`
//! reads and writes packets. This crate adds what a debugger of fixed histories needs:
//!
//! - The server answers damaged or nonsensical packets. Such packets never end the session
//!   or the program.
//! - The target gets changes of breakpoints and watchpoints only when it moves, because gdb removes and reinserts
//!   all of them at every stop.
//! - gdb shows refusals ("the recorded past cannot be changed") to its user as sentences.
//! - ^C interrupts a run through a poll function that the target calls. gdb prints the progress of a long run.
//! - The target evaluates conditions of breakpoints while it runs, so gdb need not evaluate them
//!   after a stop.
//! - Each CPU is a thread. Threads of the guest's system that do not run appear as further threads.
//! - Control registers and segment bases are part of the register file.
//!
//! The crate knows nothing of engines, logs or positions, starts no threads and never reads a clock. The
//! crate follows the appendix "GDB Remote Serial Protocol" of the gdb manual, in the form that gdb 13 uses.
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

pub use adapter::NOT_A_CPU;
pub use condition::{Condition, ReadMemory};
pub use link::Transport;
pub use listener::{ListenError, Listener, Reach, Stream};
pub use registers::Registers;
pub use session::{SessionEnd, serve, serve_stream};
pub use target::{
    DebugTarget, FIRST_CPU, Poll, Progress, Refusal, SleepingThread, Stop, Thread, Threads, WatchKind,
    Watchpoint,
};
pub use turn_away::turn_away;
