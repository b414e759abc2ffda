//! Memory that a device reads and writes by DMA, while this process does so too.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Granularity of what devices are shown.
pub const PAGE_BYTES: usize = 4096;

/// Zeroed memory. All accesses are volatile and by aligned words, for the device may be at the same word.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is this value's own and does not move. Words are read and written whole.
unsafe impl Send for Area {}

impl Area {
    /// Memory of this size, rounded up to pages. It costs nothing until it is used.
    pub fn new(bytes: usize) -> std::io::Result<Area> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let length = NonZeroUsize::new(bytes).expect("at least a page");
        let (access, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping, wherever the kernel likes, changes nothing that is there.
        let base = unsafe { mmap_anonymous(None, length, access, flags) }?;
        Ok(Area { base: base.cast(), bytes })
    }

    /// Its address in this process, for the kernel to map.
    pub fn address(&self, offset: usize) -> u64 {
        assert!(offset < self.bytes, "outside of the area");
        self.base.as_ptr() as u64 + offset as u64
    }

    /// Reads an aligned word.
    pub fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "outside of the area");
        // SAFETY: the word lies in the mapping and is aligned, as just checked.
        u64::from_le(unsafe { self.base.as_ptr().add(offset).cast::<u64>().read_volatile() })
    }

    /// Writes an aligned word of four bytes.
    pub fn store_u32(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "outside of the area");
        // SAFETY: as above.
        unsafe { self.base.as_ptr().add(offset).cast::<u32>().write_volatile(value.to_le()) }
    }

    /// Writes a byte.
    pub fn store_u8(&self, offset: usize, value: u8) {
        assert!(offset < self.bytes, "outside of the area");
        // SAFETY: as above.
        unsafe { self.base.as_ptr().add(offset).write_volatile(value) }
    }

    /// Reads a page.
    pub fn read_page(&self, offset: usize, to: &mut [u8; PAGE_BYTES]) {
        for (at, word) in (offset..).step_by(8).zip(to.chunks_exact_mut(8)) {
            word.copy_from_slice(&self.load(at).to_le_bytes());
        }
    }

    /// Writes a page.
    pub fn write_page(&self, offset: usize, from: &[u8; PAGE_BYTES]) {
        for (at, word) in (offset..).step_by(4).zip(from.chunks_exact(4)) {
            self.store_u32(at, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more. Functions that see it are closed
        // before, or hold the pages themselves.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_bytes_and_pages_are_the_same_memory() {
        let area = Area::new(5000).unwrap();
        area.store_u32(4096 + 4, 0x1122_3344);
        area.store_u8(4096 + 4, 0xFF);
        assert_eq!(area.load(4096), 0x1122_33FF << 32);
        let mut page = [0; PAGE_BYTES];
        area.read_page(4096, &mut page);
        assert_eq!(page[4..8], [0xFF, 0x33, 0x22, 0x11]);
        page[4095] = 7;
        area.write_page(0, &page);
        assert_eq!(area.load(4088), 7 << 56);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_outside_is_reached() {
        Area::new(PAGE_BYTES).unwrap().load(PAGE_BYTES);
    }
}
