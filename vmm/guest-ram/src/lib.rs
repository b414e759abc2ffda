//! Guest RAM: one host mapping for devices, loaders and the software CPU.
//!
//! ```
//! use guest_ram::{GuestRam, PAGE_SIZE};
//!
//! let ram = GuestRam::new(4 << 20)?;
//! ram.write_bytes(0x1000, b"code");
//! assert_eq!(ram.load_u32(0x1000), u32::from_le_bytes(*b"code"));
//! assert_eq!(ram.flags().pages(), (4 << 20) / PAGE_SIZE);
//! # Ok::<(), guest_ram::RamError>(())
//! ```
//!
//! Devices and loaders use `vm-memory` guest memory ([`GuestRam::memory`]). The CPU uses a flat array of pages with
//! fast, bounds-checked scalar access by offset.
//!
//! All `unsafe` code of the software engine's memory path is in this crate. No Rust reference to guest memory is ever
//! formed: scalars move through raw pointer reads and writes, byte ranges through copies.
//!
//! Every page has flags ([`PageFlags`]). One flag, for checkpoints, tells whether the page was written since the flag
//! was last cleared. Another flag tells whether the CPU holds data derived from the page, such as decoded code or
//! page-table walks. A write from outside the CPU to such a page changes the page at once, and puts a note into a
//! queue. The CPU reads the notes before its next instruction, and drops the derived data
//! ([`GuestRam::take_foreign_writes`]).
//!
//! The CPU owns [`GuestRam`]. Devices and the host's side of a run have a [`RamView`] of the same memory.
//! `GuestRam` and `RamView` can be sent to another thread. The mapping lives until `GuestRam` and all views are
//! dropped.

mod layout;
mod pages;
mod view;

pub use layout::{HIGH_RAM_START, LOW_RAM_LIMIT, RamLayout};
use nix::sys::mman::{MmapAdvise, madvise};
pub use pages::{GuestMemory, PAGE_SIZE, PageFlags, PageTracker};
pub use view::RamView;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestRegionMmap};

/// Returns this process's freed memory to the host (glibc's `malloc_trim`). Otherwise the allocator keeps most freed
/// memory, because memory in use lies between the freed parts.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: any thread may call `malloc_trim` at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Why guest RAM could not be allocated.
#[derive(Debug)]
pub struct RamError(String);

impl std::fmt::Display for RamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RamError {}

/// The whole RAM of a guest.
///
/// "Offset" means a byte offset into RAM as if it were contiguous; [`RamLayout`] converts offsets from and to
/// guest-physical addresses.
pub struct GuestRam {
    memory: GuestMemory,
    /// The first byte of the mapping. `flags` keeps the mapping alive.
    base: *mut u8,
    size_bytes: usize,
    layout: RamLayout,
    flags: PageFlags,
}

// SAFETY: `base` points into a private anonymous mapping, which `flags` keeps alive as long as `self`. All access to
// RAM is by value copies. Only one thread at a time uses a `GuestRam`, which is not `Sync`.
unsafe impl Send for GuestRam {}

macro_rules! scalar_access {
    ($load:ident, $store:ident, $type:ty) => {
        /// Reads a little-endian scalar at a RAM offset. Panics if the scalar does not lie inside RAM.
        #[inline(always)]
        pub fn $load(&self, offset: u64) -> $type {
            let pointer = self.pointer(offset, size_of::<$type>());
            // SAFETY: `pointer` checked that the whole scalar lies inside the mapping.
            <$type>::from_le(unsafe { pointer.cast::<$type>().read_unaligned() })
        }

        /// Writes a little-endian scalar at a RAM offset. Panics if the scalar does not lie inside RAM. The
        /// caller sets the page flags.
        #[inline(always)]
        pub fn $store(&self, offset: u64, value: $type) {
            let pointer = self.pointer(offset, size_of::<$type>());
            // SAFETY: `pointer` checked that the whole scalar lies inside the mapping.
            unsafe { pointer.cast::<$type>().write_unaligned(value.to_le()) }
        }
    };
}

