//! The records of an event log. Positions are in the unit that the recording counts.

use devices::passthrough::DeviceInputV1;

use machine::checks::CheckRecord;
use machine::hashes::Hashes;
use machine::inputs::{Event, View};
use machine::outcome::Outcome;
use machine::position::{Count, Moment};

/// An event, and the machine's state where the event came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord<C> {
    /// Where.
    pub at: Moment<C>,
    /// Retired conditional branches there.
    pub branches: u64,
    /// RIP there.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state there.
    pub cpu_hash: [u8; 8],
    /// The input.
    pub event: Event,
}

/// The end of a recording that was not cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRecord<C> {
    /// Where.
    pub at: Moment<C>,
    /// Retired conditional branches there.
    pub branches: u64,
    /// How the run ended.
    pub outcome: Outcome,
    /// The whole machine's hashes there.
    pub hashes: Hashes,
    /// Bytes of console output in the whole run.
    pub console_bytes: u64,
    /// BLAKE3 hash of that output.
    pub console_hash: [u8; 32],
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord<C> {
    /// The hash of the machine's description in the manifest. Only the first record is of this kind.
    Machine([u8; 32]),
    /// An input.
    Event(EventRecord<C>),
    /// The machine's own state at some point.
    Check(CheckRecord<C>),
    /// The end.
    End(EndRecord<C>),
    /// The number of system calls entered before the next event in the log. Only in logs that were recounted in
    /// instructions.
    SystemCalls(u64),
}

impl<C: Count> EventRecord<C> {
    /// The record of an event that comes in where the machine stands.
    pub fn of(view: &View<'_, C>, event: Event) -> EventRecord<C> {
        EventRecord {
            at: view.moment,
            branches: view.branches,
            rip: view.cpu.rip(),
            cpu_hash: view.cpu_hash(),
            event,
        }
    }

    /// The record of a device's answer in the middle of an instruction. Replay does not compare the registers there.
    pub fn of_answer(at: Moment<C>, input: DeviceInputV1) -> EventRecord<C> {
        EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event: Event::Devices(input) }
    }
}
