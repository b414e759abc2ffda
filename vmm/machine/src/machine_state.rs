//! The state of a machine without RAM and disk, as plain data.

use cpu::{Counts, CpuState};
use devices::pci::PciBusStateV1;
use devices::platform::PlatformStateV1;

use crate::clock::Clock;
use crate::console_tail::ConsoleTail;
use crate::outcome::Outcome;
use crate::processors::OtherProcessors;

/// A machine's state without the contents of RAM and disk, as plain data. Equal machines have equal values.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineState {
    /// The CPU. In a machine with several processors, this is the processor in the seat: the processor whose turn it
    /// is.
    pub cpu: CpuState,
    /// The CPU's counts.
    pub counts: Counts,
    /// The other processors. A machine with one processor has none.
    pub others: OtherProcessors,
    /// All devices.
    pub platform: PlatformStateV1<PciBusStateV1>,
    /// Virtual time in nanoseconds that passed while the CPU was halted, or came in as events.
    pub idle_ns: u64,
    /// The end of the console's output.
    pub console: ConsoleTail,
    /// How the run ended, if it has ended.
    pub outcome: Option<Outcome>,
}

impl MachineState {
    /// The state's virtual time. Refuses counts and a console that a machine with this clock cannot have: states may
    /// come from strangers. The devices check their own states when they are restored.
    pub(super) fn check(&self, clock: &Clock) -> Result<u64, &'static str> {
        if !self.console.is_possible() {
            return Err("its console kept more, or less, than the end of the output");
        }
        clock.time_of(self.counts, self.idle_ns)
    }
}
