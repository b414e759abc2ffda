//! The file of an event log: what is appended to it, and what reading it makes of it.
//!
//! This module knows the order that records must have; what the records mean is known elsewhere. A run
//! that was cut off leaves a log whose last frame may be incomplete: reading stops before it and says so. Damage
//! anywhere else is an error. Lengths are never trusted.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::machine::checks::CheckRecord;
use crate::machine::clock::MAX_TIME_NS;
use crate::machine::inputs::Event;
use crate::position::{Count, Moment};
use crate::recording::log::frames::{MAGIC, MAX_FRAME_BYTES, framed, next_frame};
use crate::recording::log::records::{EndRecord, EventRecord, LogRecord};

/// Appends records to a log file.
pub struct LogWriter {
    file: File,
    path: PathBuf,
    /// Length of the file up to the last whole record.
    bytes: u64,
    /// Checksum of the last payload.
    chain: u32,
}

impl LogWriter {
    /// Starts a new log; the file must not exist.
    pub fn create(path: &Path) -> Result<LogWriter, Error> {
        let mut file = File::create_new(path).map_err(Error::file("create", path))?;
        // Only says that a recorder still writes: where files cannot be locked, readers do not get to know.
        let _ = file.try_lock();
        file.write_all(MAGIC).map_err(Error::file("write", path))?;
        Ok(LogWriter { file, path: path.to_path_buf(), bytes: MAGIC.len() as u64, chain: 0 })
    }

    /// Appends a record and hands it to the operating system, so that only a crash of the host can lose it.
    ///
    /// Where that fails (a full disk), what was written before stays whole.
    pub fn append<C: Count>(&mut self, record: &LogRecord<C>) -> Result<(), Error> {
        let payload = postcard::to_stdvec(record).expect("plain data in memory always serializes");
        assert!(payload.len() <= MAX_FRAME_BYTES, "events come in small pieces");
        let (frame, chain) = framed(self.chain, &payload);
        if let Err(error) = self.file.write_all(&frame) {
            // Half a frame would read as a cut: taking it away is a courtesy that may fail as well.
            let _ = self.file.set_len(self.bytes);
            return Err(Error::file("write", &self.path)(error));
        }
        self.bytes += frame.len() as u64;
        self.chain = chain;
        Ok(())
    }

    /// The checksum of everything that was appended.
    pub fn check(&self) -> u32 {
        self.chain
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A log with these payloads, whatever they are: for tests of what reading makes of them.
pub fn log_of_payloads<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut bytes, mut chain) = (MAGIC.to_vec(), 0);
    for payload in payloads {
        let (frame, next) = framed(chain, payload);
        bytes.extend(frame);
        chain = next;
    }
    bytes
}

/// What a log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log<C> {
    /// Hash of the machine's description; zero where the log was cut off before it.
    pub machine_hash: [u8; 32],
    /// All events in order.
    pub events: Vec<EventRecord<C>>,
    /// All checks in order, each with the number of events that precede it in the log.
    pub checks: Vec<(usize, CheckRecord<C>)>,
    /// The end, unless the recording was cut off.
    pub end: Option<EndRecord<C>>,
    /// Bytes of the file that hold whole records.
    pub bytes: u64,
    /// Whether an incomplete record follows them.
    pub torn: bool,
    /// The checksum of everything up to each record but those of system calls.
    pub chain: Vec<u32>,
    /// In recounted logs: system calls entered until each event.
    pub system_calls: Vec<u64>,
}

/// Reads a whole log.
pub fn read_log<C: Count>(path: &Path) -> Result<Log<C>, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| Error::recording(path, format!("cannot be read: {error}")))?;
    parse_log(&bytes).map_err(|why| Error::recording(path, why))
}

/// Whether a recorder still writes the log.
pub fn is_being_written(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Parses the bytes of a log. Never panics, whatever they are.
pub fn parse_log<C: Count>(bytes: &[u8]) -> Result<Log<C>, String> {
    let mut rest =
        bytes.strip_prefix(MAGIC).ok_or("is not an event log of this version of ttvm (wrong magic bytes)")?;
    let mut log = Log::empty();
    let mut chain = 0;
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        let damaged = |why: String| format!("is damaged: the record at byte {offset} {why}");
        let Some((header, payload, after)) = next_frame(rest, chain).map_err(damaged)? else {
            log.torn = true;
            break;
        };
        // Bytes beyond the record would be a second meaning for the same file.
        let (record, left) = postcard::take_from_bytes(payload)
            .map_err(|error| damaged(format!("makes no sense ({error})")))?;
        if !left.is_empty() {
            return Err(damaged("is longer than what it says".to_string()));
        }
        let is_place = !matches!(record, LogRecord::SystemCalls(_));
        log.add(record).map_err(|why| damaged(why.to_string()))?;
        (rest, chain) = (after, header.payload_check);
        if is_place {
            log.chain.push(chain);
        }
        log.bytes = (bytes.len() - rest.len()) as u64;
    }
    Ok(log)
}

