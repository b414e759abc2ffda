//! The manifest: describes a recording's machine, and how the recording was made.

use machine::config::MachineConfig;
use machine::{Counter, Format};
use serde::Serialize;

/// The oldest format version that this program reads and writes.
pub const OLDEST_FORMAT: u32 = Format::V5.version();
/// The newest format version that this program reads and writes.
pub const NEWEST_FORMAT: u32 = Format::V6.version();

/// The manifest's names for [`machine::position::Instructions`] and [`machine::position::Exits`].
const COUNTER_STEPS: &str = "steps";
const COUNTER_EXITS: &str = "exits";

/// A recording's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The recording's format.
    pub format: Format,
    /// The program that recorded, and its version.
    pub made_by: String,
    /// The engine that recorded.
    pub engine: String,
    /// The unit of positions: `steps`, which only the software engine counts, or `exits`, which any engine counts.
    pub counter: String,
    /// The machine.
    pub machine: MachineConfig,
    /// If the recording was cut out of a longer recording, the facts about the missing part.
    pub cut: Option<Cut>,
}

/// Facts about the part of the longer recording that a cut recording lacks. A cut recording replays like the end of the
/// longer recording. No live machine can start from a cut recording, because it lacks pages that the recorded run did
/// not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Number of instructions of the longer recording before the beginning of the cut recording.
    pub instructions: u64,
    /// Number of pages of memory that were left out. The guest's kernel had these pages on its free lists, and the run
    /// did not access them.
    pub free_pages: u64,
}

impl Manifest {
    /// The manifest for a new recording of this machine.
    pub fn new(machine: MachineConfig) -> Manifest {
        Manifest {
            format: if machine.processors.count() > 1 { Format::V6 } else { Format::V5 },
            made_by: concat!("ttvm ", env!("CARGO_PKG_VERSION")).to_string(),
            engine: if machine.profile().runs_on_kvm { "kvm" } else { "soft" }.to_string(),
            counter: counter_of(&machine).to_string(),
            machine,
            cut: None,
        }
    }
}

/// The unit in which a machine's recordings count.
pub(super) fn counter_of(machine: &MachineConfig) -> &'static str {
    match machine.profile().counter {
        Counter::Instructions => COUNTER_STEPS,
        Counter::Exits => COUNTER_EXITS,
    }
}
