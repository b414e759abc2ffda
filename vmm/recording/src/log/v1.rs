//! The first version of an event log's records: [`LogRecord`] and its parts, field by field in the order on
//! disk.
//!
//! Nothing in this file may be moved, added or retyped; `tests/stored_bytes.rs` has the bytes of each type. The
//! conversions name every field on both sides. So a new field does not compile until the conversions handle it.

use std::borrow::Cow;

use devices::passthrough::DeviceInputV1;
use serde::{Deserialize, Serialize};

use crate::log::records::{EndRecord, EventRecord, LogRecord};
use crate::moment_v1::MomentV1;
use machine::checks::CheckRecord;
use machine::hashes::Hashes;
use machine::inputs::{Event, PowerOn, Stopped};
use machine::position::Count;
use machine::processors::TurnV1;
use machine::state_v1::OutcomeV1;

/// The bytes of a record.
pub(super) fn to_bytes<C: Count>(record: &LogRecord<C>) -> Vec<u8> {
    append_to(Vec::new(), &record.into())
}

/// Appends the bytes of a record.
pub(super) fn append_to(bytes: Vec<u8>, record: &LogRecordV1<'_>) -> Vec<u8> {
    postcard::to_extend(record, bytes).expect("plain data in memory always serializes")
}

/// Parses a record at the beginning of `bytes`. Also returns the bytes after the record. The bytes may come from
/// strangers.
pub(super) fn take_from_bytes<C: Count>(bytes: &[u8]) -> Result<(LogRecord<C>, &[u8]), postcard::Error> {
    let (record, left) = postcard::take_from_bytes::<LogRecordV1<'_>>(bytes)?;
    Ok((record.into(), left))
}

/// The stored form of a [`LogRecord`].
#[derive(Serialize, Deserialize)]
pub(super) enum LogRecordV1<'a> {
    Machine([u8; 32]),
    Event(EventRecordV1<'a>),
    Check(CheckRecordV1),
    End(EndRecordV1),
    SystemCalls(u64),
}

/// The stored form of an [`EventRecord`].
#[derive(Serialize, Deserialize)]
pub(super) struct EventRecordV1<'a> {
    at: MomentV1,
    branches: u64,
    rip: u64,
    cpu_hash: [u8; 8],
    event: EventV1<'a>,
}

/// The stored form of a [`CheckRecord`].
#[derive(Serialize, Deserialize)]
pub(super) struct CheckRecordV1 {
    at: MomentV1,
    branches: u64,
    rip: u64,
    cpu_hash: [u8; 8],
    devices_hash: Option<[u8; 8]>,
    ram_digest: Option<[u8; 16]>,
}

/// The stored form of an [`EndRecord`].
#[derive(Serialize, Deserialize)]
pub(super) struct EndRecordV1 {
    at: MomentV1,
    branches: u64,
    outcome: OutcomeV1,
    hashes: HashesV1,
    console_bytes: u64,
    console_hash: [u8; 32],
}

/// The stored form of [`Hashes`].
#[derive(Serialize, Deserialize)]
struct HashesV1 {
    cpu: [u8; 32],
    devices: [u8; 32],
    ram: [u8; 16],
    disk: [u8; 32],
}

