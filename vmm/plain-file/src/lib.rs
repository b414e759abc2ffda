//! Opens only plain files, because a file may come from a stranger.
//!
//! ```
//! use std::path::Path;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("image");
//! std::fs::write(&path, b"kernel")?;
//! assert_eq!(plain_file::read(&path, 100)?, b"kernel");
//! assert!(plain_file::read(&path, 3).is_err(), "the file is larger");
//! assert!(plain_file::open(Path::new("/dev/null")).is_err(), "a device");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! If a pipe stood in the place of a file, its reader would wait for ever. A device may have no end, or may act when it
//! is opened.

#![forbid(unsafe_code)]

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Opening waits neither for the other end of a pipe nor for a modem. An opened terminal does not become the
/// controlling terminal of this process.
const WITHOUT_WAITING: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// Opens a file for reading.
///
/// # Errors
///
/// If the file cannot be opened, or is not a plain file.
pub fn open(path: &Path) -> io::Result<File> {
    // Check first, because opening a device may already act.
    check(&std::fs::metadata(path)?)?;
    checked(File::options().read(true).custom_flags(WITHOUT_WAITING), path)
}

/// The start and the end of the first range of a file's data that ends after offset `at`. After the last range of data,
/// the result is an empty range at the file's end. A file system without holes reports that the whole file is data.
///
/// # Errors
///
/// If the file's size or its holes cannot be read.
pub fn next_data(file: &File, at: u64) -> io::Result<(u64, u64)> {
    let size_bytes = file.metadata()?.len().max(at);
    let seek = |at: u64, whence| lseek(file, at as i64, whence).map(|found| found as u64);
    match seek(at, Whence::SeekData) {
        Ok(data) => Ok((data, seek(data, Whence::SeekHole)?)),
        Err(Errno::ENXIO) => Ok((size_bytes, size_bytes)),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok((at, size_bytes)),
        Err(errno) => Err(errno.into()),
    }
}

/// The contents of a file of at most `most_bytes`.
///
/// # Errors
///
/// The errors of [`open`], or if the file is larger.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, most_bytes)
}

/// The contents of an open file from its position on, at most `most_bytes`.
///
/// # Errors
///
/// If the file cannot be read, or has more than `most_bytes`.
pub fn read_opened(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {most_bytes} bytes")));
    }
    Ok(bytes)
}

/// Opens a file for locking, or creates it. The file's contents do not change. A symbolic link is not followed.
///
/// # Errors
///
/// The errors of [`open`].
pub fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).custom_flags(WITHOUT_WAITING | libc::O_NOFOLLOW);
    checked(&options, path)
}

/// Opens a file, and checks that the opened file is plain.
fn checked(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = name_of(metadata.file_type());
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {kind}, not a regular file")))
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// One path for each kind of file that is not plain, and the name of this kind.
    fn others(folder: &Path) -> Vec<(PathBuf, &'static str)> {
        mkfifo(&folder.join("pipe"), Mode::S_IRWXU).unwrap();
        drop(UnixListener::bind(folder.join("socket")).unwrap());
        symlink(folder.join("pipe"), folder.join("link")).unwrap();
        let named = [("pipe", "a pipe"), ("socket", "a socket"), ("link", "a pipe"), (".", "a directory")];
        let named = named.map(|(name, kind)| (folder.join(name), kind));
        named.into_iter().chain([("/dev/zero".into(), "a device")]).collect()
    }

    #[test]
    fn what_is_no_plain_file_is_refused_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        for (path, kind) in others(folder.path()) {
            let expected = format!("it is {kind}, not a regular file");
            assert_eq!(open(&path).unwrap_err().to_string(), expected, "{}", path.display());
            assert_eq!(read(&path, 10).unwrap_err().to_string(), expected, "{}", path.display());
            assert!(lock_file(&path).is_err(), "{}", path.display());
        }
        let missing = open(&folder.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn files_are_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        // A file with a hole that is larger than any memory.
        File::options().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn files_to_be_locked_are_made_or_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("lock"), folder.path().join("link"));
        lock_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        lock_file(&path).unwrap();
        symlink(&path, &link).unwrap();
        assert!(lock_file(&link).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
    #[test]
    fn holes_are_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create_new(folder.path().join("file")).unwrap();
        assert_eq!(next_data(&file, 0).unwrap(), (0, 0));
        file.set_len(1 << 30).unwrap();
        file.write_at(b"data", 100 << 20).unwrap();
        let (data, hole) = next_data(&file, 0).unwrap();
        assert!(data <= 100 << 20 && hole > 100 << 20, "{data} to {hole}");
        let (next, end) = next_data(&file, hole).unwrap();
        // On a file system without holes the whole file is data.
        assert!(next == end && end == 1 << 30 || hole == 1 << 30, "{next} to {end}");
        assert_eq!(next_data(&file, 1 << 30).unwrap(), (1 << 30, 1 << 30));
    }
}
