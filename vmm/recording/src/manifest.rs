//! The manifest: the machine that a recording is of, and how it was made.

use machine::config::MachineConfig;
use machine::{Counter, Format};
use serde::Serialize;

/// Version of the format that this program writes.
pub const FORMAT_VERSION: u32 = Format::V5.version();

/// What manifests call [`machine::position::Instructions`] and [`machine::position::Exits`].
const COUNTER_STEPS: &str = "steps";
const COUNTER_EXITS: &str = "exits";

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// How the recording is stored.
    pub format: Format,
    /// The program and its version.
    pub made_by: String,
    /// The engine that recorded.
    pub engine: String,
    /// What positions are counted in: `steps` of the software engine, or `exits`, which any engine counts.
    pub counter: String,
    /// The machine.
    pub machine: MachineConfig,
    /// What it is the end of, if it was cut out of a longer recording.
    pub cut: Option<Cut>,
}

/// What a recording leaves out that was cut out of a longer one. It replays the same, and cannot go on live: what the run did
/// not need any more is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Instructions of the longer recording before this one begins.
    pub instructions: u64,
    /// Pages of memory that are left out: they were free, and nothing touched them.
    pub free_pages: u64,
}

impl Manifest {
    /// The manifest of a recording that this program makes now.
    pub fn new(machine: MachineConfig) -> Manifest {
        Manifest {
            format: Format::default(),
            made_by: concat!("ttvm ", env!("CARGO_PKG_VERSION")).to_string(),
            engine: if machine.profile().runs_on_kvm { "kvm" } else { "soft" }.to_string(),
            counter: counter_of(&machine).to_string(),
            machine,
            cut: None,
        }
    }
}

/// What a machine's recordings count in.
pub(super) fn counter_of(machine: &MachineConfig) -> &'static str {
    match machine.profile().counter {
        Counter::Instructions => COUNTER_STEPS,
        Counter::Exits => COUNTER_EXITS,
    }
}
