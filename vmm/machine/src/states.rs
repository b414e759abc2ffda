//! Copies, hashes and restores a machine's state without RAM and disk.

use checkpoint::Maps;
use cpu::Counts;

use crate::checks::{CheckParts, CheckRecord};
use crate::comparable::{Others, cpu_hash};
use crate::error::Error;
use crate::hashes::{Hashes, hash_of, short};
use crate::machine_state::MachineState;
use crate::position::Exits;
use crate::processors::OtherProcessors;
use crate::ram_digest;
use crate::run::Machine;
use crate::state_v1::ConsoleTailV1;
use crate::unit::Unit;

impl<U: Unit> Machine<U> {
    /// The state without RAM and disk.
    pub fn state(&self) -> MachineState {
        MachineState {
            cpu: self.engine.state(),
            counts: self.engine.counts(),
            others: self.others(),
            platform: self.bus.platform.state(),
            idle_ns: self.bus.clock.idle_ns,
            console: self.bus.console.clone(),
            outcome: self.outcome.clone(),
        }
    }

    /// Makes a check: a summary of the machine's present state. The guest cannot notice the check.
    pub fn check(&mut self, parts: CheckParts) -> Result<CheckRecord<U>, Error> {
        let at = self.moment();
        Ok(CheckRecord {
            at,
            branches: self.branches(),
            rip: self.engine.cpu().rip(),
            cpu_hash: self.view().cpu_hash(),
            devices_hash: parts.devices.then(|| {
                // The devices also advance to the present time, so that equal machines have equal states.
                self.bus.platform.advance(at.time_ns);
                short(&self.devices_hash())
            }),
            ram_digest: parts.ram.then(|| self.ram_digest()).transpose()?,
        })
    }

    /// Replaces the machine's whole state by another state of the same machine.
    pub fn restore(&mut self, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        let now_ns = state.check(&self.bus.clock).map_err(|why| Error::State(why.to_string()))?;
        if state.others.cpus.len() + 1 != self.engine.cpu().processors() {
            return Err(Error::State("it has another number of processors".to_string()));
        }
        self.restore_memory(&maps.ram)?;
        self.bus
            .platform
            .restore(&state.platform, &state.others.lapics, usize::from(state.others.seat), now_ns)
            .map_err(|error| Error::State(error.to_string()))?;
        self.bus.clock.idle_ns = state.idle_ns;
        self.bus.console = state.console.clone();
        self.bus.output.clear();
        self.bus.panicked = false;
        self.asked_to_be_kept = false;
        self.outcome = state.outcome.clone();
        self.engine.set_parked(usize::from(state.others.seat), &state.others.cpus);
        self.engine.set_turn_state(state.others.turns.as_ref());
        self.engine.set_state(&state.cpu, state.counts);
        self.engine.track_writes_anew();
        if let Some(overlay) = self.disk_mut() {
            overlay.set_version(&maps.disk);
        }
        Ok(())
    }

    /// Hashes of all state that can influence the guest's future. Reads all of RAM, and all blocks that the guest
    /// wrote.
    pub fn hashes(&mut self) -> Hashes {
        let (ram, disk) = (ram_digest::of_all(self.ram(), self.likeness), self.disk_hash());
        self.hashes_with(ram, disk)
    }

    /// Returns the same hashes as [`Machine::hashes`] at almost no cost, because the digests of unchanged pages are
    /// reused. A recorder records these hashes. A replay computes the hashes from all contents. So the two differ
    /// if the recorder failed to notice a written page.
    pub fn known_hashes(&mut self) -> Result<Hashes, Error> {
        let (ram, disk) = (self.ram_digest()?, self.known_disk_hash());
        Ok(self.hashes_with(ram, disk))
    }

    fn hashes_with(&self, ram: [u8; 16], disk: [u8; 32]) -> Hashes {
        let own = self.engine.cpu();
        let (cpus, turns) = (own.parked_states(), own.turn_state());
        let others = Others { cpus: &cpus, turns: turns.as_ref() };
        let cpu = cpu_hash(&self.engine.state(), self.engine.counts(), others, self.likeness);
        Hashes { cpu, devices: self.devices_hash(), ram, disk }
    }

    fn devices_hash(&self) -> [u8; 32] {
        let (platform, console) = (self.bus.platform.state(), ConsoleTailV1::from(&self.bus.console));
        let lapics = self.bus.platform.other_lapics();
        if lapics.is_empty() {
            return hash_of(&(&platform, self.bus.clock.idle_ns, console));
        }
        hash_of(&(&platform, self.bus.clock.idle_ns, console, lapics))
    }

    fn others(&self) -> OtherProcessors {
        let cpu = self.engine.cpu();
        let lapics = self.bus.platform.other_lapics();
        OtherProcessors { seat: cpu.seat() as u8, cpus: cpu.parked_states(), lapics, turns: cpu.turn_state() }
    }
}

impl Machine<Exits> {
    /// Does the same as [`Machine::restore`], for a machine that counts exits. `exits` is the number of exits
    /// before the state.
    pub fn restore_at_exit(&mut self, exits: Exits, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        self.restore(state, maps)?;
        self.bus.clock.exits = exits;
        self.stopping.forget();
        Ok(())
    }

    /// Restarts the CPU's counts of instructions, branches and system calls at zero. The count of exits goes on. From
    /// now on the machine ignores the log's counts of branches.
    pub fn count_anew(&mut self) {
        let state = self.engine.state();
        self.engine.set_state(&state, Counts::default());
        self.stopping.counts_anew = true;
    }
}
