//! What the run loop wants of a counter of branches, whatever counts.

use cpu::Cpu;

use crate::error::Error;
use crate::vcpu::{Exit, Vcpu};

/// A counter of the guest's retired conditional branches. Used on one thread, the one that enters the guest, and, but for
/// [`BranchCounter::enter`], while the guest stands still.
pub(crate) trait BranchCounter: Send {
    /// Another thread may run the vCPU from now on: the calling one. The count goes on.
    fn move_here(&mut self) -> Result<(), Error>;
    /// How many so far. Where the count began is not known, but it stays the same.
    fn count(&mut self) -> Result<u64, Error>;
    /// Makes the guest leave some time after `branches` more (at least one). Replaces what was armed before.
    fn arm(&mut self, branches: u64) -> Result<(), Error>;
    /// Nothing is armed any more.
    fn disarm(&mut self) -> Result<(), Error>;
    /// Whether the overflow came since it was armed.
    fn overflowed(&self) -> bool;
    /// Enters the guest. A processor counts by itself; a counter that does not has to see each instruction.
    fn enter(&mut self, entry: Entry<'_>) -> Exit {
        entry.vcpu.enter(entry.window, entry.cr8)
    }
}

/// What entering the guest takes.
pub(crate) struct Entry<'a> {
    pub(crate) vcpu: &'a mut Vcpu,
    /// Registers may be anything, counts must stay.
    pub(crate) soft: &'a mut Cpu,
    pub(crate) window: bool,
    pub(crate) cr8: u64,
}
