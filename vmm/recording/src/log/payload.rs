//! Converts between a record and its bytes in the log, which are the payload of a frame.

use crate::log::records::LogRecord;
use crate::log::v1::{self, LogRecordV1};
use machine::Format;
use machine::position::Count;

/// Appends the bytes of a record.
pub(super) fn append_to<'a>(format: Format, bytes: Vec<u8>, record: impl Into<LogRecordV1<'a>>) -> Vec<u8> {
    match format {
        Format::V5 | Format::V6 => v1::append_to(bytes, &record.into()),
    }
}

/// Parses a record that fills all of `bytes`. The bytes may come from anywhere.
pub(super) fn unpacked<C: Count>(format: Format, bytes: &[u8]) -> Result<LogRecord<C>, String> {
    let taken = match format {
        Format::V5 | Format::V6 => v1::take_from_bytes(bytes),
    };
    let (record, left) = taken.map_err(|error| format!("is invalid ({error})"))?;
    // Bytes beyond the record would be a second meaning for the same file.
    if left.is_empty() { Ok(record) } else { Err("is longer than its contents".to_string()) }
}
