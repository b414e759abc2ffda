//! Reads files, and notices if they change.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use ext4_layout::{Id, Kind};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, pread};

use crate::beneath::open_file;
use crate::entries::entry_of;
use crate::place::FileState;

/// The largest number of files that are open at once.
const MOST_OPEN: usize = 64;

/// The result of reading a part of a file.
#[derive(Debug)]
pub(crate) enum Read {
    /// The buffer has the bytes.
    Done,
    /// The file is not as it was when its folder was listed.
    Changed,
    Failed(io::Error),
}

/// Open files; the last used file is in front.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: VecDeque<(Id, OwnedFd)>,
}

impl OpenFiles {
    /// Fills `bytes` from `offset` on. Bytes behind the end of the file are left alone. `find` opens the file's path if the
    /// file is not open.
    pub(crate) fn read(
        &mut self,
        id: Id,
        state: &FileState,
        find: impl FnOnce() -> io::Result<OwnedFd>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Read {
        let file = match self.file(id, state, find) {
            Ok(Some(file)) => file,
            Ok(None) => return Read::Changed,
            Err(error) => return Read::Failed(error),
        };
        let count = state.size_bytes.saturating_sub(offset).min(bytes.len() as u64);
        match read_unchanged(file, state, offset, &mut bytes[..count as usize]) {
            Ok(true) => Read::Done,
            Ok(false) => Read::Changed,
            Err(error) => Read::Failed(error),
        }
    }

    /// The open file; `None` if the path leads to another file.
    fn file(
        &mut self,
        id: Id,
        state: &FileState,
        find: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Option<&OwnedFd>> {
        let open = match self.files.iter().position(|&(open, _)| open == id) {
            Some(at) => self.files.remove(at),
            None => match find() {
                Ok(found) if !is_unchanged(&found, state)? => None,
                Ok(found) => Some((id, open_file(&found)?)),
                // The file was deleted, or a folder above became a symbolic link.
                Err(error) if is_gone(&error) => None,
                Err(error) => return Err(error),
            },
        };
        let Some(open) = open else { return Ok(None) };
        self.files.truncate(MOST_OPEN - 1);
        self.files.push_front(open);
        Ok(self.files.front().map(|(_, file)| file))
    }
}

fn is_gone(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE))
}

/// Reads bytes; false if the file differs from the listed file before or after the reading.
fn read_unchanged(file: &OwnedFd, state: &FileState, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
    if !is_unchanged(file, state)? {
        return Ok(false);
    }
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(file, &mut bytes[filled..], offset + filled as u64) {
            // The file is shorter than it was.
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(Errno::INTR) => (),
            Err(errno) => return Err(errno.into()),
        }
    }
    is_unchanged(file, state)
}

fn is_unchanged(file: &OwnedFd, state: &FileState) -> io::Result<bool> {
    let stat = fstat(file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file && FileState::from(&entry_of(b"", Kind::File, &stat)) == *state)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::fs::{CWD, Mode, OFlags, openat, stat};

    use super::*;

    fn state(path: &Path) -> FileState {
        FileState::from(&entry_of(b"", Kind::File, &stat(path).unwrap()))
    }

    fn find(path: &Path) -> io::Result<OwnedFd> {
        Ok(openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?)
    }

    #[test]
    fn few_files_stay_open_and_the_last_ones_need_no_path() {
        let folder = tempfile::tempdir().unwrap();
        let (mut open, mut bytes) = (OpenFiles::default(), [0; 10]);
        let path = |number: u64| folder.path().join(number.to_string());
        for number in 0..200 {
            fs::write(path(number), format!("file {number:03}")).unwrap();
            let state = state(&path(number));
            let read = open.read(Id(number), &state, || find(&path(number)), 5, &mut bytes);
            assert!(matches!(read, Read::Done), "{read:?}");
            assert_eq!(bytes[..3], *format!("{number:03}").as_bytes());
            assert_eq!(open.files.len(), MOST_OPEN.min(number as usize + 1));
        }
        let state = state(&path(150));
        let read = open.read(Id(150), &state, || panic!("the file is open"), 0, &mut bytes);
        assert!(matches!(read, Read::Done));
        assert_eq!(bytes, *b"file 150\0\0");
    }
}
