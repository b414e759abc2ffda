//! Operands: uniform patterns would hardly ever meet a special case, so most are built to meet one.

/// A splitmix64 generator.
pub struct Random(u64);

impl Random {
    /// The generator for a test; prints how to repeat it.
    pub fn for_test(name: &str) -> Random {
        let seed = setting("SIMD_SEED", 1);
        println!("{name}: SIMD_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A quadword of lanes of some kind.
    pub fn quad(&mut self) -> u64 {
        match self.below(8) {
            0 => self.next(),
            1 | 2 => self.float(11, 52),
            3 | 4 => self.float(8, 23) | self.float(8, 23) << 32,
            5 => self.pick(&[0, 1, 2, 7, 15, 16, 31, 32, 63, 64, u64::MAX, 1 << 63, 0x8000_0000]),
            6 => self.lanes(16),
            _ => self.lanes(8),
        }
    }

    /// Small and extreme integers in each lane; zeros often enough to end strings.
    fn lanes(&mut self, bits: u64) -> u64 {
        let mask = (1 << bits) - 1;
        let sign = 1 << (bits - 1);
        (0..64 / bits).fold(0, |value, _| {
            let lane = match self.below(6) {
                0 => self.pick(&[0, 1, sign, sign - 1, mask]),
                1 => self.next() & mask,
                _ => self.below(6),
            };
            value << bits | lane
        })
    }

    /// A pattern of an IEEE format: zeros, denormals, infinities, NaNs, values near one and anything.
    fn float(&mut self, exponent_bits: u64, fraction_bits: u64) -> u64 {
        let max = (1 << exponent_bits) - 1;
        let exponent = match self.below(8) {
            0 => 0,
            1 => max,
            2..=5 => max / 2 - 3 + self.below(12),
            6 => max / 2 + self.below(70),
            _ => self.below(max + 1),
        };
        let mask = (1 << fraction_bits) - 1;
        let fraction = match self.below(5) {
            0 => 0,
            1 => mask << self.below(fraction_bits) & mask,
            2 => 1 << self.below(fraction_bits),
            _ => self.next() & mask,
        };
        self.below(2) << (exponent_bits + fraction_bits) | exponent << fraction_bits | fraction
    }
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
