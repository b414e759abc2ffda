//! The saved form of the local APIC, version 1.

use serde::{Deserialize, Serialize};

use super::register_file::RegisterFile;
use super::timer::TimerStateV1;
use super::vectors::VectorSet;

/// The saved registers of a [`LocalApic`](super::LocalApic), version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LapicStateV1 {
    /// IA32_APIC_BASE.
    pub(super) base: u64,
    tpr: u8,
    /// The requested vectors (IRR). This set of vectors and the next two have the layout of the eight 32-bit
    /// registers that the guest reads.
    requested: [u32; 8],
    in_service: [u32; 8],
    trigger_mode: [u32; 8],
    /// LDR and DFR of xAPIC mode.
    ldr: u32,
    dfr: u32,
    svr: u32,
    /// ESR, as latched by the last write to it.
    esr: u32,
    /// Errors since the last write to ESR.
    errors: u32,
    icr: u64,
    /// The entries of the local vector table: CMCI, timer, thermal, performance, LINT0, LINT1, error.
    lvt: [u32; 7],
    timer: TimerStateV1,
    /// Levels of the two local interrupt pins.
    lint: [bool; 2],
    nmi_pending: bool,
}

impl From<&RegisterFile> for LapicStateV1 {
    fn from(registers: &RegisterFile) -> LapicStateV1 {
        LapicStateV1 {
            base: registers.base,
            tpr: registers.tpr,
            requested: registers.requested.words(),
            in_service: registers.in_service.words(),
            trigger_mode: registers.trigger_mode.words(),
            ldr: registers.ldr,
            dfr: registers.dfr,
            svr: registers.svr,
            esr: registers.esr,
            errors: registers.errors,
            icr: registers.icr,
            lvt: registers.lvt,
            timer: registers.timer.clone(),
            lint: registers.lint,
            nmi_pending: registers.nmi_pending,
        }
    }
}

impl From<&LapicStateV1> for RegisterFile {
    fn from(state: &LapicStateV1) -> RegisterFile {
        RegisterFile {
            base: state.base,
            tpr: state.tpr,
            requested: VectorSet::from_words(state.requested),
            in_service: VectorSet::from_words(state.in_service),
            trigger_mode: VectorSet::from_words(state.trigger_mode),
            ldr: state.ldr,
            dfr: state.dfr,
            svr: state.svr,
            esr: state.esr,
            errors: state.errors,
            icr: state.icr,
            lvt: state.lvt,
            timer: state.timer.clone(),
            lint: state.lint,
            nmi_pending: state.nmi_pending,
        }
    }
}
