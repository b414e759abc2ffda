//! The processors of a machine beside the one in the seat.

use cpu::{CpuState, CpuStateV1};
use devices::platform::OtherLapicV1;
use serde::{Deserialize, Serialize};

/// The state that a machine with several processors has beside that of a machine with one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherProcessors {
    /// The processor in the seat.
    pub seat: u8,
    /// The processors that are not in the seat, by number.
    pub cpus: Vec<CpuState>,
    /// The local APICs of all processors but the first, by number.
    pub lapics: Vec<OtherLapicV1>,
}

/// The stored form of [`OtherProcessors`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherProcessorsV1 {
    seat: u8,
    cpus: Vec<CpuStateV1>,
    lapics: Vec<OtherLapicV1>,
}

impl From<&OtherProcessors> for OtherProcessorsV1 {
    fn from(others: &OtherProcessors) -> OtherProcessorsV1 {
        let OtherProcessors { seat, cpus, lapics } = others;
        OtherProcessorsV1 { seat: *seat, cpus: stored(cpus), lapics: lapics.clone() }
    }
}

impl From<OtherProcessorsV1> for OtherProcessors {
    fn from(stored: OtherProcessorsV1) -> OtherProcessors {
        let OtherProcessorsV1 { seat, cpus, lapics } = stored;
        let cpus = cpus.into_iter().map(|cpu| <(CpuState, cpu::Counts)>::from(cpu).0).collect();
        OtherProcessors { seat, cpus, lapics }
    }
}

/// The stored form of processors that are not in the seat. The machine's counts are stored with the processor that is.
pub(crate) fn stored(cpus: &[CpuState]) -> Vec<CpuStateV1> {
    cpus.iter().map(|cpu| CpuStateV1::new(cpu, cpu::Counts::default())).collect()
}
