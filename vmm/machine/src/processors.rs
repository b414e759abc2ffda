//! The processors of a machine beside the one in the seat.

use cpu::{CpuState, CpuStateV1, Turn, TurnState};
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
    /// The state of the turns, if it does not follow from the counts.
    pub turns: Option<TurnState>,
}

/// The stored form of [`OtherProcessors`] without the turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherProcessorsV1 {
    seat: u8,
    cpus: Vec<CpuStateV1>,
    lapics: Vec<OtherLapicV1>,
}

impl From<&OtherProcessors> for OtherProcessorsV1 {
    fn from(others: &OtherProcessors) -> OtherProcessorsV1 {
        let OtherProcessors { seat, cpus, lapics, turns: _ } = others;
        OtherProcessorsV1 { seat: *seat, cpus: stored(cpus), lapics: lapics.clone() }
    }
}

impl From<OtherProcessorsV1> for OtherProcessors {
    fn from(stored: OtherProcessorsV1) -> OtherProcessors {
        let OtherProcessorsV1 { seat, cpus, lapics } = stored;
        let cpus = cpus.into_iter().map(|cpu| <(CpuState, cpu::Counts)>::from(cpu).0).collect();
        OtherProcessors { seat, cpus, lapics, turns: None }
    }
}

/// The stored form of a [`TurnState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnStateV1 {
    generator: u64,
    phase: u64,
    left: u64,
    is_given: bool,
    waiting: Vec<TurnV1>,
}

/// The stored form of a [`Turn`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnV1 {
    processor: u8,
    steps: u32,
}

impl From<&TurnState> for TurnStateV1 {
    fn from(state: &TurnState) -> TurnStateV1 {
        let TurnState { generator, phase, left, is_given, waiting } = state;
        let waiting = waiting.iter().copied().map(Into::into).collect();
        TurnStateV1 { generator: *generator, phase: *phase, left: *left, is_given: *is_given, waiting }
    }
}

impl From<TurnStateV1> for TurnState {
    fn from(stored: TurnStateV1) -> TurnState {
        let TurnStateV1 { generator, phase, left, is_given, waiting } = stored;
        TurnState { generator, phase, left, is_given, waiting: waiting.into_iter().map(Into::into).collect() }
    }
}

impl From<Turn> for TurnV1 {
    fn from(turn: Turn) -> TurnV1 {
        let Turn { processor, steps } = turn;
        TurnV1 { processor, steps }
    }
}

impl From<TurnV1> for Turn {
    fn from(stored: TurnV1) -> Turn {
        let TurnV1 { processor, steps } = stored;
        Turn { processor, steps }
    }
}

/// The stored form of processors that are not in the seat. The machine's counts are stored with the processor that is.
pub(crate) fn stored(cpus: &[CpuState]) -> Vec<CpuStateV1> {
    cpus.iter().map(|cpu| CpuStateV1::new(cpu, cpu::Counts::default())).collect()
}
