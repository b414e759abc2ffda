//! Pseudo-random numbers that are the same in every run (SplitMix64).

use machine::position::{Count, Instructions};

/// A generator; its whole state is one number.
pub struct Random(u64);

impl Random {
    /// A generator with a seed. Failing tests print the seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// A position before `limit`. `limit` must not be 0.
    pub fn place(&mut self, limit: Instructions) -> Instructions {
        Instructions(self.below(limit.number()))
    }

    /// Returns `count` distinct positions after 0 and before `limit`, in ascending order.
    pub fn points(&mut self, count: usize, limit: Instructions) -> Vec<Instructions> {
        let mut points = std::collections::BTreeSet::new();
        while points.len() < count {
            points.insert(self.place(limit - 1) + 1);
        }
        points.into_iter().collect()
    }
}
