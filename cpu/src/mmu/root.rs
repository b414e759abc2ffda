//! Root tables of 4-level paging (SDM vol. 3, section 4.5).

/// The number of entries in a root table of 4-level paging.
pub const ENTRIES: usize = 512;
/// Number of address bits below the index of a root entry.
pub const SHIFT: u32 = 39;

/// A set of entries of a root table.
#[derive(Clone, Copy, Default)]
pub struct RootEntries([u64; ENTRIES / 64]);

impl RootEntries {
    /// All entries.
    pub const ALL: RootEntries = RootEntries([u64::MAX; ENTRIES / 64]);

    pub fn insert(&mut self, entry: usize) {
        self.0[entry / 64] |= 1 << (entry % 64);
    }

    pub fn has(&self, entry: usize) -> bool {
        self.0[entry / 64] >> (entry % 64) & 1 != 0
    }

    pub fn extend(&mut self, others: RootEntries) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word |= other);
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; ENTRIES / 64]
    }

    /// Whether the set has the entry that leads to a virtual page.
    #[inline]
    pub fn lead_to(&self, page: u64) -> bool {
        self.has((page >> SHIFT) as usize % ENTRIES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_inserted_is_in_the_set_and_no_other() {
        assert!(RootEntries::default().is_empty() && !RootEntries::ALL.is_empty());
        for entry in 0..ENTRIES {
            let mut one = RootEntries::default();
            one.insert(entry);
            assert!(!one.is_empty());
            let mut several = RootEntries::default();
            several.insert(7);
            several.extend(one);
            several.insert(entry);
            for other in 0..ENTRIES {
                assert_eq!(one.has(other), other == entry, "{entry}, {other}");
                assert_eq!(several.has(other), other == entry || other == 7, "{entry}, {other}");
                // Test the lowest and the highest page below entry `other`, and the lowest page with a
                // sign-extended address.
                let first = (other as u64) << SHIFT;
                for page in [first, first + (1 << SHIFT) - 0x1000, first | 0xffff << 48] {
                    assert_eq!(one.lead_to(page), other == entry, "{entry}, {page:#x}");
                }
            }
        }
    }
}
