//! Pieces of a log. A piece has consecutive events and checks, unpacked. Whatever a log's length, only a limited number
//! of pieces is in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::log::records::EventRecord;
use machine::checks::CheckRecord;
use machine::position::{Count, Moment};

/// Largest number of records in a piece.
pub(super) const PIECE_RECORDS: usize = 1024;
/// A piece ends when its records take this number of bytes in the file.
pub(super) const PIECE_BYTES: u64 = 256 << 10;
/// Largest number of pieces in memory.
const MOST_PIECES: usize = 128;

/// An event or a check, with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry<C> {
    /// An input.
    Event {
        /// The event's number, counted from 0.
        number: usize,
        /// The event.
        record: EventRecord<C>,
        /// The number of system calls entered before the event. `None` unless the log was recounted.
        system_calls: Option<u64>,
    },
    /// A summary of the machine's state.
    Check {
        /// The check's number, counted from 0.
        number: usize,
        /// The check.
        record: CheckRecord<C>,
    },
}

impl<C: Copy> LogEntry<C> {
    /// The entry's point.
    pub fn at(&self) -> Moment<C> {
        match self {
            LogEntry::Event { record, .. } => record.at,
            LogEntry::Check { record, .. } => record.at,
        }
    }
}

/// Consecutive entries of a log.
#[derive(Debug)]
pub struct Piece<C> {
    /// Number of the first entry.
    pub(super) first: usize,
    /// The entries, each with the checksum of the log up to and including the entry.
    pub(super) entries: Vec<(LogEntry<C>, u32)>,
}

impl<C> Piece<C> {
    /// An empty piece whose first entry will have this number.
    pub(super) fn new(first: usize) -> Piece<C> {
        Piece { first, entries: Vec::new() }
    }

    /// Whether the piece holds the entry with this number.
    pub fn contains(&self, entry: usize) -> bool {
        entry >= self.first && entry - self.first < self.entries.len()
    }

    /// The entry with this number, if the piece holds it.
    pub fn entry(&self, entry: usize) -> Option<&LogEntry<C>> {
        let index = entry.checked_sub(self.first)?;
        self.entries.get(index).map(|(entry, _)| entry)
    }
}

impl<C> Piece<C> {
    /// The checksum of the log up to and including the entry with this number, if the piece holds it.
    pub fn check_behind(&self, entry: usize) -> Option<u32> {
        let index = entry.checked_sub(self.first)?;
        self.entries.get(index).map(|(_, check)| *check)
    }
}

/// The information needed to find and read a piece.
#[derive(Clone, Debug)]
pub(super) struct PieceIndex<C> {
    /// Where the piece's first frame begins.
    pub offset: u64,
    /// The log's checksum before the piece.
    pub chain: u32,
    /// Number of entries before the piece.
    pub first: usize,
    /// Number of events before the piece.
    pub events: usize,
    /// The point of the piece's first entry.
    pub at: Moment<C>,
}

/// A cache of the pieces used last.
#[derive(Debug)]
pub(super) struct Loaded<C> {
    pieces: BTreeMap<usize, (u64, Arc<Piece<C>>)>,
    uses: u64,
}

impl<C: Count> Loaded<C> {
    /// An empty cache.
    pub fn new() -> Loaded<C> {
        Loaded { pieces: BTreeMap::new(), uses: 0 }
    }

    /// A piece by its number, if it is in memory.
    pub fn get(&mut self, number: usize) -> Option<Arc<Piece<C>>> {
        self.uses += 1;
        let (used, piece) = self.pieces.get_mut(&number)?;
        *used = self.uses;
        Some(piece.clone())
    }

    /// Adds a piece. Drops the least recently used piece if more than [`MOST_PIECES`] pieces are in memory.
    pub fn keep(&mut self, number: usize, piece: Arc<Piece<C>>) {
        self.uses += 1;
        self.pieces.insert(number, (self.uses, piece));
        if self.pieces.len() > MOST_PIECES {
            let oldest = self.pieces.iter().min_by_key(|(_, (used, _))| *used).map(|(&number, _)| number);
            oldest.map(|number| self.pieces.remove(&number));
        }
    }

    /// The number of pieces in memory.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.pieces.len()
    }
}
