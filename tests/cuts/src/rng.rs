//! Numbers that look random and follow from a seed (SplitMix64).

/// A generator; its whole state is one number.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of a seed and a number within it.
    pub fn new(seed: u64, number: u64) -> Rng {
        let mut rng = Rng(seed);
        rng.0 = rng.bits() ^ number;
        rng.0 = rng.bits();
        rng
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is not zero.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        (u128::from(self.bits()) * u128::from(limit) >> 64) as u64
    }

    /// True in `percent` of 100 cases.
    #[inline]
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the given values.
    #[inline]
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A number that follows from another and looks like no relative of it.
#[inline]
pub fn mix(number: u64) -> u64 {
    let z = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
