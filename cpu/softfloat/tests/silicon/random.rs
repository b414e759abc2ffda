//! Operands: uniform patterns would hardly ever meet a special case, so most are built to meet one.

/// A splitmix64 generator.
pub struct Random(u64);

impl Random {
    /// The generator for the test `name`; prints how to repeat it.
    pub fn for_test(name: &str) -> Random {
        let seed = std::env::var("SOFTFLOAT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
        println!("{name}: SOFTFLOAT_SEED={seed}");
        let mixed =
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        Random(mixed)
    }

    /// A generator with a fixed seed.
    pub fn new(seed: u64) -> Random {
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

    /// A fraction of `bits` bits: random, sparse, dense, or a run of ones, so that ties and carries happen.
    pub fn fraction(&mut self, bits: u32) -> u64 {
        let mask = u64::MAX >> (64 - bits);
        let value = match self.below(8) {
            0 => 0,
            1 => mask,
            2 => 1 << self.below(u64::from(bits)),
            3 => mask << self.below(u64::from(bits)),
            4 => mask >> self.below(u64::from(bits)),
            5 => (1 << self.below(u64::from(bits))) | (1 << self.below(u64::from(bits))) | self.below(4),
            6 => self.next() << self.below(u64::from(bits)),
            _ => self.next(),
        };
        value & mask
    }

    /// A biased exponent of an IEEE format with `bits` exponent bits.
    pub fn exponent(&mut self, bits: u32) -> u64 {
        let max = (1 << bits) - 1;
        let bias = max / 2;
        let near = |centre: u64, width: u64, random: &mut Random| {
            (centre + random.below(2 * width + 1)).saturating_sub(width).min(max)
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

    /// A pattern of an IEEE format.
    pub fn ieee(&mut self, exponent_bits: u32, fraction_bits: u32) -> u64 {
        let sign = self.below(2) << (exponent_bits + fraction_bits);
        sign | (self.exponent(exponent_bits) << fraction_bits) | self.fraction(fraction_bits)
    }

    pub fn f32(&mut self) -> u32 {
        self.ieee(8, 23) as u32
    }

    pub fn f64(&mut self) -> u64 {
        self.ieee(11, 52)
    }

    /// An integer with many leading zeros or ones as often as not.
    pub fn integer(&mut self) -> u64 {
        let value = self.fraction(64) >> self.below(64);
        if self.below(2) == 0 { value } else { value.wrapping_neg() }
    }
}

/// `base` cases, times `SOFTFLOAT_SCALE`.
pub fn cases(base: u32) -> u32 {
    base * std::env::var("SOFTFLOAT_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}
