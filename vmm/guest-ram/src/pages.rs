//! The flags of each page, and the `vm-memory` bitmap that sets these flags for writes from outside the CPU.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};
use vm_memory::{GuestMemoryMmap, MmapRegion};

/// The size of a page in bytes. Each page of this size has its own flags, even if the guest maps larger pages.
pub const PAGE_SIZE: u64 = 4096;

/// Shared flags of all pages, indexed by RAM page number (RAM offset / 4096).
#[derive(Clone, Debug)]
pub struct PageFlags(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    flags: Box<[AtomicU8]>,
    /// For each group of pages, whether a page of the group may be dirty. Most groups never have a dirty page.
    groups: Box<[AtomicBool]>,
    any_foreign: AtomicBool,
    foreign_writes: Mutex<Vec<u64>>,
    /// The host's mapping of RAM. Every user of RAM holds `Shared`, so the mapping lives as long as its users.
    _mapping: MmapRegion<()>,
}

/// Number of pages in a group.
const GROUP_PAGES: usize = 64;

impl PageFlags {
    /// The page was written since this flag was last cleared.
    pub const DIRTY: u8 = 1;
    /// The CPU holds decoded code from this page.
    pub const CODE: u8 = 2;
    /// The CPU holds address translations read from this page.
    pub const PAGE_TABLE: u8 = 4;
    /// The flags of pages from which the CPU holds derived data. A write to such a page must also make the CPU drop
    /// this data.
    pub const DERIVED: u8 = Self::CODE | Self::PAGE_TABLE;

    pub(crate) fn new(pages: usize, mapping: MmapRegion<()>) -> PageFlags {
        PageFlags(Arc::new(Shared {
            flags: (0..pages).map(|_| AtomicU8::new(0)).collect(),
            groups: (0..pages.div_ceil(GROUP_PAGES)).map(|_| AtomicBool::new(false)).collect(),
            any_foreign: AtomicBool::new(false),
            foreign_writes: Mutex::new(Vec::new()),
            _mapping: mapping,
        }))
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.0.flags.len() as u64
    }

    /// All flags of a page.
    #[inline(always)]
    pub fn get(&self, page: u64) -> u8 {
        self.0.flags[page as usize].load(Relaxed)
    }

    /// Whether the page has any of the flags in `bits`.
    #[inline(always)]
    pub fn has(&self, page: u64, bits: u8) -> bool {
        self.get(page) & bits != 0
    }

    /// Sets flags. Only one thread may change flags at a time.
    #[inline(always)]
    pub fn set(&self, page: u64, bits: u8) {
        let flags = &self.0.flags[page as usize];
        flags.store(flags.load(Relaxed) | bits, Relaxed);
        if bits & Self::DIRTY != 0 {
            self.0.groups[page as usize / GROUP_PAGES].store(true, Relaxed);
        }
    }

    /// Calls `each` with every dirty page, in ascending order, and clears the page's dirty flag.
    pub fn take_dirty(&self, mut each: impl FnMut(u64)) {
        for (number, group) in self.0.groups.iter().enumerate() {
            if !group.load(Relaxed) {
                continue;
            }
            group.store(false, Relaxed);
            let first = number * GROUP_PAGES;
            for page in first..(first + GROUP_PAGES).min(self.0.flags.len()) {
                if self.has(page as u64, Self::DIRTY) {
                    self.clear(page as u64, Self::DIRTY);
                    each(page as u64);
                }
            }
        }
    }

    /// Clears flags. Only one thread may change flags at a time.
    #[inline(always)]
    pub fn clear(&self, page: u64, bits: u8) {
        let flags = &self.0.flags[page as usize];
        flags.store(flags.load(Relaxed) & !bits, Relaxed);
    }

    /// Whether [`PageFlags::take_foreign_writes`] would return at least one page.
    #[inline(always)]
    pub fn any_foreign_writes(&self) -> bool {
        self.0.any_foreign.load(Relaxed)
    }

    pub(crate) fn take_foreign_writes(&self) -> Vec<u64> {
        self.0.any_foreign.store(false, Relaxed);
        let mut writes = self.0.foreign_writes.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::take(&mut *writes)
    }

    pub(crate) fn foreign_write(&self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let last = (offset + length - 1) / PAGE_SIZE;
        for page in offset / PAGE_SIZE..=last.min(self.pages() - 1) {
            self.set(page, Self::DIRTY);
            if self.has(page, Self::DERIVED) {
                self.0.any_foreign.store(true, Relaxed);
                self.0.foreign_writes.lock().unwrap_or_else(|e| e.into_inner()).push(page);
            }
        }
    }
}

/// The guest memory type for device models and loaders.
pub type GuestMemory = GuestMemoryMmap<PageTracker>;

/// The `vm-memory` bitmap of one region: it forwards every write to the shared [`PageFlags`].
#[derive(Clone, Debug)]
pub struct PageTracker {
    flags: PageFlags,
    base_offset: u64,
}

impl PageTracker {
    pub(crate) fn new(flags: PageFlags, base_offset: u64) -> PageTracker {
        PageTracker { flags, base_offset }
    }
}

impl<'a> WithBitmapSlice<'a> for PageTracker {
    type S = PageTracker;
}

impl BitmapSlice for PageTracker {}

impl Bitmap for PageTracker {
    fn mark_dirty(&self, offset: usize, length: usize) {
        self.flags.foreign_write(self.base_offset + offset as u64, length as u64);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.flags.has((self.base_offset + offset as u64) / PAGE_SIZE, PageFlags::DIRTY)
    }

    fn slice_at(&self, offset: usize) -> PageTracker {
        PageTracker { flags: self.flags.clone(), base_offset: self.base_offset + offset as u64 }
    }
}