/// The stored form of an [`Event`]. Typed bytes are borrowed, so that writing an event does not copy its bytes.
#[derive(Serialize, Deserialize)]
enum EventV1<'a> {
    PowerOn(PowerOnV1),
    ConsoleInput(Cow<'a, [u8]>),
    ConsoleResize { columns: u16, rows: u16 },
    PowerButton,
    Ended,
    Stopped(StoppedV1),
    TimePassed { ns: u64 },
    Interrupted,
    Limit,
    NetworkInput(Vec<Frame<'a>>),
    Devices(Cow<'a, DeviceInputV1>),
    TextShown,
    Turns(Vec<TurnV1>),
}

/// An Ethernet frame, borrowed so that writing does not copy its bytes.
type Frame<'a> = Cow<'a, serde_bytes::Bytes>;

/// The stored form of a [`PowerOn`].
#[derive(Serialize, Deserialize)]
struct PowerOnV1 {
    unix_seconds: i64,
    seed: [u8; 32],
    columns: u16,
    rows: u16,
}

/// The stored form of a [`Stopped`].
#[derive(Serialize, Deserialize)]
struct StoppedV1 {
    registers: u64,
    ram_digest: [u8; 16],
}

impl<'a, C: Count> From<&'a LogRecord<C>> for LogRecordV1<'a> {
    fn from(record: &'a LogRecord<C>) -> LogRecordV1<'a> {
        match record {
            LogRecord::Machine(hash) => LogRecordV1::Machine(*hash),
            LogRecord::Event(record) => LogRecordV1::Event(record.into()),
            LogRecord::Check(record) => LogRecordV1::Check(record.into()),
            LogRecord::End(record) => LogRecordV1::End(record.into()),
            LogRecord::SystemCalls(count) => LogRecordV1::SystemCalls(*count),
        }
    }
}

impl<'a, C: Count> From<&'a EventRecord<C>> for LogRecordV1<'a> {
    fn from(record: &'a EventRecord<C>) -> LogRecordV1<'a> {
        LogRecordV1::Event(record.into())
    }
}

impl<C: Count> From<LogRecordV1<'_>> for LogRecord<C> {
    fn from(stored: LogRecordV1<'_>) -> LogRecord<C> {
        match stored {
            LogRecordV1::Machine(hash) => LogRecord::Machine(hash),
            LogRecordV1::Event(record) => LogRecord::Event(record.into()),
            LogRecordV1::Check(record) => LogRecord::Check(record.into()),
            LogRecordV1::End(record) => LogRecord::End(record.into()),
            LogRecordV1::SystemCalls(count) => LogRecord::SystemCalls(count),
        }
    }
}

impl<'a, C: Count> From<&'a EventRecord<C>> for EventRecordV1<'a> {
    fn from(record: &'a EventRecord<C>) -> EventRecordV1<'a> {
        let EventRecord { at, branches, rip, cpu_hash, ref event } = *record;
        EventRecordV1 { at: at.into(), branches, rip, cpu_hash, event: event.into() }
    }
}

impl<C: Count> From<EventRecordV1<'_>> for EventRecord<C> {
    fn from(stored: EventRecordV1<'_>) -> EventRecord<C> {
        let EventRecordV1 { at, branches, rip, cpu_hash, event } = stored;
        EventRecord { at: at.into(), branches, rip, cpu_hash, event: event.into() }
    }
}

impl<C: Count> From<&CheckRecord<C>> for CheckRecordV1 {
    fn from(record: &CheckRecord<C>) -> CheckRecordV1 {
        let CheckRecord { at, branches, rip, cpu_hash, devices_hash, ram_digest } = *record;
        CheckRecordV1 { at: at.into(), branches, rip, cpu_hash, devices_hash, ram_digest }
    }
}

impl<C: Count> From<CheckRecordV1> for CheckRecord<C> {
    fn from(stored: CheckRecordV1) -> CheckRecord<C> {
        let CheckRecordV1 { at, branches, rip, cpu_hash, devices_hash, ram_digest } = stored;
        CheckRecord { at: at.into(), branches, rip, cpu_hash, devices_hash, ram_digest }
    }
}

impl<C: Count> From<&EndRecord<C>> for EndRecordV1 {
    fn from(record: &EndRecord<C>) -> EndRecordV1 {
        let EndRecord { at, branches, ref outcome, hashes, console_bytes, console_hash } = *record;
        let (at, outcome, hashes) = (at.into(), outcome.into(), hashes.into());
        EndRecordV1 { at, branches, outcome, hashes, console_bytes, console_hash }
    }
}

impl<C: Count> From<EndRecordV1> for EndRecord<C> {
    fn from(stored: EndRecordV1) -> EndRecord<C> {
        let EndRecordV1 { at, branches, outcome, hashes, console_bytes, console_hash } = stored;
        let (at, outcome, hashes) = (at.into(), outcome.into(), hashes.into());
        EndRecord { at, branches, outcome, hashes, console_bytes, console_hash }
    }
}

