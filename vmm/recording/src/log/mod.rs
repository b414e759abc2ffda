//! The event log: one file of framed, checksummed records, only ever appended to. `FORMAT.md` describes the
//! format.
//!
//! [`Log`] is a log that was read. A `Log` has an index of the file, and holds the records used last in memory.
//! [`LogWriter`] appends records to a log.

mod contents;
pub mod diff;
mod frames;
mod order;
mod payload;
mod piece;
mod records;
mod source;
#[cfg(test)]
mod tests;
mod v1;
mod writer;

pub use contents::{CountedEvent, Log, parse_log, read_log};
pub use piece::{LogEntry, Piece};
pub use records::{EndRecord, EventRecord, LogRecord};
pub use writer::{LogWriter, is_being_written, log_of_payloads};
