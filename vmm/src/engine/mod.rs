//! The engine contract: what the machine needs from whatever executes guest instructions. Above this line
//! nobody asks which engine runs.

pub mod kvm;

use std::sync::Arc;

pub use ::kvm::{End, Leave, Mark, Statistics};
use cpu::{AddressKind, Bus, Cpu, CpuModel, CpuState, Stop, Traps, Watchpoint, fold_registers};
use guest_ram::GuestRam;

use crate::error::Error;

/// Which engine executes a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The software CPU.
    #[default]
    Soft,
    /// KVM.
    Kvm,
}

impl EngineKind {
    /// An engine of this kind over `ram`, in reset state.
    pub fn build(self, ram: Arc<GuestRam>, model: CpuModel) -> Result<Box<dyn Engine>, Error> {
        Ok(match self {
            EngineKind::Soft => Box::new(SoftEngine::new(ram, model)),
            EngineKind::Kvm => Box::new(crate::engine::kvm::KvmEngine::new(ram, model)?),
        })
    }
}

/// Executes guest instructions. One thread at a time; the guest stands still between calls.
pub trait Engine {
    /// Runs until the CPU's step count is `until_steps`, exactly, or something stops it first: the bus, `leave`, a break- or
    /// watchpoint. Accesses to anything but RAM go to `bus`. A breakpoint at step count `origin` is passed over.
    ///
    /// An engine that does not count steps stops where the bus or `leave` says.
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64, leave: Leave) -> Result<End, Error>;
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
    /// The page flags of RAM are about to be looked at: every page that was written must have its flag.
    fn note_written(&mut self);
    /// Whether its states count retired conditional branches.
    fn counts_branches(&self) -> bool;
    /// Whether it may run beyond a mark whose branches are counted ([`End::Overshot`]).
    fn overshoots(&self) -> bool {
        false
    }
    /// Dirty flags of pages were cleared: from now on every first write to a page must set its flag again.
    fn track_writes_anew(&mut self);
    /// What it did so far, if it counts that.
    fn statistics(&self) -> Option<Statistics> {
        None
    }
}

/// The software CPU.
pub struct SoftEngine {
    cpu: Cpu,
    breakpoints: Vec<(AddressKind, u64)>,
}

impl SoftEngine {
    /// A CPU in reset state.
    pub fn new(ram: Arc<GuestRam>, model: CpuModel) -> SoftEngine {
        let mut cpu = Cpu::new(ram);
        cpu.set_model(model);
        SoftEngine { cpu, breakpoints: Vec::new() }
    }

    /// Runs for so many steps, as if they were nanoseconds, and stops between two instructions: how the KVM engine behaves
    /// for its callers, without KVM.
    fn run_for(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64, steps: u64) -> End {
        let limit = until_steps.min(self.cpu.steps().saturating_add(steps.max(1)));
        let stop = self.cpu.run(bus, limit, origin);
        if stop != Stop::Budget || limit == until_steps {
            return End::Stop(stop);
        }
        if self.cpu.core().state.interrupt_shadow {
            return self.run_for(bus, until_steps, origin, 1);
        }
        End::Forced
    }

    /// Runs to where the guest may be at the mark.
    fn run_to_mark(&mut self, bus: &mut dyn Bus, until_steps: u64, mark: Mark) -> End {
        let mut not_here = mark.not_here.then(|| self.cpu.steps());
        let mut origin = u64::MAX;
        let points = self.breakpoints.iter().copied();
        self.cpu.set_breakpoints(points.chain([(AddressKind::Linear, mark.rip)]));
        let end = loop {
            match self.cpu.run(bus, until_steps, origin) {
                Stop::Breakpoint if self.breakpoints.contains(&(AddressKind::Linear, self.cpu.rip())) => {
                    break End::Stop(Stop::Breakpoint);
                }
                Stop::Breakpoint => {
                    origin = self.cpu.steps();
                    let rejected = not_here.take() == Some(origin);
                    if !rejected && fold_registers(self.cpu.gpr()) == mark.registers {
                        break End::Mark;
                    }
                }
                stop => break End::Stop(stop),
            }
        };
        self.cpu.set_breakpoints(self.breakpoints.iter().copied());
        end
    }
}

impl Engine for SoftEngine {
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64, origin: u64, leave: Leave) -> Result<End, Error> {
        Ok(match leave {
            Leave::Never => End::Stop(self.cpu.run(bus, until_steps, origin)),
            Leave::At(mark) => self.run_to_mark(bus, until_steps, mark),
            Leave::After { force, .. } => self.run_for(bus, until_steps, origin, force.as_nanos() as u64),
        })
    }

    fn state(&self) -> CpuState {
        self.cpu.state()
    }

    fn set_state(&mut self, state: &CpuState) {
        self.cpu.restore_state(state);
    }

    fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.breakpoints = points.to_vec();
        self.cpu.set_breakpoints(points.iter().copied());
    }

    fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.cpu.set_watchpoints(points.iter().copied());
    }

    fn set_traps(&mut self, traps: Traps) {
        self.cpu.set_traps(traps);
    }

    fn note_written(&mut self) {}

    fn counts_branches(&self) -> bool {
        true
    }

    fn track_writes_anew(&mut self) {
        self.cpu.track_writes_anew();
    }
}
