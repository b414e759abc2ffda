//! Tells several readers which pages were written since each of them last looked.
//!
//! Guest RAM has one dirty flag per page, but there are three readers: the memory image (snapshots,
//! checkpoints), the RAM digest (checks) and the trail. No reader may clear a flag that another reader still
//! needs.

use guest_ram::PageFlags;

/// A part of the machine that asks for the pages written since it last looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The memory image.
    Image = 0,
    /// The RAM digest.
    Digest = 1,
    /// The trail of states before the end of a recording.
    Trail = 2,
}

/// The pages that one reader has not looked at yet.
struct News {
    /// Whether each page is in `pages`, by page number.
    is_new: Vec<bool>,
    pages: Vec<u64>,
}

/// The pages that each reader has not looked at yet.
pub struct WrittenPages([News; 3]);

impl WrittenPages {
    /// No written pages.
    pub fn none(pages: u64) -> WrittenPages {
        let none = || News { is_new: vec![false; pages as usize], pages: Vec::new() };
        WrittenPages([none(), none(), none()])
    }

    /// Takes over and clears the dirty flags. Afterwards the engine has to track writes again.
    pub fn collect(&mut self, flags: &PageFlags) {
        flags.take_dirty(|page| {
            for reader in [Reader::Image, Reader::Digest, Reader::Trail] {
                self.look_again(reader, page);
            }
        });
    }

    /// Makes `reader` look at a page again.
    pub fn look_again(&mut self, reader: Reader, page: u64) {
        let news = &mut self.0[reader as usize];
        if !std::mem::replace(&mut news.is_new[page as usize], true) {
            news.pages.push(page);
        }
    }

    /// The number of pages that `reader` has not looked at yet.
    pub fn count(&self, reader: Reader) -> usize {
        self.0[reader as usize].pages.len()
    }

    /// The pages that `reader` has not looked at yet, in ascending order. The reader has seen these pages
    /// from now on.
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
