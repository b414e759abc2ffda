//! Reads a guest's disk: partitions, file systems and files. Serves a disk by NBD.
//!
//! ```
//! use guest_disk::{ByteSource, Error, FileSystem, partitions};
//!
//! let mut disk = vec![0_u8; 1 << 20];
//! // The magic number of ext4, and a label.
//! disk[1024 + 56..][..2].copy_from_slice(&[0x53, 0xef]);
//! disk[1024 + 120..][..4].copy_from_slice(b"data");
//! assert_eq!(partitions::read(&mut disk)?, None);
//! let found = FileSystem::of(&mut disk)?.expect("it has a magic number");
//! assert_eq!((found.kind, found.label.as_deref()), ("ext2", Some("data")));
//! # Ok::<(), Error>(())
//! ```
//!
//! [`partitions`] reads tables of partitions (MBR and GPT). [`FileSystem`] names the kind of a file system. [`Files`] lists
//! and reads the files of ext2, ext3 and ext4, and reads changes from the journal. [`nbd`] serves any disk to other programs.
//!
//! All bytes may come from a stranger. So every loop and every length has a bound, and damage is an error. Nothing here
//! writes to a disk. The package does not know machines and recordings.
//!
//! Three parts are own code, because no library fits:
//!
//! - The library `ext4-view` 1.0 reads extents that are reserved but not written as data. In the journal, the library does not go
//!   on at the start of the ring, and a revoke does not reach earlier transactions. The library can panic at a wrong number
//!   beside a checksum.
//! - The crates `gptman` and `mbrman` each read one kind of table, and also write tables. The crate `bootsector` does not
//!   use the copy of a GPT table.
//! - The crate `nbd` 0.3 refuses the option GO, by which clients choose an export, and ends the connection at options that
//!   it does not know.

#![forbid(unsafe_code)]

mod error;
mod ext;
mod file_system;
mod files;
mod journal;
pub mod nbd;
pub mod partitions;
mod source;

pub use error::Error;
pub use file_system::FileSystem;
pub use files::{Entry, Files, Kind, Listing, OpenFile};
pub use source::{ByteSource, Part};
