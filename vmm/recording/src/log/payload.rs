//! Converts between a record and its bytes in the log, which are the payload of a frame.

use crate::log::records::{EventRecord, LogRecord};
use crate::log::v1::{self, LogRecordV1};
use cpu::Turn;
use machine::Format;
use machine::config::MAX_PROCESSORS;
use machine::inputs::Event;
use machine::position::Count;

/// Appends the bytes of a record.
pub(super) fn append_to<'a>(format: Format, bytes: Vec<u8>, record: impl Into<LogRecordV1<'a>>) -> Vec<u8> {
    match format {
        Format::V5 | Format::V6 => v1::append_to(bytes, &record.into()),
    }
}

/// Parses a record that fills all of `bytes`. The bytes may come from strangers.
pub(super) fn unpacked<C: Count>(format: Format, bytes: &[u8]) -> Result<LogRecord<C>, String> {
    let taken = match format {
        Format::V5 | Format::V6 => v1::take_from_bytes(bytes),
    };
    let (record, left) = taken.map_err(|error| format!("is invalid ({error})"))?;
    if let LogRecord::Event(EventRecord { event: Event::Turns(turns), .. }) = &record {
        check_turns(format, turns)?;
    }
    // Bytes after the record are refused, so that each record has only one encoding.
    if left.is_empty() { Ok(record) } else { Err("is longer than its contents".to_string()) }
}

/// Checks the turns of an event. A turn's processor may be one that the machine does not have. The machine skips such
/// turns.
fn check_turns(format: Format, turns: &[Turn]) -> Result<(), String> {
    if format == Format::V5 {
        return Err("gives turns, and the machine has one processor".to_string());
    }
    let is_possible = |turn: &Turn| turn.processor < MAX_PROCESSORS && turn.steps > 0;
    if turns.is_empty() || turns.len() > Turn::MOST_AT_ONCE || !turns.iter().all(is_possible) {
        return Err("gives turns that no machine can take".to_string());
    }
    Ok(())
}
