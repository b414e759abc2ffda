//! The contents of a log. Opening a log reads every record once. A piece is a number of consecutive unpacked records.
//! Only the pieces used last stay in memory. So the log of a whole night takes no more memory than the log of an hour.
//!
//! A run that was cut off leaves a log whose last frame may be incomplete. Reading stops before this frame, and sets
//! [`Log::torn`]. Damage anywhere else is an error. The reader checks every length in the file.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::log::frames::{MAGIC, MOST_FRAME_BYTES, next_frame};
use crate::log::order::Order;
use crate::log::payload::unpacked;
use crate::log::piece::{Loaded, LogEntry, PIECE_BYTES, PIECE_RECORDS, Piece, PieceIndex};
use crate::log::records::{EndRecord, EventRecord, LogRecord};
use crate::log::source::{Source, Window};
use crate::log::v1;
use crate::log::writer::log_of_payloads;
use machine::Format;
use machine::checks::CheckRecord;
use machine::error::Error;
use machine::position::{Count, Moment};

/// An event log. Events are numbered from 0, and checks are numbered from 0. *Entries* are events and checks together,
/// numbered in the order of the log.
#[derive(Debug)]
pub struct Log<C> {
    /// The recording's format.
    pub format: Format,
    /// Hash of the machine's description. Zeroes if the log was cut off before the record with this hash.
    pub machine_hash: [u8; 32],
    /// The end record; `None` if the recording was cut off.
    pub end: Option<EndRecord<C>>,
    /// The size in bytes of the part of the file that holds whole records.
    pub bytes: u64,
    /// Whether an incomplete record follows the last whole record.
    pub torn: bool,
    order: Order<C>,
    /// The checksum of the log up to the machine's record, and the checksum up to the end.
    chain: (u32, u32),
    source: Source,
    index: Vec<PieceIndex<C>>,
    loaded: Mutex<Loaded<C>>,
}

/// Reads a whole log, in this format.
pub fn read_log<C: Count>(path: &Path, format: Format) -> Result<Log<C>, Error> {
    Log::read(Source::open(path)?, format)
}

/// Parses the bytes of a log. Never panics, whatever the bytes are.
pub fn parse_log<C: Count>(bytes: &[u8], format: Format) -> Result<Log<C>, String> {
    Log::read(Source::Memory(bytes.to_vec()), format).map_err(|error| match error {
        Error::Recording { why, .. } => why,
        other => other.to_string(),
    })
}

/// A piece that is being filled, record by record.
struct Filling<C> {
    piece: Piece<C>,
    events: usize,
    checks: usize,
    system_calls: Option<u64>,
}

impl<C: Count> Filling<C> {
    fn begin(index: &PieceIndex<C>) -> Filling<C> {
        let PieceIndex { first, events, .. } = *index;
        Filling { piece: Piece::new(first), events, checks: first - events, system_calls: None }
    }

    /// Adds a record. `chain` is the log's checksum up to and including the record.
    fn take(&mut self, record: LogRecord<C>, chain: u32) {
        let entry = match record {
            LogRecord::SystemCalls(count) => {
                self.system_calls = Some(count);
                return;
            }
            LogRecord::Event(record) => {
                let (number, system_calls) = (self.events, self.system_calls.take());
                self.events += 1;
                LogEntry::Event { number, record, system_calls }
            }
            LogRecord::Check(record) => {
                let number = self.checks;
                self.checks += 1;
                LogEntry::Check { number, record }
            }
            LogRecord::Machine(_) | LogRecord::End(_) => return,
        };
        self.piece.entries.push((entry, chain));
    }
}

/// One pass over every record of a log.
struct Scan<C> {
    order: Order<C>,
    /// Where the next frame begins, and the log's checksum before it.
    offset: u64,
    chain: u32,
    /// The checksum up to the machine's record.
    machine_chain: u32,
    index: Vec<PieceIndex<C>>,
    filling: Option<Filling<C>>,
    loaded: Loaded<C>,
}

