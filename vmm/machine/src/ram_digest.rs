//! A digest of all of RAM. The cost of an update depends only on the pages written since the last update.
//! The digest can also be computed from all pages, without the record of written pages.
//!
//! The digest is a sum of one term per page, modulo 2^128. A page of zeroes has the term zero. Any other page has the
//! XXH3-128 of its contents, seeded with the page's number. A changed page changes the sum by the difference of two
//! terms, so updates are cheap. The digest depends only on the contents, not on earlier updates. The digest finds
//! accidental differences, but is no defence against a deliberate collision.
//!
//! A hardware processor may set the accessed bits of page tables at any time, even before it executes the access. So
//! the digest leaves out some bits for machines that KVM may run. In every word that may be a page-table entry in use
//! (bit 0 is set), the digest leaves out bits 5 and 6. In every word that may be a copy of RFLAGS, the digest leaves
//! out the arithmetic flags ([`cpu::without_undefined_flags`]).

use guest_ram::{GuestRam, PAGE_SIZE};
use twox_hash::XxHash3_128;

use crate::comparable::Likeness;

/// The term of each page, and the sum of the terms.
pub struct RamDigest {
    terms: Vec<u128>,
    sum: u128,
    likeness: Likeness,
}

impl RamDigest {
    /// The digest of `pages` pages of zeroes.
    pub fn zeroed(pages: u64, likeness: Likeness) -> RamDigest {
        RamDigest { terms: vec![0; pages as usize], sum: 0, likeness }
    }

    /// Updates the digest after `pages` were written, and returns the digest.
    pub fn update(&mut self, ram: &GuestRam, pages: impl IntoIterator<Item = u64>) -> [u8; 16] {
        let mut contents = [0; PAGE_SIZE as usize];
        for page in pages {
            read(ram, page, self.likeness, &mut contents);
            let new = term_of(page, &contents);
            let term = &mut self.terms[page as usize];
            self.sum = self.sum.wrapping_sub(*term).wrapping_add(new);
            *term = new;
        }
        self.sum.to_le_bytes()
    }
}

/// The digest of RAM, computed from all pages.
pub fn of_all(ram: &GuestRam, likeness: Likeness) -> [u8; 16] {
    let mut contents = [0; PAGE_SIZE as usize];
    let terms = (0..ram.flags().pages()).map(|page| {
        read(ram, page, likeness, &mut contents);
        term_of(page, &contents)
    });
    terms.fold(0, u128::wrapping_add).to_le_bytes()
}

const ZEROES: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];

/// Reads a page. For machines that KVM may run, clears the bits that processors change on their own (see the module).
fn read(ram: &GuestRam, page: u64, likeness: Likeness, to: &mut [u8; PAGE_SIZE as usize]) {
    ram.read_bytes(page * PAGE_SIZE, to);
    if likeness == Likeness::AcrossProcessors {
        leave_out_processors_own(to);
    }
}

/// Clears in each word the bits that processors change on their own (see the module).
pub fn leave_out_processors_own(contents: &mut [u8]) {
    for bytes in contents.as_chunks_mut().0 {
        let mut word = u64::from_le_bytes(*bytes);
        // These bits are cleared first, because the check for a copy of RFLAGS must not depend on them.
        if word & 1 != 0 {
            word &= !ACCESSED_AND_DIRTY;
        }
        *bytes = cpu::without_undefined_flags(word).to_le_bytes();
    }
}

/// The accessed and dirty bits of a page-table entry.
const ACCESSED_AND_DIRTY: u64 = 0x60;

fn term_of(page: u64, contents: &[u8; PAGE_SIZE as usize]) -> u128 {
    if *contents == ZEROES { 0 } else { XxHash3_128::oneshot_with_seed(page, contents) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_depends_on_contents_only() {
        let ram = GuestRam::new(16 * PAGE_SIZE).unwrap();
        let mut kept = RamDigest::zeroed(16, Likeness::Exact);
        assert_eq!(kept.update(&ram, 0..16), [0; 16]);
        let mut seen = vec![[0; 16]];
        for (offset, value) in [(0x10, 1), (0x1010, 1), (0x10, 2), (0xfff8, u64::MAX), (0x10, 3)] {
            ram.store_u64(offset, value);
            let digest = kept.update(&ram, [offset / PAGE_SIZE]);
            assert_eq!(digest, RamDigest::zeroed(16, Likeness::Exact).update(&ram, 0..16));
            assert_eq!(digest, of_all(&ram, Likeness::Exact));
            assert!(!seen.contains(&digest), "{offset:#x}");
            seen.push(digest);
        }
        for offset in [0x10, 0x1010, 0xfff8] {
            ram.store_u64(offset, 0);
        }
        assert_eq!(kept.update(&ram, 0..16), [0; 16]);
    }

    #[test]
    fn a_write_that_nobody_noticed_shows_in_the_digest_of_all() {
        let ram = GuestRam::new(16 * PAGE_SIZE).unwrap();
        let mut kept = RamDigest::zeroed(16, Likeness::Exact);
        ram.store_u64(0x3008, 1);
        assert_ne!(of_all(&ram, Likeness::Exact), kept.update(&ram, []));
        assert_eq!(of_all(&ram, Likeness::Exact), kept.update(&ram, [3]));
    }

    #[test]
    fn bits_that_a_processor_sets_when_it_pleases_can_be_left_out() {
        let ram = GuestRam::new(PAGE_SIZE).unwrap();
        let digest = |value: u64, likeness| {
            ram.store_u64(8, value);
            RamDigest::zeroed(1, likeness).update(&ram, [0])
        };
        assert_eq!(
            digest(0x401067, Likeness::AcrossProcessors),
            digest(0x401007, Likeness::AcrossProcessors)
        );
        assert_ne!(digest(0x401067, Likeness::Exact), digest(0x401007, Likeness::Exact));
        assert_eq!(
            digest(0x63, Likeness::AcrossProcessors),
            digest(0x3, Likeness::AcrossProcessors),
            "may be flags, without these bits"
        );
        assert_ne!(
            digest(0x401066, Likeness::AcrossProcessors),
            digest(0x401006, Likeness::AcrossProcessors),
            "not in use"
        );
        assert_ne!(
            digest(0x401087, Likeness::AcrossProcessors),
            digest(0x401007, Likeness::AcrossProcessors)
        );
    }

    #[test]
    fn every_flipped_bit_of_a_page_changes_it() {
        let ram = GuestRam::new(PAGE_SIZE).unwrap();
        ram.fill(0, 0x5a, PAGE_SIZE as usize);
        let before = RamDigest::zeroed(1, Likeness::Exact).update(&ram, [0]);
        for bit in (0..PAGE_SIZE * 8).step_by(7) {
            let byte = ram.load_u8(bit / 8);
            ram.store_u8(bit / 8, byte ^ (1 << (bit % 8)));
            assert_ne!(RamDigest::zeroed(1, Likeness::Exact).update(&ram, [0]), before, "bit {bit}");
            ram.store_u8(bit / 8, byte);
        }
    }

    #[test]
    fn pages_that_swap_their_contents_change_it() {
        let ram = GuestRam::new(2 * PAGE_SIZE).unwrap();
        ram.fill(0, 1, PAGE_SIZE as usize);
        let before = RamDigest::zeroed(2, Likeness::Exact).update(&ram, [0, 1]);
        ram.fill(PAGE_SIZE, 1, PAGE_SIZE as usize);
        ram.fill(0, 0, PAGE_SIZE as usize);
        assert_ne!(RamDigest::zeroed(2, Likeness::Exact).update(&ram, [0, 1]), before);
    }
}
