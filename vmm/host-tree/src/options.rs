//! The options of a tree, and the errors of a tree that cannot be made.

use std::io;
use std::path::{Path, PathBuf};

use ext4_layout::Time;
use thiserror::Error;

/// Which files of the host a tree shows.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the host that becomes the guest's root.
    pub root: PathBuf,
    /// Paths of the host that do not exist for the guest: whole folders, or files. Symbolic links
    /// in a path count as the place to which they lead, apart from the last name. A folder that has another path too,
    /// by a mount, is hidden there as well.
    pub hidden: Vec<PathBuf>,
    /// Folders and files that the guest sees at other places than the host.
    pub grafts: Vec<Graft>,
    /// The time of folders and files that the host does not have.
    pub time: Time,
}

/// A folder or a file at another place of the guest.
#[derive(Clone, Debug)]
pub struct Graft {
    /// The absolute path in the guest. Missing folders above are made; symbolic links above are followed. The
    /// host's own file or folder at this path disappears.
    pub at: PathBuf,
    /// The folder or file that the guest sees there.
    pub what: Grafted,
}

/// The folder or file of a [`Graft`].
#[derive(Clone, Debug)]
pub enum Grafted {
    /// A folder of the host.
    Folder(PathBuf),
    /// A file with these bytes and these permission bits.
    File(Vec<u8>, u16),
}

impl Options {
    /// Shows all below `root`.
    pub fn new(root: impl Into<PathBuf>, time: Time) -> Options {
        Options { root: root.into(), hidden: Vec::new(), grafts: Vec::new(), time }
    }

    /// The paths that should be hidden if nothing else is said: keys of a user with this home folder.
    pub fn hidden_by_default(home: &Path) -> Vec<PathBuf> {
        vec![home.join(".ssh"), home.join(".gnupg")]
    }
}

/// The reason for which a tree cannot be made.
#[derive(Debug, Error)]
pub enum Error {
    /// A folder of the host cannot be opened.
    #[error("cannot open the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The host's reason.
        source: io::Error,
    },
    /// A path does not begin with `/`.
    #[error("{} is not an absolute path", path.display())]
    NotAbsolute {
        /// The path.
        path: PathBuf,
    },
    /// The guest's root itself cannot be replaced.
    #[error("{} names the root; give a path below the root", path.display())]
    GraftAtRoot {
        /// The path.
        path: PathBuf,
    },
    /// The host's kernel has no `openat2`, or a filter forbids it.
    #[error("the host cannot open files below a folder only (openat2, Linux 5.6)")]
    NoOpenat2 {
        /// The host's reason.
        source: io::Error,
    },
    /// The files of the process are not in /proc.
    #[error("the host has no /proc/self/fd, by which checked files are opened")]
    NoProc {
        /// The host's reason.
        source: io::Error,
    },
    /// The disk of these files cannot be made.
    #[error("cannot lay out the disk")]
    Layout(#[from] ext4_layout::Error),
}
