//! The output of a guest's console: standard output, and optionally a file.
//!
//! An output may fail, because its reader is gone or a disk is full. The run does not depend on the outputs. After a
//! failure one warning is logged, and the guest runs on without this output. A replay of the recording shows all
//! output.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, poll};

use machine::error::Error;

/// The size in bytes of one write. A writable pipe accepts this number of bytes without blocking.
const PIECE_BYTES: usize = 4096;
/// The longest time in milliseconds by which a reader that does not read can delay the end of the run.
const PATIENCE_MS: u16 = 100;

/// Standard output, and a copy in a file.
pub struct Screen {
    is_shown: bool,
    copy: Option<(PathBuf, File)>,
    /// Whether the run is ending. If it is, writes no longer wait for a reader that does not read.
    ending: Arc<AtomicBool>,
}

impl Screen {
    /// Creates the file, if a file is wanted. When `ending` is set, writes no longer wait for readers.
    pub fn new(copy: Option<&Path>, ending: Arc<AtomicBool>) -> Result<Screen, Error> {
        let create = |path: &Path| match File::create(path) {
            Ok(file) => Ok((path.to_path_buf(), file)),
            Err(source) => Err(Error::file("create", path)(source)),
        };
        Ok(Screen { is_shown: true, copy: copy.map(create).transpose()?, ending })
    }

    /// A screen that is only a file.
    pub fn file(file: (PathBuf, File), ending: Arc<AtomicBool>) -> Screen {
        Screen { is_shown: false, copy: Some(file), ending }
    }

    /// Writes bytes to all outputs that still work.
    pub fn show(&mut self, bytes: &[u8]) {
        if let Some((path, file)) = &mut self.copy
            && let Err(error) = file.write_all(bytes)
        {
            log::warn!("cannot write {}: {error}; the guest goes on without this file", path.display());
            self.copy = None;
        }
        if self.is_shown
            && let Err(errno) = self.write(std::io::stdout().as_fd(), bytes)
        {
            let error = std::io::Error::from(errno);
            log::warn!("cannot write the console's output: {error}; the guest goes on without it");
            self.is_shown = false;
        }
    }

    /// Writes bytes to standard error in place of standard output, and to the file.
    pub fn show_aside(&mut self, bytes: &[u8]) {
        let is_shown = std::mem::replace(&mut self.is_shown, false);
        self.show(bytes);
        self.is_shown = is_shown;
        // Nobody can be told that standard error failed.
        let _ = self.write(std::io::stderr().as_fd(), bytes);
    }

    fn write(&self, to: BorrowedFd<'_>, bytes: &[u8]) -> nix::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            match poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PATIENCE_MS) {
                Ok(0) | Err(nix::Error::EINTR) if self.ending.load(Ordering::Relaxed) => return Ok(()),
                Ok(0) | Err(nix::Error::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            match nix::unistd::write(to, &left[..left.len().min(PIECE_BYTES)]) {
                Ok(count) => left = &left[count..],
                Err(nix::Error::EINTR | nix::Error::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
