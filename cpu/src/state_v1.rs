//! The first stored form of a CPU: [`CpuState`] and its parts, field by field in the order on disk.
//!
//! Checkpoints hold these bytes, and recordings hold their hashes (`tests/stored_state.rs` has examples). So
//! no field here may be moved, added or retyped. The conversions name every field of both the stored and the
//! running form. When [`CpuState`] gets a new field, the conversions do not compile until someone decides how to
//! store it. Either the new field can be computed from other fields, or a `CpuStateV2` is needed.

use serde::{Deserialize, Serialize};

use crate::state::{Counts, CpuState, FpuState, Msrs, Segment, TableRegister};

/// The stored form of a [`CpuState`] and its [`Counts`], with all their fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuStateV1 {
    gpr: [u64; 16],
    rip: u64,
    rflags: u64,
    segments: [SegmentV1; 6],
    ldtr: SegmentV1,
    tr: SegmentV1,
    gdtr: TableRegisterV1,
    idtr: TableRegisterV1,
    cr0: u64,
    cr2: u64,
    cr3: u64,
    cr4: u64,
    xcr0: u64,
    pdptes: [u64; 4],
    dr: [u64; 4],
    dr6: u64,
    dr7: u64,
    xmm: [u128; 16],
    ymm_high: [u128; 16],
    mxcsr: u32,
    fpu: FpuStateV1,
    msrs: MsrsV1,
    halted: bool,
    shut_down: bool,
    interrupt_shadow: bool,
    mov_ss_shadow: bool,
    nmi_blocked: bool,
    pending_debug: u64,
    steps: u64,
    branches: u64,
    system_calls: u64,
}

/// The stored form of a [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SegmentV1 {
    selector: u16,
    base: u64,
    limit: u32,
    attributes: u16,
}

/// The stored form of a [`TableRegister`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TableRegisterV1 {
    base: u64,
    limit: u16,
}

/// The stored form of an [`FpuState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FpuStateV1 {
    mantissas: [u64; 8],
    sign_exponents: [u16; 8],
    control: u16,
    status: u16,
    valid: u8,
    opcode: u16,
    instruction_pointer: u64,
    data_pointer: u64,
    instruction_selector: u16,
    data_selector: u16,
}

/// The stored form of [`Msrs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MsrsV1 {
    efer: u64,
    star: u64,
    lstar: u64,
    cstar: u64,
    sfmask: u64,
    kernel_gs_base: u64,
    sysenter_cs: u64,
    sysenter_esp: u64,
    sysenter_eip: u64,
    tsc_aux: u64,
    tsc_offset: u64,
    tsc_adjust: u64,
    pat: u64,
    mtrr_def_type: u64,
    mtrr_fixed: [u64; 11],
    mtrr_variable: [u64; 16],
    misc_enable: u64,
    mcg_status: u64,
    debugctl: u64,
}

impl CpuStateV1 {
    /// Converts a CPU's state and counts to the stored form.
    pub fn new(state: &CpuState, counts: Counts) -> CpuStateV1 {
        let Counts { steps, branches, system_calls } = counts;
        let CpuState {
            gpr,
            rip,
            rflags,
            segments,
            ldtr,
            tr,
            gdtr,
            idtr,
            cr0,
            cr2,
            cr3,
            cr4,
            xcr0,
            pdptes,
            dr,
            dr6,
            dr7,
            xmm,
            ymm_high,
            mxcsr,
            ref fpu,
            ref msrs,
            halted,
            shut_down,
            interrupt_shadow,
            mov_ss_shadow,
            nmi_blocked,
            pending_debug,
        } = *state;
        CpuStateV1 {
            gpr,
            rip,
            rflags,
            segments: segments.map(Into::into),
            ldtr: ldtr.into(),
            tr: tr.into(),
            gdtr: gdtr.into(),
            idtr: idtr.into(),
            cr0,
            cr2,
            cr3,
            cr4,
            xcr0,
            pdptes,
            dr,
            dr6,
            dr7,
            xmm,
            ymm_high,
            mxcsr,
            fpu: fpu.into(),
            msrs: msrs.into(),
            halted,
            shut_down,
            interrupt_shadow,
            mov_ss_shadow,
            nmi_blocked,
            pending_debug,
            steps,
            branches,
            system_calls,
        }
    }
}

