//! What an event log consists of. Positions are in what the recording counts.

use devices::passthrough::DeviceInputV1;

use machine::checks::CheckRecord;
use machine::hashes::Hashes;
use machine::inputs::{Event, View};
use machine::outcome::Outcome;
use machine::position::{Count, Moment};

/// An event and what is known of the machine where it came in.
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
    /// What came in.
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
    /// Console output of the whole run.
    pub console_bytes: u64,
    /// Its BLAKE3 hash.
    pub console_hash: [u8; 32],
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord<C> {
    /// The hash of the machine's description in the manifest. The first record, and only that.
    Machine([u8; 32]),
    /// An input.
    Event(EventRecord<C>),
    /// The machine's own state at some point.
    Check(CheckRecord<C>),
    /// The end.
    End(EndRecord<C>),
    /// The number of system calls entered until the event that follows: in logs that were recounted in instructions.
    SystemCalls(u64),
}

impl<C: Count> EventRecord<C> {
    /// What a log says of the machine where an event comes in.
    pub fn of(view: &View<'_, C>, event: Event) -> EventRecord<C> {
        EventRecord {
            at: view.moment,
            branches: view.branches,
            rip: view.cpu.rip(),
            cpu_hash: view.cpu_hash(),
            event,
        }
    }

    /// What it says of an answer in the middle of an instruction, whose registers a replay does not compare.
    pub fn of_answer(at: Moment<C>, input: DeviceInputV1) -> EventRecord<C> {
        EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event: Event::Devices(input) }
    }
}
