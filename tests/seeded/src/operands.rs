//! Random operands of arithmetic instructions. Uniformly random bits hardly ever make a special case, so most
//! operands are constructed to make a special case.

use crate::Rng;

/// A generator of operands.
#[derive(Clone, Debug)]
pub struct Operands(Rng);

impl Operands {
    /// Creates a generator with a fixed seed.
    pub fn new(seed: u64) -> Operands {
        Operands(Rng::from_state(seed))
    }

    /// Creates the generator for a test. The environment variable `variable` has the seed. Prints the variable and
    /// the seed.
    pub fn for_test(name: &str, variable: &str) -> Operands {
        let seed = setting(variable, 1);
        println!("{name}: {variable}={seed}");
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Operands::new(name.bytes().fold(seed, mix))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Returns a number below `bound`: the remainder of a random number. This calculation must not change, because
    /// digests of many results depend on it.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// Returns one of the given values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a fraction of `bits` bits: random, with few ones, with few zeros, or with a run of ones. So rounding
    /// ties and carries happen often.
    pub fn fraction(&mut self, bits: u32) -> u64 {
        let mask = u64::MAX >> (64 - bits);
        let value = match self.below(8) {
            0 => 0,
            1 => mask,
            2 => 1 << self.below(u64::from(bits)),
            3 => mask << self.below(u64::from(bits)),
            4 => mask >> self.below(u64::from(bits)),
            5 => (1 << self.below(u64::from(bits))) | (1 << self.below(u64::from(bits))) | self.below(4),
            6 => self.bits() << self.below(u64::from(bits)),
            _ => self.bits(),
        };
        value & mask
    }

    /// Returns a biased exponent of an IEEE format with `bits` exponent bits.
    pub fn exponent(&mut self, bits: u32) -> u64 {
        let max = (1 << bits) - 1;
        let bias = max / 2;
        let near = |centre: u64, width: u64, operands: &mut Operands| {
            (centre + operands.below(2 * width + 1)).saturating_sub(width).min(max)
        };
        match self.below(10) {
            0 => 0,
            1 => max,
            2 => near(0, 3, self),
            3 => near(max, 3, self),
            4..=6 => near(bias, 4, self),
            7 => near(bias, (max / 2).min(70), self),
            _ => self.below(max + 1),
        }
    }

    /// Returns the bits of a number in an IEEE format.
    pub fn ieee(&mut self, exponent_bits: u32, fraction_bits: u32) -> u64 {
        let sign = self.below(2) << (exponent_bits + fraction_bits);
        sign | (self.exponent(exponent_bits) << fraction_bits) | self.fraction(fraction_bits)
    }

    /// A single-precision number.
    pub fn f32(&mut self) -> u32 {
        self.ieee(8, 23) as u32
    }

    /// A double-precision number.
    pub fn f64(&mut self) -> u64 {
        self.ieee(11, 52)
    }

    /// An integer with a random number of leading zeros or ones.
    pub fn integer(&mut self) -> u64 {
        let value = self.fraction(64) >> self.below(64);
        if self.below(2) == 0 { value } else { value.wrapping_neg() }
    }
}

/// The number in the environment variable `name`, or `default` if there is no such number.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
