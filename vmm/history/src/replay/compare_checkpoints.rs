//! Compares a recording's checkpoints with a replay: the machine's state, the place in the log, every page of RAM and
//! every block of the disk. A recording that counts exits instead of instructions may come from any engine. For such a
//! recording, the comparison leaves out state in which processors differ ([`machine::comparable`]).
//!
//! Replay and recording were equal at the previous checkpoint. A page is still equal if the replay has not written it
//! since then, and the checkpoint stores no new version of the page. Such pages are not read, so the cost of a
//! comparison depends only on the number of written pages.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use checkpoint::{Maps, PAGE_BYTES, Page, PageMap, PageRef, Space, Store};

use crate::replay::run::Replay;
use machine::comparable::{Likeness, Others, cpu_hash};
use machine::disk::OverlayDisk;
use machine::error::Error;
use machine::position::Position;
use machine::ram_digest::leave_out_processors_own;
use machine::unit::Unit;
use machine::{Format, Machine, MachineState};
use recording::Recording;
use recording::checkpoints::{CheckpointHead, Checkpoints, must_fit};
use recording::player::Player;

/// A difference between a checkpoint and the replay at the checkpoint's position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDifference {
    /// The checkpoint's position.
    pub at: Position,
    /// The first part that differs.
    pub part: CheckpointPart,
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointPart {
    /// The head: position, counts, RIP, and place in the log.
    Head,
    /// A part of the machine's state.
    State(&'static str),
    /// A page of RAM.
    Ram {
        /// The physical address of the page.
        gpa: u64,
        /// The first byte that differs.
        byte: usize,
    },
    /// A disk block.
    Disk {
        /// The block's number.
        block: u64,
        /// The first byte that differs.
        byte: usize,
    },
}

impl fmt::Display for CheckpointDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the checkpoint at {} differs from the replay: ", self.at)?;
        match self.part {
            CheckpointPart::Head => f.write_str("position, counts or the place in the log differ"),
            CheckpointPart::State(what) => write!(f, "{what} differs"),
            CheckpointPart::Ram { gpa, byte } => {
                write!(f, "the page of RAM at {gpa:#x} differs, first in byte {byte:#x}")
            }
            CheckpointPart::Disk { block, byte } => {
                write!(f, "disk block {block} differs, first in byte {byte:#x}")
            }
        }
    }
}

/// Compares a recording's checkpoints one after the other, in the order of the run.
pub struct CheckpointComparison<C> {
    checkpoints: Arc<Checkpoints<C>>,
    /// How states are compared: exactly in a recording that counts instructions, because only the software CPU makes
    /// such recordings.
    likeness: Likeness,
    format: Format,
    /// The disk with the contents that it has at the compared checkpoint.
    disk: Option<OverlayDisk>,
    /// The maps of RAM and disk at the checkpoint that was compared last.
    before: Maps,
    /// Number of checkpoints compared so far.
    pub compared: usize,
    /// The first difference. Later checkpoints are then not compared.
    pub difference: Option<CheckpointDifference>,
}

impl<C: Unit> CheckpointComparison<C> {
    /// Begins with a machine at its first instruction. Reads and checks all data in the store. `progress` gets the
    /// number of bytes checked so far, and the number of all bytes. Returns `None` if the recording has no checkpoints.
    pub fn new(
        recording: &Recording<C>,
        machine: &mut Machine<C>,
        progress: impl FnMut(u64, u64),
    ) -> Result<Option<CheckpointComparison<C>>, Error> {
        let Some(store) = recording.whole_checkpoints()? else { return Ok(None) };
        store.verify(progress)?;
        must_fit(&store, machine)?;
        if machine.store().is_none() {
            machine.attach_store(store.clone());
        }
        let disk = disk_of(recording, &store)?;
        let ram = if recording.is_part() { ram_at_power_on(recording)? } else { machine.maps()?.ram };
        let before = Maps { ram: ram.clone(), disk: PageMap::new(store.disk_blocks()) };
        let checkpoints = Arc::new(Checkpoints::new(store, ram, &recording.log)?);
        let likeness =
            if C::NAMES_ONE_PLACE { Likeness::Exact } else { recording.manifest.machine.profile().likeness };
        let (compared, difference) = (0, None);
        let format = recording.log.format;
        Ok(Some(CheckpointComparison { checkpoints, likeness, format, disk, before, compared, difference }))
    }

