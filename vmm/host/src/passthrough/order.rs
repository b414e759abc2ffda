//! The order in which a function sees the guest's writes.
//!
//! The recorder does not know the order of the guest's writes. But a driver completes data before it writes the data's
//! address into a descriptor, a chain of descriptors or a list. So the data at an address is shown before the chunk
//! that contains the address.

use std::collections::BTreeMap;

use vfio::CHUNK_BYTES;

/// A chunk with new bytes of the guest.
#[derive(Clone)]
pub(super) struct New {
    /// Offset in RAM.
    pub at: usize,
    pub chunk: [u8; CHUNK_BYTES],
}

impl New {
    /// The four-byte and eight-byte values in the chunk that may be addresses. The values' lowest bits may
    /// have other meanings, and are cleared.
    fn addresses(&self) -> impl Iterator<Item = u64> {
        let short = self.chunk.as_chunks().0.iter().map(|bytes| u64::from(u32::from_le_bytes(*bytes)));
        let long = self.chunk.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        short.chain(long).map(|address| address & !(CHUNK_BYTES as u64 - 1))
    }
}

/// Sorts new chunks so that each chunk comes before the chunks that contain its address. All other chunks keep their
/// order. `offset_of` maps the function's addresses to offsets in RAM. If chunks contain each other's addresses in a
/// circle, one of them must come first.
pub(super) fn named_first(news: Vec<New>, offset_of: impl Fn(u64) -> Option<u64>) -> Vec<New> {
    let number_at: BTreeMap<u64, usize> =
        (0..).zip(&news).map(|(number, new)| (new.at as u64, number)).collect();
    let names = |number: usize| -> Vec<usize> {
        let offsets = news[number].addresses().filter_map(&offset_of);
        offsets.filter_map(|offset| number_at.get(&offset).copied()).collect()
    };
    let mut order = Vec::with_capacity(news.len());
    let mut seen = vec![false; news.len()];
    for first in 0..news.len() {
        // The chunks in progress. Each element also has the chunks whose addresses this chunk contains and that were
        // not visited yet.
        let mut path = Vec::new();
        if !std::mem::replace(&mut seen[first], true) {
            path.push((first, names(first)));
        }
        while let Some((number, left)) = path.last_mut() {
            match left.pop() {
                Some(named) if std::mem::replace(&mut seen[named], true) => {}
                Some(named) => path.push((named, names(named))),
                None => {
                    order.push(*number);
                    path.pop();
                }
            }
        }
    }
    order.into_iter().map(|number| news[number].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk at an offset, with these words.
    fn new(at: usize, words: [u32; 4]) -> New {
        let mut chunk = [0; CHUNK_BYTES];
        for (to, word) in chunk.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        New { at, chunk }
    }

    /// Orders chunks. The function sees the first 64 KiB of RAM at 0xFFFF0000.
    fn order(news: &[New]) -> Vec<usize> {
        let offset_of = |address: u64| address.checked_sub(0xFFFF_0000).filter(|offset| *offset < 0x1_0000);
        named_first(news.to_vec(), offset_of).iter().map(|new| new.at).collect()
    }

    #[test]
    fn a_chain_is_shown_from_its_end_wherever_its_links_lie() {
        let chain = [
            new(0x1040, [0xFFFF_1004, 7, 7, 0]),
            new(0x1000, [0xFFFF_1024, 7, 7, 0xFFFF_3000]),
            new(0x1020, [1, 7, 7, 0]),
            new(0x2000, [0, 0xFFFF_1040, 0, 0]),
        ];
        let (all, expected) = ([0, 1, 2, 3], [0x1020, 0x1000, 0x1040, 0x2000]);
        for shift in 0..4 {
            let turned: Vec<New> = all.map(|at| chain[(at + shift) % 4].clone()).to_vec();
            assert_eq!(order(&turned), expected, "{shift}");
        }
    }

    #[test]
    fn addresses_of_eight_bytes_count_too_and_the_rest_stays() {
        let long = new(0x5000, [0, 0, 0xFFFF_4000, 0]);
        assert_eq!(order(&[long, new(0x6000, [5; 4]), new(0x4000, [9; 4])]), [0x4000, 0x5000, 0x6000]);
    }

    #[test]
    fn circles_and_what_names_itself_come_to_an_end() {
        let circle = [new(0x10, [0xFFFF_0020, 0, 0, 0]), new(0x20, [0xFFFF_0010, 0xFFFF_0020, 0, 0])];
        assert_eq!(order(&circle), [0x20, 0x10]);
        assert!(order(&[]).is_empty());
    }
}
