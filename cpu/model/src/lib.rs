//! The CPU models that a guest can see.
//!
//! ```
//! use cpu_model::{CpuModel, Quirks};
//!
//! let model = CpuModel::named("ttvm-v2.1").expect("it is known");
//! assert_eq!(model, CpuModel::default());
//! let (leaf, _, [highest, ..]) = model.leaves()[0];
//! assert_eq!((leaf, highest), (0, 0xd));
//! assert!(!Quirks::of(model).no_alignment_checks);
//! ```
//!
//! `ttvm-v2.1` is an x86-64-v2 processor with the identity of an AMD family 17h part. Details such as the behaviour
//! of SYSCALL follow from this identity. A kernel also chooses by the identity which model-specific registers it
//! uses. Older recordings name another model, `ttvm-v2`. On the model `ttvm-v2-kvm`, CPUID reports fewer features.
//! A model's [`Description`] has the model's instructions and CPUID leaves; [`Quirks`] has the model's deviations
//! from the manuals. [`Topology`] describes the sockets, cores and threads of several processors, and gives their
//! answers to CPUID.
//!
//! This crate has no access to machine state. Some bits of CPUID's answers depend on that state; the package `cpu`
//! sets these bits.

#![forbid(unsafe_code)]

mod description;
mod features;
mod quirks;
pub mod registers;
mod topology;
mod v2;
mod v2_1;

pub use crate::description::{Description, Leaf, NumberedLeaf};
pub use crate::features::Features;
pub use crate::quirks::{PushedRf, Quirks};
pub use crate::topology::Topology;

/// Family, model and stepping as CPUID leaf 1 reports them in EAX.
pub const SIGNATURE: u32 = v2::SIGNATURE;
/// The number of bits in a physical address.
pub const PHYSICAL_BITS: u32 = v2::PHYSICAL_BITS;

/// The processor that the guest sees. The model decides the features, the answers of CPUID, and the [`Quirks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// The first model, with all features that the software CPU had when recordings began to name a model. CPUID
    /// identifies the processor as a Zen 5.
    V2,
    /// The instructions of [`CpuModel::V2`], with an identity that newer kernels know well. New machines have
    /// this model.
    #[default]
    V2_1,
    /// The part of [`CpuModel::V2`] that every processor since about 2013 executes alike under KVM. CPUID hides all
    /// features whose results depend on the real processor's time, randomness or optimisations: the TSC, RDTSCP,
    /// the TSC deadline, the XSAVE family. CPUID also hides features that some of these processors lack: PCID,
    /// INVPCID, UMIP, CLWB and 1 GiB pages. CPUID also hides x2APIC, because KVM does not let other programs read
    /// and write the x2APIC registers.
    V2Kvm,
    /// The model [`CpuModel::V2Kvm`], for a host whose KVM itself runs inside an emulator, QEMU's TCG. A kernel can
    /// see that TCG differs from every real processor. [`Quirks`] lists the differences.
    V2KvmTcg,
    /// The processor of [`CpuModel::V2Kvm`], in new machines, whose board differs from the board of older
    /// machines.
    V2_1Kvm,
    /// The processor of [`CpuModel::V2KvmTcg`], in new machines.
    V2_1KvmTcg,
}

impl CpuModel {
    const ALL: [(CpuModel, &str); 6] = [
        (CpuModel::V2, "ttvm-v2"),
        (CpuModel::V2_1, "ttvm-v2.1"),
        (CpuModel::V2Kvm, "ttvm-v2-kvm"),
        (CpuModel::V2KvmTcg, "ttvm-v2-kvm-tcg"),
        (CpuModel::V2_1Kvm, "ttvm-v2.1-kvm"),
        (CpuModel::V2_1KvmTcg, "ttvm-v2.1-kvm-tcg"),
    ];

    /// The model's name, which recordings store.
    pub fn name(self) -> &'static str {
        let found = CpuModel::ALL.iter().find(|(model, _)| *model == self);
        found.expect("every model has a name").1
    }

    /// The model with this name.
    pub fn named(name: &str) -> Option<CpuModel> {
        CpuModel::ALL.iter().find(|(_, known)| *known == name).map(|(model, _)| *model)
    }

    /// Names of all models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CpuModel::ALL.iter().map(|(_, name)| *name)
    }

    /// Every leaf of CPUID that is not zero, with its subleaf and its answer. An engine uses this table to make a
    /// real processor give these answers. The engine itself must set the bits OSXSAVE and APIC.
    pub fn leaves(self) -> &'static [NumberedLeaf] {
        self.description().cpuid
    }

    /// The model's instructions and CPUID leaves.
    pub fn description(self) -> &'static Description {
        match self {
            CpuModel::V2 => &v2::V2,
            CpuModel::V2_1 => &v2_1::V2_1,
            CpuModel::V2Kvm | CpuModel::V2_1Kvm => &v2::V2_KVM,
            CpuModel::V2KvmTcg | CpuModel::V2_1KvmTcg => &v2::V2_KVM_TCG,
        }
    }
}
