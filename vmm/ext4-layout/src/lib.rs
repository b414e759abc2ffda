//! Makes the blocks of an ext4 file system from a tree of folders and files, each block when it is first read.
//!
//! ```
//! use ext4_layout::{Block, Entry, Id, Identity, Kind, Layout, Options, Time, Tree};
//!
//! /// A root with one file.
//! struct Small;
//!
//! fn entry(name: &str, id: u64, kind: Kind, size_bytes: u64) -> Entry {
//!     let (name, id, identity) = (name.into(), Id(id), Identity { device: 0, inode: id });
//!     let (mtime, ctime) = (Time::default(), Time::default());
//!     Entry { name, id, kind, permissions: 0o755, uid: 0, gid: 0, size_bytes, mtime, ctime, links: 1, identity }
//! }
//!
//! impl Tree for Small {
//!     fn list(&mut self, _folder: Id) -> Vec<Entry> {
//!         vec![entry("hello", 7, Kind::File, 5000)]
//!     }
//!     fn no_room(&mut self, _folder: Id, _name: &[u8]) {}
//! }
//!
//! let options = Options::new(*b"sixteen bytes id", 1_700_000_000);
//! let mut layout = Layout::new(options, Small, &entry("", 1, Kind::Folder, 0))?;
//! assert_eq!(layout.blocks(), 1 << 28);
//! let Block::Made(superblock) = layout.block(0) else { panic!() };
//! assert_eq!(superblock[1024 + 56..1024 + 58], [0x53, 0xef]);
//! # Ok::<(), ext4_layout::Error>(())
//! ```
//!
//! [`Layout::block`] says what a block has: zeros, bytes, or a part of a file that the caller reads. The caller provides the
//! folders through the trait [`Tree`]. The package does no I/O, and asks no clock; the same calls give the same answers.
//!
//! # What is frozen
//!
//! A lazy layout ([`Layout::new`]) lists a folder when the block of its inode is first read. The entries then get inodes in
//! blocks of inode tables that nobody read, and contents in blocks that nobody read. An answer for a block never changes. A
//! block that was read before it had contents has zeros for ever. So a guest should mount with `inode_readahead_blks=0`. Linux
//! then reads single blocks of inode tables, and the layout lists few folders that the guest does not look at.
//!
//! An inode of a folder and an inode of a file never share a block. Names of folders lie far from contents of files. A guest that
//! looks at a file, or reads ahead in a file, does not make the layout list anything.
//!
//! A disk may be longer than its file system. Linux leaves the blocks behind the end alone, and they have zeros.
//!
//! # What a checker finds
//!
//! - Eager ([`Layout::eager`]): `e2fsck -fn` finds nothing.
//! - Lazy: `e2fsck -fn` finds nothing in its passes 1 to 4, which look at inodes, names, paths and link counts. Pass 5
//!   finds inodes and blocks of the host area that are called used, although no file has them. Pass 5 also finds fewer folders
//!   in a group than its descriptor says. Linux does not compare these numbers. If a hard link of a file is not in the tree, pass 4 says so.
//!
//! # The file system
//!
//! Blocks have 4096 bytes, inodes 256. The features are in `front.rs`. There is no journal: the host's files need none, and a
//! guest that crashes is not mounted again. There are no checksums. Folders of more than one block have a tree of hashes. The
//! names in a folder are in the order of their hashes.
//!
//! Hard links: names with one device and inode become one inode, also if their folders are listed at different times. The
//! inode has the host's number of links, at most 65,000. The number is frozen when the first name is listed. A name beyond
//! this number, or with another size or time of change, becomes an inode of its own. An eager layout counts only links in the
//! tree.
//!
//! The largest disk has 16 TiB - 128 MiB. A file that does not fit seems empty, and [`Tree::no_room`] reports it. A sparse
//! file takes room for its whole size.

#![forbid(unsafe_code)]

mod bytes;
mod extents;
mod folder;
mod front;
mod frozen;
mod geometry;
mod hash;
mod inode;
mod layout;
mod links;
mod node;
mod options;
mod space;
mod tables;
mod tree;
mod usage;

pub use layout::{Block, Layout};
pub use options::{Error, Options};
pub use tree::{Entry, Id, Identity, Kind, Time, Tree};
