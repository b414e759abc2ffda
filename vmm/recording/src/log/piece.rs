//! Pieces of a log: so many records in a row, unpacked. A log keeps few of them in memory, whatever its length.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::log::records::EventRecord;
use machine::checks::CheckRecord;
use machine::position::{Count, Moment};

/// Records in a piece at most.
pub(super) const PIECE_RECORDS: usize = 1024;
/// Bytes of the file in a piece, a little more at most.
pub(super) const PIECE_BYTES: u64 = 256 << 10;
/// Pieces that are kept in memory.
const MOST_PIECES: usize = 128;

/// An event or a check in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry<C> {
    /// What came in.
    Event {
        /// The event's number, counted from 0.
        number: usize,
        /// The event.
        record: EventRecord<C>,
        /// System calls entered until there, in a log that was recounted.
        system_calls: Option<u64>,
    },
    /// What was noted of the machine.
    Check {
        /// The check's number, counted from 0.
        number: usize,
        /// The check.
        record: CheckRecord<C>,
    },
}

impl<C: Copy> LogEntry<C> {
    /// Where it is.
    pub fn at(&self) -> Moment<C> {
        match self {
            LogEntry::Event { record, .. } => record.at,
            LogEntry::Check { record, .. } => record.at,
        }
    }
}

/// So many entries in a row.
#[derive(Debug)]
pub struct Piece<C> {
    /// Number of the first entry in it.
    pub(super) first: usize,
    /// The entries, each with the log's checksum behind it.
    pub(super) entries: Vec<(LogEntry<C>, u32)>,
}

impl<C> Piece<C> {
    /// A piece that begins with this entry.
    pub(super) fn new(first: usize) -> Piece<C> {
        Piece { first, entries: Vec::new() }
    }

    /// Whether the entry with this number is in it.
    pub fn contains(&self, entry: usize) -> bool {
        entry >= self.first && entry - self.first < self.entries.len()
    }

    /// The entry with this number, if it is in it.
    pub fn entry(&self, entry: usize) -> Option<&LogEntry<C>> {
        let index = entry.checked_sub(self.first)?;
        self.entries.get(index).map(|(entry, _)| entry)
    }
}

impl<C> Piece<C> {
    /// The log's checksum behind the entry with this number, if it is in it.
    pub fn check_behind(&self, entry: usize) -> Option<u32> {
        let index = entry.checked_sub(self.first)?;
        self.entries.get(index).map(|(_, check)| *check)
    }
}

/// How to find and read a piece.
#[derive(Clone, Debug)]
pub(super) struct PieceIndex<C> {
    /// Where its first frame begins.
    pub offset: u64,
    /// The log's checksum before it.
    pub chain: u32,
    /// Entries before it.
    pub first: usize,
    /// Events before it.
    pub events: usize,
    /// The first point in it.
    pub at: Moment<C>,
}

/// The pieces that are in memory: those that were used last.
#[derive(Debug)]
pub(super) struct Loaded<C> {
    pieces: BTreeMap<usize, (u64, Arc<Piece<C>>)>,
    uses: u64,
}

impl<C: Count> Loaded<C> {
    /// None.
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

    /// Keeps a piece, and gives up the one that was used longest ago if there are too many.
    pub fn keep(&mut self, number: usize, piece: Arc<Piece<C>>) {
        self.uses += 1;
        self.pieces.insert(number, (self.uses, piece));
        if self.pieces.len() > MOST_PIECES {
            let oldest = self.pieces.iter().min_by_key(|(_, (used, _))| *used).map(|(&number, _)| number);
            oldest.map(|number| self.pieces.remove(&number));
        }
    }

    /// How many are in memory.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.pieces.len()
    }
}
