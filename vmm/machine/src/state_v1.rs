//! The first version of a stored machine state without RAM and disk: [`MachineState`] and its parts, field by field
//! in the order on disk.
//!
//! Checkpoints hold these bytes. A recording's log holds hashes of some parts, and the outcome of the run
//! ([`OutcomeV1`]). `vmm/recording/tests/stored_bytes.rs` has examples. So nothing in this file may be moved, added
//! or retyped. The conversions between these types and [`MachineState`] name every field on both sides. So a new
//! field does not compile until the conversions handle it.

use cpu::CpuStateV1;
use devices::pci::PciBusStateV1;
use devices::platform::PlatformStateV1;
use serde::{Deserialize, Serialize};

use crate::console_tail::ConsoleTail;
use crate::machine_state::MachineState;
use crate::outcome::Outcome;
use crate::processors::OtherProcessors;

/// The stored form of a [`MachineState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineStateV1 {
    cpu: CpuStateV1,
    platform: PlatformStateV1<PciBusStateV1>,
    idle_ns: u64,
    console: ConsoleTailV1,
    outcome: Option<OutcomeV1>,
}

/// The stored form of a [`ConsoleTail`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleTailV1 {
    length_bytes: u64,
    tail: Vec<u8>,
}

/// The stored form of an [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutcomeV1 {
    /// [`Outcome::PowerOff`].
    PowerOff,
    /// [`Outcome::Reset`].
    Reset,
    /// [`Outcome::Panic`].
    Panic,
    /// [`Outcome::TripleFault`].
    TripleFault {
        /// RIP when the CPU shut down.
        rip: u64,
    },
    /// [`Outcome::DebugExit`].
    DebugExit {
        /// Exit code for the host.
        code: u32,
    },
    /// [`Outcome::IdleForever`].
    IdleForever,
    /// [`Outcome::Ended`].
    Ended,
    /// [`Outcome::Interrupted`].
    Interrupted,
    /// [`Outcome::Limit`].
    Limit,
    /// [`Outcome::TextShown`].
    TextShown,
}

impl From<&MachineState> for MachineStateV1 {
    fn from(state: &MachineState) -> MachineStateV1 {
        let MachineState { cpu, counts, others: _, platform, idle_ns, console, outcome } = state;
        MachineStateV1 {
            cpu: CpuStateV1::new(cpu, *counts),
            platform: platform.clone(),
            idle_ns: *idle_ns,
            console: console.into(),
            outcome: outcome.as_ref().map(Into::into),
        }
    }
}

impl From<MachineStateV1> for MachineState {
    fn from(stored: MachineStateV1) -> MachineState {
        let MachineStateV1 { cpu, platform, idle_ns, console, outcome } = stored;
        let (cpu, counts) = cpu.into();
        MachineState {
            cpu,
            counts,
            others: OtherProcessors::default(),
            platform,
            idle_ns,
            console: console.into(),
            outcome: outcome.map(Into::into),
        }
    }
}

impl From<&ConsoleTail> for ConsoleTailV1 {
    fn from(state: &ConsoleTail) -> ConsoleTailV1 {
        let ConsoleTail { length_bytes, tail } = state;
        ConsoleTailV1 { length_bytes: *length_bytes, tail: tail.clone() }
    }
}

impl From<ConsoleTailV1> for ConsoleTail {
    fn from(stored: ConsoleTailV1) -> ConsoleTail {
        let ConsoleTailV1 { length_bytes, tail } = stored;
        ConsoleTail { length_bytes, tail }
    }
}

impl From<&Outcome> for OutcomeV1 {
    fn from(outcome: &Outcome) -> OutcomeV1 {
        match *outcome {
            Outcome::PowerOff => OutcomeV1::PowerOff,
            Outcome::Reset => OutcomeV1::Reset,
            Outcome::Panic => OutcomeV1::Panic,
            Outcome::TripleFault { rip } => OutcomeV1::TripleFault { rip },
            Outcome::DebugExit { code } => OutcomeV1::DebugExit { code },
            Outcome::IdleForever => OutcomeV1::IdleForever,
            Outcome::Ended => OutcomeV1::Ended,
            Outcome::Interrupted => OutcomeV1::Interrupted,
            Outcome::Limit => OutcomeV1::Limit,
            Outcome::TextShown => OutcomeV1::TextShown,
        }
    }
}

impl From<OutcomeV1> for Outcome {
    fn from(stored: OutcomeV1) -> Outcome {
        match stored {
            OutcomeV1::PowerOff => Outcome::PowerOff,
            OutcomeV1::Reset => Outcome::Reset,
            OutcomeV1::Panic => Outcome::Panic,
            OutcomeV1::TripleFault { rip } => Outcome::TripleFault { rip },
            OutcomeV1::DebugExit { code } => Outcome::DebugExit { code },
            OutcomeV1::IdleForever => Outcome::IdleForever,
            OutcomeV1::Ended => Outcome::Ended,
            OutcomeV1::Interrupted => Outcome::Interrupted,
            OutcomeV1::Limit => Outcome::Limit,
            OutcomeV1::TextShown => Outcome::TextShown,
        }
    }
}
