//! A small, fast, seedable random generator (SplitMix64). The numbers of a test case (its seed and number) suffice to
//! reproduce the case.

mod operands;

pub use operands::{Operands, setting};

/// The generator's state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator that `parts` determine. Equal parts give equal sequences of numbers.
    pub fn new(parts: &[u64]) -> Rng {
        let mut rng = Rng(0x5851_f42d_4c95_7f2d);
        for &part in parts {
            rng.0 ^= part;
            rng.0 = rng.bits();
        }
        rng
    }

    /// Creates a generator with this state.
    pub fn from_state(state: u64) -> Rng {
        Rng(state)
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `limit`; `limit` must not be zero. For small limits, the numbers are nearly equally
    /// likely.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        (u128::from(self.bits()) * u128::from(limit) >> 64) as u64
    }

    /// Returns true with a probability of `percent` %.
    #[inline]
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the given values.
    #[inline]
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// Hashes a number. The result depends only on `number`, and looks random.
#[inline]
pub fn mix(number: u64) -> u64 {
    let z = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
