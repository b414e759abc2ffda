//! Versions of a guest's memory and disk.
//!
//! A [`Store`] is a folder of checkpoints on disk that share their equal pages, with [`Maps`] that say which
//! version of a page belongs to which checkpoint; [`BackgroundWriter`] fills it while a guest runs.
//! The crate knows pages and opaque bytes. What a machine is, and what its pages held at power-on, is the
//! caller's knowledge. `FORMAT.md` describes the files.
//!
//! A [`MemoryImage`] is the contents of all pages at one point, in memory only.

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
mod list;
mod map;
mod merge;
mod open;
mod read;
mod store;
mod table;
mod thin;
mod verify;

use std::sync::Arc;

pub use background::{BackgroundWriter, Done};
pub use draft::Draft;
pub use error::{Result, StoreError, StoreErrorKind};
pub use files::{StoreFile, file_name};
pub use map::{BlobId, Maps, PageMap, PageRef, Space};
pub use store::{Counts, Entry, Store};
pub use thin::Policy;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The contents of a page of RAM or a block of the disk.
pub type Page = [u8; PAGE_BYTES];

/// One page's contents; `None` is a page of zeroes.
type SharedPage = Option<Arc<[u8; PAGE_BYTES]>>;

/// The contents of every page at one point of a run. Cloning shares the pages.
#[derive(Clone, Debug)]
pub struct MemoryImage {
    pages: Arc<[SharedPage]>,
}

impl MemoryImage {
    /// Memory of `pages` zero pages.
    pub fn zeroed(pages: u64) -> MemoryImage {
        MemoryImage { pages: vec![None; pages as usize].into() }
    }

    /// The image that follows `self`: pages for which `written` holds are read, the others are shared.
    pub fn next(
        &self,
        written: impl Fn(u64) -> bool,
        mut read: impl FnMut(u64, &mut [u8; PAGE_BYTES]),
    ) -> MemoryImage {
        let mut buffer = [0; PAGE_BYTES];
        let pages = self.pages.iter().enumerate().map(|(number, old)| {
            if !written(number as u64) {
                return old.clone();
            }
            read(number as u64, &mut buffer);
            same_or_new(old, &buffer)
        });
        MemoryImage { pages: pages.collect() }
    }

    /// Calls `write` for every page that must change to turn memory that holds `from`, except for the pages
    /// for which `written` holds, into this image.
    pub fn apply(
        &self,
        from: &MemoryImage,
        written: impl Fn(u64) -> bool,
        mut write: impl FnMut(u64, &[u8; PAGE_BYTES]),
    ) {
        assert_eq!(self.pages.len(), from.pages.len(), "images of one machine have one size");
        for (number, (now, then)) in self.pages.iter().zip(from.pages.iter()).enumerate() {
            if written(number as u64) || !same_page(now, then) {
                write(number as u64, now.as_deref().unwrap_or(&[0; PAGE_BYTES]));
            }
        }
    }
}

fn same_page(a: &SharedPage, b: &SharedPage) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

fn same_or_new(old: &SharedPage, contents: &[u8; PAGE_BYTES]) -> SharedPage {
    match old {
        Some(page) if **page == *contents => old.clone(),
        _ if contents.iter().all(|&b| b == 0) => None,
        _ => Some(Arc::new(*contents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory with written flags, as a machine keeps it.
    struct Memory {
        pages: Vec<[u8; PAGE_BYTES]>,
        written: Vec<bool>,
        base: MemoryImage,
    }

    impl Memory {
        fn new(pages: usize) -> Memory {
            Memory {
                pages: vec![[0; PAGE_BYTES]; pages],
                written: vec![false; pages],
                base: MemoryImage::zeroed(pages as u64),
            }
        }

        fn write(&mut self, page: usize, value: u8) {
            self.pages[page][usize::from(value) % PAGE_BYTES] = value;
            self.written[page] = true;
        }

        fn capture(&mut self) -> MemoryImage {
            let image = self.base.next(|n| self.written[n as usize], |n, to| *to = self.pages[n as usize]);
            self.written.fill(false);
            self.base = image.clone();
            image
        }

        fn restore(&mut self, image: &MemoryImage) -> usize {
            let mut count = 0;
            let (pages, written) = (&mut self.pages, &self.written);
            image.apply(
                &self.base,
                |n| written[n as usize],
                |n, contents| {
                    pages[n as usize] = *contents;
                    count += 1;
                },
            );
            self.written.fill(false);
            self.base = image.clone();
            count
        }
    }

    #[test]
    fn any_image_comes_back_from_any_point() {
        let mut memory = Memory::new(16);
        let mut images = Vec::new();
        let mut copies = Vec::new();
        let mut random = 12345_u32;
        for _ in 0..200 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (page, value) = ((random >> 8) as usize % 16, (random >> 16) as u8 | 1);
            match random >> 28 {
                0..=10 => memory.write(page, value),
                11..=13 => {
                    images.push(memory.capture());
                    copies.push(memory.pages.clone());
                }
                _ if !images.is_empty() => {
                    let number = page % images.len();
                    memory.restore(&images[number]);
                    assert!(memory.pages == copies[number], "image {number}");
                }
                _ => {}
            }
        }
        assert!(images.len() > 10);
    }

    #[test]
    fn only_differing_pages_are_written() {
        let mut memory = Memory::new(8);
        memory.write(1, 7);
        let first = memory.capture();
        memory.write(2, 9);
        let second = memory.capture();
        assert_eq!(memory.restore(&first), 1);
        assert_eq!(memory.restore(&second), 1);
        memory.write(5, 1);
        assert_eq!(memory.restore(&second), 1);
    }
}
