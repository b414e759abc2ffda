//! Opens folders and files below a folder, and nothing else.
//!
//! A name is first opened with `O_PATH`, which neither reads nor starts anything. The kind is then known, and only a folder
//! or a regular file is opened for reading, through the same descriptor. So a name that changes its meaning in between
//! cannot make us open a pipe or a device.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, open, openat, openat2};

use crate::options::Error;
use crate::special::is_special;

/// The longest path in bytes that is opened at once. The kernel takes at most 4095.
const MOST_PATH_BYTES: usize = 3500;

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A folder of the host, below which others are opened.
#[derive(Debug)]
pub(crate) struct Base {
    folder: OwnedFd,
    path: PathBuf,
}

impl Base {
    /// Opens a folder that the user named. Symbolic links in the path are followed.
    pub(crate) fn open(path: &Path) -> Result<Base, Error> {
        let failed = |source| Error::Folder { path: path.into(), source };
        let canonical = path.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(&canonical, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Base { folder, path: canonical })
    }

    /// Checks that the host has what all other functions need.
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        self.find(&[]).map_err(|source| Error::NoOpenat2 { source })?;
        let fds = openat(CWD, "/proc/self/fd", PATH_ONLY, Mode::empty());
        fds.map(drop).map_err(|errno| Error::NoProc { source: errno.into() })
    }

    /// The path on the host of the place to which names lead.
    pub(crate) fn path(&self, names: &[&[u8]]) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(names.iter().map(|name| OsStr::from_bytes(name)));
        path
    }

    /// Opens what names lead to, without following any symbolic link, and without reading.
    pub(crate) fn find(&self, names: &[&[u8]]) -> io::Result<OwnedFd> {
        let beneath =
            |folder: &OwnedFd, path: &[u8]| openat2(folder, path, PATH_ONLY, Mode::empty(), RESOLVE);
        let (first, mut rest) = names.split_at(fitting(names));
        let first = if first.is_empty() { b".".to_vec() } else { first.join(&b'/') };
        let mut found = beneath(&self.folder, &first)?;
        while !rest.is_empty() {
            let (next, after) = rest.split_at(fitting(rest));
            found = beneath(&found, &next.join(&b'/'))?;
            rest = after;
        }
        Ok(found)
    }
}

/// The number of names that together are short enough to be opened at once.
fn fitting(names: &[&[u8]]) -> usize {
    let mut bytes = 0;
    let fits = |name: &&&[u8]| {
        bytes += name.len() + 1;
        bytes <= MOST_PATH_BYTES
    };
    names.iter().take_while(fits).count()
}

/// Opens a folder for listing. `None` if the folder belongs to a file system whose files are not kept on a medium.
pub(crate) fn open_folder(found: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    check_kind(&fstat(found)?, FileType::Directory)?;
    if is_special(fstatfs(found)?.f_type) {
        return Ok(None);
    }
    Ok(Some(openat(found, ".", READ | OFlags::DIRECTORY, Mode::empty())?))
}

/// Opens a regular file for reading.
pub(crate) fn open_file(found: &OwnedFd) -> io::Result<OwnedFd> {
    check_kind(&fstat(found)?, FileType::RegularFile)?;
    if is_special(fstatfs(found)?.f_type) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a file of the kernel"));
    }
    // A file cannot be opened through its descriptor in any other way.
    let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    Ok(openat(CWD, path, READ, Mode::empty())?)
}

fn check_kind(stat: &Stat, wanted: FileType) -> io::Result<()> {
    if FileType::from_raw_mode(stat.st_mode) == wanted {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "it has become a file of another kind"))
}
