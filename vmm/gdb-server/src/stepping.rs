//! What gdb's user has chosen for steps, and what is remembered from one to the next.

use machine::position::Instructions;

/// How steps treat what comes between.
#[derive(Debug, Default)]
pub(super) struct Stepping {
    /// Steps go into the handlers of interrupts and faults, and into other threads: they follow the CPU.
    pub follow_cpu: bool,
    /// Up to the next stop that gdb shows, single steps pass what a program asks of the kernel, as steps in a range do.
    pub pass_calls: bool,
    /// Where the guest's kernel was looked for in vain.
    pub no_kernel_at: Option<Instructions>,
}
