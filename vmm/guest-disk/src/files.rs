//! The files of an ext2, ext3 or ext4 file system.
//!
//! Paths are resolved as Linux resolves them, with symbolic links. One request searches a bounded number of bytes of
//! folders.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::ext::{Ext, Inode, ROOT, damaged};
use crate::file_system::FileSystem;
use crate::journal;
use crate::source::ByteSource;

/// The largest number of bytes of folders that one request searches.
const MOST_SEARCHED: u64 = 1 << 30;
/// The largest number of symbolic links in the resolution of a path, as in Linux.
const MOST_LINKS: usize = 40;
/// The largest size in bytes of a symbolic link's target, and of a path, as in Linux.
const MOST_PATH_BYTES: u64 = 4096;

/// The files of a file system.
pub struct Files {
    ext: Ext,
    unread_journal: Option<String>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file with contents.
    Regular,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharacterDevice,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A kind that does not exist: the file's description is damaged.
    Unknown,
}

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Entry {
    /// The name in its folder. Bytes that are no UTF-8 are shown as U+FFFD.
    pub name: String,
    /// The kind.
    pub kind: Kind,
    /// The permission bits, with set-user-ID, set-group-ID and the sticky bit.
    pub mode: u16,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The time of the last change of the contents, in seconds since 1970 UTC.
    pub modified_seconds: i64,
    /// The major and the minor number of a device file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The damage of the file's description on the disk. The numbers are then 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The files in a folder.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Listing {
    /// The files, by name, or the file itself if the path names no folder.
    pub entries: Vec<Entry>,
    /// Whether the folder has more files than the caller wants.
    pub has_more: bool,
}

/// A file that is being read from its start.
pub struct OpenFile<'a> {
    ext: &'a mut Ext,
    inode: Inode,
    offset: u64,
}

/// A file that a path leads to.
struct Found {
    /// The path without links.
    path: Vec<u8>,
    inode: Inode,
}

impl Files {
    /// Opens the file system that begins at the source's start.
    ///
    /// # Errors
    ///
    /// If there is no ext2, ext3 or ext4 file system, or it is damaged, or it has a feature that is not supported.
    pub fn open<S: ByteSource + 'static>(mut source: S) -> Result<Files, Error> {
        let found = FileSystem::of(&mut source)?;
        if !found.as_ref().is_some_and(FileSystem::has_files) {
            let what = match found {
                Some(found) => format!("a file system of the kind {}", found.kind),
                None => "no known file system".to_string(),
            };
            return Err(Error::NoFiles(format!(
                "there is {what} here, and ttvm reads only files of ext2, ext3 and ext4; read it with `ttvm disk R mount`"
            )));
        }
        let mut ext = Ext::open(source)?;
        let mut unread_journal = None;
        if let Some(number) = ext.superblock.journal {
            let found = journal::read(&mut ext, number)?;
            ext.read_from_journal(found.blocks);
            unread_journal = found.unread;
        }
        Ok(Files { ext, unread_journal })
    }

    /// The reason why changes that are only in the journal are missing; `None` if no changes are missing.
    pub fn unread_journal(&self) -> Option<&str> {
        self.unread_journal.as_deref()
    }

    /// Lists a folder, or a single file that is no folder. Follows links in the path. Lists at most `most` files.
    ///
    /// # Errors
    ///
    /// If there is no file at the path, or the file system is damaged.
    pub fn list(&mut self, path: &[u8], most: usize) -> Result<Listing, Error> {
        let mut search = Search::of(self, path);
        let Found { path: at, inode } = search.find()?;
        if Kind::of(&inode) != Kind::Folder {
            let name = at.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            return Ok(Listing { entries: vec![search.entry(name, Ok(inode))], has_more: false });
        }
        search.count(inode.size)?;
        let (mut named, mut has_more) = (Vec::new(), false);
        search.ext.scan(&inode, |name, number| {
            if name == b"." || name == b".." {
                return ControlFlow::Continue(());
            }
            has_more = named.len() == most;
            if has_more {
                return ControlFlow::Break(());
            }
            named.push((name.to_vec(), number));
            ControlFlow::Continue(())
        })?;
        named.sort();
        let mut entries = Vec::new();
        for (name, number) in named {
            let inode = search.ext.inode(number);
            entries.push(search.entry(&name, inode));
        }
        Ok(Listing { entries, has_more })
    }

    /// Opens a file for reading. Follows links.
    ///
    /// # Errors
    ///
    /// If there is no file with contents at the path, or the file system is damaged.
    pub fn read(&mut self, path: &[u8]) -> Result<OpenFile<'_>, Error> {
        let mut search = Search::of(self, path);
        let Found { inode, .. } = search.find()?;
        let kind = Kind::of(&inode);
        if kind != Kind::Regular {
            return Err(search.refused(format!("it is a {}; give a file with contents", kind.in_words())));
        }
        Ok(OpenFile { ext: &mut self.ext, inode, offset: 0 })
    }
}

