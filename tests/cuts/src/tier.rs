//! The interface of a CPU for the fuzzer, with one implementation for each engine tier.

use cpu::{Bus, Counts, Cpu, CpuState, Stop};
use guest_ram::GuestRam;

/// A CPU that executes a guest in its RAM.
pub trait Tier {
    /// Creates a CPU with empty caches.
    fn new(ram: GuestRam) -> Self;
    /// Returns the software CPU that this type contains.
    fn inner(&mut self) -> &mut Cpu;
    /// Returns the same CPU as [`Tier::inner`], but for reading only.
    fn cpu(&self) -> &Cpu;
    /// Replaces state and counts. Before this call, RAM may have been changed without setting its page flags.
    fn set_state(&mut self, state: &CpuState, counts: Counts) {
        self.inner().set_state(state);
        self.inner().set_counts(counts);
    }
    /// Replaces state and counts. Before this call, RAM was changed only by writes that set its page flags.
    fn restore_state(&mut self, state: &CpuState, counts: Counts) {
        self.inner().restore_state(state);
        self.inner().set_counts(counts);
    }
    /// Returns the CPU's whole state.
    fn state(&self) -> CpuState {
        self.cpu().state()
    }
    /// Returns the guest's memory.
    fn ram(&self) -> &GuestRam {
        self.cpu().ram()
    }
    /// Returns the CPU's counts so far.
    fn counts(&self) -> Counts {
        self.cpu().counts()
    }
    /// Runs to a step count, or until another event stops the CPU.
    fn run(&mut self, bus: &mut dyn Bus, until_steps: u64) -> Stop {
        let origin = self.cpu().steps();
        self.inner().run(bus, until_steps, origin)
    }
}

/// The software CPU with only its interpreter. The interpreter makes the reference runs.
pub struct Interpreted(Cpu);

/// The software CPU with its translator, which translates all code at its first execution.
pub struct Translated(Cpu);

/// The software CPU as in [`Translated`], but its translated code inverts every result that the manuals of the
/// host's instructions leave undefined.
pub struct Inverted(Cpu);

macro_rules! tier {
    ($name:ident, $tier:expr) => {
        impl Tier for $name {
            fn new(ram: GuestRam) -> $name {
                let mut cpu = Cpu::new(ram);
                cpu.set_tier($tier);
                $name(cpu)
            }
            fn inner(&mut self) -> &mut Cpu {
                &mut self.0
            }
            fn cpu(&self) -> &Cpu {
                &self.0
            }
        }
    };
}

tier!(Interpreted, cpu::Tier::Interpreter);
tier!(Translated, cpu::Tier::Translator { after: 0, parts: cpu::Parts::ALL });
tier!(Inverted, cpu::Tier::Inverted);
