//! Makes a starting state from a machine, and starts a machine from a starting state.

use checkpoint::{Maps, PAGE_BYTES, PageMap, PageRef};
use cpu::{Counts, Traps, TurnPolicy};
use guest_ram::PAGE_SIZE;

use crate::clock::TimeBase;
use crate::error::Error;
use crate::machine_state::MachineState;
use crate::outcome::Outcome;
use crate::position::Exits;
use crate::processors::OtherProcessors;
use crate::run::Machine;
use crate::starting_state::{StartingState, held};
use crate::unit::Unit;

impl StartingState {
    /// Makes a starting state from the machine's present state. Fails for a machine that has ended by itself, because
    /// it cannot continue.
    pub fn of<U: Unit>(machine: &mut Machine<U>) -> Result<StartingState, Error> {
        let state = first_state(machine)?;
        Ok(StartingState { state, maps: Maps { ram: ram_of(machine), disk: disk_of(machine)? } })
    }
}

impl<U: Unit> Machine<U> {
    /// Moves the machine to a starting state. All counts become zero, and no page is regarded as written. RAM and
    /// disk must have the sizes of the state's machine. The machine's disk gets the state's blocks.
    pub fn begin_at(&mut self, start: &StartingState) -> Result<(), Error> {
        let (pages, blocks) = self.page_counts();
        if (pages, blocks) != (start.maps.ram.len(), start.maps.disk.len()) {
            return Err(Error::State("RAM or disk have another size".to_string()));
        }
        if let Some(disk) = self.disk_mut() {
            disk.set_start(start.maps.disk.clone());
        }
        self.restore(&start.state, &Maps { ram: start.maps.ram.clone(), disk: PageMap::new(blocks) })?;
        self.bus.clock.exits = Exits(0);
        self.stopping.forget();
        Ok(())
    }

    /// Makes the machine's present state its starting state. The result is the same as if a starting state were
    /// made here, and a new machine were started from this state. But RAM is not copied, and translated code stays
    /// valid. The call removes a debugger's breakpoints, watchpoints and traps, and detaches the store.
    pub fn begin_here(&mut self) -> Result<(), Error> {
        let state = first_state(self)?;
        self.set_breakpoints(&[]);
        self.set_watchpoints(&[]);
        self.set_traps(Traps::default());
        self.set_observer(None)?;
        self.stop_on_output(false);
        let disk = disk_of(self)?;
        self.update_image()?;
        let start = StartingState { state, maps: Maps { ram: self.image.clone(), disk } };
        self.begin_at(&start)?;
        self.begin_written()?;
        self.detach_store();
        Ok(())
    }

    /// Gives the machine's entropy device a new seed, which is computed from the old seed and a number. The run
    /// then differs from the recording once the guest reads from the device. Returns false if the machine has no
    /// entropy device.
    pub fn vary_entropy(&mut self, number: u32) -> bool {
        let now_ns = self.moment().time_ns;
        self.bus.platform.with_bus(now_ns, |bus| {
            bus.entropy_mut().map(|entropy| entropy.reseed(|seed| varied_seed(seed, number))).is_some()
        })
    }

    /// Replaces the policy that gives turns to several processors. A new turn begins.
    pub fn change_turn_policy(&mut self, policy: TurnPolicy) {
        self.engine.change_turn_policy(policy);
    }
}

fn varied_seed(seed: &[u8; 32], number: u32) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ttvm entropy device of a branch");
    hasher.update(seed).update(&number.to_le_bytes());
    *hasher.finalize().as_bytes()
}

/// The machine's present state as the first state of another run. Fails for a machine that has ended by itself.
fn first_state<U: Unit>(machine: &Machine<U>) -> Result<MachineState, Error> {
    let ended = machine.outcome().filter(|outcome| !goes_on(outcome));
    if let Some(outcome) = ended {
        let why = format!("{outcome} there, so the guest cannot go on; choose an earlier position");
        return Err(Error::Position(why));
    }
    let state = machine.state();
    let counted_ns = match machine.bus.clock.base() {
        TimeBase::Instructions => state.counts.steps,
        TimeBase::Exits => 0,
    };
    let others = OtherProcessors { turns: machine.cpu().turn_state_from_zero(), ..state.others };
    Ok(MachineState {
        counts: Counts::default(),
        others,
        idle_ns: state.idle_ns + counted_ns,
        outcome: None,
        ..state
    })
}

/// Whether a machine that ended with this outcome can continue if it gets other input than the recorded input.
fn goes_on(outcome: &Outcome) -> bool {
    outcome.is_from_outside() || *outcome == Outcome::IdleForever
}

