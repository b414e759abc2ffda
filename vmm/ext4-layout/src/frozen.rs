//! A set of numbers that costs at most one bit for each possible number.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bits in a chunk.
const CHUNK_BITS: u32 = 32768;

/// The numbers of blocks that were read before they had contents. Such a block stays zero for ever.
///
/// A guest chooses the numbers, so the memory must have a bound: 4 KiB for each group that has such a block.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    chunks: BTreeMap<u32, Box<[u64; CHUNK_BITS as usize / 64]>>,
}

impl Frozen {
    pub(crate) fn insert(&mut self, number: u32) {
        let chunk = self.chunks.entry(number / CHUNK_BITS).or_insert_with(|| Box::new([0; 512]));
        chunk[(number % CHUNK_BITS / 64) as usize] |= 1 << (number % 64);
    }

    /// The smallest member in a range.
    pub(crate) fn first_in(&self, range: Range<u32>) -> Option<u32> {
        if range.is_empty() {
            return None;
        }
        let mut words = self.words(&range);
        words.find_map(|(first, bits)| (bits != 0).then(|| first + bits.trailing_zeros()))
    }

    /// The largest member in a range.
    pub(crate) fn last_in(&self, range: Range<u32>) -> Option<u32> {
        if range.is_empty() {
            return None;
        }
        let mut words = self.words(&range).rev();
        words.find_map(|(first, bits)| (bits != 0).then(|| first + 63 - bits.leading_zeros()))
    }

    /// The words that overlap a range: the number of the first bit, and the bits that are in the range.
    fn words(&self, range: &Range<u32>) -> impl DoubleEndedIterator<Item = (u32, u64)> {
        let (start, end) = (range.start, range.end);
        let chunks = self.chunks.range(start / CHUNK_BITS..=(end - 1) / CHUNK_BITS);
        let words = chunks.flat_map(|(&chunk, words)| {
            words.iter().enumerate().map(move |(at, &bits)| (chunk * CHUNK_BITS + at as u32 * 64, bits))
        });
        words.map(move |(first, bits)| (first, bits & mask(first, start, end)))
    }
}

/// The bits of the word that begins with number `first` whose numbers are in `start..end`.
fn mask(first: u32, start: u32, end: u32) -> u64 {
    let below = |limit: u32| match limit.saturating_sub(first) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    };
    below(end) & !below(start)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use seeded::Rng;

    use super::*;

    #[test]
    fn it_is_a_set() {
        let (mut frozen, mut set, mut rng) = (Frozen::default(), BTreeSet::new(), Rng::new(&[1]));
        for _ in 0..300 {
            let number = rng.below(200_000) as u32;
            frozen.insert(number);
            set.insert(number);
            let (one, other) = (rng.below(200_000) as u32, rng.below(200_000) as u32);
            let range = one.min(other)..one.max(other);
            assert_eq!(frozen.first_in(range.clone()), set.range(range.clone()).next().copied());
            assert_eq!(frozen.last_in(range.clone()), set.range(range).next_back().copied());
        }
        frozen.insert(u32::MAX - 1);
        assert_eq!(frozen.last_in(0..u32::MAX), Some(u32::MAX - 1));
    }
}
