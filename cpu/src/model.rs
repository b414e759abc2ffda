//! The CPU models that a guest can see: `ttvm-v2.1`, an x86-64-v2 processor with the identity of an AMD family
//! 17h part (which decides about details such as SYSCALL, and about the model-specific registers that a
//! kernel touches); `ttvm-v2`, which older recordings name; and `ttvm-v2-kvm`, of which CPUID says less. What a model
//! executes and what CPUID says is in its description, what is executed otherwise in [`quirks`](crate::quirks).

mod description;
mod v2;
mod v2_1;

pub(crate) use description::{Description, Leaf};

/// Family, model and stepping as CPUID leaf 1 reports them in EAX.
pub(crate) const SIGNATURE: u32 = v2::SIGNATURE;
/// Physical address bits.
pub(crate) const PHYSICAL_BITS: u32 = v2::PHYSICAL_BITS;

/// Which processor the guest runs on: what CPUID describes, and which [`quirks`](crate::quirks) it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// All that the software CPU had when recordings began to name a model. It says that it is a Zen 5.
    V2,
    /// The same instructions with an identity that newer kernels know all about: the model of new machines.
    #[default]
    V2_1,
    /// The part of [`CpuModel::V2`] that every processor since about 2013 executes alike under KVM. What would let the processor's
    /// own time, randomness or optimisations in is hidden: the TSC, RDTSCP, the TSC deadline, the XSAVE family. So is
    /// what not all of them have (PCID, INVPCID, UMIP, CLWB, 1 GiB pages), and x2APIC, whose registers KVM keeps to itself.
    V2Kvm,
    /// The same where the "hardware" below KVM is itself an emulation, QEMU's TCG, which differs from every processor of
    /// silicon in what a kernel can see. [`Quirks`](crate::quirks::Quirks) lists the differences.
    V2KvmTcg,
}

impl CpuModel {
    const ALL: [(CpuModel, &str); 4] = [
        (CpuModel::V2, "ttvm-v2"),
        (CpuModel::V2_1, "ttvm-v2.1"),
        (CpuModel::V2Kvm, "ttvm-v2-kvm"),
        (CpuModel::V2KvmTcg, "ttvm-v2-kvm-tcg"),
    ];

    /// The model's name, as recordings have it.
    pub fn name(self) -> &'static str {
        let found = CpuModel::ALL.iter().find(|(model, _)| *model == self);
        found.expect("every model has a name").1
    }

    /// The model of this name.
    pub fn named(name: &str) -> Option<CpuModel> {
        CpuModel::ALL.iter().find(|(_, known)| *known == name).map(|(model, _)| *model)
    }

    /// Names of all models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CpuModel::ALL.iter().map(|(_, name)| *name)
    }

    /// What the model executes and says about itself.
    pub(crate) fn description(self) -> &'static Description {
        match self {
            CpuModel::V2 => &v2::V2,
            CpuModel::V2_1 => &v2_1::V2_1,
            CpuModel::V2Kvm => &v2::V2_KVM,
            CpuModel::V2KvmTcg => &v2::V2_KVM_TCG,
        }
    }
}