impl From<CpuStateV1> for (CpuState, Counts) {
    fn from(stored: CpuStateV1) -> (CpuState, Counts) {
        let CpuStateV1 {
            gpr,
            rip,
            rflags,
            segments,
            ldtr,
            tr,
            gdtr,
            idtr,
            cr0,
            cr2,
            cr3,
            cr4,
            xcr0,
            pdptes,
            dr,
            dr6,
            dr7,
            xmm,
            ymm_high,
            mxcsr,
            fpu,
            msrs,
            halted,
            shut_down,
            interrupt_shadow,
            mov_ss_shadow,
            nmi_blocked,
            pending_debug,
            steps,
            branches,
            system_calls,
        } = stored;
        let state = CpuState {
            gpr,
            rip,
            rflags,
            segments: segments.map(Into::into),
            ldtr: ldtr.into(),
            tr: tr.into(),
            gdtr: gdtr.into(),
            idtr: idtr.into(),
            cr0,
            cr2,
            cr3,
            cr4,
            xcr0,
            pdptes,
            dr,
            dr6,
            dr7,
            xmm,
            ymm_high,
            mxcsr,
            fpu: fpu.into(),
            msrs: msrs.into(),
            halted,
            shut_down,
            interrupt_shadow,
            mov_ss_shadow,
            nmi_blocked,
            pending_debug,
        };
        (state, Counts { steps, branches, system_calls })
    }
}

impl From<Segment> for SegmentV1 {
    fn from(state: Segment) -> SegmentV1 {
        let Segment { selector, base, limit, attributes } = state;
        SegmentV1 { selector, base, limit, attributes }
    }
}

impl From<SegmentV1> for Segment {
    fn from(stored: SegmentV1) -> Segment {
        let SegmentV1 { selector, base, limit, attributes } = stored;
        Segment { selector, base, limit, attributes }
    }
}

impl From<TableRegister> for TableRegisterV1 {
    fn from(state: TableRegister) -> TableRegisterV1 {
        let TableRegister { base, limit } = state;
        TableRegisterV1 { base, limit }
    }
}

impl From<TableRegisterV1> for TableRegister {
    fn from(stored: TableRegisterV1) -> TableRegister {
        let TableRegisterV1 { base, limit } = stored;
        TableRegister { base, limit }
    }
}

impl From<&FpuState> for FpuStateV1 {
    fn from(state: &FpuState) -> FpuStateV1 {
        let FpuState {
            mantissas,
            sign_exponents,
            control,
            status,
            valid,
            opcode,
            instruction_pointer,
            data_pointer,
            instruction_selector,
            data_selector,
        } = *state;
        FpuStateV1 {
            mantissas,
            sign_exponents,
            control,
            status,
            valid,
            opcode,
            instruction_pointer,
            data_pointer,
            instruction_selector,
            data_selector,
        }
    }
}

impl From<FpuStateV1> for FpuState {
    fn from(stored: FpuStateV1) -> FpuState {
        let FpuStateV1 {
            mantissas,
            sign_exponents,
            control,
            status,
            valid,
            opcode,
            instruction_pointer,
            data_pointer,
            instruction_selector,
            data_selector,
        } = stored;
        FpuState {
            mantissas,
            sign_exponents,
            control,
            status,
            valid,
            opcode,
            instruction_pointer,
            data_pointer,
            instruction_selector,
            data_selector,
        }
    }
}

impl From<&Msrs> for MsrsV1 {
    fn from(state: &Msrs) -> MsrsV1 {
        let Msrs {
            efer,
            star,
            lstar,
            cstar,
            sfmask,
            kernel_gs_base,
            sysenter_cs,
            sysenter_esp,
            sysenter_eip,
            tsc_aux,
            tsc_offset,
            tsc_adjust,
            pat,
            mtrr_def_type,
            mtrr_fixed,
            mtrr_variable,
            misc_enable,
            mcg_status,
            debugctl,
        } = *state;
        MsrsV1 {
            efer,
            star,
            lstar,
            cstar,
            sfmask,
            kernel_gs_base,
            sysenter_cs,
            sysenter_esp,
            sysenter_eip,
            tsc_aux,
            tsc_offset,
            tsc_adjust,
            pat,
            mtrr_def_type,
            mtrr_fixed,
            mtrr_variable,
            misc_enable,
            mcg_status,
            debugctl,
        }
    }
}

impl From<MsrsV1> for Msrs {
    fn from(stored: MsrsV1) -> Msrs {
        let MsrsV1 {
            efer,
            star,
            lstar,
            cstar,
            sfmask,
            kernel_gs_base,
            sysenter_cs,
            sysenter_esp,
            sysenter_eip,
            tsc_aux,
            tsc_offset,
            tsc_adjust,
            pat,
            mtrr_def_type,
            mtrr_fixed,
            mtrr_variable,
            misc_enable,
            mcg_status,
            debugctl,
        } = stored;
        Msrs {
            efer,
            star,
            lstar,
            cstar,
            sfmask,
            kernel_gs_base,
            sysenter_cs,
            sysenter_esp,
            sysenter_eip,
            tsc_aux,
            tsc_offset,
            tsc_adjust,
            pat,
            mtrr_def_type,
            mtrr_fixed,
            mtrr_variable,
            misc_enable,
            mcg_status,
            debugctl,
        }
    }
}
