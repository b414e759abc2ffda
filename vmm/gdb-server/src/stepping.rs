//! The user's settings for steps, and state between steps.

use machine::position::Instructions;

/// How steps treat code of handlers and other threads that runs during a step.
#[derive(Debug, Default)]
pub(super) struct Stepping {
    /// Whether steps follow the CPU: into the handlers of interrupts and faults, and into other threads.
    pub follow_cpu: bool,
    /// Whether a single step executes a whole system call, as a range step always does. Reset at the next stop that
    /// gdb shows to its user.
    pub pass_calls: bool,
    /// The position at which a search for the guest's kernel last failed.
    pub no_kernel_at: Option<Instructions>,
}