    /// A comparison of the same checkpoints with another replay, whose machine is at its first instruction.
    pub(super) fn of_another(
        &self,
        recording: &Recording<C>,
        machine: &mut Machine<C>,
    ) -> Result<CheckpointComparison<C>, Error> {
        let store = self.checkpoints.store();
        machine.attach_store(store.clone());
        Ok(CheckpointComparison {
            checkpoints: self.checkpoints.clone(),
            likeness: self.likeness,
            format: self.format,
            disk: disk_of(recording, store)?,
            before: Maps { ram: self.checkpoints.initial().clone(), disk: PageMap::new(store.disk_blocks()) },
            compared: 0,
            difference: None,
        })
    }

    /// Moves a replay to a checkpoint. The comparison continues with the checkpoints after this checkpoint.
    pub(super) fn begin_at(&mut self, at: C, replay: &mut Replay<'_, C>) -> Result<(), Error> {
        let snapshot = self.checkpoints.load(at)?;
        replay.machine.restore(&snapshot.state, &snapshot.maps)?;
        replay.player.set_cursor(snapshot.cursor)?;
        self.before = snapshot.maps;
        Ok(())
    }

    /// Does the same as [`CheckpointComparison::compare`]. In addition, if replay and checkpoint are equal, the
    /// machine's memory then refers to the checkpoint's pages, so the replay can go to another checkpoint.
    pub(super) fn compare_and_adopt(&mut self, at: C, replay: &mut Replay<'_, C>) -> Result<(), Error> {
        self.compare(at, &mut replay.machine, &replay.player)?;
        if self.difference.is_none() { replay.machine.rebase(&self.before) } else { Ok(()) }
    }

    /// The checkpoints' positions, in ascending order.
    pub fn positions(&self) -> Vec<C> {
        self.checkpoints.heads().keys().copied().collect()
    }

    /// Whether a checkpoint has the state after the run has ended, and not the state before.
    pub fn is_after_the_end(&self, at: C) -> Result<bool, Error> {
        let state = MachineState::from_bytes(self.format, &self.checkpoints.store().state_at(at.number())?);
        Ok(state.is_some_and(|state| state.outcome.is_some()))
    }

    /// Compares the checkpoint at `at` with a replay's machine at this position.
    pub fn compare(&mut self, at: C, machine: &mut Machine<C>, player: &Player<C>) -> Result<(), Error> {
        if self.difference.is_some() {
            return Ok(());
        }
        let part = match self.head_or_state(at, machine, player)? {
            None => self.first_page(at, machine)?,
            part => part,
        };
        self.difference = part.map(|part| CheckpointDifference { at: at.position(), part });
        self.compared += 1;
        Ok(())
    }

    fn head_or_state(
        &self,
        at: C,
        machine: &Machine<C>,
        player: &Player<C>,
    ) -> Result<Option<CheckpointPart>, Error> {
        let (stored, now) = (self.checkpoints.store().state_at(at.number())?, machine.state());
        let bytes = match self.likeness {
            Likeness::Exact => stored.clone(),
            // Any engine may have recorded, so this compares only the state that is the same on all engines.
            Likeness::AcrossProcessors => MachineState::from_bytes(self.format, &stored)
                .filter(|state| self.cpu_hash(state) == self.cpu_hash(&now))
                .map_or(Vec::new(), |state| {
                    MachineState { cpu: now.cpu.clone(), counts: now.counts, ..state }.to_bytes(self.format)
                }),
        };
        if bytes != now.to_bytes(self.format) {
            return Ok(Some(CheckpointPart::State(
                self.differing(MachineState::from_bytes(self.format, &stored).as_ref(), &now),
            )));
        }
        let head = CheckpointHead::of(machine, player.cursor());
        Ok((self.checkpoints.heads().get(&at) != Some(&head)).then_some(CheckpointPart::Head))
    }

