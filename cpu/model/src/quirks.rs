//! Differences between processors: deviations from the manuals, and choices that the manuals leave open.
//! This module lists each difference that a guest can see and that recordings depend on.
//!
//! Code that depends on a difference reads the field of [`Quirks`], and never compares CPU models. Features that
//! CPUID announces or hides are not quirks; the [`Description`](crate::Description) lists these features.

use crate::CpuModel;

/// The value of RF in the image of RFLAGS that an external interrupt or an NMI pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushedRf {
    /// The pushed RF is the current RF. The software CPU's own models do this.
    Kept,
    /// The pushed RF is clear. Seen under KVM: the engine stops the guest with its own breakpoints before it
    /// injects interrupts, and clears the RF that a breakpoint sets.
    Cleared,
    /// The pushed RF is set, as for faults. Seen under KVM nested in QEMU's TCG.
    Set,
}

/// The differences of one processor. A `bool` is true if the processor behaves as the field's documentation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// The first access of a read-modify-write instruction is checked as a read. So the page fault for a page that
    /// is not present does not set the error code's W bit. If the page is then present but read-only, the
    /// instruction faults a second time. Real processors check the first access as a write. Seen on QEMU's TCG.
    pub update_reads_first: bool,
    /// Stack accesses at an address that is not canonical raise #GP(0), like all other accesses. The manuals
    /// and real processors raise #SS(0). Seen on QEMU's TCG.
    pub noncanonical_stack_raises_gp: bool,
    /// An access at an address that is not canonical changes CR2, although no page fault is raised. Seen on QEMU's TCG.
    pub noncanonical_address_in_cr2: bool,
    /// FXSAVE and XSAVE write no opcode, and write zeroes for the x87 pointers. Both instructions do not write the
    /// six bytes after each x87 register; other processors write zeroes to these bytes. Seen on QEMU's TCG.
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
