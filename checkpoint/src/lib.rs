//! Versions of a guest's memory and disk.
//!
//! A [`Store`] is a folder of checkpoints on disk that share their equal pages, with [`Maps`] that say which
//! version of a page belongs to which checkpoint; [`BackgroundWriter`] fills it while a guest runs.
//! The crate knows pages and opaque bytes. What a machine is, and what its pages held at power-on, is the
//! caller's knowledge. `FORMAT.md` describes the files.

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
pub use index::{Counts, Entry};
pub use map::{BlobId, Maps, PageMap, PageRef, Space};
pub use page::{PAGE_BYTES, Page};
pub use salvage::Dropped;
pub use store::Store;
pub use table::Digest;
pub use thin::Policy;
