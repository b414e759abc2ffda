//! Records which lines of RAM hold decoded code. A store drops decoded code only if the store touches such a line.

use guest_ram::{GuestRam, PAGE_SIZE};

/// Size of a line in bytes. Stores to code are noticed at this granularity.
const LINE_BYTES: u64 = 64;

/// The lines of each RAM page that hold decoded code.
pub(crate) struct CodeLines(Vec<u64>);

impl CodeLines {
    /// Creates an empty record for all pages of RAM.
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

    /// Records that decoded code came from a range inside a page.
    pub fn add(&mut self, page: u64, offset: u64, length: u64) {
        self.0[page as usize] |= Self::mask(offset, length);
    }

    /// Forgets the lines of a page whose decoded code was dropped.
    pub fn clear_page(&mut self, page: u64) {
        self.0[page as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_apart_by_lines() {
        let ram = GuestRam::new(4 * PAGE_SIZE).unwrap();
        // Each case: a range of code, a range of a store, and whether the two ranges share a line.
        let cases = [
            ((0x40, 1), (0x40, 1), true),
            ((0x40, 1), (0x7f, 1), true),
            ((0x40, 1), (0x3f, 1), false),
            ((0x40, 1), (0x3f, 2), true),
            ((0x40, 1), (0x80, 8), false),
            ((0x7f, 1), (0x80, 1), false),
            ((0x7f, 2), (0xbf, 1), true),
            ((0x7f, 2), (0xc0, 1), false),
            ((0, 64), (64, 1), false),
            ((0, 65), (64, 1), true),
            ((0, 0x1000), (0xfc0, 1), true),
            ((0xfff, 1), (0xfc0, 8), true),
            ((0xfff, 1), (0xfb8, 8), false),
            // An empty range is treated as a range of one byte. A range that continues in the next page is cut at
            // the end of its first page.
            ((0x80, 0), (0x80, 1), true),
            ((0x80, 0), (0x7f, 1), false),
            ((0xff8, 16), (0xff0, 1), true),
        ];
        for (code, store, expected) in cases {
            let mut lines = CodeLines::new(&ram);
            lines.add(2, code.0, code.1);
            assert_eq!(lines.touches(2, store.0, store.1), expected, "{code:x?} {store:x?}");
            assert!(!lines.touches(1, store.0, store.1) && !lines.touches(3, store.0, store.1));
            lines.clear_page(2);
            assert!(!lines.touches(2, store.0, store.1));
        }
    }
}
