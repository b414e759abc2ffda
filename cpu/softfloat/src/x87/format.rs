//! The 80-bit format: its encodings, NaN rules, and rounding into it.
//!
//! SDM vol. 1, 4.2.2, 4.8.3.5 (table 4-7), 8.2.2 (unsupported encodings), 8.5 (responses to exceptions).

use super::X87Env;
use crate::env::{IE, OE, PE, UE};
use crate::exact::{Exact, Integer, Rounded};
use crate::sse::Ieee;
use crate::sse::format::{Kind as IeeeKind, Unpacked, aligned_fraction};

/// An 80-bit extended value: explicit integer bit (63 of `mantissa`), sign (15) and biased exponent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct F80 {
    /// The significand with its integer bit.
    pub mantissa: u64,
    /// Sign in bit 15, biased exponent in bits 14:0.
    pub sign_exponent: u16,
}

pub(crate) const BIAS: i32 = 16383;
pub(crate) const EMAX: i32 = 16383;
pub(crate) const EMIN: i32 = -16382;
const MAX_BIASED: u16 = 0x7fff;
const SIGN: u16 = 0x8000;
const INTEGER_BIT: u64 = 1 << 63;
const QUIET_BIT: u64 = 1 << 62;
/// The adjustment of the exponent by an unmasked overflow or underflow (SDM vol. 1, 8.5.4 and 8.5.5).
const EXPONENT_ADJUST: i32 = 24576;

impl F80 {
    /// +0.
    pub const ZERO: F80 = F80 { mantissa: 0, sign_exponent: 0 };
    /// +1.
    pub const ONE: F80 = F80 { mantissa: INTEGER_BIT, sign_exponent: BIAS as u16 };
    /// The QNaN floating-point indefinite.
    pub const INDEFINITE: F80 = F80 { mantissa: INTEGER_BIT | QUIET_BIT, sign_exponent: SIGN | MAX_BIASED };

    /// The value of a 10-byte little-endian memory operand. FLD m80 loads the value unchanged and raises
    /// nothing.
    #[inline]
    pub fn from_bytes(bytes: [u8; 10]) -> F80 {
        let [m0, m1, m2, m3, m4, m5, m6, m7, s0, s1] = bytes;
        F80 {
            mantissa: u64::from_le_bytes([m0, m1, m2, m3, m4, m5, m6, m7]),
            sign_exponent: u16::from_le_bytes([s0, s1]),
        }
    }

    /// The 10-byte memory operand that FSTP m80 writes. FSTP m80 raises nothing.
    #[inline]
    pub fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.mantissa.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sign_exponent.to_le_bytes());
        bytes
    }

    /// The sign bit.
    #[inline]
    pub const fn sign(self) -> bool {
        self.sign_exponent & SIGN != 0
    }

    #[inline]
    pub(crate) const fn biased_exponent(self) -> u16 {
        self.sign_exponent & MAX_BIASED
    }

    #[inline]
    pub(crate) fn with_sign(self, sign: bool) -> F80 {
        F80 { sign_exponent: self.biased_exponent() | if sign { SIGN } else { 0 }, ..self }
    }

    #[inline]
    pub(crate) fn zero(sign: bool) -> F80 {
        F80::ZERO.with_sign(sign)
    }

    #[inline]
    pub(crate) fn infinity(sign: bool) -> F80 {
        F80 { mantissa: INTEGER_BIT, sign_exponent: MAX_BIASED }.with_sign(sign)
    }

    /// Converts an integer exactly.
    pub(crate) fn from_integer(value: Integer) -> F80 {
        if value.magnitude == 0 {
            return F80::zero(value.sign);
        }
        let exact = Exact::normalized(value.sign, 127, u128::from(value.magnitude));
        F80::pack(value.sign, exact.exp, (exact.sig >> 64) as u64)
    }

    /// Converts an integer as FILD does.
    pub(crate) fn from_i64(value: i64) -> F80 {
        F80::from_integer(Integer {
            sign: value < 0,
            magnitude: value.unsigned_abs(),
            inexact: false,
            up: false,
        })
    }

    /// The value of a rounded significand. A significand without the integer bit gives a denormal.
    fn pack(sign: bool, exp: i32, sig: u64) -> F80 {
        let biased = if sig & INTEGER_BIT != 0 { (exp + BIAS) as u16 } else { 0 };
        F80 { mantissa: sig, sign_exponent: biased }.with_sign(sign)
    }
}

