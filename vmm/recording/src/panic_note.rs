//! A note in the recording that the guest's kernel panicked. The note is written if the run went on after the
//! panic. In such a run, the log's end says only that the guest reset itself or was ended.
//!
//! The note is for people. Replay ignores the note, and packs leave it out.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::PANICKED;

/// The largest size in bytes of a note that is read.
const MAX_NOTE_BYTES: u64 = 16_384;
/// A longer line is cut to this length.
const MAX_LINE_CHARS: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Note {
    /// The first line of the kernel's report.
    line: String,
}

/// Writes the note. Failing to write the note does no harm.
pub fn write_panic_note(folder: &Path, line: &str) {
    let note = Note { line: line.chars().take(MAX_LINE_CHARS).collect() };
    let text = serde_json::to_string(&note).expect("plain data in memory always serializes");
    if let Err(error) = std::fs::write(folder.join(PANICKED), text) {
        log::debug!("there is no note of the panic: {error}");
    }
}

/// The first line of the kernel's report, if there is a note. The note may come from a stranger, so control
/// characters are replaced.
pub fn read_panic_note(folder: &Path) -> Option<String> {
    let bytes = plain_file::read(&folder.join(PANICKED), MAX_NOTE_BYTES).ok()?;
    let Note { line } = serde_json::from_slice(&bytes).ok()?;
    let visible = |c: char| if c.is_control() { '?' } else { c };
    Some(line.chars().take(MAX_LINE_CHARS).map(visible).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_again_and_a_strangers_obeys_nobody() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_panic_note(folder.path()), None);
        write_panic_note(folder.path(), "Kernel panic - not syncing: x");
        assert_eq!(read_panic_note(folder.path()).as_deref(), Some("Kernel panic - not syncing: x"));
        std::fs::write(folder.path().join(PANICKED), br#"{"line":"\u001b[2Jx"}"#).unwrap();
        assert_eq!(read_panic_note(folder.path()).as_deref(), Some("?[2Jx"));
        std::fs::write(folder.path().join(PANICKED), "{").unwrap();
        assert_eq!(read_panic_note(folder.path()), None);
    }
}
