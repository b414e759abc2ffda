//! The layout's memory of a folder, a file or another entry.

use crate::extents::Extents;
use crate::folder::{FOLDER, Names};
use crate::tree::{Entry, Id, Kind, Time};

/// The largest number of hard links of an inode.
pub(crate) const MOST_LINKS: u32 = 65_000;

/// An inode of the host area.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inode: u32,
    /// The node of the folder that has the node's first name. The root is its own parent.
    pub(crate) parent: u32,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// The number of hard links of a node that is no folder.
    pub(crate) links: u32,
    pub(crate) body: Body,
}

/// The part of a node that depends on its kind.
#[derive(Debug)]
pub(crate) enum Body {
    /// A folder that was not listed. A folder without a number has no entries.
    Unlisted(Option<Id>),
    Folder(Box<Folder>),
    File {
        id: Id,
        size_bytes: u64,
        extents: Extents,
    },
    Symlink {
        target: Box<[u8]>,
        extents: Extents,
    },
    Fifo,
    Socket,
    CharacterDevice(u32, u32),
    BlockDevice(u32, u32),
}

/// A listed folder.
#[derive(Debug)]
pub(crate) struct Folder {
    /// `None` if the disk had no room for the names.
    pub(crate) names: Option<Names>,
    pub(crate) extents: Extents,
    pub(crate) subfolders: u32,
}

impl Node {
    pub(crate) fn new(inode: u32, parent: u32, entry: &Entry) -> Node {
        Node {
            inode,
            parent,
            permissions: entry.permissions & 0o7777,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            ctime: entry.ctime,
            links: entry.links.clamp(1, MOST_LINKS),
            body: Body::new(entry),
        }
    }

    /// The code of the kind in an entry of a folder.
    pub(crate) fn code(&self) -> u8 {
        match self.body {
            Body::File { .. } => 1,
            Body::Unlisted(_) | Body::Folder(_) => FOLDER,
            Body::CharacterDevice(..) => 3,
            Body::BlockDevice(..) => 4,
            Body::Fifo => 5,
            Body::Socket => 6,
            Body::Symlink { .. } => 7,
        }
    }

    pub(crate) fn is_folder(&self) -> bool {
        self.code() == FOLDER
    }
}

impl Body {
    /// A body without blocks.
    fn new(entry: &Entry) -> Body {
        let extents = Extents::default();
        match &entry.kind {
            Kind::Folder => Body::Unlisted(Some(entry.id)),
            Kind::File => Body::File { id: entry.id, size_bytes: entry.size_bytes, extents },
            Kind::Symlink(target) => Body::Symlink { target: target.clone().into(), extents },
            Kind::Fifo => Body::Fifo,
            Kind::Socket => Body::Socket,
            &Kind::CharacterDevice(major, minor) => Body::CharacterDevice(major, minor),
            &Kind::BlockDevice(major, minor) => Body::BlockDevice(major, minor),
        }
    }
}
