//! Time travel for programs: opens a recording by its path, and reads the machine's registers and memory.
//!
//! `vmm/history/examples` has whole programs.

use std::path::Path;

use cpu::CpuState;
use machine::error::Error;
use machine::notation::PositionSpec;
use machine::position::{Exits, Instructions};
use recording::{Opened, Recording};

use crate::recount;
use crate::timeline::{Condition, Names, Poll, Timeline, TravelStop};

/// Opens a recording for time travel, at its first instruction. A recording made by KVM is first replayed
/// once to count its instructions, which takes as long as the run. This counting happens only once per
/// recording; [`open_recording`] reports its progress.
pub fn open(path: impl AsRef<Path>) -> Result<Timeline, Error> {
    Timeline::open(&open_recording(path, |_| {})?)
}

/// Opens a recording so that its positions are counts of instructions. A recording that counts exits is recounted
/// first, and `progress` gets the number of exits replayed so far. [`Recording::recounted`] then has the original log,
/// which counts exits.
pub fn open_recording(
    path: impl AsRef<Path>,
    progress: impl FnMut(Exits),
) -> Result<Recording<Instructions>, Error> {
    match Opened::open(path.as_ref())? {
        Opened::ByInstructions(recording) => Ok(recording),
        Opened::ByExits(recording) => recount::in_instructions(recording, progress),
    }
}

/// The [`Poll`] of a caller who never interrupts a movement: `timeline.seek(place, &mut never)`.
pub fn never() -> bool {
    false
}

impl Timeline {
    /// Goes to a place in a notation like `end`, `37%`, `12.5s` or `insn:1000`. A distance such as `+10ms` is from the
    /// recording's start, and one such as `-10ms` from its end.
    pub fn go_to(&mut self, place: PositionSpec, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let target = self.resolve_outside(place, poll)?;
        self.seek(target, poll)
    }

    /// Makes runs and searches stop where this condition is true. [`crate::timeline::CONDITIONS`] lists the
    /// notations. The condition may name symbols of the guest's kernels. If the guest runs several kernels (kexec),
    /// a name means an address in each kernel. A hit at such an address is ignored if the address's kernel does not
    /// run.
    pub fn stop_at(&mut self, condition: &str) -> Result<(), Error> {
        let stops = match condition.parse::<Condition>() {
            Ok(Condition(stops)) => stops,
            Err(_) => {
                let kernels = self.names(self.end(), &mut never)?;
                let read =
                    |names: &dyn Names| Condition::parse(condition, names).map(|Condition(stops)| stops);
                kernels.stops(read).map_err(Error::Position)?
            }
        };
        self.set_stops(stops);
        Ok(())
    }

    /// The processor's registers at the current position.
    pub fn registers(&self) -> CpuState {
        self.machine().cpu().state()
    }

    /// Reads memory at a virtual address, ignoring access rights. Returns the number of bytes read. The number is
    /// smaller than the buffer if a page is not mapped. [`machine::Machine::read_physical`] reads by physical
    /// addresses.
    pub fn read_memory(&self, address: u64, to: &mut [u8]) -> usize {
        self.machine().cpu().core().peek(address, to)
    }
}
