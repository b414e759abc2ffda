//! Everything about a machine but what RAM and disk hold: as plain data, as hashes, and going to another such state.

use checkpoint::Maps;
use cpu::CpuState;
use devices::pci::PciBusState;
use devices::platform::PlatformStateV1;
use serde::{Deserialize, Serialize};

use super::{Machine, Outcome};
use crate::error::Error;
use crate::machine::checks::{CheckParts, CheckRecord};
use crate::machine::comparable::cpu_hash;
use crate::machine::console_tail::ConsoleTail;
use crate::machine::ram_digest;
use crate::position::{MAX_TIME_NS, TimeBase};

/// Everything about a machine but the contents of RAM and disk: plain data, canonical.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    /// The CPU.
    #[serde(with = "stored_cpu")]
    pub cpu: CpuState,
    /// All devices.
    pub platform: PlatformStateV1<PciBusState>,
    /// Virtual time that passed idle.
    pub idle_ns: u64,
    /// What the console showed last.
    pub console: ConsoleTail,
    /// How the run ended, if it did.
    pub outcome: Option<Outcome>,
}

/// How the CPU's state is written: as its first stored version.
mod stored_cpu {
    use cpu::{CpuState, CpuStateV1};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(state: &CpuState, to: S) -> Result<S::Ok, S::Error> {
        CpuStateV1::from(state).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CpuState, D::Error> {
        CpuStateV1::deserialize(from).map(CpuState::from)
    }
}

impl MachineState {
    /// The virtual time, if counts and console are such as a machine can have them; the devices look at theirs when
    /// they are restored. States may come from strangers.
    fn check(&self, time_base: TimeBase) -> Result<u64, &'static str> {
        let CpuState { steps, branches, system_calls, .. } = self.cpu;
        let (counted, most_branches) = match time_base {
            TimeBase::Instructions => (steps, steps),
            // KVM's states may count branches, and never steps.
            TimeBase::Exits => (0, MAX_TIME_NS),
        };
        let now_ns = counted.checked_add(self.idle_ns).filter(|&ns| ns.max(steps) <= MAX_TIME_NS);
        if branches > most_branches || system_calls > steps {
            return Err("it counts more branches or system calls than instructions");
        }
        if !self.console.is_possible() {
            return Err("its console kept more, or less, than the end of the output");
        }
        now_ns.ok_or("it lies behind the end of time")
    }
}

impl Machine {
    /// Everything but RAM and disk.
    pub fn state(&self) -> MachineState {
        MachineState {
            cpu: self.engine.state(),
            platform: self.board.platform.state(),
            idle_ns: self.board.idle_ns,
            console: self.board.console.clone(),
            outcome: self.outcome.clone(),
        }
    }

    /// The state here in short. Changes nothing that the guest can see.
    pub fn check(&mut self, parts: CheckParts) -> CheckRecord {
        let at = self.moment();
        CheckRecord {
            at,
            branches: self.branches(),
            rip: self.engine.cpu().rip(),
            cpu_hash: self.view().cpu_hash(),
            devices_hash: parts.devices.then(|| {
                // Devices too must stand at this point, so that equal machines have equal states.
                self.board.platform.advance(at.time_ns);
                short(&self.devices_hash())
            }),
            ram_digest: parts.ram.then(|| self.ram_digest()),
        }
    }

    /// Goes to another state of the same machine.
    pub fn restore(&mut self, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        let now_ns = state.check(self.time_base).map_err(|why| Error::State(why.to_string()))?;
        self.restore_memory(&maps.ram)?;
        self.board
            .platform
            .restore(&state.platform, now_ns)
            .map_err(|error| Error::State(error.to_string()))?;
        self.board.idle_ns = state.idle_ns;
        self.board.console = state.console.clone();
        self.board.output.clear();
        self.board.panicked = false;
        self.outcome = state.outcome.clone();
        self.engine.set_state(&state.cpu);
        self.engine.track_writes_anew();
        if let Some(overlay) = self.disk_mut() {
            overlay.set_version(&maps.disk);
        }
        Ok(())
    }

    /// As [`Machine::restore`], of a machine that counts exits: the state is the one after so many.
    pub fn restore_at_exit(&mut self, exits: u64, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        self.restore(state, maps)?;
        self.board.exits = exits;
        (self.stopped, self.not_here) = (None, false);
        Ok(())
    }

    /// Lets the CPU count instructions, branches and system calls from here on. Exits go on being counted, and what a log
    /// says of branches is not looked at any more.
    pub fn count_anew(&mut self) {
        let counts = CpuState { steps: 0, branches: 0, system_calls: 0, ..self.engine.state() };
        self.engine.set_state(&counts);
        self.counts_anew = true;
    }

    /// Hashes of everything that can influence the future, from a look at all of it.
    pub fn hashes(&mut self) -> Hashes {
        let (ram, disk) = (ram_digest::of_all(&self.ram, self.time_base), self.disk_hash());
        self.hashes_with(ram, disk)
    }

    /// What [`Machine::hashes`] gives, by what was noted of RAM and disk on the way, which costs next to nothing. A recorder
    /// writes this down and a replay looks: if a note is missing they differ.
    pub fn known_hashes(&mut self) -> Hashes {
        let (ram, disk) = (self.ram_digest(), self.known_disk_hash());
        self.hashes_with(ram, disk)
    }

    fn hashes_with(&self, ram: [u8; 16], disk: [u8; 32]) -> Hashes {
        let cpu = cpu_hash(&self.engine.state(), self.time_base);
        Hashes { cpu, devices: self.devices_hash(), ram, disk }
    }

    fn devices_hash(&self) -> [u8; 32] {
        hash_of(&(&self.board.platform.state(), self.board.idle_ns, &self.board.console))
    }
}

/// Hashes of the parts of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashes {
    /// The CPU's state.
    pub cpu: [u8; 32],
    /// All devices and the clock.
    pub devices: [u8; 32],
    /// The digest of RAM ([`crate::machine::ram_digest`]).
    pub ram: [u8; 16],
    /// What the guest wrote to its disk ([`crate::machine::disk::OverlayDisk::hash`]).
    pub disk: [u8; 32],
}

/// Hash of plain data.
pub fn hash_of(value: &impl Serialize) -> [u8; 32] {
    let bytes = postcard::to_stdvec(value).expect("plain data in memory always serializes");
    *blake3::hash(&bytes).as_bytes()
}

/// A hash, or other bytes, in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first bytes of a hash, for records that are many.
pub fn short(hash: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    [a, b, c, d, e, f, g, h]
}