/// Copies all of the guest's RAM into a map in host memory.
fn ram_of<U: Unit>(machine: &Machine<U>) -> PageMap {
    let pages = machine.ram().flags().pages();
    let mut map = PageMap::zeroed(pages);
    let mut contents = [0; PAGE_BYTES];
    for page in 0..pages {
        machine.ram().read_bytes(page * PAGE_SIZE, &mut contents);
        if let held @ PageRef::Held(_) = held(&contents) {
            map.set(page, held);
        }
    }
    map
}

/// Copies the disk blocks that the guest wrote into a map in host memory.
fn disk_of<U: Unit>(machine: &mut Machine<U>) -> Result<PageMap, Error> {
    let Some(disk) = machine.disk_mut() else { return Ok(PageMap::new(0)) };
    let mut map = PageMap::new(disk.block_count());
    let mut contents = [0; PAGE_BYTES];
    for block in disk.blocks_over_image() {
        disk.read_whole_block(block, &mut contents)?;
        map.set(block, held(&contents));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use devices::virtio::BlockBackend;

    use super::*;
    use crate::config::{MachineConfig, MachineOptions};
    use crate::format::Format;
    use crate::inputs::PowerOn;
    use crate::position::Instructions;
    use crate::start::Images;
    use crate::starting_state::Effort;

    /// The size of the disk: ten blocks and a half.
    const DISK_BYTES: usize = 10 * PAGE_BYTES + 2048;

    fn power_on() -> PowerOn {
        PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 }
    }

    fn config(directory: &Path) -> (MachineConfig, Images) {
        let image = directory.join("disk");
        std::fs::write(&image, (0..DISK_BYTES).map(|at| (at / 512) as u8).collect::<Vec<_>>()).unwrap();
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory, 10),
            disk: Some(image),
            memory_bytes: 4 << 20,
            ..MachineOptions::default()
        };
        MachineConfig::from_options(&options).unwrap()
    }

    fn write(machine: &mut Machine<Instructions>, sector: u64, byte: u8, sectors: usize) {
        machine.disk_mut().unwrap().write(sector, &vec![byte; sectors * 512]).unwrap();
    }

    fn read(machine: &mut Machine<Instructions>) -> Vec<u8> {
        let mut bytes = vec![0; DISK_BYTES];
        machine.disk_mut().unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_disk_goes_on_with_what_was_written_to_it_and_the_image_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (config, images) = config(directory.path());
        let base = std::fs::read(directory.path().join("disk")).unwrap();
        let mut machine = Machine::new(&config, &images, &power_on()).unwrap();
        let unwritten = machine.disk_hash();
        // Writes a part of a block, several blocks, zeroes, and the half block at the end. Later writes overwrite some
        // of these blocks.
        for writes in [[(3, 0xaa, 1), (14, 0xbb, 20), (64, 0, 8)], [(81, 0xcc, 3), (3, 0xdd, 2), (16, 0, 8)]]
        {
            writes.iter().for_each(|&(sector, byte, count)| write(&mut machine, sector, byte, count));
            let file = directory.path().join("start");
            let _ = std::fs::remove_file(&file);
            let start = StartingState::of(&mut machine).unwrap();
            start.write(&file, Format::default(), Effort::Fast, &mut |_, _| false).unwrap();
            let (pages, blocks) = machine.page_counts();
            let start =
                StartingState::parse(&std::fs::read(&file).unwrap(), Format::default(), pages, blocks)
                    .unwrap();
            let mut next = Machine::new(&config, &Images::of_state(start), &power_on()).unwrap();
            assert_eq!(read(&mut next), read(&mut machine));
            assert_eq!((next.written_blocks(), next.disk_hash()), (0, unwritten));
            assert_eq!(next.hashes().ram, machine.hashes().ram);
            machine = next;
        }
        assert_eq!(std::fs::read(directory.path().join("disk")).unwrap(), base);
    }

    #[test]
    fn a_start_of_a_machine_of_another_size_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (config, images) = config(directory.path());
        let mut machine = Machine::new(&config, &images, &power_on()).unwrap();
        let start = StartingState::of(&mut machine).unwrap();
        let larger = MachineConfig { memory_bytes: 8 << 20, ..config.clone() };
        assert!(
            Machine::<Instructions>::new(&larger, &Images::of_state(start.clone()), &power_on()).is_err()
        );
        let without = MachineConfig { disk: None, ..config };
        assert!(Machine::<Instructions>::new(&without, &Images::of_state(start), &power_on()).is_err());
    }
}
