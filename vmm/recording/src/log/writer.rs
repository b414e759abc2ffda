//! Appends records to the file of an event log.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::log::frames::{MAGIC, MAX_FRAME_BYTES, header_of};
use crate::log::payload::append_to;
use crate::log::records::{EventRecord, LogRecord};
use crate::log::v1::LogRecordV1;
use machine::Format;
use machine::error::Error;
use machine::position::Count;

/// Disk space in bytes that is reserved for later records. If a checkpoint fills the disk, the checkpoint is
/// dropped, and the log still has this space.
const RESERVE_BYTES: u64 = 256 << 10;

/// Appends records to a log file.
pub struct LogWriter {
    file: File,
    path: PathBuf,
    format: Format,
    /// Disk space is reserved up to this offset in the file.
    reserved: u64,
    /// Length of the file up to the last whole record.
    bytes: u64,
    /// Checksum of the last payload.
    chain: u32,
    /// A buffer that is used for every payload. Allocating a buffer for each payload would take longer than writing the
    /// payload.
    payload: Vec<u8>,
}

impl LogWriter {
    /// Creates the file of a new log, in this format. Fails if the file exists.
    pub fn create(path: &Path, format: Format) -> Result<LogWriter, Error> {
        let mut file = File::create_new(path).map_err(Error::file("create", path))?;
        // The lock only tells readers that a recorder still writes. On a file system without locks, readers do not
        // learn about the recorder.
        let _ = file.try_lock();
        file.write_all(MAGIC).map_err(Error::file("write", path))?;
        let mut log = LogWriter::behind_magic(file, path.to_path_buf(), format, 0);
        log.reserve();
        Ok(log)
    }

    fn behind_magic(file: File, path: PathBuf, format: Format, reserved: u64) -> LogWriter {
        LogWriter { file, path, format, reserved, bytes: MAGIC.len() as u64, chain: 0, payload: Vec::new() }
    }

    #[cfg(test)]
    pub(super) fn on(file: File, path: PathBuf) -> LogWriter {
        LogWriter::behind_magic(file, path, Format::default(), u64::MAX)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a record, and passes it to the operating system. Only a crash of the host can then lose the record.
    ///
    /// If this fails, for example on a full disk, the records written before stay whole.
    pub fn append<C: Count>(&mut self, record: &LogRecord<C>) -> Result<(), Error> {
        self.append_stored(record)
    }

    /// Appends an event's record, as [`append`](LogWriter::append) does.
    pub fn append_event<C: Count>(&mut self, record: &EventRecord<C>) -> Result<(), Error> {
        self.append_stored(record)
    }

    fn append_stored<'a>(&mut self, record: impl Into<LogRecordV1<'a>>) -> Result<(), Error> {
        self.payload.clear();
        self.payload = append_to(self.format, std::mem::take(&mut self.payload), record);
        let payload = &self.payload[..];
        assert!(payload.len() <= MAX_FRAME_BYTES, "events come in small pieces");
        let (header, chain) = header_of(self.chain, payload);
        if let Err(error) = write_both(&mut self.file, &header, payload) {
            // A partial frame makes the log look cut off. So this code tries to remove the partial frame, and ignores a
            // failure.
            let _ = self.file.set_len(self.bytes);
            return Err(Error::file("write", &self.path)(error));
        }
        self.bytes += (header.len() + payload.len()) as u64;
        self.chain = chain;
        if self.reserved.saturating_sub(self.bytes) < RESERVE_BYTES / 2 {
            self.reserve();
        }
        Ok(())
    }

    /// Reserves disk space after the log's end. Readers do not see this space. If the disk is full, or the file system
    /// cannot reserve space, the log is written as long as possible.
    fn reserve(&mut self) {
        let end = self.bytes + RESERVE_BYTES;
        let from = self.bytes.max(self.reserved);
        let flags = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Err(errno) = fallocate(&self.file, flags, from as i64, (end - from) as i64) {
            log::debug!("no room is held for {}: {errno}", self.path.display());
            return;
        }
        self.reserved = end;
    }

    /// The checksum of all records appended so far.
    pub fn check(&self) -> u32 {
        self.chain
    }

    /// The recording's format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The path of the log's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LogWriter {
    /// Releases the reserved space.
    fn drop(&mut self) {
        if self.reserved != u64::MAX {
            let _ = self.file.set_len(self.bytes);
        }
    }
}

/// Writes `first` and then `second`. Uses one system call, if this call writes all bytes.
fn write_both(file: &mut File, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut pieces = [IoSlice::new(first), IoSlice::new(second)];
    let mut left = &mut pieces[..];
    while !left.is_empty() {
        match file.write_vectored(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The bytes of a log with these payloads, for tests of the reader. The payloads need not be valid records.
pub fn log_of_payloads<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut bytes, mut chain) = (MAGIC.to_vec(), 0);
    for payload in payloads {
        let (header, next) = header_of(chain, payload);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(payload);
        chain = next;
    }
    bytes
}

/// Whether a recorder still writes the log.
pub fn is_being_written(path: &Path) -> bool {
    plain_file::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
