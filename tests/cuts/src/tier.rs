//! What a CPU must do to be fuzzed: one implementation for each engine tier.

use cpu::{Bus, Cpu, CpuState, Stop};
use guest_ram::GuestRam;

/// A CPU over RAM.
pub trait Tier {
    /// A CPU with empty caches.
    fn new(ram: GuestRam) -> Self;
    /// Replaces the state; RAM may have been replaced by any means.
    fn set_state(&mut self, state: &CpuState);
    /// Replaces the state over RAM that was replaced by writes which its page flags saw.
    fn restore_state(&mut self, state: &CpuState);
    /// The whole state.
    fn state(&self) -> CpuState;
    /// Guest memory.
    fn ram(&self) -> &GuestRam;
    /// Steps so far.
    fn steps(&self) -> u64;
    /// Runs to a step count, or until something else stops it.
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop;
}

/// The software CPU as its interpreter alone: what single steps, which all else is compared with, are made by.
pub struct Interpreted(Cpu);

/// The software CPU with its translator, which translates everything at once.
pub struct Translated(Cpu);

/// As [`Translated`], with all inverted that the manuals leave undefined of the host's instructions.
pub struct Inverted(Cpu);

macro_rules! tier {
    ($name:ident, $tier:expr) => {
        impl Tier for $name {
            fn new(ram: GuestRam) -> $name {
                let mut cpu = Cpu::new(ram);
                cpu.set_tier($tier);
                $name(cpu)
            }
            fn set_state(&mut self, state: &CpuState) {
                self.0.set_state(state);
            }
            fn restore_state(&mut self, state: &CpuState) {
                self.0.restore_state(state);
            }
            fn state(&self) -> CpuState {
                self.0.state()
            }
            fn ram(&self) -> &GuestRam {
                self.0.ram()
            }
            fn steps(&self) -> u64 {
                self.0.steps()
            }
            fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop {
                let origin = self.0.steps();
                self.0.run(bus, until_steps, origin)
            }
        }
    };
}

tier!(Interpreted, cpu::Tier::Interpreter);
tier!(Translated, cpu::Tier::Translator { after: 0 });
tier!(Inverted, cpu::Tier::Inverted);
