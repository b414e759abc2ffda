//! Where the kernel that was last seen keeps its processes. After kexec another kernel keeps them elsewhere.

use std::sync::Arc;

use guest_symbols::boot::Boot;
use guest_symbols::tasks::Tasks;
use machine::Machine;
use machine::position::Instructions;

pub(super) struct KnownTasks {
    /// The kernel; `None` if nothing tells it from others.
    pub boot: Option<Boot>,
    pub tasks: Arc<Tasks>,
}

impl KnownTasks {
    /// Whether a machine runs this kernel.
    pub fn is_here(&self, machine: &Machine<Instructions>) -> bool {
        self.boot.as_ref().is_none_or(|boot| boot.is_here(machine))
    }
}
