//! Shows folders and files of the host to a guest, as an ext4 disk.
//!
//! ```
//! use host_tree::{Disk, Options};
//!
//! let folder = tempfile::tempdir()?;
//! std::fs::write(folder.path().join("hello"), "world")?;
//! let options = Options::new(folder.path(), ext4_layout::Time::default());
//! let mut disk = Disk::new(ext4_layout::Options::new(*b"sixteen bytes id", 0), &options)?;
//! let superblock = disk.read_block(0)?.expect("it is not zero");
//! assert_eq!(superblock[1024 + 56..1024 + 58], [0x53, 0xef]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`HostTree`] lists folders and reads files; [`Disk`] adds the layout of the package `ext4-layout`. The guest asks for
//! numbers of blocks, and never for names.
//!
//! # What is opened
//!
//! Only folders and regular files below the root and below grafted folders are opened, by `openat2` with `RESOLVE_BENEATH`,
//! `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`. No pipe, socket or device is ever opened; the guest sees their inodes.
//! Mounted file systems are followed. File systems of the kernel (proc, sysfs, devpts, cgroup and their like) are empty
//! folders. Nothing is written; a file system may note the times of access.
//!
//! # What the guest does not see
//!
//! Hidden paths ([`Options::hidden`]) do not exist. A folder that the user may not list is empty, and so is a file that the
//! user may not read. A file that changed since its folder was listed gives errors. Device, inode, size, mtime and ctime are
//! compared before and after each reading. A change within one tick of the host's clock for files, some
//! milliseconds, can escape the comparison. [`HostTree::take_warnings`] names these files, each once.

#![forbid(unsafe_code)]

mod beneath;
mod disk;
mod entries;
mod files;
mod graft;
mod hidden;
mod options;
mod place;
mod special;
mod tree;
mod warning;

pub use disk::Disk;
pub use options::{Error, Graft, Grafted, Options};
pub use tree::{HostTree, Unreadable};
pub use warning::{Warning, WarningKind};
