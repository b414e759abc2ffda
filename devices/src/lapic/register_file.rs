//! The local APIC's state.

use super::timer::TimerStateV1;
use super::vectors::VectorSet;

/// All registers of a [`LocalApic`](super::LocalApic).
#[derive(Clone, Debug)]
pub(super) struct RegisterFile {
    /// IA32_APIC_BASE.
    pub(super) base: u64,
    pub(super) tpr: u8,
    pub(super) requested: VectorSet,
    pub(super) in_service: VectorSet,
    pub(super) trigger_mode: VectorSet,
    /// LDR and DFR of xAPIC mode.
    pub(super) ldr: u32,
    pub(super) dfr: u32,
    pub(super) svr: u32,
    /// ESR, as latched by the last write to it.
    pub(super) esr: u32,
    /// Errors since the last write to ESR.
    pub(super) errors: u32,
    pub(super) icr: u64,
    /// The entries of the local vector table: CMCI, timer, thermal, performance, LINT0, LINT1, error.
    pub(super) lvt: [u32; 7],
    pub(super) timer: TimerStateV1,
    /// Levels of the two local interrupt pins.
    pub(super) lint: [bool; 2],
    pub(super) nmi_pending: bool,
}
