//! The local APIC's registers, decoded for people.

use super::timer::{Timer, TimerSummary};
use super::{LVT_MASKED, LocalApic, Mode};
use crate::interrupt_message::DeliveryMode;

/// The sources of the local vector table, in the order of `RegisterFile::lvt`.
const SOURCES: [&str; 7] = ["CMCI", "timer", "thermal", "performance", "LINT0", "LINT1", "error"];

/// A local APIC's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LapicSummary {
    /// The APIC's id.
    pub id: u8,
    /// The APIC's mode.
    pub mode: Mode,
    /// Whether software enables the APIC (SVR).
    pub is_software_enabled: bool,
    /// The id for messages with a logical destination (LDR).
    pub logical_id: u32,
    /// The task priority (TPR).
    pub task_priority: u8,
    /// The processor priority (PPR). The processor takes interrupts of higher priority classes only.
    pub processor_priority: u8,
    /// The vectors in service (ISR), in ascending order.
    pub in_service: Vec<u8>,
    /// The vectors that wait for the processor (IRR), in ascending order.
    pub requested: Vec<u8>,
    /// The errors since the last write to ESR.
    pub errors: u32,
    /// The local vector table.
    pub entries: Vec<LocalEntry>,
    /// The timer.
    pub timer: TimerSummary,
}

/// An entry of the local vector table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEntry {
    /// The interrupt's source.
    pub source: &'static str,
    /// The vector, for the modes that have one.
    pub vector: u8,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// Whether the source is masked.
    pub is_masked: bool,
}

impl LocalApic {
    /// The registers, decoded.
    pub fn summary(&self) -> LapicSummary {
        let entry = |(source, &entry): (&&'static str, &u32)| LocalEntry {
            source,
            vector: entry as u8,
            mode: DeliveryMode::from_bits(u64::from(entry >> 8)),
            is_masked: entry & LVT_MASKED != 0,
        };
        LapicSummary {
            id: self.id,
            mode: self.mode(),
            is_software_enabled: self.is_software_enabled(),
            logical_id: if self.mode() == Mode::X2Apic { self.x2apic_ldr() } else { self.s.ldr >> 24 },
            task_priority: self.s.tpr,
            processor_priority: self.ppr(),
            in_service: self.s.in_service.members().collect(),
            requested: self.s.requested.members().collect(),
            errors: self.s.errors,
            entries: SOURCES.iter().zip(&self.s.lvt).map(entry).collect(),
            timer: Timer::summary(&self.s.timer, self.s.lvt[super::LVT_TIMER]),
        }
    }
}