impl<C: Count> Scan<C> {
    /// The state before the first record.
    fn begin() -> Scan<C> {
        Scan {
            order: Order::new(),
            offset: MAGIC.len() as u64,
            chain: 0,
            machine_chain: 0,
            index: Vec::new(),
            filling: None,
            loaded: Loaded::new(),
        }
    }

    /// Adds the next record, if the order allows it. `chain` is the log's checksum up to and including the record. The
    /// record's frame ends at offset `end`.
    fn take(&mut self, record: LogRecord<C>, chain: u32, end: u64) -> Result<(), &'static str> {
        let (events, first) = (self.order.events, self.order.events + self.order.checks);
        self.order.take(&record)?;
        if matches!(record, LogRecord::Machine(_)) {
            self.machine_chain = chain;
        } else {
            if self.filling.is_none() {
                let (offset, at) = (self.offset, self.order.last);
                self.index.push(PieceIndex { offset, chain: self.chain, first, events, at });
            }
            // A piece never ends between a count of system calls and the event to which the count belongs.
            let may_end = matches!(record, LogRecord::Event(_) | LogRecord::Check(_));
            let index = &self.index[self.index.len() - 1];
            let filling = self.filling.get_or_insert_with(|| Filling::begin(index));
            filling.take(record, chain);
            let is_full = filling.piece.entries.len() >= PIECE_RECORDS || end - index.offset >= PIECE_BYTES;
            if may_end && is_full {
                self.end_piece();
            }
        }
        (self.offset, self.chain) = (end, chain);
        Ok(())
    }

    fn end_piece(&mut self) {
        if let Some(filling) = self.filling.take() {
            self.loaded.keep(self.index.len() - 1, Arc::new(filling.piece));
        }
    }
}

/// An event, and the number of system calls entered before it, if the log counts them.
pub type CountedEvent<C> = (EventRecord<C>, Option<u64>);

