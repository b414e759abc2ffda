//! Comparing a recording's checkpoints with a replay of it: the machine's state, the place in the log, every page
//! of RAM and every block of the disk. Where exits are counted, which engine recorded is not known, and everything but what
//! processors differ in is compared ([`crate::machine::comparable`]).
//!
//! A page that neither the replay wrote nor the checkpoint has another version of since the checkpoint before,
//! where both were equal, is equal still and is not read. So comparing costs as much as what was written.

use std::collections::BTreeSet;
use std::fmt;

use checkpoint::{Maps, PAGE_BYTES, Page, PageMap, PageRef, Space};

use crate::error::Error;
use crate::machine::comparable::cpu_hash;
use crate::machine::disk::OverlayDisk;
use crate::machine::ram_digest::leave_out_processors_own;
use crate::machine::{Machine, MachineState, hash_of};
use crate::position::{Counting, TimeBase};
use crate::recording::Recording;
use crate::recording::checkpoints::{CheckpointHead, Checkpoints, must_fit, state_bytes};
use crate::recording::player::Player;

/// A checkpoint that is not what a replay has at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointDifference {
    /// The checkpoint's step count.
    pub steps: u64,
    /// What the steps are.
    pub counting: Counting,
    /// The first part of it that differs.
    pub part: CheckpointPart,
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointPart {
    /// Position, counts, RIP, place in the log: what it says of itself in short.
    Head,
    /// A part of the machine's state.
    State(&'static str),
    /// The page of RAM at this physical address, from this byte of it on.
    Ram {
        /// Where the page begins.
        gpa: u64,
        /// The first byte that differs.
        byte: usize,
    },
    /// This disk block, from this byte of it on.
    Disk {
        /// Its number.
        block: u64,
        /// The first byte that differs.
        byte: usize,
    },
}

impl fmt::Display for CheckpointDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (counted, at) = (self.counting.one(), self.steps);
        write!(f, "the checkpoint at {counted} {at} is not what the replay has there: ")?;
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

/// Compares the checkpoints of a recording one after the other, in the order of the run.
pub struct CheckpointComparison {
    checkpoints: Checkpoints,
    counting: Counting,
    time_base: TimeBase,
    /// The disk as it is at the checkpoint that is compared.
    disk: Option<OverlayDisk>,
    /// The maps at the checkpoint that was compared last.
    before: Maps,
    /// Number of checkpoints compared so far.
    pub compared: usize,
    /// The first difference, behind which nothing more is compared.
    pub difference: Option<CheckpointDifference>,
}

impl CheckpointComparison {
    /// Begins with a machine at its first instruction. Reads and checks everything in the store, which `progress`
    /// hears of in bytes done and in all. `None` if the recording has no checkpoints.
    pub fn new(
        recording: &Recording,
        machine: &mut Machine,
        progress: impl FnMut(u64, u64),
    ) -> Result<Option<CheckpointComparison>, Error> {
        let Some(store) = recording.checkpoints()? else { return Ok(None) };
        store.verify(progress)?;
        must_fit(&store, machine)?;
        let disk = match &recording.manifest.machine.disk {
            Some(image) => {
                let mut disk = OverlayDisk::open(&image.path)?;
                disk.attach_store(store.clone());
                Some(disk)
            }
            None => None,
        };
        let ram = if recording.is_part() { ram_at_power_on(recording)? } else { machine.maps().ram };
        let before = Maps { ram: ram.clone(), disk: PageMap::new(store.disk_blocks()) };
        let checkpoints = Checkpoints::new(store, ram, recording)?;
        let (counting, time_base) = (recording.counting, recording.manifest.machine.time_base());
        let (compared, difference) = (0, None);
        Ok(Some(CheckpointComparison {
            checkpoints,
            counting,
            time_base,
            disk,
            before,
            compared,
            difference,
        }))
    }

    /// The step counts of the checkpoints, in order.
    pub fn positions(&self) -> Vec<u64> {
        self.checkpoints.heads().keys().copied().collect()
    }

    /// Whether a checkpoint is of a run that has ended, and so of the machine behind its last step.
    pub fn is_after_the_end(&self, steps: u64) -> Result<bool, Error> {
        let state = parse_state(&self.checkpoints.store().state_at(steps)?);
        Ok(state.is_some_and(|state| state.outcome.is_some()))
    }

    /// Compares the checkpoint at `steps` with a machine that a replay has brought there.
    pub fn compare(&mut self, steps: u64, machine: &mut Machine, player: &Player) -> Result<(), Error> {
        if self.difference.is_some() {
            return Ok(());
        }
        let part = match self.head_or_state(steps, machine, player)? {
            None => self.first_page(steps, machine)?,
            part => part,
        };
        self.difference = part.map(|part| CheckpointDifference { steps, counting: self.counting, part });
        self.compared += 1;
        Ok(())
    }

    fn head_or_state(
        &self,
        steps: u64,
        machine: &Machine,
        player: &Player,
    ) -> Result<Option<CheckpointPart>, Error> {
        let (stored, now) = (self.checkpoints.store().state_at(steps)?, machine.state());
        let bytes = match self.counting {
            Counting::Instructions => stored.clone(),
            // Whichever engine it was, as far as engines agree.
            Counting::Exits => parse_state(&stored)
                .filter(|state| cpu_hash(&state.cpu, self.time_base) == cpu_hash(&now.cpu, self.time_base))
                .map_or(Vec::new(), |state| state_bytes(&MachineState { cpu: now.cpu.clone(), ..state })),
        };
        if bytes != state_bytes(&now) {
            return Ok(Some(CheckpointPart::State(self.differing(parse_state(&stored).as_ref(), &now))));
        }
        let head = CheckpointHead::of(machine, self.counting, player.cursor());
        Ok((self.checkpoints.heads().get(&steps) != Some(&head)).then_some(CheckpointPart::Head))
    }

    fn first_page(&mut self, steps: u64, machine: &mut Machine) -> Result<Option<CheckpointPart>, Error> {
        let maps = self.checkpoints.maps(steps)?;
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
        for (space, page) in pages {
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
            if space == Space::Ram && self.counting == Counting::Exits {
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
        self.before = maps;
        Ok(None)
    }

    /// The part of a state that differs.
    fn differing(&self, stored: Option<&MachineState>, now: &MachineState) -> &'static str {
        let cpu = |state: &MachineState| match self.counting {
            Counting::Instructions => hash_of(&cpu::CpuStateV1::from(&state.cpu)),
            Counting::Exits => cpu_hash(&state.cpu, self.time_base),
        };
        match stored {
            None => "the machine's state, which makes no sense,",
            Some(stored) if cpu(stored) != cpu(now) => "the CPU's state",
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
        // A store with disk blocks belongs to a machine with a disk.
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.read_whole_block(block, to)
    }
}

fn parse_state(bytes: &[u8]) -> Option<MachineState> {
    postcard::from_bytes(bytes).ok()
}

/// What the loader leaves in RAM.
fn ram_at_power_on(recording: &Recording) -> Result<PageMap, Error> {
    let (config, player) = (&recording.manifest.machine, Player::new(recording));
    Ok(Machine::new(config, &config.read_images()?, player.power_on())?.maps().ram)
}
