//! The run loop's interface to a branch counter, for real and simulated counters.

use cpu::Cpu;

use crate::error::Error;
use crate::vcpu::{Exit, Vcpu};

/// A counter of the guest's retired conditional branches. One thread uses the counter: the thread that enters
/// the guest. Apart from [`BranchCounter::enter`], the guest stands still during a call.
pub(crate) trait BranchCounter: Send {
    /// Announces that the calling thread will run the vCPU from now on. The count continues.
    fn move_here(&mut self) -> Result<(), Error>;
    /// The number of branches so far. The count starts at an unknown number, which does not change.
    fn count(&mut self) -> Result<u64, Error>;
    /// Makes the guest exit some time after `branches` more branches (at least one). A new call replaces an
    /// earlier call.
    fn arm(&mut self, branches: u64) -> Result<(), Error>;
    /// Disarms the counter.
    fn disarm(&mut self) -> Result<(), Error>;
    /// Whether the overflow came since the counter was armed.
    fn overflowed(&self) -> bool;
    /// Enters the guest. A processor counts by itself. A simulated counter must see each instruction.
    fn enter(&mut self, entry: Entry<'_>) -> Exit {
        entry.vcpu.enter(entry.window, entry.cr8)
    }
}

/// The arguments for entering the guest.
pub(crate) struct Entry<'a> {
    pub(crate) vcpu: &'a mut Vcpu,
    /// The software CPU. A counter may change this CPU's registers, but not its counts.
    pub(crate) soft: &'a mut Cpu,
    pub(crate) window: bool,
    pub(crate) cr8: u64,
}