impl<C: Count> Log<C> {
    fn read(source: Source, format: Format) -> Result<Log<C>, Error> {
        let (length, end_of_data) = (source.length()?, source.end_of_data()?);
        let mut window = Window::new(&source, length);
        if end_of_data == 0 {
            return Err(source.damaged("the recording's log is empty: it was cut off before the run began"));
        }
        if !window.from(0, MAGIC.len() as u64)?.starts_with(MAGIC) {
            return Err(source.damaged("is not an event log of this version of ttvm (wrong magic bytes)"));
        }
        let (mut scan, mut torn) = (Scan::begin(), false);
        while scan.offset < length && !torn {
            let offset = scan.offset;
            let damaged =
                |why: String| source.damaged(format!("is damaged: the record at byte {offset} {why}"));
            let (left, arrived) = (length - offset, end_of_data.saturating_sub(offset));
            let rest = window.from(offset, MOST_FRAME_BYTES as u64)?;
            match next_frame(rest, left, arrived, scan.chain).map_err(damaged)? {
                Some((header, payload)) => {
                    let record = unpacked(format, payload).map_err(damaged)?;
                    let taken = scan.take(record, header.payload_check, offset + header.frame_bytes());
                    taken.map_err(|why| damaged(why.to_string()))?;
                }
                None => torn = true,
            }
        }
        scan.end_piece();
        Ok(Log {
            format,
            machine_hash: scan.order.machine_hash.unwrap_or_default(),
            end: scan.order.end.clone(),
            bytes: scan.offset,
            torn,
            order: scan.order,
            chain: (scan.machine_chain, scan.chain),
            source,
            index: scan.index,
            loaded: Mutex::new(scan.loaded),
        })
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded<C>> {
        self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Number of events.
    pub fn event_count(&self) -> usize {
        self.order.events
    }

    /// Number of checks.
    pub fn check_count(&self) -> usize {
        self.order.checks
    }

    /// Number of events and checks.
    pub fn entry_count(&self) -> usize {
        self.order.events + self.order.checks
    }

    /// Whether the log has a count of system calls for every event, as recounted logs have.
    pub fn has_system_calls(&self) -> bool {
        self.order.system_calls == self.order.events
    }

    /// The point of the last record.
    pub fn last_moment(&self) -> Moment<C> {
        self.order.last
    }

    /// The longest distance between two records, in the recording's unit.
    pub fn longest_stretch(&self) -> u64 {
        self.order.longest
    }

    /// The checksum of the whole log.
    pub fn check(&self) -> u32 {
        self.chain.1
    }

    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.index.len()
    }

    #[cfg(test)]
    pub(super) fn pieces_in_memory(&self) -> usize {
        self.loaded().count()
    }

    /// The piece with this number, from memory or from the file.
    fn piece(&self, number: usize) -> Result<Arc<Piece<C>>, Error> {
        if let Some(piece) = self.loaded().get(number) {
            return Ok(piece);
        }
        let index = &self.index[number];
        let end = self.index.get(number + 1).map_or(self.bytes, |next| next.offset);
        let changed = || self.source.damaged("was changed while it was being read");
        let bytes = self.source.read(index.offset, end - index.offset)?;
        let (mut rest, mut chain, mut filling) = (&bytes[..], index.chain, Filling::begin(index));
        while !rest.is_empty() {
            let left = rest.len() as u64;
            let frame = next_frame(rest, left, left, chain).ok().flatten();
            let (header, payload) = frame.ok_or_else(changed)?;
            filling.take(unpacked(self.format, payload).map_err(|_| changed())?, header.payload_check);
            (rest, chain) = (&rest[header.frame_bytes() as usize..], header.payload_check);
        }
        let piece = Arc::new(filling.piece);
        self.loaded().keep(number, piece.clone());
        Ok(piece)
    }

    /// The piece that holds an entry, or the last piece.
    pub fn piece_of(&self, entry: usize) -> Result<Arc<Piece<C>>, Error> {
        match self.index.partition_point(|index| index.first <= entry).checked_sub(1) {
            Some(number) => self.piece(number),
            None => Ok(Arc::new(Piece::new(0))),
        }
    }

    /// The entry with this number.
    pub fn entry(&self, entry: usize) -> Result<Option<LogEntry<C>>, Error> {
        Ok(self.piece_of(entry)?.entry(entry).cloned())
    }

    /// All entries from number `first` on, in the order of the log.
    pub fn entries_from(&self, first: usize) -> impl Iterator<Item = Result<LogEntry<C>, Error>> + '_ {
        (first..self.entry_count()).map(|number| {
            let entry = self.entry(number)?;
            entry.ok_or_else(|| self.source.damaged("was changed while it was being read"))
        })
    }

