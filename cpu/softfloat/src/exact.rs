//! Exact arithmetic on finite, nonzero values, and the only code that rounds.
//!
//! The type [`Exact`] knows no formats, flags or NaNs. A value is kept in 128 bits. Bits that do not fit are or-ed
//! into the lowest bit, which is then a *jammed* bit. The jammed bit is enough for every rounding decision, because
//! results keep at most 64 bits.

use crate::env::Rounding;

/// The finite value `(-1)^sign * sig * 2^(exp - 127)` with bit 127 of `sig` set.
///
/// The lowest bit may be a jammed sticky bit: "something nonzero follows".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub sign: bool,
    pub exp: i32,
    pub sig: u128,
}

/// A significand rounded to some precision, left-aligned in 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounded {
    pub exp: i32,
    pub sig: u64,
    pub inexact: bool,
    /// Whether rounding increased the magnitude. The x87 reports this increase in C1.
    pub up: bool,
}

/// `value >> count`, with the lowest bit set if anything nonzero was shifted out.
#[inline]
pub(crate) const fn shift_right_jam(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..=127 => (value >> count) | ((value << (128 - count) != 0) as u128),
        _ => (value != 0) as u128,
    }
}

impl Exact {
    /// The value of a left-aligned 64-bit significand (bit 63 set).
    #[inline]
    pub fn from_sig64(sign: bool, exp: i32, sig: u64) -> Exact {
        debug_assert!(sig >> 63 == 1);
        Exact { sign, exp, sig: (sig as u128) << 64 }
    }

    /// `(-1)^sign * sig * 2^(exp - 127)` for any nonzero `sig`.
    #[inline]
    pub fn normalized(sign: bool, exp: i32, sig: u128) -> Exact {
        debug_assert!(sig != 0);
        let shift = sig.leading_zeros();
        Exact { sign, exp: exp - shift as i32, sig: sig << shift }
    }

    /// `a + b`, or `None` if the sum is exactly zero.
    ///
    /// The sum is exact, except that its lowest bit stands for all bits that do not fit, under two conditions. The
    /// lowest bit of both significands is zero, to leave room for the carry. If the operands can cancel, the lowest
    /// 62 bits are zero. Decoded operands and products of binary64 numbers fulfil both conditions.
    pub fn sum(a: Exact, b: Exact) -> Option<Exact> {
        let (big, small) = if (a.exp, a.sig) >= (b.exp, b.sig) { (a, b) } else { (b, a) };
        let distance = (big.exp - small.exp) as u32;
        let high = shift_right_jam(big.sig, 1);
        let low = shift_right_jam(small.sig, distance.saturating_add(1));
        let sig = if big.sign == small.sign { high + low } else { high - low };
        (sig != 0).then(|| Exact::normalized(big.sign, big.exp + 1, sig))
    }

    /// `a * b`, exact, if both significands have at most 64 bits.
    pub fn product(a: Exact, b: Exact) -> Exact {
        let sig = (a.sig >> 64) * (b.sig >> 64);
        Exact::normalized(a.sign != b.sign, a.exp + b.exp + 1, sig)
    }

    /// `a / b`, if both significands have at most 64 bits. At least the first 126 bits of the quotient are exact.
    /// If there is a remainder, the lowest bit is set.
    pub fn quotient(a: Exact, b: Exact) -> Exact {
        let divisor = b.sig >> 64;
        // Dividing half the significand keeps the first quotient digit within 64 bits.
        let dividend = a.sig >> 1;
        let (high, rest) = (dividend / divisor, dividend % divisor);
        let (low, rest) = ((rest << 64) / divisor, (rest << 64) % divisor);
        let sig = (high << 64) | low | (rest != 0) as u128;
        Exact::normalized(a.sign != b.sign, a.exp - b.exp, sig)
    }

    /// The square root of a positive value with at most 64 significant bits. The first 65 bits of the root are
    /// exact. If there is a remainder, the lowest bit is set.
    pub fn square_root(a: Exact) -> Exact {
        let odd = a.exp & 1 != 0;
        let radicand = if odd { a.sig } else { a.sig >> 1 };
        let root = radicand.isqrt();
        let rest = radicand - root * root;
        // The radicand is an integer, so the root's fraction cannot be exactly one half.
        let half = (rest > root) as u128;
        Exact { sign: false, exp: a.exp >> 1, sig: (root << 64) | (half << 63) | (rest != 0) as u128 }
    }

    /// Rounds to `precision` bits with an unbounded exponent.
    #[inline]
    pub fn round(self, precision: u32, mode: Rounding) -> Rounded {
        round_significand(self.sign, self.exp, self.sig, precision, mode)
    }

    /// Rounds a value below `2^emin` at the lowest bit of a denormal's significand.
    ///
    /// The result has exponent `emin`. Bit 63 is clear unless rounding carried up to the smallest normal number.
    pub fn round_denormal(self, precision: u32, emin: i32, mode: Rounding) -> Rounded {
        let sig = shift_right_jam(self.sig, (emin - self.exp) as u32);
        round_significand(self.sign, emin, sig, precision, mode)
    }

    /// Rounds to an integer; `None` if the magnitude does not fit 64 bits.
    pub fn to_integer(self, mode: Rounding) -> Option<Integer> {
        if self.exp > 63 {
            return None;
        }
        // Put the binary point between the upper and the lower 64 bits.
        let fixed = shift_right_jam(self.sig, (63 - self.exp) as u32);
        let (whole, fraction) = ((fixed >> 64) as u64, fixed as u64);
        let up = rounds_up(self.sign, whole & 1 != 0, fraction as u128, 1 << 63, mode);
        let magnitude = whole.checked_add(up as u64)?;
        Some(Integer { sign: self.sign, magnitude, inexact: fraction != 0, up })
    }
}

/// A value rounded to an integer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integer {
    pub sign: bool,
    pub magnitude: u64,
    pub inexact: bool,
    /// Whether the magnitude was increased.
    pub up: bool,
}

impl Integer {
    /// The two's complement value, if it fits a signed integer of `bits` (16, 32 or 64) bits.
    #[inline]
    pub fn signed(self, bits: u32) -> Option<i64> {
        let limit = 1u64 << (bits - 1);
        match self.sign {
            false => (self.magnitude < limit).then_some(self.magnitude as i64),
            true => (self.magnitude <= limit).then(|| (self.magnitude as i64).wrapping_neg()),
        }
    }
}

/// Whether rounding away the bits `rest` increases the magnitude. `half` is the value of `rest` that is halfway
/// between two results.
#[inline]
fn rounds_up(sign: bool, odd: bool, rest: u128, half: u128, mode: Rounding) -> bool {
    match mode {
        Rounding::Nearest => rest > half || (rest == half && odd),
        Rounding::Down => sign && rest != 0,
        Rounding::Up => !sign && rest != 0,
        Rounding::Zero => false,
    }
}

#[inline]
fn round_significand(sign: bool, exp: i32, sig: u128, precision: u32, mode: Rounding) -> Rounded {
    let unit = 1u128 << (128 - precision);
    let rest = sig & (unit - 1);
    let up = rounds_up(sign, sig & unit != 0, rest, unit >> 1, mode);
    let kept = ((sig - rest) >> 64) as u64;
    let (sum, carry) = if up { kept.overflowing_add((unit >> 64) as u64) } else { (kept, false) };
    let (exp, sig) = if carry { (exp + 1, 1 << 63) } else { (exp, sum) };
    Rounded { exp, sig, inexact: rest != 0, up }
}
