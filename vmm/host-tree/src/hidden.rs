//! Paths that do not exist for the guest.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ext4_layout::Identity;

use crate::options::Error;

/// Hidden paths, and the inodes that they led to when the tree was made.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    paths: BTreeSet<PathBuf>,
    identities: BTreeSet<Identity>,
}

impl Hidden {
    pub(crate) fn new(paths: &[PathBuf]) -> Result<Hidden, Error> {
        let mut hidden = Hidden::default();
        for path in paths {
            if !path.is_absolute() {
                return Err(Error::NotAbsolute { path: path.clone() });
            }
            hidden.add(path);
        }
        Ok(hidden)
    }

    fn add(&mut self, path: &Path) {
        // Listings never follow symbolic links, so they have the path without links.
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            self.paths.extend(folder.canonicalize().map(|folder| folder.join(name)));
        }
        if let Ok(metadata) = path.symlink_metadata() {
            self.identities.insert(Identity { device: metadata.dev(), inode: metadata.ino() });
        }
        self.paths.insert(path.components().collect());
    }

    /// True if the entry `name` of a folder with this path is hidden.
    pub(crate) fn has(&self, folder: &Path, name: &[u8], identity: Identity) -> bool {
        self.has_inode(identity) || self.paths.contains(&folder.join(OsStr::from_bytes(name)))
    }

    /// True if all paths to an inode are hidden.
    pub(crate) fn has_inode(&self, identity: Identity) -> bool {
        self.identities.contains(&identity)
    }
}
