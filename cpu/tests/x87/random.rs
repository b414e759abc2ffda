//! Operands: uniform patterns would hardly ever meet a special case, so most are built to meet one.

use crate::machine::MEMORY_BYTES;

/// A splitmix64 generator.
pub struct Random(u64);

impl Random {
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

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Register contents; sometimes several equal ones, for comparisons.
    pub fn registers(&mut self) -> [(u64, u16); 8] {
        let mut registers = std::array::from_fn(|_| self.extended());
        if self.below(8) == 0 {
            registers = [registers[0]; 8];
        }
        registers
    }

    /// An extended value: of any class, but ordinary numbers near one most often.
    fn extended(&mut self) -> (u64, u16) {
        let exponent = match self.below(12) {
            0 => 0,
            1 => 0x7fff,
            2 => self.below(0x8000),
            3 => 0x3fff + self.below(70),
            4 => self.pick(&[1, 2, 0x7ffe, 0x7ffd, 0x3c00, 0x3c01, 0x43fe, 0x43ff, 0x3f80, 0x3f81, 0x407e]),
            _ => 0x3fff - 8 + self.below(24),
        };
        let explicit = if exponent == 0 || self.below(32) == 0 { self.below(2) } else { 1 };
        (explicit << 63 | self.fraction(63), (self.below(2) << 15 | exponent) as u16)
    }

    fn fraction(&mut self, bits: u32) -> u64 {
        let mask = (1 << bits) - 1;
        match self.below(6) {
            0 | 1 => 0,
            2 => mask << self.below(u64::from(bits)) & mask,
            3 => 1 << self.below(u64::from(bits)),
            _ => self.next() & mask,
        }
    }

    /// A pattern of an IEEE format.
    fn ieee(&mut self, exponent_bits: u32, fraction_bits: u32) -> u64 {
        let max = (1 << exponent_bits) - 1;
        let exponent = match self.below(6) {
            0 => 0,
            1 => max,
            2 => self.below(max + 1),
            _ => max / 2 - 4 + self.below(12),
        };
        let sign = self.below(2) << (exponent_bits + fraction_bits);
        sign | exponent << fraction_bits | self.fraction(fraction_bits)
    }

    /// A memory operand of some format; behind it anything.
    pub fn memory(&mut self) -> [u8; MEMORY_BYTES] {
        let mut memory = [0; MEMORY_BYTES];
        for chunk in memory.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        match self.below(6) {
            0 => memory[..8].copy_from_slice(&self.ieee(11, 52).to_le_bytes()),
            1 => memory[..4].copy_from_slice(&(self.ieee(8, 23) as u32).to_le_bytes()),
            2 => memory[..8].copy_from_slice(&(self.below(200) as i64 - 100).to_le_bytes()),
            3 => memory[..10].iter_mut().for_each(|byte| *byte = self.decimal_byte()),
            4 => memory[..10].copy_from_slice(&self.extended_bytes()),
            _ => {}
        }
        memory
    }

    fn decimal_byte(&mut self) -> u8 {
        (self.below(10) << 4 | self.below(10)) as u8
    }

    fn extended_bytes(&mut self) -> [u8; 10] {
        let (mantissa, sign_exponent) = self.extended();
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
        bytes[8..].copy_from_slice(&sign_exponent.to_le_bytes());
        bytes
    }
}
