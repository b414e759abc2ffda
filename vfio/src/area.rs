//! Memory that a device accesses by DMA while this process accesses it too.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use portable_atomic::{AtomicU128, Ordering};

/// Granularity of mappings for devices.
pub const PAGE_BYTES: usize = 4096;
/// Number of bytes that a device sees change at once: a descriptor of most devices, or half of one.
pub const CHUNK_BYTES: usize = 16;

/// Zeroed memory. All accesses to the area are volatile or atomic, and by aligned words, because the device
/// may access the same word.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value and does not move. Words are read and written whole.
unsafe impl Send for Area {}

impl Area {
    /// Memory of this size, rounded up to pages. Pages cost nothing before their first use.
    ///
    /// # Errors
    ///
    /// The host has no memory left, or the processor cannot write a chunk at once.
    pub fn new(bytes: usize) -> std::io::Result<Area> {
        if !AtomicU128::is_lock_free() {
            return Err(std::io::Error::other("this processor has no atomic operations of 16 bytes"));
        }
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let length = NonZeroUsize::new(bytes).expect("at least a page");
        let (access, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses changes nothing that exists.
        let base = unsafe { mmap_anonymous(None, length, access, flags) }?;
        Ok(Area { base: base.cast(), bytes })
    }

    /// The address of the byte at `offset` in this process, for mappings by the kernel.
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

    /// Writes the given bytes of an aligned chunk at once. A device that reads the chunk sees all of these bytes or
    /// none. The chunk's other bytes keep what the device writes to them meanwhile.
    pub fn merge_chunk(&self, offset: usize, written: [Option<u8>; CHUNK_BYTES]) {
        let chunk = self.chunk(offset);
        let merge = |bytes: u128| {
            let mut bytes = bytes.to_le_bytes();
            bytes.iter_mut().zip(written).for_each(|(byte, new)| *byte = new.unwrap_or(*byte));
            u128::from_le_bytes(bytes)
        };
        chunk
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |bytes| Some(merge(bytes)))
            .expect("it is always updated");
    }

    fn chunk(&self, offset: usize) -> &AtomicU128 {
        assert!(
            offset.is_multiple_of(CHUNK_BYTES) && offset + CHUNK_BYTES <= self.bytes,
            "outside of the area"
        );
        // SAFETY: the chunk lies in the mapping and is aligned, as just checked. The mapping lives as long as
        // `self`. All accesses to the area are by whole words.
        unsafe { AtomicU128::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Reads a page.
    pub fn read_page(&self, offset: usize, to: &mut [u8; PAGE_BYTES]) {
        for (at, word) in (offset..).step_by(8).zip(to.chunks_exact_mut(8)) {
            word.copy_from_slice(&self.load(at).to_le_bytes());
        }
    }

    /// Writes a page that no device sees yet.
    pub fn write_page(&self, offset: usize, from: &[u8; PAGE_BYTES]) {
        for (at, chunk) in (offset..).step_by(CHUNK_BYTES).zip(from.as_chunks().0) {
            self.chunk(at).store(u128::from_le_bytes(*chunk), Ordering::Release);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing refers to it any more. Functions that can
        // access the memory were closed before, or hold the pages themselves.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;

    #[test]
    fn words_bytes_and_pages_are_the_same_memory() {
        let area = Area::new(5000).unwrap();
        let mut written = [None; CHUNK_BYTES];
        written[4..8].copy_from_slice(&[Some(0xFF), Some(0x33), None, Some(0x11)]);
        area.merge_chunk(4096, [Some(0x22); CHUNK_BYTES]);
        area.merge_chunk(4096, written);
        assert_eq!(area.load(4096), 0x1122_33FF_2222_2222);
        let mut page = [0; PAGE_BYTES];
        area.read_page(4096, &mut page);
        assert_eq!(page[4..9], [0xFF, 0x33, 0x22, 0x11, 0x22]);
        page[4095] = 7;
        area.write_page(0, &page);
        assert_eq!(area.load(4088), 7 << 56);
    }

    #[test]
    fn a_chunk_is_seen_whole_and_keeps_what_a_device_writes_to_it() {
        const ROUNDS: u64 = 20_000;
        let area = Area::new(PAGE_BYTES).unwrap();
        let bytes = area.base.as_ptr() as usize;
        // The thread acts as the device: the thread increments the last byte of the chunk, and reads two words that
        // are always written together.
        let device = std::thread::spawn(move || {
            // SAFETY: the area lives until this thread has ended.
            let chunk = unsafe { AtomicU128::from_ptr(bytes as *mut u128) };
            // SAFETY: the area lives until this thread has ended, and the byte is the chunk's last byte.
            let counter = unsafe { AtomicU8::from_ptr((bytes + CHUNK_BYTES - 1) as *mut u8) };
            for _ in 0..ROUNDS {
                counter.fetch_add(1, Ordering::AcqRel);
                let seen = chunk.load(Ordering::Acquire).to_le_bytes();
                assert_eq!(seen[..4], seen[8..12], "half of what was written");
            }
        });
        for round in 0..ROUNDS as u32 {
            let mut written = [None; CHUNK_BYTES];
            let word = round.to_le_bytes().map(Some);
            written[..4].copy_from_slice(&word);
            written[8..12].copy_from_slice(&word);
            area.merge_chunk(0, written);
        }
        device.join().unwrap();
        assert_eq!((area.load(8) >> 56) as u8, (ROUNDS % 256) as u8, "a device's write was lost");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_outside_is_reached() {
        Area::new(PAGE_BYTES).unwrap().load(PAGE_BYTES);
    }
}
