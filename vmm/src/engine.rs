//! The engine contract: what the machine needs from whatever executes guest instructions. Above this line
//! nobody asks which engine runs.

use std::sync::Arc;

use cpu::{AddressKind, Bus, Cpu, CpuState, Stop, Traps, Watchpoint};
use guest_ram::GuestRam;

/// Executes guest instructions. One thread at a time; the guest stands still between calls.
pub trait Engine {
    /// Runs until the step count is `until_steps`, exactly, or something stops it first. Accesses to
    /// anything but RAM go to `bus`. A breakpoint at step count `origin` is passed over.
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64) -> Stop;
    /// The architectural state, canonical.
    fn state(&self) -> CpuState;
    /// Replaces the state; RAM may have been replaced too, by writes that its page flags saw.
    fn set_state(&mut self, state: &CpuState);
    /// The CPU as a debugger looks at it.
    fn cpu(&self) -> &Cpu;
    /// Replaces all breakpoints.
    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]);
    /// Replaces all watchpoints.
    fn set_watchpoints(&mut self, points: &[Watchpoint]);
    /// Replaces all traps.
    fn set_traps(&mut self, traps: Traps);
    /// Dirty flags of pages were cleared: from now on every first write to a page must set its flag again.
    fn track_writes_anew(&mut self);
}

/// The software CPU.
pub struct SoftEngine(Cpu);

impl SoftEngine {
    /// A CPU in reset state.
    pub fn new(ram: Arc<GuestRam>) -> SoftEngine {
        SoftEngine(Cpu::new(ram))
    }
}

impl Engine for SoftEngine {
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64) -> Stop {
        self.0.run(bus, until_steps, origin)
    }

    fn state(&self) -> CpuState {
        self.0.state()
    }

    fn set_state(&mut self, state: &CpuState) {
        self.0.restore_state(state);
    }

    fn cpu(&self) -> &Cpu {
        &self.0
    }

    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.0.set_breakpoints(points.iter().copied());
    }

    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.0.set_watchpoints(points.iter().copied());
    }

    fn set_traps(&mut self, traps: Traps) {
        self.0.set_traps(traps);
    }

    fn track_writes_anew(&mut self) {
        self.0.track_writes_anew();
    }
}
