//! The saved form of the whole board, version 1.
//!
//! A chip's numbered state is plain data. Most chips have nothing but registers that are numbers and flags, and work on
//! their numbered state itself; where a chip computes with richer types, its `state.rs` converts them. What a recording
//! holds are these types' bytes, which `tests/golden_state.rs` keeps as they are.

use serde::{Deserialize, Serialize};

use crate::acpi_pm::AcpiPmStateV1;
use crate::ioapic::IoApicStateV1;
use crate::lapic::LapicStateV1;
use crate::misc_ports::MiscPortsStateV1;
use crate::pic::PicPairStateV1;
use crate::pit::PitStateV1;
use crate::rtc::RtcStateV1;
use crate::uart::UartStateV1;

/// Everything a [`Platform`](super::Platform) remembers, version 1. `S` is the state of the expansion bus.
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
