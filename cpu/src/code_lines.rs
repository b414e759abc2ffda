//! Which parts of RAM decoded code came from, so that stores to code are told apart from stores beside it.

use guest_ram::{GuestRam, PAGE_SIZE};

/// Bytes of a line: stores are told apart by these.
const LINE_BYTES: u64 = 64;

/// Lines of each RAM page that decoded code came from.
pub(crate) struct CodeLines(Vec<u64>);

impl CodeLines {
    /// No lines, for all pages of RAM.
    pub fn new(ram: &GuestRam) -> CodeLines {
        CodeLines(vec![0; (ram.size_bytes() / PAGE_SIZE) as usize])
    }

    fn mask(offset: u64, length: u64) -> u64 {
        let first = offset / LINE_BYTES;
        let last = (offset + length.max(1) - 1).min(PAGE_SIZE - 1) / LINE_BYTES;
        (u64::MAX >> (63 - (last - first))) << first
    }

    /// Whether a range inside a page holds decoded code.
    pub fn touches(&self, page: u64, offset: u64, length: u64) -> bool {
        self.0[page as usize] & Self::mask(offset, length) != 0
    }

    /// Decoded code came from a range inside a page.
    pub fn add(&mut self, page: u64, offset: u64, length: u64) {
        self.0[page as usize] |= Self::mask(offset, length);
    }

    /// No decoded code is left that came from a page.
    pub fn clear_page(&mut self, page: u64) {
        self.0[page as usize] = 0;
    }
}