    /// All entries, in the order of the log.
    pub fn entries(&self) -> impl Iterator<Item = Result<LogEntry<C>, Error>> + '_ {
        self.entries_from(0)
    }

    /// All events, in the order of the log.
    pub fn events(&self) -> impl Iterator<Item = Result<EventRecord<C>, Error>> + '_ {
        self.entries().filter_map(|entry| match entry {
            Ok(LogEntry::Event { record, .. }) => Some(Ok(record)),
            Ok(LogEntry::Check { .. }) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// All checks, in the order of the log.
    pub fn checks(&self) -> impl Iterator<Item = Result<CheckRecord<C>, Error>> + '_ {
        self.entries().filter_map(|entry| match entry {
            Ok(LogEntry::Check { record, .. }) => Some(Ok(record)),
            Ok(LogEntry::Event { .. }) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The event with this number, and the number of system calls entered before it, if the log counts them.
    pub fn event_with_system_calls(&self, number: usize) -> Result<Option<CountedEvent<C>>, Error> {
        let Some(piece) = self.index.partition_point(|index| index.events <= number).checked_sub(1) else {
            return Ok(None);
        };
        let piece = self.piece(piece)?;
        Ok(piece.entries.iter().find_map(|(entry, _)| match entry {
            LogEntry::Event { number: this, record, system_calls } if *this == number => {
                Some((record.clone(), *system_calls))
            }
            _ => None,
        }))
    }

    /// The event with this number.
    pub fn event(&self, number: usize) -> Result<Option<EventRecord<C>>, Error> {
        Ok(self.event_with_system_calls(number)?.map(|(record, _)| record))
    }

    /// The power-on event, which is the first. Opening a recording checks that the log has this event.
    pub fn power_on(&self) -> Result<EventRecord<C>, Error> {
        self.event(0)?.ok_or_else(|| self.source.damaged("holds no events"))
    }

    /// Returns the number of events and the number of checks before the first entry at whose moment `before` is false.
    /// For all later entries, `before` must be false too.
    pub fn counts_while(&self, before: impl Fn(Moment<C>) -> bool) -> Result<(usize, usize), Error> {
        let Some(piece) = self.index.partition_point(|index| before(index.at)).checked_sub(1) else {
            return Ok((0, 0));
        };
        let index = &self.index[piece];
        let (mut events, mut checks) = (index.events, index.first - index.events);
        for (entry, _) in self.piece(piece)?.entries.iter().take_while(|(entry, _)| before(entry.at())) {
            match entry {
                LogEntry::Event { .. } => events += 1,
                LogEntry::Check { .. } => checks += 1,
            }
        }
        Ok((events, checks))
    }

    /// The last check before the entry number `entry` for which `is_wanted` returns true.
    pub fn last_check_before(
        &self,
        entry: usize,
        is_wanted: impl Fn(&CheckRecord<C>) -> bool,
    ) -> Result<Option<CheckRecord<C>>, Error> {
        for number in (0..entry.min(self.entry_count())).rev() {
            if let Some(LogEntry::Check { record, .. }) = self.entry(number)?
                && is_wanted(&record)
            {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The checksum of the log up to the entry that ends with this many events and checks. `None` if the log is
    /// shorter, or if no entry ends with these counts.
    pub fn check_behind(&self, events: usize, checks: usize) -> Result<Option<u32>, Error> {
        let Some(last) = events.checked_add(checks).and_then(|entries| entries.checked_sub(1)) else {
            return Ok(Some(self.chain.0));
        };
        let piece = self.piece_of(last)?;
        let Some(index) = last.checked_sub(piece.first) else { return Ok(None) };
        Ok(piece.entries.get(index).and_then(|(entry, chain)| {
            let counts = match entry {
                LogEntry::Event { number, .. } => (number + 1, last - number),
                LogEntry::Check { number, .. } => (last - number, number + 1),
            };
            (counts == (events, checks)).then_some(*chain)
        }))
    }

    /// Whether the log has at least this many events and checks.
    pub fn reaches(&self, events: usize, checks: usize) -> bool {
        events <= self.order.events && checks <= self.order.checks
    }
}

/// Functions for tests that change logs.
impl<C: Count> Log<C> {
    /// All records.
    pub fn records(&self) -> Result<Vec<LogRecord<C>>, Error> {
        let mut records: Vec<_> = self.order.machine_hash.map(LogRecord::Machine).into_iter().collect();
        for entry in self.entries() {
            match entry? {
                LogEntry::Event { record, system_calls, .. } => {
                    records.extend(system_calls.map(LogRecord::SystemCalls));
                    records.push(LogRecord::Event(record));
                }
                LogEntry::Check { record, .. } => records.push(LogRecord::Check(record)),
            }
        }
        records.extend(self.end.clone().map(LogRecord::End));
        Ok(records)
    }

    /// A log of these records, in format 5.
    pub fn of_records(records: &[LogRecord<C>]) -> Result<Log<C>, String> {
        let payloads: Vec<Vec<u8>> = records.iter().map(v1::to_bytes).collect();
        parse_log(&log_of_payloads(payloads.iter().map(Vec::as_slice)), Format::V5)
    }
}

impl<C: Count> PartialEq for Log<C> {
    fn eq(&self, other: &Log<C>) -> bool {
        // The checksum covers every byte, so this comparison need not read the records.
        (self.bytes, self.chain, self.torn) == (other.bytes, other.chain, other.torn)
    }
}