impl<C: Count> Log<C> {
    fn empty() -> Log<C> {
        Log {
            machine_hash: [0; 32],
            events: Vec::new(),
            checks: Vec::new(),
            end: None,
            bytes: MAGIC.len() as u64,
            torn: false,
            chain: Vec::new(),
            system_calls: Vec::new(),
        }
    }

    /// The checksum of everything up to a place behind so many events and checks, if the log reaches there.
    pub fn check_behind(&self, events: usize, checks: usize) -> Option<u32> {
        // One record for each, behind the machine's.
        self.chain.get(events.checked_add(checks)?).copied()
    }

    /// The last point that the log knows.
    pub fn last_moment(&self) -> Moment<C> {
        let event = self.events.last().map(|event| event.at);
        let check = self.checks.last().map(|(_, check)| check.at);
        let end = self.end.as_ref().map(|end| end.at);
        event.max(check).max(end).unwrap_or_default()
    }

    fn add(&mut self, record: LogRecord<C>) -> Result<(), &'static str> {
        if self.end.is_some() {
            return Err("follows the end");
        }
        let first = self.bytes == MAGIC.len() as u64;
        if first != matches!(record, LogRecord::Machine(_)) {
            return Err("is in the wrong place");
        }
        match record {
            LogRecord::Machine(hash) => self.machine_hash = hash,
            LogRecord::SystemCalls(count) => {
                if self.system_calls.len() != self.events.len() {
                    return Err("is in the wrong place");
                }
                self.system_calls.push(count);
            }
            LogRecord::Event(event) => {
                if self.events.is_empty() != matches!(event.event, Event::PowerOn(_)) {
                    return Err("is in the wrong place");
                }
                self.in_order(event.at)?;
                self.events.push(event);
            }
            LogRecord::Check(check) => {
                self.in_order(check.at)?;
                self.checks.push((self.events.len(), check));
            }
            LogRecord::End(end) => {
                self.in_order(end.at)?;
                self.end = Some(end);
            }
        }
        Ok(())
    }

    /// Neither count may go back, nor be more than any run gets to.
    fn in_order(&self, at: Moment<C>) -> Result<(), &'static str> {
        let last = self.last_moment();
        let forward = at.count >= last.count
            && at.time_ns >= last.time_ns
            && at.count.number() <= MAX_TIME_NS
            && at.time_ns <= MAX_TIME_NS;
        if forward { Ok(()) } else { Err("is out of order") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::inputs::PowerOn;
    use crate::position::Instructions;

    fn record(number: u64, event: Event) -> EventRecord<Instructions> {
        let at = Moment { count: Instructions(number), time_ns: number };
        EventRecord { at, branches: 0, rip: 0, cpu_hash: [0; 8], event }
    }

    fn power_on() -> Event {
        Event::PowerOn(PowerOn { unix_seconds: 1, seed: [7; 32], columns: 80, rows: 25 })
    }

    fn check(number: u64) -> CheckRecord<Instructions> {
        let at = Moment { count: Instructions(number), time_ns: number + 1 };
        CheckRecord {
            at,
            branches: 3,
            rip: 4,
            cpu_hash: [5; 8],
            devices_hash: Some([6; 8]),
            ram_digest: Some([7; 16]),
        }
    }

    fn sample_records() -> Vec<LogRecord<Instructions>> {
        vec![
            LogRecord::Machine([9; 32]),
            LogRecord::Event(record(0, power_on())),
            LogRecord::Check(check(50)),
            LogRecord::Event(record(100, Event::ConsoleInput(b"ls\n".to_vec()))),
            LogRecord::Event(record(100, Event::PowerButton)),
            LogRecord::Check(check(100)),
        ]
    }

    fn written(records: &[LogRecord<Instructions>]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.log");
        let mut writer = LogWriter::create(&path).unwrap();
        records.iter().for_each(|record| writer.append(record).unwrap());
        std::fs::read(&path).unwrap()
    }

    /// The log's records again, in its order.
    fn records(log: &Log<Instructions>) -> Vec<LogRecord<Instructions>> {
        let mut all = vec![LogRecord::Machine(log.machine_hash)];
        for (number, event) in log.events.iter().enumerate() {
            let before = log.checks.iter().filter(|(events, _)| *events == number);
            all.extend(before.map(|(_, check)| LogRecord::Check(check.clone())));
            all.push(LogRecord::Event(event.clone()));
        }
        let last = log.checks.iter().filter(|(events, _)| *events == log.events.len());
        all.extend(last.map(|(_, check)| LogRecord::Check(check.clone())));
        all
    }

    #[test]
    fn what_is_written_is_read() {
        let log = parse_log::<Instructions>(&written(&sample_records())).unwrap();
        assert_eq!(records(&log), sample_records());
        assert!(!log.torn);
        assert_eq!(log.last_moment(), Moment { count: Instructions(100), time_ns: 101 });
    }

    #[test]
    fn a_log_cut_off_anywhere_gives_the_records_before_the_cut() {
        let bytes = written(&sample_records());
        for length in MAGIC.len() + 1..bytes.len() {
            for zeroes in [0, 100] {
                let mut cut = bytes[..length].to_vec();
                cut.resize(length + zeroes, 0);
                let log =
                    parse_log::<Instructions>(&cut).unwrap_or_else(|why| panic!("{length} {zeroes}: {why}"));
                let whole = if log.bytes > 8 { records(&log) } else { Vec::new() };
                assert_eq!(whole, sample_records()[..whole.len()], "{length}");
                assert!(whole.len() < sample_records().len());
                assert_eq!(log.torn, log.bytes < cut.len() as u64, "{length}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = written(&sample_records());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_log::<Instructions>(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn whole_frames_in_another_order_are_refused() {
        let lengths: Vec<usize> = (0..=6).map(|count| written(&sample_records()[..count]).len()).collect();
        let bytes = written(&sample_records());
        let frame = |number: usize| &bytes[lengths[number]..lengths[number + 1]];
        for left in 0..6 {
            for right in left + 1..6 {
                let order = (0..6).map(|n| {
                    if n == left {
                        right
                    } else if n == right {
                        left
                    } else {
                        n
                    }
                });
                let mut swapped = bytes[..lengths[0]].to_vec();
                order.for_each(|number| swapped.extend_from_slice(frame(number)));
                assert!(parse_log::<Instructions>(&swapped).is_err(), "{left} {right}");
            }
        }
        let without = [&bytes[..lengths[2]], &bytes[lengths[3]..]].concat();
        assert!(parse_log::<Instructions>(&without).is_err(), "a missing record");
        let twice = [&bytes[..lengths[3]], &bytes[lengths[2]..]].concat();
        assert!(parse_log::<Instructions>(&twice).is_err(), "a record twice");
    }

    #[test]
    fn records_in_an_order_that_no_run_has_are_refused() {
        let machine = || LogRecord::Machine([9; 32]);
        let event = |number, event| LogRecord::Event(record(number, event));
        for (what, records) in [
            ("no machine", vec![event(0, power_on())]),
            ("two machines", vec![machine(), machine()]),
            ("no power-on", vec![machine(), event(5, Event::PowerButton)]),
            ("two", vec![machine(), event(0, power_on()), event(0, power_on())]),
            (
                "back",
                vec![
                    machine(),
                    event(0, power_on()),
                    event(5, Event::PowerButton),
                    LogRecord::Check(check(4)),
                ],
            ),
        ] {
            assert!(parse_log::<Instructions>(&written(&records)).is_err(), "{what}");
        }
    }

    #[test]
    fn payloads_that_no_recorder_writes_are_read_or_refused() {
        let payloads: Vec<Vec<u8>> =
            sample_records().iter().map(|record| postcard::to_stdvec(record).unwrap()).collect();
        let mut random = 1_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut changed = payloads.clone();
            for _ in 0..=below(3) {
                let payload = &mut changed[below(payloads.len())];
                match below(3) {
                    0 if !payload.is_empty() => {
                        let at = below(payload.len());
                        payload[at] = below(256) as u8;
                    }
                    1 => payload.truncate(below(payload.len() + 1)),
                    _ => payload.insert(below(payload.len() + 1), 0xff),
                }
            }
            if let Ok(log) = parse_log::<Instructions>(&log_of_payloads(changed.iter().map(Vec::as_slice))) {
                assert!(log.events.len() + log.checks.len() < payloads.len());
                assert!(log.events.iter().zip(log.events.iter().skip(1)).all(|(a, b)| a.at <= b.at));
                assert!(log.last_moment().time_ns <= MAX_TIME_NS);
                accepted += 1;
            }
        }
        assert!(accepted > 100, "{accepted}: nothing got as far as being looked at");
    }

    #[test]
    fn a_disk_that_is_full_leaves_whole_records() {
        // A file that cannot grow: a full device behind a link, as `create` wants to make its file itself.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut writer = LogWriter { file: full, path: "/dev/full".into(), bytes: 8, chain: 0 };
        let error = writer.append(&sample_records()[0]).unwrap_err().to_string();
        assert!(error.contains("cannot write /dev/full") && error.contains("No space left"), "{error}");
        assert_eq!(writer.bytes, 8);
    }
}
