//! Appending to the file of an event log.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::position::Count;
use crate::recording::log::frames::{MAGIC, MAX_FRAME_BYTES, framed};
use crate::recording::log::records::LogRecord;
use crate::recording::log::v1;

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

    #[cfg(test)]
    pub(super) fn on(file: File, path: PathBuf) -> LogWriter {
        LogWriter { file, path, bytes: MAGIC.len() as u64, chain: 0 }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a record and hands it to the operating system, so that only a crash of the host can lose it.
    ///
    /// Where that fails (a full disk), what was written before stays whole.
    pub fn append<C: Count>(&mut self, record: &LogRecord<C>) -> Result<(), Error> {
        let payload = v1::to_bytes(record);
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

/// Whether a recorder still writes the log.
pub fn is_being_written(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
