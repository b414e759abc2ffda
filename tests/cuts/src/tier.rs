//! What a CPU must do to be fuzzed: one implementation for each engine tier.

use std::sync::Arc;

use cpu::{Bus, Cpu, CpuState, Stop};
use guest_ram::GuestRam;

/// A CPU over RAM.
pub trait Tier {
    /// A CPU with empty caches.
    fn new(ram: Arc<GuestRam>) -> Self;
    /// Replaces the state; RAM may have been replaced by any means.
    fn set_state(&mut self, state: &CpuState);
    /// Replaces the state over RAM that was replaced by writes which its page flags saw.
    fn restore_state(&mut self, state: &CpuState);
    /// The whole state.
    fn state(&self) -> CpuState;
    /// Steps so far.
    fn steps(&self) -> u64;
    /// Runs to a step count, or until something else stops it.
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop;
}

impl Tier for Cpu {
    fn new(ram: Arc<GuestRam>) -> Cpu {
        let mut cpu = Cpu::new(ram);
        // Everything is translated at once.
        cpu.set_tier(cpu::Tier::Translator { after: 0 });
        cpu
    }

    fn set_state(&mut self, state: &CpuState) {
        Cpu::set_state(self, state);
    }

    fn restore_state(&mut self, state: &CpuState) {
        Cpu::restore_state(self, state);
    }

    fn state(&self) -> CpuState {
        Cpu::state(self)
    }

    fn steps(&self) -> u64 {
        Cpu::steps(self)
    }

    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop {
        let origin = Cpu::steps(self);
        Cpu::run(self, bus, until_steps, origin)
    }
}
