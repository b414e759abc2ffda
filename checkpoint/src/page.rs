//! The page, the unit of storage.

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The contents of a page of RAM or a block of the disk.
pub type Page = [u8; PAGE_BYTES];
