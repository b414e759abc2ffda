//! Differences between processors: deviations from the manuals, and choices that the manuals leave open.
//! Listed is each difference that a guest can see and that recordings depend on.
//!
//! The code asks for a difference by its name here and never for the CPU model. Features that CPUID announces or hides
//! are no quirks; they are in the [`Description`](crate::Description).

use crate::CpuModel;

/// The value of RF in the image of RFLAGS that an external interrupt or an NMI pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushedRf {
    /// The pushed RF is the current RF, as on the software CPU's own model.
    Kept,
    /// The pushed RF is clear. Seen under KVM: the engine interrupts behind its own breakpoints, and clears
    /// the RF that they set.
    Cleared,
    /// The pushed RF is set, as for faults. Seen under KVM nested in QEMU's TCG.
    Set,
}

/// The differences of one processor. A `bool` is true if the processor behaves as the field's documentation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// The first access of a read-modify-write instruction counts as a read. So a page that is not present
    /// faults without the error code's W bit, and a read-only page faults a second time. On real processors
    /// the first access counts as a write. Seen on QEMU's TCG.
    pub update_reads_first: bool,
    /// Stack accesses at an address that is not canonical raise #GP(0), like all other accesses. The manuals
    /// and real processors raise #SS(0). Seen on QEMU's TCG.
    pub noncanonical_stack_raises_gp: bool,
    /// An access at an address that is not canonical changes CR2, although no page fault is raised. Seen on QEMU's TCG.
    pub noncanonical_address_in_cr2: bool,
    /// FXSAVE and XSAVE write no opcode, and write zeroes for the x87 pointers. Both leave the six bytes after each x87
    /// register unchanged, where other processors write zeroes. Seen on QEMU's TCG.
    pub fxsave_leaves_gaps: bool,
    /// CR0.AM and EFLAGS.AC do not enable alignment checks. Seen on QEMU's TCG.
    pub no_alignment_checks: bool,
    /// The value of RF in the RFLAGS image that external interrupts push.
    pub interrupts_push_rf: PushedRf,
}

impl Quirks {
    /// The quirks of a CPU model.
    pub fn of(model: CpuModel) -> Quirks {
        let silicon = Quirks {
            update_reads_first: false,
            noncanonical_stack_raises_gp: false,
            noncanonical_address_in_cr2: false,
            fxsave_leaves_gaps: false,
            no_alignment_checks: false,
            interrupts_push_rf: PushedRf::Kept,
        };
        match model {
            CpuModel::V2 | CpuModel::V2_1 => silicon,
            CpuModel::V2Kvm | CpuModel::V2_1Kvm => {
                Quirks { interrupts_push_rf: PushedRf::Cleared, ..silicon }
            }
            CpuModel::V2KvmTcg | CpuModel::V2_1KvmTcg => Quirks {
                update_reads_first: true,
                noncanonical_stack_raises_gp: true,
                noncanonical_address_in_cr2: true,
                fxsave_leaves_gaps: true,
                no_alignment_checks: true,
                interrupts_push_rf: PushedRf::Set,
            },
        }
    }
}
