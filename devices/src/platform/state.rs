//! The saved form of the whole board, version 1.
//!
//! A chip's saved state (`...StateV1`) is plain data. Most chips have only numbers and flags, and use their saved
//! state directly. If a chip computes with richer types, its `state.rs` converts them. Recordings store the bytes
//! of these types; `tests/golden_state.rs` checks that the bytes do not change.

use serde::{Deserialize, Serialize};

use crate::acpi_pm::AcpiPmStateV1;
use crate::ioapic::IoApicStateV1;
use crate::lapic::{LapicStateV1, StartupV1};
use crate::misc_ports::MiscPortsStateV1;
use crate::pic::PicPairStateV1;
use crate::pit::PitStateV1;
use crate::rtc::RtcStateV1;
use crate::uart::UartStateV1;

/// The saved state of a [`Platform`](super::Platform), version 1. `S` is the state of the expansion bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformStateV1<S> {
    pub(super) uart: UartStateV1,
    pub(super) rtc: RtcStateV1,
    pub(super) pit: PitStateV1,
    pub(super) pic: PicPairStateV1,
    pub(super) ioapic: IoApicStateV1,
    pub(super) lapic: LapicStateV1,
    pub(super) pm: AcpiPmStateV1,
    pub(super) misc_ports: MiscPortsStateV1,
    pub(super) bus: S,
}

/// The saved local APIC of a processor that is not the first, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherLapicV1 {
    pub(super) registers: LapicStateV1,
    pub(super) startup: StartupV1,
}
