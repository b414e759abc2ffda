//! Where a log's bytes are read from: a file, or memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use machine::error::Error;

/// The number of bytes that are read at once.
const WINDOW_BYTES: u64 = 4 << 20;
/// The number of bytes that are read at once in the search for the last byte that is not zero.
const TAIL_BYTES: u64 = 1 << 16;

/// The bytes of a log.
#[derive(Debug)]
pub(super) enum Source {
    /// A file, open since it was first read, and its path for messages.
    File(File, PathBuf),
    /// The whole log in memory.
    Memory(Vec<u8>),
}

impl Source {
    /// Opens a log's file.
    pub fn open(path: &Path) -> Result<Source, Error> {
        let file = plain_file::open(path).map_err(|error| cannot_be_read(path, &error))?;
        Ok(Source::File(file, path.to_path_buf()))
    }

    /// Number of bytes.
    pub fn length(&self) -> Result<u64, Error> {
        match self {
            Source::File(file, path) => {
                Ok(file.metadata().map_err(|error| cannot_be_read(path, &error))?.len())
            }
            Source::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads `count` bytes at `offset`. The caller guarantees that the source has these bytes.
    pub fn read(&self, offset: u64, count: u64) -> Result<Vec<u8>, Error> {
        match self {
            Source::File(file, path) => {
                let mut bytes = vec![0; count as usize];
                file.read_exact_at(&mut bytes, offset).map_err(|error| cannot_be_read(path, &error))?;
                Ok(bytes)
            }
            Source::Memory(bytes) => Ok(bytes[offset as usize..(offset + count) as usize].to_vec()),
        }
    }

    /// Makes an error about the log's contents.
    pub fn damaged(&self, why: impl Into<String>) -> Error {
        match self {
            Source::File(_, path) => Error::recording(path, why),
            Source::Memory(_) => Error::recording("event log", why),
        }
    }

    /// The offset of the end of the last byte that is not zero.
    pub fn end_of_data(&self) -> Result<u64, Error> {
        let mut end = self.length()?;
        while end > 0 {
            let count = end.min(TAIL_BYTES);
            let bytes = self.read(end - count, count)?;
            if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
                return Ok(end - count + last as u64 + 1);
            }
            end -= count;
        }
        Ok(0)
    }
}

fn cannot_be_read(path: &Path, error: &std::io::Error) -> Error {
    Error::recording(path, format!("cannot be read: {error}"))
}

/// A buffer that moves forward along a source.
pub(super) struct Window<'a> {
    source: &'a Source,
    length: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    /// A window over the first `length` bytes of a source.
    pub fn new(source: &'a Source, length: u64) -> Window<'a> {
        Window { source, length, start: 0, bytes: Vec::new() }
    }

    /// The bytes from `offset` on: at least `wanted` bytes, or the whole rest.
    pub fn from(&mut self, offset: u64, wanted: u64) -> Result<&[u8], Error> {
        let wanted = wanted.min(self.length - offset);
        if offset < self.start || offset + wanted > self.start + self.bytes.len() as u64 {
            self.bytes = self.source.read(offset, (self.length - offset).min(WINDOW_BYTES.max(wanted)))?;
            self.start = offset;
        }
        Ok(&self.bytes[(offset - self.start) as usize..])
    }
}