/// The class of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Zero,
    Finite,
    Infinity,
    QuietNan,
    SignallingNan,
    /// Pseudo-NaN, pseudo-infinity or unnormal.
    Unsupported,
}

/// A decoded operand of an instruction, made from an [`F80`] or from a memory operand of another format.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub(crate) kind: Kind,
    pub(crate) sign: bool,
    /// Whether the operand is a denormal or pseudo-denormal in its original format.
    pub(crate) denormal: bool,
    /// The value as an F80. SNaNs are not yet quiet.
    pub(crate) value: F80,
    exp: i32,
    sig: u64,
}

impl From<F80> for Operand {
    fn from(value: F80) -> Operand {
        let biased = value.biased_exponent();
        let has_integer_bit = value.mantissa & INTEGER_BIT != 0;
        let kind = match biased {
            0 if value.mantissa == 0 => Kind::Zero,
            0 => Kind::Finite,
            _ if !has_integer_bit => Kind::Unsupported,
            MAX_BIASED if value.mantissa == INTEGER_BIT => Kind::Infinity,
            MAX_BIASED if value.mantissa & QUIET_BIT != 0 => Kind::QuietNan,
            MAX_BIASED => Kind::SignallingNan,
            _ => Kind::Finite,
        };
        let denormal = biased == 0 && kind == Kind::Finite;
        let shift = if denormal { value.mantissa.leading_zeros() } else { 0 };
        let exp = i32::from(biased.max(1)) - BIAS - shift as i32;
        Operand { kind, sign: value.sign(), denormal, value, exp, sig: value.mantissa << shift }
    }
}

impl Operand {
    /// A binary32 memory operand (FADD m32fp and so on).
    pub fn from_f32(bits: u32) -> Operand {
        Operand::from_ieee(bits)
    }

    /// A binary64 memory operand.
    pub fn from_f64(bits: u64) -> Operand {
        Operand::from_ieee(bits)
    }

    /// An integer memory operand of 16 or 32 bits (FIADD and so on), sign-extended. Raises nothing.
    pub fn from_integer(value: i64) -> Operand {
        F80::from_i64(value).into()
    }

    fn from_ieee<T: Ieee>(bits: T) -> Operand {
        let x = Unpacked::new(bits, false);
        let value = match x.kind {
            IeeeKind::Zero => F80::zero(x.sign),
            IeeeKind::Infinity => F80::infinity(x.sign),
            IeeeKind::Nan => {
                let mantissa = INTEGER_BIT | aligned_fraction(bits);
                F80 { mantissa, sign_exponent: MAX_BIASED }.with_sign(x.sign)
            }
            IeeeKind::Finite => {
                let exact = x.exact();
                F80::pack(x.sign, exact.exp, (exact.sig >> 64) as u64)
            }
        };
        Operand { denormal: x.denormal, ..value.into() }
    }

    /// The value of a `Kind::Finite` operand.
    #[inline]
    pub(crate) fn exact(&self) -> Exact {
        Exact::from_sig64(self.sign, self.exp, self.sig)
    }

    #[inline]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    #[inline]
    pub(crate) fn is_nan(&self) -> bool {
        matches!(self.kind, Kind::QuietNan | Kind::SignallingNan)
    }

    /// The operand with the other sign, for FSUB. A NaN keeps its sign.
    pub(crate) fn negated(self) -> Operand {
        if self.is_nan() {
            return self;
        }
        Operand { sign: !self.sign, value: self.value.with_sign(!self.sign), ..self }
    }

    /// The value in its normal encoding: a pseudo-denormal becomes the normal number with the same value.
    pub(crate) fn canonical(&self) -> F80 {
        if self.denormal && self.value.mantissa & INTEGER_BIT != 0 {
            return F80 { sign_exponent: self.value.sign_exponent | 1, ..self.value };
        }
        self.value
    }

    /// The NaN, made quiet.
    #[inline]
    pub(crate) fn quieted(&self) -> F80 {
        F80 { mantissa: self.value.mantissa | QUIET_BIT, ..self.value }
    }
}

