//! What the local APIC remembers.

use super::timer::TimerStateV1;
use super::vectors::VectorSet;

/// Everything a [`LocalApic`](super::LocalApic) remembers.
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
    /// ESR as the last write to it latched it.
    pub(super) esr: u32,
    /// Errors since then.
    pub(super) errors: u32,
    pub(super) icr: u64,
    /// CMCI, timer, thermal, performance, LINT0, LINT1, error.
    pub(super) lvt: [u32; 7],
    pub(super) timer: TimerStateV1,
    /// Levels of the two local interrupt pins.
    pub(super) lint: [bool; 2],
    pub(super) nmi_pending: bool,
}
