//! RFLAGS, with the six arithmetic flags computed lazily, because most results are overwritten before anything reads
//! their flags.
//!
//! Two words describe all six. `result` is the result sign-extended to 64 bits: it gives ZF, SF and PF.
//! `aux` holds the rest:
//!
//! ```text
//! bit 63  CF                        bit 1      correction to SF
//! bit 62  carry into the sign bit   bits 8-15  correction to PF (xor-ed onto the result's low byte)
//! bit 0   AF                        others     zero
//! ```
//!
//! OF is bit 63 xor bit 62. The corrections are zero after arithmetic; POPF, SAHF and the like need them,
//! because they can set combinations that no result has.

/// Carry.
pub const CF: u64 = 1;
/// Parity of the low byte.
pub const PF: u64 = 1 << 2;
/// Carry out of bit 3.
pub const AF: u64 = 1 << 4;
/// Zero.
pub const ZF: u64 = 1 << 6;
/// Sign.
pub const SF: u64 = 1 << 7;
/// Single-step trap.
pub const TF: u64 = 1 << 8;
/// Interrupt enable.
pub const IF: u64 = 1 << 9;
/// String direction.
pub const DF: u64 = 1 << 10;
/// Overflow.
pub const OF: u64 = 1 << 11;
/// I/O privilege level.
pub const IOPL: u64 = 3 << 12;
/// Nested task.
pub const NT: u64 = 1 << 14;
/// Resume: suppresses instruction breakpoints for one instruction.
pub const RF: u64 = 1 << 16;
/// Virtual-8086 mode.
pub const VM: u64 = 1 << 17;
/// Alignment check. With SMAP, the bit also allows supervisor code to access user pages.
pub const AC: u64 = 1 << 18;
/// Virtual interrupt flag.
pub const VIF: u64 = 1 << 19;
/// Virtual interrupt pending.
pub const VIP: u64 = 1 << 20;
/// Identification: software can change this bit if the processor has CPUID.
pub const ID: u64 = 1 << 21;
/// The six flags that are computed lazily.
pub const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

/// The arithmetic flags, computed only when something reads them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LazyFlags {
    /// Result sign-extended to 64 bits.
    pub result: u64,
    /// CF, AF, the carry into the sign bit, and the corrections. The module's documentation shows the bits.
    pub aux: u64,
}

impl LazyFlags {
    /// Takes the six flags from an RFLAGS image.
    pub fn from_bits(rflags: u64) -> LazyFlags {
        let zero = rflags & ZF != 0;
        let result = u64::from(!zero);
        // `from_bits` uses a result of 0 (even parity, PF set) or 1 (odd parity, PF clear).
        let parity_wrong = (rflags & PF != 0) != zero;
        let (cf, of) = (rflags & CF != 0, rflags & OF != 0);
        let mut aux = carry_overflow(cf, of);
        aux |= u64::from(rflags & AF != 0);
        aux |= u64::from(rflags & SF != 0) << 1;
        aux |= u64::from(parity_wrong) << 8;
        LazyFlags { result, aux }
    }

    /// The six flags as RFLAGS bits.
    #[inline]
    pub fn bits(self) -> u64 {
        u64::from(self.cf())
            | u64::from(self.pf()) << 2
            | u64::from(self.af()) << 4
            | u64::from(self.zf()) << 6
            | u64::from(self.sf()) << 7
            | u64::from(self.of()) << 11
    }

    /// The carry flag.
    #[inline(always)]
    pub fn cf(self) -> bool {
        (self.aux as i64) < 0
    }
    /// The overflow flag.
    #[inline(always)]
    pub fn of(self) -> bool {
        ((self.aux ^ self.aux << 1) as i64) < 0
    }
    /// The adjust flag.
    #[inline(always)]
    pub fn af(self) -> bool {
        self.aux & 1 != 0
    }
    /// The zero flag.
    #[inline(always)]
    pub fn zf(self) -> bool {
        self.result == 0
    }
    /// The sign flag.
    #[inline(always)]
    pub fn sf(self) -> bool {
        (self.result >> 63) ^ (self.aux >> 1 & 1) != 0
    }
    /// The parity flag.
    #[inline(always)]
    pub fn pf(self) -> bool {
        (self.result as u8 ^ (self.aux >> 8) as u8).count_ones() & 1 == 0
    }

    /// Whether a condition of Jcc, SETcc and CMOVcc is true. `cc` is the condition's encoding (SDM vol. 2, appendix
    /// B.1.4.7).
    #[inline(always)]
    pub fn condition<const CC: u8>(self) -> bool {
        let plain = match CC >> 1 {
            0 => self.of(),
            1 => self.cf(),
            2 => self.zf(),
            3 => self.cf() || self.zf(),
            4 => self.sf(),
            5 => self.pf(),
            6 => self.sf() != self.of(),
            _ => self.zf() || self.sf() != self.of(),
        };
        plain != (CC & 1 != 0)
    }
}

/// The value of `aux` for these values of CF and OF. AF and the corrections are zero.
#[inline(always)]
pub fn carry_overflow(cf: bool, of: bool) -> u64 {
    u64::from(cf) << 63 | u64::from(cf != of) << 62
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_the_six_flags_survives() {
        for n in 0..64_u64 {
            let bits = (n & 1) * CF
                | (n >> 1 & 1) * PF
                | (n >> 2 & 1) * AF
                | (n >> 3 & 1) * ZF
                | (n >> 4 & 1) * SF
                | (n >> 5 & 1) * OF;
            assert_eq!(LazyFlags::from_bits(bits).bits(), bits);
        }
    }
}
