//! Versions of a guest's memory and disk, in a folder of checkpoints that share their equal pages.
//!
//! ```
//! use checkpoint::{PAGE_BYTES, PageRef, Space, Store};
//!
//! let folder = tempfile::tempdir()?;
//! // A machine with 16 pages of RAM and no disk.
//! let store = Store::create(folder.path().join("checkpoints"), 16, 0)?;
//! let mut draft = store.add(1_000, 0)?;
//! draft.page(Space::Ram, 3, &[7; PAGE_BYTES])?;
//! draft.finish(b"head", b"state")?;
//!
//! assert_eq!(store.state_at(1_000)?, b"state");
//! let PageRef::Stored(blob) = *store.maps_at(1_000)?.ram.get(3) else { panic!("the page is in the store") };
//! store.read_many(&[(3, blob)], |page, contents| assert_eq!((page, contents[0]), (3, 7)))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Store`] is the folder. [`Maps`] give the version of each page at a checkpoint. [`BackgroundWriter`] fills a
//! store while a guest runs. The crate knows pages and opaque bytes. The caller knows the machine, and the contents of
//! its pages at power-on. `FORMAT.md` describes the files.
//!
//! The file format is the crate's own, because a file may come from a stranger or be cut off anywhere. The
//! format's codecs (postcard, CRC-32, LZ4, Zstandard) are libraries.

#![forbid(unsafe_code)]

mod background;
mod bulk;
mod cache;
mod check;
mod codec;
mod draft;
mod error;
mod files;
mod folder;
mod format;
mod index;
mod list;
mod map;
mod merge;
mod merges;
mod open;
mod page;
mod read;
mod salvage;
mod store;
mod table;
mod thin;
mod verify;

pub use background::{BackgroundWriter, Done};
pub use codec::digest;
pub use draft::CheckpointDraft;
pub use error::{Result, StoreError, StoreErrorKind};
pub use files::{StoreFile, file_name};
pub use folder::least_bytes;
pub use index::{Counts, Entry, hold_open_at_most};
pub use map::{BlobId, Maps, PageMap, PageRef, Space};
pub use page::{PAGE_BYTES, Page};
pub use salvage::Dropped;
pub use store::Store;
pub use table::Digest;
pub use thin::Policy;
