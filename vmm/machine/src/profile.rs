//! What the CPU model decides about the rest of a machine.
//!
//! [`Profile::of`] is the only place where a model's name decides. All other code asks for the field that it means.

use cpu::CpuModel;
use devices::pci::PciRevision;

use crate::clock::TimeBase;
use crate::comparable::Likeness;

/// What the positions of a machine's recordings count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// [`Instructions`](crate::position::Instructions).
    Instructions,
    /// [`Exits`](crate::position::Exits).
    Exits,
}

/// What follows from a machine's CPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What lets virtual time pass.
    pub time_base: TimeBase,
    /// How alike two such machines must be to count as equal.
    pub likeness: Likeness,
    /// What recordings of the machine count.
    pub counter: Counter,
    /// Whether KVM can run the machine. KVM counts no instructions.
    pub runs_on_kvm: bool,
    /// Whether the kernel's RDTSC are rewritten to marked HLT, which then read the machine's time
    /// ([`boot::time_reads`]).
    pub rewrites_time_reads: bool,
    /// How the PCI bus is wired and described.
    pub pci: PciRevision,
    /// Whether the PIT's first channel runs at power-on, as firmware leaves it.
    pub starts_pit: bool,
}

impl Profile {
    /// The profile of machines with this CPU.
    pub fn of(model: CpuModel) -> Profile {
        match model {
            CpuModel::V2 => Profile { pci: PciRevision::V1, ..Profile::of(CpuModel::V2_1) },
            CpuModel::V2_1 => Profile {
                time_base: TimeBase::Instructions,
                likeness: Likeness::Exact,
                counter: Counter::Instructions,
                runs_on_kvm: false,
                rewrites_time_reads: false,
                pci: PciRevision::V2,
                starts_pit: false,
            },
            CpuModel::V2Kvm | CpuModel::V2KvmTcg => Profile {
                time_base: TimeBase::Exits,
                likeness: Likeness::AcrossProcessors,
                counter: Counter::Exits,
                runs_on_kvm: true,
                rewrites_time_reads: true,
                pci: PciRevision::V1,
                starts_pit: true,
            },
        }
    }
}
