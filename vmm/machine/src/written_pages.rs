//! Tells several readers which pages were written since each reader last asked.
//!
//! Guest RAM has one dirty flag per page, but there are three readers: the memory image (snapshots,
//! checkpoints), the RAM digest (checks) and the trail. No reader may clear a flag that another reader still
//! needs.

use guest_ram::PageFlags;

/// A part of the machine that asks for the pages written since it last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The memory image.
    Image = 0,
    /// The RAM digest.
    Digest = 1,
    /// The trail of states before the end of a recording.
    Trail = 2,
}

/// The written pages that one reader has not taken yet.
struct News {
    /// Whether each page is in `pages`, by page number.
    is_new: Vec<bool>,
    pages: Vec<u64>,
}

/// The written pages that each reader has not taken yet.
pub struct WrittenPages([News; 3]);

impl WrittenPages {
    /// The state without written pages, for a RAM of `pages` pages.
    pub fn none(pages: u64) -> WrittenPages {
        let none = || News { is_new: vec![false; pages as usize], pages: Vec::new() };
        WrittenPages([none(), none(), none()])
    }

    /// Adds all dirty pages to each reader's list, and clears the dirty flags. Afterwards the caller must call
    /// `Engine::track_writes_anew`.
    pub fn collect(&mut self, flags: &PageFlags) {
        flags.take_dirty(|page| {
            for reader in [Reader::Image, Reader::Digest, Reader::Trail] {
                self.look_again(reader, page);
            }
        });
    }

    /// Adds a page to the list of `reader`.
    pub fn look_again(&mut self, reader: Reader, page: u64) {
        let news = &mut self.0[reader as usize];
        if !std::mem::replace(&mut news.is_new[page as usize], true) {
            news.pages.push(page);
        }
    }

    /// The number of written pages that `reader` has not taken yet.
    pub fn count(&self, reader: Reader) -> usize {
        self.0[reader as usize].pages.len()
    }

    /// Returns the written pages that `reader` has not taken yet, in ascending order, and empties the reader's list.
    pub fn take(&mut self, reader: Reader) -> Vec<u64> {
        let news = &mut self.0[reader as usize];
        let mut pages = std::mem::take(&mut news.pages);
        pages.sort_unstable();
        for &page in &pages {
            news.is_new[page as usize] = false;
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use guest_ram::GuestRam;

    use super::*;

    #[test]
    fn one_reader_takes_nothing_from_the_others() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let mut written = WrittenPages::none(ram.flags().pages());
        for page in [200, 3] {
            ram.flags().set(page, PageFlags::DIRTY);
        }
        written.collect(ram.flags());
        assert!(!ram.flags().has(3, PageFlags::DIRTY));
        assert_eq!(written.count(Reader::Image), 2);
        assert_eq!(written.take(Reader::Image), [3, 200]);
        assert_eq!([Reader::Image, Reader::Digest].map(|reader| written.count(reader)), [0, 2]);
        ram.flags().set(4, PageFlags::DIRTY);
        written.collect(ram.flags());
        assert_eq!(written.take(Reader::Image), [4]);
        assert_eq!(written.take(Reader::Digest), [3, 4, 200]);
        assert_eq!(written.take(Reader::Digest), [0; 0]);
        assert_eq!(written.take(Reader::Trail), [3, 4, 200]);
    }
}