impl OpenFile<'_> {
    /// The file's size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.inode.size
    }

    /// Reads the next bytes. Returns their number, which is 0 at the file's end.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read, or the file system is damaged.
    pub fn read(&mut self, to: &mut [u8]) -> Result<usize, Error> {
        let count = self.ext.read_file(&self.inode, self.offset, to)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl Kind {
    fn of(inode: &Inode) -> Kind {
        match inode.mode >> 12 {
            0o10 => Kind::Regular,
            0o04 => Kind::Folder,
            0o12 => Kind::Link,
            0o06 => Kind::BlockDevice,
            0o02 => Kind::CharacterDevice,
            0o01 => Kind::Pipe,
            0o14 => Kind::Socket,
            _ => Kind::Unknown,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Kind::Regular => "file",
            Kind::Folder => "folder",
            Kind::Link => "symbolic link",
            Kind::BlockDevice => "block device",
            Kind::CharacterDevice => "character device",
            Kind::Pipe => "named pipe",
            Kind::Socket => "socket",
            Kind::Unknown => "file of an unknown kind",
        }
    }

    /// The letter by which `ls -l` shows the kind.
    pub fn letter(self) -> char {
        match self {
            Kind::Regular => '-',
            Kind::Folder => 'd',
            Kind::Link => 'l',
            Kind::BlockDevice => 'b',
            Kind::CharacterDevice => 'c',
            Kind::Pipe => 'p',
            Kind::Socket => 's',
            Kind::Unknown => '?',
        }
    }
}

/// The search for one path, with its bound.
struct Search<'a> {
    ext: &'a mut Ext,
    wanted: &'a [u8],
    /// The number of bytes of folders that the search has read so far, at most.
    searched: u64,
}

impl<'a> Search<'a> {
    fn of(files: &'a mut Files, wanted: &'a [u8]) -> Search<'a> {
        Search { ext: &mut files.ext, wanted, searched: 0 }
    }

    /// Finds the file at the path. Follows all links.
    fn find(&mut self) -> Result<Found, Error> {
        if self.wanted.len() as u64 > MOST_PATH_BYTES {
            return Err(self.refused(format!("the path has more than {MOST_PATH_BYTES} bytes")));
        }
        let mut trail = vec![Found { path: b"/".to_vec(), inode: self.ext.inode(ROOT)? }];
        let mut pending = names(self.wanted);
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            let folder = trail.last().expect("the root is never removed");
            if Kind::of(&folder.inode) != Kind::Folder {
                return Err(self.refused(format!("{} is no folder", text(&folder.path))));
            }
            if name == b".." {
                trail.truncate(trail.len().max(2) - 1);
                continue;
            }
            let path = joined(&folder.path, &name);
            let inode = self.look_up(&folder.inode, &name)?;
            if Kind::of(&inode) != Kind::Link {
                trail.push(Found { path, inode });
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(self.refused(format!("the path has more than {MOST_LINKS} symbolic links")));
            }
            let target = self.target(&inode)?;
            if target.starts_with(b"/") {
                trail.truncate(1);
            }
            names(&target).into_iter().rev().for_each(|name| pending.push_front(name));
        }
        Ok(trail.pop().expect("the root is never removed"))
    }

    /// The file with this name in a folder.
    fn look_up(&mut self, folder: &Inode, name: &[u8]) -> Result<Inode, Error> {
        self.count(folder.size)?;
        let mut found = None;
        self.ext.scan(folder, |other, number| {
            if other != name {
                return ControlFlow::Continue(());
            }
            found = Some(number);
            ControlFlow::Break(())
        })?;
        match found {
            Some(number) => self.ext.inode(number),
            None => Err(self.refused("there is no such file at this position")),
        }
    }

    /// The target of a link.
    fn target(&mut self, link: &Inode) -> Result<Vec<u8>, Error> {
        if let Some(target) = link.short_target() {
            return Ok(target.to_vec());
        }
        if link.size > MOST_PATH_BYTES {
            return Err(damaged(format!("the target of a symbolic link has {} bytes", link.size)));
        }
        let mut target = vec![0; link.size as usize];
        let mut filled = 0;
        while filled < target.len() {
            match self.ext.read_file(link, filled as u64, &mut target[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(target)
    }

    /// A file's line in a listing.
    fn entry(&mut self, name: &[u8], inode: Result<Inode, Error>) -> Entry {
        let nothing = Entry {
            name: text(name),
            kind: Kind::Unknown,
            mode: 0,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            modified_seconds: 0,
            device: None,
            target: None,
            damage: None,
        };
        let inode = match inode {
            Ok(inode) => inode,
            Err(error) => return Entry { damage: Some(error.to_string()), ..nothing },
        };
        let kind = Kind::of(&inode);
        let (target, damage) = match (kind == Kind::Link).then(|| self.target(&inode)) {
            None => (None, None),
            Some(Ok(target)) => (Some(text(&target)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let is_device = matches!(kind, Kind::BlockDevice | Kind::CharacterDevice);
        Entry {
            kind,
            mode: inode.mode & 0o7777,
            uid: inode.uid,
            gid: inode.gid,
            size_bytes: inode.size,
            modified_seconds: inode.modified_seconds,
            device: is_device.then(|| inode.device()),
            target,
            damage,
            ..nothing
        }
    }

    /// Counts a look-up that searches this many bytes of folders.
    fn count(&mut self, bytes: u64) -> Result<(), Error> {
        /// A look-up in a small folder also takes time.
        const LEAST: u64 = 4096;
        self.searched = self.searched.saturating_add(bytes.max(LEAST));
        if self.searched > MOST_SEARCHED {
            let why = format!("the search of folders exceeds the limit of {MOST_SEARCHED} bytes");
            return Err(self.refused(why));
        }
        Ok(())
    }

    fn refused(&self, why: impl Into<String>) -> Error {
        Error::Path { path: text(self.wanted), why: why.into() }
    }
}

/// The parts of a path, without `.` and empty parts.
fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.map(<[u8]>::to_vec).collect()
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
    [folder, slash, name].concat()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
