//! Where the kernel that was last seen keeps its processes. After kexec another kernel keeps them elsewhere.

use std::sync::Arc;

use guest_symbols::Symbols;
use guest_symbols::boot::Boot;
use guest_symbols::tasks::{NoTasks, Tasks};
use machine::Machine;
use machine::position::Instructions;

/// Where threads begin in the kernel, in newer and older ones.
const BEGINS_OF_THREADS: [&str; 2] = ["ret_from_fork_asm", "ret_from_fork"];

pub(super) struct KnownTasks {
    /// The kernel; `None` if nothing tells it from others.
    boot: Option<Boot>,
    pub tasks: Arc<Tasks>,
    /// The instruction at which new threads begin.
    pub begin_of_threads: Option<u64>,
}

impl KnownTasks {
    /// Of the kernel that a machine runs, with these symbols.
    pub fn of_kernel(machine: &Machine<Instructions>, symbols: &Symbols) -> Result<KnownTasks, NoTasks> {
        Ok(KnownTasks {
            boot: Boot::of_kernel(machine, symbols),
            tasks: Arc::new(Tasks::of_kernel(machine, symbols)?),
            begin_of_threads: BEGINS_OF_THREADS.iter().find_map(|name| symbols.address_of(name)),
        })
    }

    /// Whether a machine runs this kernel.
    pub fn is_here(&self, machine: &Machine<Instructions>) -> bool {
        self.boot.as_ref().is_none_or(|boot| boot.is_here(machine))
    }
}
