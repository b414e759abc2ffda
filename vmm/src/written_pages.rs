//! Which pages were written since each of several readers last looked.
//!
//! Guest RAM has one dirty flag per page, but two readers want to know what was written since *they* last looked:
//! the memory image (snapshots) and the RAM digest (checks). Neither may take the flag away from the other.

use guest_ram::PageFlags;

/// Somebody who wants to know what was written since it last looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reader {
    /// The memory image.
    Image = 1,
    /// The RAM digest.
    Digest = 2,
}

const ALL: u8 = Reader::Image as u8 | Reader::Digest as u8;

/// One mark per page and reader.
pub struct WrittenPages(Vec<u8>);

impl WrittenPages {
    /// No page was written.
    pub fn none(pages: u64) -> WrittenPages {
        WrittenPages(vec![0; pages as usize])
    }

    /// Moves the dirty flags into the marks. The engine has to track writes anew afterwards.
    pub fn collect(&mut self, flags: &PageFlags) {
        for (page, marks) in self.0.iter_mut().enumerate() {
            if flags.has(page as u64, PageFlags::DIRTY) {
                flags.clear(page as u64, PageFlags::DIRTY);
                *marks = ALL;
            }
        }
    }

    /// The pages that `reader` has yet to look at, ascending.
    pub fn of(&self, reader: Reader) -> impl Iterator<Item = u64> {
        let marked = move |marks: &u8| marks & reader as u8 != 0;
        (0..).zip(&self.0).filter(move |(_, marks)| marked(marks)).map(|(page, _)| page)
    }

    /// Whether `reader` has yet to look at a page.
    pub fn has(&self, page: u64, reader: Reader) -> bool {
        self.0[page as usize] & reader as u8 != 0
    }

    /// `reader` has looked at everything.
    pub fn seen_by(&mut self, reader: Reader) {
        for marks in &mut self.0 {
            *marks &= !(reader as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use guest_ram::GuestRam;

    use super::*;

    #[test]
    fn one_reader_takes_nothing_from_the_other() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let mut written = WrittenPages::none(ram.flags().pages());
        ram.flags().set(3, PageFlags::DIRTY);
        written.collect(ram.flags());
        assert!(!ram.flags().has(3, PageFlags::DIRTY));
        assert!(written.has(3, Reader::Image) && written.has(3, Reader::Digest));
        written.seen_by(Reader::Image);
        ram.flags().set(4, PageFlags::DIRTY);
        written.collect(ram.flags());
        assert!(!written.has(3, Reader::Image) && written.has(3, Reader::Digest));
        assert!(written.has(4, Reader::Image) && written.has(4, Reader::Digest));
        written.seen_by(Reader::Digest);
        assert!(written.has(4, Reader::Image) && !written.has(4, Reader::Digest));
    }
}