impl From<Hashes> for HashesV1 {
    fn from(hashes: Hashes) -> HashesV1 {
        let Hashes { cpu, devices, ram, disk } = hashes;
        HashesV1 { cpu, devices, ram, disk }
    }
}

impl From<HashesV1> for Hashes {
    fn from(stored: HashesV1) -> Hashes {
        let HashesV1 { cpu, devices, ram, disk } = stored;
        Hashes { cpu, devices, ram, disk }
    }
}

impl<'a> From<&'a Event> for EventV1<'a> {
    fn from(event: &'a Event) -> EventV1<'a> {
        match *event {
            Event::PowerOn(ref given) => EventV1::PowerOn(given.into()),
            Event::ConsoleInput(ref bytes) => EventV1::ConsoleInput(Cow::Borrowed(bytes)),
            Event::ConsoleResize { columns, rows } => EventV1::ConsoleResize { columns, rows },
            Event::PowerButton => EventV1::PowerButton,
            Event::Ended => EventV1::Ended,
            Event::Stopped(stopped) => EventV1::Stopped(stopped.into()),
            Event::TimePassed { ns } => EventV1::TimePassed { ns },
            Event::Interrupted => EventV1::Interrupted,
            Event::Limit => EventV1::Limit,
            Event::NetworkInput(ref frames) => {
                EventV1::NetworkInput(frames.iter().map(|frame| borrowed(frame)).collect())
            }
            Event::Devices(ref input) => EventV1::Devices(Cow::Borrowed(input)),
            Event::TextShown => EventV1::TextShown,
            Event::Turns(ref turns) => EventV1::Turns(turns.iter().copied().map(Into::into).collect()),
        }
    }
}

impl From<EventV1<'_>> for Event {
    fn from(stored: EventV1<'_>) -> Event {
        match stored {
            EventV1::PowerOn(given) => Event::PowerOn(given.into()),
            EventV1::ConsoleInput(bytes) => Event::ConsoleInput(bytes.into_owned()),
            EventV1::ConsoleResize { columns, rows } => Event::ConsoleResize { columns, rows },
            EventV1::PowerButton => Event::PowerButton,
            EventV1::Ended => Event::Ended,
            EventV1::Stopped(stopped) => Event::Stopped(stopped.into()),
            EventV1::TimePassed { ns } => Event::TimePassed { ns },
            EventV1::Interrupted => Event::Interrupted,
            EventV1::Limit => Event::Limit,
            EventV1::NetworkInput(frames) => {
                Event::NetworkInput(frames.into_iter().map(|frame| frame.into_owned().into_vec()).collect())
            }
            EventV1::Devices(input) => Event::Devices(input.into_owned()),
            EventV1::TextShown => Event::TextShown,
            EventV1::Turns(turns) => Event::Turns(turns.into_iter().map(Into::into).collect()),
        }
    }
}

fn borrowed(frame: &[u8]) -> Frame<'_> {
    Cow::Borrowed(serde_bytes::Bytes::new(frame))
}

impl From<&PowerOn> for PowerOnV1 {
    fn from(given: &PowerOn) -> PowerOnV1 {
        let PowerOn { unix_seconds, seed, columns, rows } = *given;
        PowerOnV1 { unix_seconds, seed, columns, rows }
    }
}

impl From<PowerOnV1> for PowerOn {
    fn from(stored: PowerOnV1) -> PowerOn {
        let PowerOnV1 { unix_seconds, seed, columns, rows } = stored;
        PowerOn { unix_seconds, seed, columns, rows }
    }
}

impl From<Stopped> for StoppedV1 {
    fn from(stopped: Stopped) -> StoppedV1 {
        let Stopped { registers, ram_digest } = stopped;
        StoppedV1 { registers, ram_digest }
    }
}

impl From<StoppedV1> for Stopped {
    fn from(stored: StoppedV1) -> Stopped {
        let StoppedV1 { registers, ram_digest } = stored;
        Stopped { registers, ram_digest }
    }
}
