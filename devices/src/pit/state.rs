//! The saved form of the timer, version 1.

use serde::{Deserialize, Serialize};

use super::channel::{CountPhase, Registers};
use super::cycle::Cycle;

/// The saved state of a [`Pit`](super::Pit), version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PitStateV1 {
    pub(super) channels: [ChannelStateV1; 3],
}

/// The saved registers of a channel, version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStateV1 {
    pub(super) mode: u8,
    pub(super) bcd: bool,
    /// Control word bits 5:4: 1 low byte only, 2 high byte only, 3 low then high.
    pub(super) access: u8,
    pub(super) gate: bool,
    pub(super) phase: CountPhaseV1,
    /// The last complete count written. A trigger by the gate input loads this count.
    pub(super) reload: u32,
    /// The low byte of a two-byte count, while the high byte is missing.
    pub(super) written_low: Option<u8>,
    /// Whether the next read of a two-byte value gives the high byte.
    pub(super) read_high: bool,
    /// The latched count; `None` if no count is latched.
    pub(super) latched_count: Option<u16>,
    pub(super) latched_status: Option<u8>,
}

/// The phase of a counter, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CountPhaseV1 {
    /// A control word was written, and no complete count has been written since. The counter holds its old value.
    Unloaded {
        /// The value that the counter shows.
        value: u32,
    },
    /// The gate holds the counter still.
    Held {
        /// The value that the counter shows. Mode 0 continues from this value.
        value: u32,
        /// Whether the counter has already been through zero (one-shot modes).
        expired: bool,
    },
    /// The counter counts down.
    Counting {
        /// The count in force before `current` begins, if any.
        previous: Option<CycleV1>,
        /// The newest count, which may begin at a later tick.
        current: CycleV1,
    },
}

/// A running count and the tick at which it was loaded, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleV1 {
    /// The clock tick at which the counter holds `count`.
    pub origin_tick: u64,
    /// The count, 1 to 65536 (10000 in BCD).
    pub count: u32,
    /// The one-shot modes only: whether the count went through zero before the gate held and released it.
    pub expired: bool,
}

impl From<Registers> for ChannelStateV1 {
    fn from(registers: Registers) -> ChannelStateV1 {
        ChannelStateV1 {
            mode: registers.mode,
            bcd: registers.bcd,
            access: registers.access,
            gate: registers.gate,
            phase: registers.phase.into(),
            reload: registers.reload,
            written_low: registers.written_low,
            read_high: registers.read_high,
            latched_count: registers.latched_count,
            latched_status: registers.latched_status,
        }
    }
}

impl From<&ChannelStateV1> for Registers {
    fn from(state: &ChannelStateV1) -> Registers {
        Registers {
            mode: state.mode,
            bcd: state.bcd,
            access: state.access,
            gate: state.gate,
            phase: state.phase.into(),
            reload: state.reload,
            written_low: state.written_low,
            read_high: state.read_high,
            latched_count: state.latched_count,
            latched_status: state.latched_status,
        }
    }
}

impl From<CountPhase> for CountPhaseV1 {
    fn from(phase: CountPhase) -> CountPhaseV1 {
        match phase {
            CountPhase::Unloaded { value } => CountPhaseV1::Unloaded { value },
            CountPhase::Held { value, expired } => CountPhaseV1::Held { value, expired },
            CountPhase::Counting { previous, current } => {
                CountPhaseV1::Counting { previous: previous.map(CycleV1::from), current: current.into() }
            }
        }
    }
}

impl From<CountPhaseV1> for CountPhase {
    fn from(phase: CountPhaseV1) -> CountPhase {
        match phase {
            CountPhaseV1::Unloaded { value } => CountPhase::Unloaded { value },
            CountPhaseV1::Held { value, expired } => CountPhase::Held { value, expired },
            CountPhaseV1::Counting { previous, current } => {
                CountPhase::Counting { previous: previous.map(Cycle::from), current: current.into() }
            }
        }
    }
}

impl From<Cycle> for CycleV1 {
    fn from(Cycle { origin_tick, count, expired }: Cycle) -> CycleV1 {
        CycleV1 { origin_tick, count, expired }
    }
}

impl From<CycleV1> for Cycle {
    fn from(CycleV1 { origin_tick, count, expired }: CycleV1) -> Cycle {
        Cycle { origin_tick, count, expired }
    }
}