/// The checks at the start of every arithmetic instruction. `Err` holds the outcome if there is nothing to compute: for
/// an unsupported encoding or a NaN.
pub(crate) fn check_nans(env: &mut X87Env, operands: &[Operand]) -> Result<(), Option<F80>> {
    if operands.iter().any(|operand| operand.is(Kind::Unsupported)) {
        return Err(env.invalid(F80::INDEFINITE));
    }
    let signalling = operands.iter().any(|operand| operand.is(Kind::SignallingNan));
    if signalling && env.before(IE).is_none() {
        return Err(None);
    }
    match operands.iter().filter(|operand| operand.is_nan()).copied().reduce(preferred_nan) {
        Some(nan) => Err(Some(nan.quieted())),
        None => Ok(()),
    }
}

/// Chooses between two NaNs: a QNaN over an SNaN, then the larger significand, then the positive one.
fn preferred_nan(a: Operand, b: Operand) -> Operand {
    let rank = |nan: &Operand| (nan.is(Kind::QuietNan), nan.value.mantissa, !nan.sign);
    if rank(&b) > rank(&a) { b } else { a }
}

/// Rounds to the precision in the control word (FADD, FSUB, FMUL, FDIV, FSQRT).
pub(crate) fn round_pack(env: &mut X87Env, value: Exact) -> F80 {
    round_pack_to(env, value, env.precision())
}

/// Rounds to 64 bits, for the instructions that ignore the precision control.
pub(crate) fn round_pack_extended(env: &mut X87Env, value: Exact) -> F80 {
    round_pack_to(env, value, 64)
}

/// Rounds the result of a transcendental instruction. Processors treat every such result as inexact, so every
/// result raises #P, and every denormal result raises #U.
pub(crate) fn round_transcendental(env: &mut X87Env, value: Exact) -> F80 {
    env.raise(PE);
    let result = round_pack_extended(env, value);
    if result.biased_exponent() == 0 {
        env.raise(UE);
    }
    result
}

fn round_pack_to(env: &mut X87Env, value: Exact, precision: u32) -> F80 {
    let rounded = value.round(precision, env.rounding());
    if rounded.exp > EMAX {
        return overflow(env, value.sign, rounded, precision);
    }
    if rounded.exp < EMIN {
        return underflow(env, value, rounded, precision);
    }
    deliver(env, value.sign, rounded)
}

fn overflow(env: &mut X87Env, sign: bool, rounded: Rounded, precision: u32) -> F80 {
    env.raise(OE);
    let mut to_infinity = env.rounding().overflows_to_infinity(sign);
    if !env.masks(OE) {
        let scaled = rounded.exp - EXPONENT_ADJUST;
        if scaled <= EMAX {
            return deliver(env, sign, Rounded { exp: scaled, ..rounded });
        }
        // Even the scaled result overflows, which is possible only for FSCALE. The result is then infinity in every
        // rounding mode.
        to_infinity = true;
    }
    env.raise(PE);
    env.set_c1(to_infinity);
    if to_infinity { F80::infinity(sign) } else { F80::pack(sign, EMAX, u64::MAX << (64 - precision)) }
}

fn underflow(env: &mut X87Env, value: Exact, unbounded: Rounded, precision: u32) -> F80 {
    if !env.masks(UE) {
        env.raise(UE);
        let scaled = unbounded.exp + EXPONENT_ADJUST;
        if scaled >= EMIN {
            return deliver(env, value.sign, Rounded { exp: scaled, ..unbounded });
        }
        // Even the scaled result underflows, which is possible only for FSCALE. The result is then zero in every
        // rounding mode.
        env.raise(PE);
        return F80::zero(value.sign);
    }
    let rounded = value.round_denormal(precision, EMIN, env.rounding());
    if rounded.inexact {
        env.raise(UE);
    }
    deliver(env, value.sign, rounded)
}

fn deliver(env: &mut X87Env, sign: bool, rounded: Rounded) -> F80 {
    if rounded.inexact {
        env.raise(PE);
    }
    env.set_c1(rounded.up);
    F80::pack(sign, rounded.exp, rounded.sig)
}
