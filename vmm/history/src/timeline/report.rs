//! A report of the guest's kernel, as a place in the run.

use guest_symbols::reports::Kind;
use guest_symbols::tasks::Thread;
use machine::position::Instructions;

/// A panic, an oops, or another complaint of the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of the report.
    pub kind: Kind,
    /// The report's first line.
    pub line: String,
    /// The place where the first line is complete in the kernel's log, or on the console.
    pub at: Instructions,
    /// The guest time at the place `at`.
    pub time_ns: u64,
    /// The thread that runs at the place `at`, if the thread is known.
    pub thread: Option<Thread>,
}
