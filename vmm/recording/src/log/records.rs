//! The records of an event log. Positions are in the unit that the recording counts.

use devices::passthrough::DeviceInputV1;

use machine::checks::CheckRecord;
use machine::hashes::Hashes;
use machine::inputs::{Event, View};
use machine::outcome::Outcome;
use machine::position::{Count, Moment};

/// An event, and the machine's state at the point where the event comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord<C> {
    /// The point where the event comes in.
    pub at: Moment<C>,
    /// Retired conditional branches up to this point.
    pub branches: u64,
    /// RIP at this point.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state at this point.
    pub cpu_hash: [u8; 8],
    /// The input.
    pub event: Event,
}

/// The end of a recording that was not cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRecord<C> {
    /// The last point of the run.
    pub at: Moment<C>,
    /// Retired conditional branches in the whole run.
    pub branches: u64,
    /// How the run ended.
    pub outcome: Outcome,
    /// The whole machine's hashes at the end.
    pub hashes: Hashes,
    /// Bytes of console output in the whole run.
    pub console_bytes: u64,
    /// BLAKE3 hash of the console output.
    pub console_hash: [u8; 32],
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord<C> {
    /// The hash of the machine's description in the manifest. Only the first record is of this kind.
    Machine([u8; 32]),
    /// An input.
    Event(EventRecord<C>),
    /// A check: hashes of the machine's state at some point, for comparison.
    Check(CheckRecord<C>),
    /// The end of the run.
    End(EndRecord<C>),
    /// The number of system calls entered before the next event in the log. Only in logs that were recounted in
    /// instructions.
    SystemCalls(u64),
}

impl<C: Count> EventRecord<C> {
    /// The record of an event that comes in at the machine's present point.
    pub fn of(view: &View<'_, C>, event: Event) -> EventRecord<C> {
        EventRecord {
            at: view.moment,
            branches: view.branches,
            rip: view.cpu.rip(),
            cpu_hash: view.cpu_hash(),
            event,
        }
    }

    /// The record of a device's answer in the middle of an instruction. Replay does not compare the registers at this
    /// point.
    pub fn of_answer(at: Moment<C>, input: DeviceInputV1) -> EventRecord<C> {
        EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event: Event::Devices(input) }
    }
}
