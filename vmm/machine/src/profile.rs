//! The properties of a machine that follow from its CPU model.
//!
//! In this package, only [`Profile::of`] distinguishes the CPU models. All other code of the package uses a field
//! of [`Profile`].

use cpu::CpuModel;
use devices::pci::PciRevision;

use crate::clock::TimeBase;
use crate::comparable::Likeness;

/// The unit of positions in a machine's recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// [`Instructions`](crate::position::Instructions).
    Instructions,
    /// [`Exits`](crate::position::Exits).
    Exits,
}

/// The properties that follow from a machine's CPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The source of virtual time.
    pub time_base: TimeBase,
    /// How two machines' states are compared.
    pub likeness: Likeness,
    /// The unit of positions in the machine's recordings.
    pub counter: Counter,
    /// Whether KVM can run the machine. KVM counts no instructions.
    pub runs_on_kvm: bool,
    /// Whether the kernel's RDTSC instructions are replaced by HLT and a mark, which read the machine's time
    /// ([`boot::time_reads`]).
    pub rewrites_time_reads: bool,
    /// The revision of the PCI bus: its wiring and its description.
    pub pci: PciRevision,
    /// Whether the PIT's first channel already runs at power-on, as if firmware had started the channel.
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
            CpuModel::V2Kvm | CpuModel::V2KvmTcg => {
                Profile { pci: PciRevision::V1, ..Profile::of(CpuModel::V2_1Kvm) }
            }
            CpuModel::V2_1Kvm | CpuModel::V2_1KvmTcg => Profile {
                time_base: TimeBase::Exits,
                likeness: Likeness::AcrossProcessors,
                counter: Counter::Exits,
                runs_on_kvm: true,
                rewrites_time_reads: true,
                pci: PciRevision::V2,
                starts_pit: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording names its CPU model, so a replay has the same revision of the PCI bus.
    #[test]
    fn a_model_keeps_its_bus() {
        const BUSES: [(&str, PciRevision); 6] = [
            ("ttvm-v2", PciRevision::V1),
            ("ttvm-v2.1", PciRevision::V2),
            ("ttvm-v2-kvm", PciRevision::V1),
            ("ttvm-v2-kvm-tcg", PciRevision::V1),
            ("ttvm-v2.1-kvm", PciRevision::V2),
            ("ttvm-v2.1-kvm-tcg", PciRevision::V2),
        ];
        assert!(CpuModel::names().eq(BUSES.map(|(name, _)| name)));
        for (name, pci) in BUSES {
            let profile = CpuModel::named(name).map(Profile::of);
            assert_eq!(profile.map(|profile| profile.pci), Some(pci), "{name}");
        }
    }
}
