//! The event log: one file of framed, checksummed records, only ever appended to. `FORMAT.md` describes it.

pub mod diff;
mod file;
mod frames;
mod records;

pub use file::{Log, LogWriter, is_being_written, log_of_payloads, parse_log, read_log};
pub use records::{EndRecord, EventRecord, LogRecord};