impl GuestRam {
    /// Maps `size_bytes` of zeroed RAM, rounded up to whole pages.
    pub fn new(size_bytes: u64) -> Result<GuestRam, RamError> {
        let layout = RamLayout::new(size_bytes.next_multiple_of(PAGE_SIZE));
        let size =
            usize::try_from(layout.size_bytes()).map_err(|_| no_memory(size_bytes, "it is too large"))?;
        let region = vm_memory::MmapRegion::<()>::new(size).map_err(|e| no_memory(size_bytes, e))?;
        let base = region.as_ptr();
        ask_for_huge_pages(base, size);
        let flags = PageFlags::new(size / PAGE_SIZE as usize, region);
        let regions = layout
            .ranges()
            .map(|(gpa, offset, length)| guest_region(base, gpa, offset, length, &flags))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| no_memory(size_bytes, e))?;
        let memory = GuestMemory::from_regions(regions).map_err(|e| no_memory(size_bytes, e))?;
        Ok(GuestRam { memory, base, size_bytes: size, layout, flags })
    }

    /// RAM for devices and loaders. A write through this memory marks the page dirty, and puts a note about a foreign
    /// write into the CPU's queue.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// A view of this RAM, for devices and for the host's side of a run.
    pub fn view(&self) -> RamView {
        RamView::new(self.memory.clone(), self.layout)
    }

    /// The layout of RAM in guest-physical space.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// Size in bytes, a whole number of pages.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }

    /// The flags of every page.
    #[inline(always)]
    pub fn flags(&self) -> &PageFlags {
        &self.flags
    }

    /// The numbers of pages that devices, loaders or a debugger wrote since the last call. Only pages from which the
    /// CPU holds derived data are listed.
    pub fn take_foreign_writes(&self) -> Vec<u64> {
        self.flags.take_foreign_writes()
    }

    /// The address in this process of the page at a RAM offset. Panics if the page does not lie inside RAM.
    pub fn host_address(&self, page_offset: u64) -> u64 {
        self.pointer(page_offset, PAGE_SIZE as usize) as u64
    }

    /// RAM offset of an address in this process. For an address outside of RAM the result is beyond the end of RAM.
    #[inline(always)]
    pub fn offset_of_host(&self, address: u64) -> u64 {
        address.wrapping_sub(self.base as u64)
    }

    #[inline(always)]
    fn pointer(&self, offset: u64, length: usize) -> *mut u8 {
        let end = offset.wrapping_add(length as u64);
        assert!(offset <= end && end <= self.size_bytes as u64, "RAM access out of range");
        // SAFETY: the range lies inside the mapping, as just checked.
        unsafe { self.base.add(offset as usize) }
    }

    scalar_access!(load_u8, store_u8, u8);
    scalar_access!(load_u16, store_u16, u16);
    scalar_access!(load_u32, store_u32, u32);
    scalar_access!(load_u64, store_u64, u64);
    scalar_access!(load_u128, store_u128, u128);

    /// Reads 16 bytes at a RAM offset, as a vector. Panics if the bytes do not lie inside RAM.
    #[inline(always)]
    pub fn load_vector(&self, offset: u64) -> [u8; 16] {
        let pointer = self.pointer(offset, 16);
        // SAFETY: `pointer` checked that all 16 bytes lie inside the mapping.
        unsafe { pointer.cast::<[u8; 16]>().read_unaligned() }
    }

    /// Copies bytes from RAM at `offset` to `to`.
    pub fn read_bytes(&self, offset: u64, to: &mut [u8]) {
        let from = self.pointer(offset, to.len());
        // SAFETY: `from` is valid for `to.len()` bytes; guest RAM never overlaps a Rust slice.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes at a guest-physical address to `to`. Returns the number of bytes that lie in RAM.
    pub fn read_physical(&self, gpa: u64, to: &mut [u8]) -> usize {
        let ranges = self.layout.ranges();
        let found = ranges.into_iter().find(|(start, _, length)| gpa >= *start && gpa - start < *length);
        let Some((start, offset, length)) = found else { return 0 };
        let count = to.len().min((length - (gpa - start)) as usize);
        self.read_bytes(offset + (gpa - start), &mut to[..count]);
        count
    }

    /// Copies bytes into RAM at `offset`, without changing page flags.
    pub fn write_bytes(&self, offset: u64, from: &[u8]) {
        let to = self.pointer(offset, from.len());
        // SAFETY: `to` is valid for `from.len()` bytes; guest RAM never overlaps a Rust slice.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes into RAM as a device does. The pages become dirty. Pages from which the CPU holds derived data are
    /// queued as foreign writes.
    pub fn replace_bytes(&self, offset: u64, from: &[u8]) {
        self.write_bytes(offset, from);
        self.flags.foreign_write(offset, from.len() as u64);
    }

    /// Copies `length` bytes inside RAM as `memmove` does, without touching page flags.
    pub fn copy_within(&self, from: u64, to: u64, length: usize) {
        let (from, to) = (self.pointer(from, length), self.pointer(to, length));
        // SAFETY: both ranges lie inside the mapping; `ptr::copy` allows overlap.
        unsafe { std::ptr::copy(from, to, length) }
    }

    /// Fills `length` bytes with one value, without touching page flags.
    pub fn fill(&self, offset: u64, value: u8, length: usize) {
        let to = self.pointer(offset, length);
        // SAFETY: the range lies inside the mapping.
        unsafe { std::ptr::write_bytes(to, value, length) }
    }
}

fn guest_region(
    base: *mut u8,
    gpa: u64,
    offset: u64,
    length: u64,
    flags: &PageFlags,
) -> Result<GuestRegionMmap<PageTracker>, String> {
    let tracker = PageTracker::new(flags.clone(), offset);
    // SAFETY: `RamLayout::ranges` yields disjoint ranges inside the mapping at `base`. Each region's tracker holds
    // `flags`, which keep the mapping alive.
    let region = unsafe {
        MmapRegionBuilder::new_with_bitmap(length as usize, tracker)
            .with_raw_mmap_pointer(base.add(offset as usize))
            .build()
    }
    .map_err(|e| e.to_string())?;
    GuestRegionMmap::new(region, GuestAddress(gpa)).ok_or_else(|| "its address range overflows".to_string())
}

/// Asks the host for huge pages. Guests touch most of their memory. A few large pages cost less to allocate and to
/// translate than many small pages.
fn ask_for_huge_pages(base: *mut u8, size: usize) {
    let Some(address) = std::ptr::NonNull::new(base) else { return };
    // SAFETY: the range is a mapping of this crate, and the advice does not change its contents.
    let advised = unsafe { madvise(address.cast(), size, MmapAdvise::MADV_HUGEPAGE) };
    // Without huge pages the guest is only slower.
    let _ = advised;
}

fn no_memory(size_bytes: u64, why: impl std::fmt::Display) -> RamError {
    RamError(format!("cannot map {} MiB of guest memory: {why}; try a smaller --memory", size_bytes >> 20))
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestMemoryBackend as _};

    use super::*;

    #[test]
    fn device_and_cpu_views_are_the_same_bytes() {
        let ram = GuestRam::new(1 << 20).unwrap();
        ram.memory().write_obj(0x1122_3344_u32, GuestAddress(0x2004)).unwrap();
        assert_eq!(ram.load_u32(0x2004), 0x1122_3344);
        ram.store_u64(0x3000, 7);
        assert_eq!(ram.memory().read_obj::<u64>(GuestAddress(0x3000)).unwrap(), 7);
    }

    #[test]
    fn memory_above_the_hole_starts_at_4_gib() {
        let ram = GuestRam::new(LOW_RAM_LIMIT + (1 << 20)).unwrap();
        assert_eq!(ram.memory().last_addr(), GuestAddress(HIGH_RAM_START + (1 << 20) - 1));
        ram.memory().write_obj(9_u8, GuestAddress(HIGH_RAM_START)).unwrap();
        assert_eq!(ram.load_u8(LOW_RAM_LIMIT), 9);
        assert_eq!(ram.layout().offset_of(HIGH_RAM_START), Some(LOW_RAM_LIMIT));
        assert_eq!(ram.layout().offset_of(LOW_RAM_LIMIT), None);
    }

    #[test]
    fn writes_from_outside_to_pages_with_derived_knowledge_are_queued() {
        let ram = GuestRam::new(1 << 20).unwrap();
        ram.flags().set(3, PageFlags::CODE);
        ram.memory().write_slice(&[1; 8192], GuestAddress(0x2800)).unwrap();
        assert_eq!(ram.take_foreign_writes(), vec![3]);
        assert!(ram.take_foreign_writes().is_empty());
        assert!(ram.flags().has(2, PageFlags::DIRTY) && ram.flags().has(4, PageFlags::DIRTY));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn an_access_that_leaves_ram_panics() {
        GuestRam::new(PAGE_SIZE).unwrap().load_u64(PAGE_SIZE - 4);
    }
}
