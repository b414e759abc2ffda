//! The location of the processes of the kernel that the session saw last. After kexec, the next kernel has its
//! processes at another location.

use std::sync::Arc;

use guest_symbols::Symbols;
use guest_symbols::boot::Boot;
use guest_symbols::tasks::{NoTasks, Tasks};
use machine::Machine;
use machine::position::Instructions;

/// The function in which new threads begin: its name in newer kernels, and its name in older kernels.
const BEGINS_OF_THREADS: [&str; 2] = ["ret_from_fork_asm", "ret_from_fork"];

pub(super) struct KnownTasks {
    /// The kernel's boot. `None` if the kernel has no symbols of variables, so that boots cannot be distinguished.
    boot: Option<Boot>,
    pub tasks: Arc<Tasks>,
    /// The first instruction of new threads.
    pub begin_of_threads: Option<u64>,
}

impl KnownTasks {
    /// Finds the processes of a machine's kernel with these symbols.
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
