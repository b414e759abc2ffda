//! The event log: one file of framed, checksummed records, only ever appended to.
//!
//! ```text
//! file    magic "TTVMLOG1", frame*
//! frame   length u32, crc32 u32 (of the payload), payload: a LogRecord in postcard encoding
//! ```
//!
//! A run that was cut off leaves a log whose last frame may be incomplete: reading stops before it and says so.
//! Damage anywhere else is an error. Lengths are never trusted.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::inputs::Event;
use crate::machine::{Hashes, Outcome};
use crate::position::Moment;

const MAGIC: &[u8; 8] = b"TTVMLOG1";
/// No record is larger: console input comes in small pieces.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// An event and what is known of the machine where it came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Where.
    pub at: Moment,
    /// Retired conditional branches there.
    pub branches: u64,
    /// RIP there.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state there.
    pub cpu_hash: u64,
    /// What came in.
    pub event: Event,
}

/// The end of a recording that was not cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// Where.
    pub at: Moment,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogRecord {
    /// An input.
    Event(EventRecord),
    /// The end.
    End(EndRecord),
}

/// Appends records to a log file.
pub struct LogWriter {
    file: BufWriter<File>,
    path: PathBuf,
}

impl LogWriter {
    /// Starts a new log; the file must not exist.
    pub fn create(path: &Path) -> Result<LogWriter, Error> {
        let file = File::create_new(path).map_err(Error::file("create", path))?;
        let mut writer = LogWriter { file: BufWriter::new(file), path: path.to_path_buf() };
        writer.write(MAGIC)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Appends a record and hands it to the operating system, so that only a crash of the host can lose it.
    pub fn append(&mut self, record: &LogRecord) -> Result<(), Error> {
        let payload = postcard::to_stdvec(record).expect("plain data in memory always serializes");
        assert!(payload.len() <= MAX_FRAME_BYTES, "events come in small pieces");
        self.write(&(payload.len() as u32).to_le_bytes())?;
        self.write(&crc32fast::hash(&payload).to_le_bytes())?;
        self.write(&payload)?;
        self.flush()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::file("write", &self.path))
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.flush().map_err(Error::file("write", &self.path))
    }
}

/// What a log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// All events in order.
    pub events: Vec<EventRecord>,
    /// The end, unless the recording was cut off.
    pub end: Option<EndRecord>,
}

/// Reads a whole log.
pub fn read_log(path: &Path) -> Result<Log, Error> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(Error::file("read", path))?;
    parse_log(&bytes).map_err(|why| Error::recording(path, why))
}

/// Parses the bytes of a log. Never panics, whatever they are.
pub fn parse_log(bytes: &[u8]) -> Result<Log, String> {
    let mut rest =
        bytes.strip_prefix(MAGIC).ok_or("is not an event log of this version of ttvm (wrong magic bytes)")?;
    let mut log = Log { events: Vec::new(), end: None };
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        let Some((payload, after)) = next_frame(rest, offset)? else { break };
        if log.end.is_some() {
            return Err(format!("is damaged: a record follows the end, at byte {offset}"));
        }
        let record = postcard::from_bytes(payload)
            .map_err(|_| format!("is damaged: the record at byte {offset} makes no sense"))?;
        match record {
            LogRecord::Event(event) => log.add(event, offset)?,
            LogRecord::End(end) => log.end = Some(end),
        }
        rest = after;
    }
    Ok(log)
}

/// The next frame's payload and what follows it; `None` where the file was cut off.
fn next_frame(rest: &[u8], offset: usize) -> Result<Option<(&[u8], &[u8])>, String> {
    let Some((header, body)) = rest.split_first_chunk::<8>() else { return Ok(None) };
    let [a, b, c, d, crc @ ..] = *header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(format!("is damaged: the record at byte {offset} claims {length} bytes"));
    }
    let Some((payload, after)) = body.split_at_checked(length) else { return Ok(None) };
    if crc32fast::hash(payload) != u32::from_le_bytes(crc) {
        return Err(format!("is damaged: the record at byte {offset} has a wrong checksum"));
    }
    Ok(Some((payload, after)))
}

impl Log {
    fn add(&mut self, event: EventRecord, offset: usize) -> Result<(), String> {
        if self.events.last().is_some_and(|last| last.at > event.at) {
            return Err(format!("is damaged: the event at byte {offset} is out of order"));
        }
        if self.events.is_empty() != matches!(event.event, Event::PowerOn(_)) {
            return Err(format!("is damaged: the event at byte {offset} is in the wrong place"));
        }
        self.events.push(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::PowerOn;

    fn record(steps: u64, event: Event) -> EventRecord {
        let at = Moment { steps, time_ns: steps };
        EventRecord { at, branches: 0, rip: 0, cpu_hash: 0, event }
    }

    fn power_on() -> Event {
        Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 })
    }

    fn sample() -> (Vec<u8>, Vec<EventRecord>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.log");
        let events = vec![
            record(0, power_on()),
            record(100, Event::ConsoleInput(b"ls\n".to_vec())),
            record(100, Event::PowerButton),
        ];
        let mut writer = LogWriter::create(&path).unwrap();
        for event in &events {
            writer.append(&LogRecord::Event(event.clone())).unwrap();
        }
        assert_eq!(read_log(&path).unwrap(), Log { events: events.clone(), end: None });
        (std::fs::read(&path).unwrap(), events)
    }

    #[test]
    fn a_log_cut_off_anywhere_gives_the_records_before_the_cut() {
        let (bytes, events) = sample();
        for length in MAGIC.len()..bytes.len() {
            let log = parse_log(&bytes[..length]).unwrap();
            assert_eq!(log.events, events[..log.events.len()], "{length}");
            assert!(log.events.len() < events.len());
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (bytes, events) = sample();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(log) = parse_log(&damaged) {
                assert!(log.events.len() < events.len() && log.events == events[..log.events.len()], "{bit}");
            }
        }
    }

    #[test]
    fn events_out_of_order_are_refused() {
        let mut log = Log { events: Vec::new(), end: None };
        assert!(log.add(record(5, Event::PowerButton), 8).is_err());
        log.add(record(0, power_on()), 8).unwrap();
        log.add(record(5, Event::PowerButton), 8).unwrap();
        assert!(log.add(record(4, Event::PowerButton), 8).is_err());
        assert!(log.add(record(6, power_on()), 8).is_err());
    }
}