    fn first_page(&mut self, at: C, machine: &mut Machine<C>) -> Result<Option<CheckpointPart>, Error> {
        let maps = self.checkpoints.maps(at)?;
        let mut pages = BTreeSet::new();
        machine.take_written(|space, page, _| {
            pages.insert((space, page));
            Ok(())
        })?;
        for space in [Space::Ram, Space::Disk] {
            let changed = maps.space(space).changed_since(self.before.space(space));
            pages.extend(changed.map(|(page, _)| (space, page)));
        }
        if let Some(disk) = &mut self.disk {
            disk.set_version(&maps.disk);
        }
        for &(space, page) in &pages {
            let (mut stored, mut now) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
            match space {
                Space::Ram => {
                    self.ram_page(maps.ram.get(page), &mut stored)?;
                    machine.ram().read_bytes(page * guest_ram::PAGE_SIZE, &mut now);
                }
                Space::Disk => {
                    self.disk_block(page, &mut stored)?;
                    machine.read_block(page, &mut now)?;
                }
            }
            if space == Space::Ram && self.likeness == Likeness::AcrossProcessors {
                leave_out_processors_own(&mut stored);
                leave_out_processors_own(&mut now);
            }
            if let Some(byte) = stored.iter().zip(&now).position(|(a, b)| a != b) {
                return Ok(Some(match space {
                    Space::Ram => {
                        let gpa = machine.ram().layout().gpa_of(page * guest_ram::PAGE_SIZE);
                        CheckpointPart::Ram { gpa, byte }
                    }
                    Space::Disk => CheckpointPart::Disk { block: page, byte },
                }));
            }
        }
        if machine.store().is_some_and(|store| Arc::ptr_eq(store, self.checkpoints.store())) {
            // The blocks are equal to the stored blocks, so the copies in memory are freed.
            let blocks = pages.range((Space::Disk, 0)..);
            machine.adopt_blocks(blocks.map(|&(_, block)| (block, maps.disk.get(block).clone())));
        }
        self.before = maps;
        Ok(None)
    }

    fn cpu_hash(&self, state: &MachineState) -> [u8; 32] {
        let others = Others { cpus: &state.others.cpus, turns: state.others.turns.as_ref() };
        cpu_hash(&state.cpu, state.counts, others, self.likeness)
    }

    /// The name of the part of a state that differs.
    fn differing(&self, stored: Option<&MachineState>, now: &MachineState) -> &'static str {
        match stored {
            None => "the machine's state, which is invalid,",
            Some(stored) if self.cpu_hash(stored) != self.cpu_hash(now) => "the CPU's state",
            Some(stored) if stored.others != now.others => "the other processors' state",
            Some(stored) if stored.platform != now.platform => "the devices' state",
            Some(stored) if stored.idle_ns != now.idle_ns => "the time that passed idle",
            Some(stored) if stored.console != now.console => "what the console showed last",
            Some(stored) if stored.outcome != now.outcome => "how the run ended",
            Some(_) => "the encoding of the machine's state",
        }
    }

    fn ram_page(&self, version: &PageRef, to: &mut Page) -> Result<(), Error> {
        match version {
            PageRef::Zero | PageRef::Base => to.fill(0),
            PageRef::Held(contents) => to.copy_from_slice(&contents[..]),
            PageRef::Stored(blob) => self.checkpoints.store().read(*blob, to)?,
        }
        Ok(())
    }

    fn disk_block(&mut self, block: u64, to: &mut Page) -> Result<(), Error> {
        // Without a disk in the machine, the store has no disk blocks to compare.
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.read_whole_block(block, to)
    }
}

