//! Lists an opened folder.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use ext4_layout::{Entry, Id, Identity, Kind, Time};
use rustix::fs::{Access, AtFlags, Dir, FileType, Stat, accessat, major, minor, readlinkat, statat};
use rustix::io::Errno;

/// An entry of a folder, and whether the user may read its contents.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) is_readable: bool,
}

/// The entries of a folder.
#[derive(Default)]
pub(crate) struct Listing {
    /// The entries, without numbers.
    pub(crate) found: Vec<Found>,
    /// Names that cannot be looked at, and why.
    pub(crate) lost: Vec<(Vec<u8>, io::Error)>,
}

/// Lists an opened folder. An entry that disappears meanwhile is left out.
pub(crate) fn list(folder: OwnedFd) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => listing.found.extend(found(&folder, name, &stat)),
            Err(Errno::NOENT) => (),
            Err(errno) => listing.lost.push((name.to_bytes().to_vec(), errno.into())),
        }
    }
    match listing.lost.pop() {
        // The user may list the folder, but not use its names.
        Some((_, error)) if listing.found.is_empty() => Err(error),
        last => {
            listing.lost.extend(last);
            Ok(listing)
        }
    }
}

fn found(folder: &OwnedFd, name: &CStr, stat: &Stat) -> Option<Found> {
    let kind = kind(folder, name, stat)?;
    let is_readable = kind != Kind::File || stat.st_size == 0 || may_read(folder, name, stat);
    Some(Found { entry: entry_of(name.to_bytes(), kind, stat), is_readable })
}

/// The entry of a file with this state.
pub(crate) fn entry_of(name: &[u8], kind: Kind, stat: &Stat) -> Entry {
    let size = if kind == Kind::File { stat.st_size } else { 0 };
    Entry {
        name: name.to_vec(),
        id: Id(0),
        kind,
        permissions: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size_bytes: size.max(0) as u64,
        mtime: Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 },
        ctime: Time { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 },
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        identity: identity(stat),
    }
}

pub(crate) fn identity(stat: &Stat) -> Identity {
    Identity { device: stat.st_dev, inode: stat.st_ino }
}

fn kind(folder: &OwnedFd, name: &CStr, stat: &Stat) -> Option<Kind> {
    let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Some(Kind::Folder),
        FileType::RegularFile => Some(Kind::File),
        FileType::Symlink => Some(Kind::Symlink(readlinkat(folder, name, Vec::new()).ok()?.into_bytes())),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::CharacterDevice(major, minor)),
        FileType::BlockDevice => Some(Kind::BlockDevice(major, minor)),
        FileType::Unknown => None,
    }
}

/// Whether the user may read a file. A file that everyone may read needs no question; an access control list that still
/// forbids reading shows later.
fn may_read(folder: &OwnedFd, name: &CStr, stat: &Stat) -> bool {
    stat.st_mode & 0o444 == 0o444 || accessat(folder, name, Access::READ_OK, AtFlags::EACCESS).is_ok()
}
