//! The manifest: the machine that a recording is of, and how it was made.

use machine::config::MachineConfig;

/// Version of the format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 5;

/// What manifests call [`machine::position::Instructions`] and [`machine::position::Exits`].
const COUNTER_STEPS: &str = "steps";
const COUNTER_EXITS: &str = "exits";

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the program that made it.
    pub format_version: u32,
    /// The program and its version.
    pub made_by: String,
    /// The engine that recorded.
    pub engine: String,
    /// What positions are counted in: `steps` of the software engine, or `exits`, which any engine counts.
    pub counter: String,
    /// The machine.
    pub machine: MachineConfig,
}

impl Manifest {
    /// The manifest of a recording that this program makes now.
    pub fn new(machine: MachineConfig) -> Manifest {
        let exits = machine.is_for_kvm();
        Manifest {
            format_version: FORMAT_VERSION,
            made_by: concat!("ttvm ", env!("CARGO_PKG_VERSION")).to_string(),
            engine: if exits { "kvm" } else { "soft" }.to_string(),
            counter: counter_of(&machine).to_string(),
            machine,
        }
    }
}

/// What a machine's recordings count in.
pub(super) fn counter_of(machine: &MachineConfig) -> &'static str {
    if machine.is_for_kvm() { COUNTER_EXITS } else { COUNTER_STEPS }
}
