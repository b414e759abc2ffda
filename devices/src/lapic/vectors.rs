//! A set of interrupt vectors: the 256-bit registers IRR, ISR and TMR.

/// A set of vectors, in the layout of the eight 32-bit registers that the guest reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VectorSet([u32; 8]);

impl VectorSet {
    pub(super) fn insert(&mut self, vector: u8) {
        self.0[usize::from(vector >> 5)] |= 1 << (vector & 31);
    }

    pub(super) fn remove(&mut self, vector: u8) {
        self.0[usize::from(vector >> 5)] &= !(1 << (vector & 31));
    }

    pub(super) fn set(&mut self, vector: u8, member: bool) {
        if member { self.insert(vector) } else { self.remove(vector) }
    }

    pub(super) fn contains(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 5)] >> (vector & 31) & 1 != 0
    }

    #[inline]
    pub(super) fn highest(&self) -> Option<u8> {
        let word = self.0.iter().rposition(|&word| word != 0)?;
        Some((word * 32 + 31) as u8 - self.0[word].leading_zeros() as u8)
    }

    /// The vectors in the set, in ascending order.
    pub(super) fn members(&self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(|&vector| self.contains(vector))
    }

    /// The set as its eight 32-bit registers.
    pub(super) fn words(&self) -> [u32; 8] {
        self.0
    }

    /// Builds the set from its eight 32-bit registers.
    pub(super) fn from_words(words: [u32; 8]) -> VectorSet {
        VectorSet(words)
    }

    /// The `index`th 32-bit register.
    pub(super) fn word(&self, index: usize) -> u32 {
        self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_member_is_found() {
        let mut set = VectorSet::default();
        assert_eq!(set.highest(), None);
        for vector in [0, 31, 32, 200, 255] {
            set.insert(vector);
            assert_eq!(set.highest(), Some(vector));
            assert!(set.contains(vector));
        }
        assert_eq!(set.members().collect::<Vec<_>>(), [0, 31, 32, 200, 255]);
        set.remove(255);
        assert_eq!(set.highest(), Some(200));
        assert_eq!(set.word(6), 1 << 8);
    }
}