/// The recording's disk, if the machine has one. The disk reads written blocks from the store.
fn disk_of<C>(recording: &Recording<C>, store: &Arc<Store>) -> Result<Option<OverlayDisk>, Error> {
    let Some(image) = &recording.manifest.machine.disk else { return Ok(None) };
    let mut disk = OverlayDisk::of(image)?;
    disk.attach_store(store.clone());
    Ok(Some(disk))
}

/// RAM with the contents that the loader wrote.
fn ram_at_power_on<C: Unit>(recording: &Recording<C>) -> Result<PageMap, Error> {
    let player = Player::new(recording.log.clone())?;
    let machine = &recording.manifest.machine;
    Ok(Machine::new(machine, &recording.read_images()?, player.power_on())?.maps()?.ram)
}

#[cfg(test)]
mod tests {
    use devices::virtio::BlockBackend;

    use super::*;
    use crate::replay::verify::verify;
    use machine::RunStop;
    use machine::config::{MachineConfig, MachineOptions};
    use machine::engine::Leave;
    use machine::inputs::{Event, Idle, Inputs, PowerOn, View};
    use machine::position::{Count, Instructions, Moment};
    use recording::checkpointer::Checkpointer;
    use recording::pace::CheckpointOptions;
    use recording::recorder::Recorder;
    use recording::{CHECKPOINTS, Opened};

    /// Inputs without events.
    struct Silence;

    impl Inputs<Instructions> for Silence {
        fn poll(&mut self, _: &View<'_, Instructions>) -> Result<Option<Event>, Error> {
            Ok(None)
        }
        fn next_poll(&self, _: Moment<Instructions>) -> Instructions {
            Instructions::MAX
        }
        fn idle(&mut self, _: Moment<Instructions>, _: Option<u64>) -> Result<Idle, Error> {
            Ok(Idle::Forever)
        }
        fn leave(&self, _: Moment<Instructions>, _: Option<u64>) -> Leave {
            Leave::AtExits
        }
    }

    /// The test changes a disk block without the guest, so no replay makes this change.
    #[test]
    fn a_block_that_no_replay_writes_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("disk");
        std::fs::write(&image, vec![1; 8 * PAGE_BYTES]).unwrap();
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory.path(), 10_000),
            disk: Some(image),
            memory_bytes: 4 << 20,
            debug_exit: Some(0x501),
            ..MachineOptions::default()
        };
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
        let mut machine = Machine::<Instructions>::new(&config, &images, &power_on).unwrap();
        let path = directory.path().join("r.ttvm");
        let log = Recording::<Instructions>::create(&path, &config).unwrap();
        let mut recorder = Recorder::new(Silence, log, power_on);
        let options = CheckpointOptions {
            interval_ns: 1,
            min_steps: 1,
            page_rest_steps: 0,
            ..CheckpointOptions::default()
        };
        let mut checkpointer =
            Checkpointer::<Instructions>::new(&path.join(CHECKPOINTS), options, &mut machine).unwrap();
        machine.run(Instructions(30_000), &mut recorder).unwrap();
        machine.disk_mut().unwrap().write(3 * 8 + 1, &[7; 512]).unwrap();
        checkpointer.look(&mut machine, &recorder).unwrap();
        let end = machine.run(Instructions::MAX, &mut recorder).unwrap();
        assert!(matches!(end, RunStop::Ended(_)));
        checkpointer.finish(&mut machine, &recorder).unwrap();
        recorder.finish(&mut machine).unwrap();
        let Opened::ByInstructions(recording) = Opened::open(&path).unwrap() else {
            panic!("it counts them")
        };
        let found = verify(&recording, None, |_, _| {}).unwrap();
        let told = found.checkpoint_difference.unwrap().to_string();
        assert!(
            told.contains("instruction 30000") && told.contains("disk block 3 differs, first in byte 0x200"),
            "{told}"
        );
        assert!(found.difference.is_some(), "and so does the disk at the end");
    }
}
