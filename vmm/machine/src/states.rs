//! A machine's state without RAM and disk: taking it, its hashes, and going to another one.

use checkpoint::Maps;
use cpu::Counts;

use crate::checks::{CheckParts, CheckRecord};
use crate::comparable::cpu_hash;
use crate::error::Error;
use crate::hashes::{Hashes, hash_of, short};
use crate::machine_state::MachineState;
use crate::position::Exits;
use crate::ram_digest;
use crate::run::Machine;
use crate::state_v1::ConsoleTailV1;
use crate::unit::Unit;

impl<U: Unit> Machine<U> {
    /// Everything but RAM and disk.
    pub fn state(&self) -> MachineState {
        MachineState {
            cpu: self.engine.state(),
            counts: self.engine.counts(),
            platform: self.bus.platform.state(),
            idle_ns: self.bus.clock.idle_ns,
            console: self.bus.console.clone(),
            outcome: self.outcome.clone(),
        }
    }

    /// The state here in short. Changes nothing that the guest can see.
    pub fn check(&mut self, parts: CheckParts) -> Result<CheckRecord<U>, Error> {
        let at = self.moment();
        Ok(CheckRecord {
            at,
            branches: self.branches(),
            rip: self.engine.cpu().rip(),
            cpu_hash: self.view().cpu_hash(),
            devices_hash: parts.devices.then(|| {
                // Devices too must stand at this point, so that equal machines have equal states.
                self.bus.platform.advance(at.time_ns);
                short(&self.devices_hash())
            }),
            ram_digest: parts.ram.then(|| self.ram_digest()).transpose()?,
        })
    }

    /// Goes to another state of the same machine.
    pub fn restore(&mut self, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        let now_ns = state.check(&self.bus.clock).map_err(|why| Error::State(why.to_string()))?;
        self.restore_memory(&maps.ram)?;
        self.bus
            .platform
            .restore(&state.platform, now_ns)
            .map_err(|error| Error::State(error.to_string()))?;
        self.bus.clock.idle_ns = state.idle_ns;
        self.bus.console = state.console.clone();
        self.bus.output.clear();
        self.bus.panicked = false;
        self.asked_to_be_kept = false;
        self.outcome = state.outcome.clone();
        self.engine.set_state(&state.cpu, state.counts);
        self.engine.track_writes_anew();
        if let Some(overlay) = self.disk_mut() {
            overlay.set_version(&maps.disk);
        }
        Ok(())
    }

    /// Hashes of everything that can influence the future, from a look at all of it.
    pub fn hashes(&mut self) -> Hashes {
        let (ram, disk) = (ram_digest::of_all(self.ram(), self.likeness), self.disk_hash());
        self.hashes_with(ram, disk)
    }

    /// What [`Machine::hashes`] gives, by what was noted of RAM and disk on the way, which costs next to nothing. A recorder
    /// writes this down and a replay looks: if a note is missing they differ.
    pub fn known_hashes(&mut self) -> Result<Hashes, Error> {
        let (ram, disk) = (self.ram_digest()?, self.known_disk_hash());
        Ok(self.hashes_with(ram, disk))
    }

    fn hashes_with(&self, ram: [u8; 16], disk: [u8; 32]) -> Hashes {
        let cpu = cpu_hash(&self.engine.state(), self.engine.counts(), self.likeness);
        Hashes { cpu, devices: self.devices_hash(), ram, disk }
    }

    fn devices_hash(&self) -> [u8; 32] {
        hash_of(&(&self.bus.platform.state(), self.bus.clock.idle_ns, ConsoleTailV1::from(&self.bus.console)))
    }
}

impl Machine<Exits> {
    /// As [`Machine::restore`], of a machine that counts exits: the state is the one after so many.
    pub fn restore_at_exit(&mut self, exits: Exits, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        self.restore(state, maps)?;
        self.bus.clock.exits = exits;
        self.stopping.forget();
        Ok(())
    }

    /// Lets the CPU count instructions, branches and system calls from here on. Exits go on being counted, and what a log
    /// says of branches is not looked at any more.
    pub fn count_anew(&mut self) {
        let state = self.engine.state();
        self.engine.set_state(&state, Counts::default());
        self.stopping.counts_anew = true;
    }
}
