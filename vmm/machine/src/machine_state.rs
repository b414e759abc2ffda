//! The state of a machine without RAM and disk, as plain data.

use cpu::{Counts, CpuState};
use devices::pci::PciBusStateV1;
use devices::platform::PlatformStateV1;

use crate::clock::Clock;
use crate::console_tail::ConsoleTail;
use crate::outcome::Outcome;

/// Everything about a machine but the contents of RAM and disk: plain data, canonical.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineState {
    /// The CPU.
    pub cpu: CpuState,
    /// What was counted.
    pub counts: Counts,
    /// All devices.
    pub platform: PlatformStateV1<PciBusStateV1>,
    /// Virtual time that passed idle.
    pub idle_ns: u64,
    /// What the console showed last.
    pub console: ConsoleTail,
    /// How the run ended, if it did.
    pub outcome: Option<Outcome>,
}

impl MachineState {
    /// The virtual time, if counts and console are such as a machine with this clock can have them; the devices look at theirs when
    /// they are restored. States may come from strangers.
    pub(super) fn check(&self, clock: &Clock) -> Result<u64, &'static str> {
        if !self.console.is_possible() {
            return Err("its console kept more, or less, than the end of the output");
        }
        clock.time_of(self.counts, self.idle_ns)
    }
}
