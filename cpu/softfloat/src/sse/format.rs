//! Binary16, binary32 and binary64: decoding bit patterns, rounding into them, NaN rules.
//!
//! SDM vol. 1, 4.2.2 (formats), 4.8.3.5 (NaN operands), 11.5.2 (masked responses).

use super::SseEnv;
use crate::env::{DE, IE, OE, PE, UE};
use crate::exact::{Exact, Rounded};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// An IEEE 754 interchange format, named by the integer that holds its bits.
pub trait Ieee: Copy + Eq + sealed::Sealed + 'static {
    /// Significand bits, including the implied one.
    const PRECISION: u32;
    /// Exponent of the largest finite numbers. The smallest normal number has `1 - EMAX`.
    const EMAX: i32;
    /// The bits, zero-extended.
    fn widen(self) -> u64;
    /// The low bits of `bits`.
    fn narrow(bits: u64) -> Self;
}

/// A format that the host can compute with: `u32` and `u64`, not `u16`. The fast paths need such a format.
///
/// The host's basic operations round to nearest, as IEEE 754 demands. The guest's MXCSR does not affect their
/// results.
pub trait Host: Ieee {
    /// `self + other`.
    fn host_add(self, other: Self) -> Self;
    /// `self - other`.
    fn host_sub(self, other: Self) -> Self;
    /// `self * other`.
    fn host_mul(self, other: Self) -> Self;
    /// `self / other`.
    fn host_div(self, other: Self) -> Self;
    /// The square root.
    fn host_sqrt(self) -> Self;
    /// The integer in this format; exact if it has at most `PRECISION` bits.
    fn host_from_i64(value: i64) -> Self;
    /// The value truncated toward zero. The result must fit an `i64`.
    fn host_to_i64(self) -> i64;
}

macro_rules! ieee {
    ($bits:ty, $precision:expr, $emax:expr) => {
        impl Ieee for $bits {
            const PRECISION: u32 = $precision;
            const EMAX: i32 = $emax;
            #[inline(always)]
            fn widen(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn narrow(bits: u64) -> Self {
                bits as $bits
            }
        }
    };
}

ieee!(u16, 11, 15);
ieee!(u32, 24, 127);
ieee!(u64, 53, 1023);

macro_rules! host {
    ($bits:ty, $float:ty) => {
        impl Host for $bits {
            #[inline(always)]
            fn host_add(self, other: Self) -> Self {
                (<$float>::from_bits(self) + <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn host_sub(self, other: Self) -> Self {
                (<$float>::from_bits(self) - <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn host_mul(self, other: Self) -> Self {
                (<$float>::from_bits(self) * <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn host_div(self, other: Self) -> Self {
                (<$float>::from_bits(self) / <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn host_sqrt(self) -> Self {
                <$float>::from_bits(self).sqrt().to_bits()
            }
            #[inline(always)]
            fn host_from_i64(value: i64) -> Self {
                (value as $float).to_bits()
            }
            #[inline(always)]
            fn host_to_i64(self) -> i64 {
                <$float>::from_bits(self) as i64
            }
        }
    };
}

host!(u32, f32);
host!(u64, f64);

/// The class of a bit pattern. Under DAZ, a denormal has the class of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Zero,
    Finite,
    Infinity,
    Nan,
}

/// A decoded bit pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unpacked<T> {
    /// The pattern, with a denormal replaced by zero under DAZ.
    pub bits: T,
    pub kind: Kind,
    pub sign: bool,
    /// Whether the operand is a denormal that DAZ did not turn into zero.
    pub denormal: bool,
    exp: i32,
    sig: u64,
}

impl<T: Ieee> Unpacked<T> {
    pub fn new(bits: T, daz: bool) -> Unpacked<T> {
        let sign = sign(bits);
        let biased = biased_exponent(bits);
        let fraction = fraction(bits);
        let make = |kind| Unpacked { bits, kind, sign, denormal: false, exp: 0, sig: 0 };
        if biased == max_biased::<T>() {
            return make(if fraction == 0 { Kind::Infinity } else { Kind::Nan });
        }
        if biased == 0 {
            if fraction == 0 || daz {
                return Unpacked { bits: zero(sign), ..make(Kind::Zero) };
            }
            let shift = fraction.leading_zeros();
            let exp = emin::<T>() + (63 - fraction_bits::<T>() as i32) - shift as i32;
            return Unpacked { denormal: true, exp, sig: fraction << shift, ..make(Kind::Finite) };
        }
        let sig = (1 << 63) | (fraction << (63 - fraction_bits::<T>()));
        Unpacked { exp: biased as i32 - T::EMAX, sig, ..make(Kind::Finite) }
    }

    /// The value of a `Kind::Finite` operand.
    #[inline]
    pub fn exact(&self) -> Exact {
        Exact::from_sig64(self.sign, self.exp, self.sig)
    }

    /// The value with another sign. `bits` does not change.
    #[inline]
    pub fn with_sign(self, sign: bool) -> Unpacked<T> {
        Unpacked { sign, ..self }
    }

    #[inline]
    pub fn is_nan(&self) -> bool {
        self.kind == Kind::Nan
    }

    #[inline]
    pub fn is_signalling(&self) -> bool {
        self.is_nan() && self.bits.widen() & quiet_bit::<T>() == 0
    }

    /// Whether the operand has the class `kind`.
    #[inline]
    pub fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }
}

#[inline(always)]
pub(crate) fn fraction_bits<T: Ieee>() -> u32 {
    T::PRECISION - 1
}

#[inline(always)]
pub(crate) fn emin<T: Ieee>() -> i32 {
    1 - T::EMAX
}

/// The biased exponent of infinities and NaNs.
#[inline(always)]
pub(crate) fn max_biased<T: Ieee>() -> u32 {
    2 * T::EMAX as u32 + 1
}

#[inline(always)]
pub(crate) fn biased_exponent<T: Ieee>(bits: T) -> u32 {
    (bits.widen() >> fraction_bits::<T>()) as u32 & max_biased::<T>()
}

#[inline(always)]
fn fraction<T: Ieee>(bits: T) -> u64 {
    bits.widen() & ((1 << fraction_bits::<T>()) - 1)
}

#[inline(always)]
pub(crate) fn sign<T: Ieee>(bits: T) -> bool {
    bits.widen() >> sign_position::<T>() != 0
}

#[inline(always)]
pub(crate) fn sign_position<T: Ieee>() -> u32 {
    fraction_bits::<T>() + (2 * T::EMAX as u32 + 2).trailing_zeros()
}

#[inline(always)]
fn quiet_bit<T: Ieee>() -> u64 {
    1 << (fraction_bits::<T>() - 1)
}

/// Whether `bits` is a normal number: not zero, denormal, infinity or NaN.
#[inline(always)]
pub(crate) fn is_normal<T: Ieee>(bits: T) -> bool {
    biased_exponent(bits).wrapping_sub(1) < max_biased::<T>() - 1
}

/// Whether `bits` is a zero of either sign.
#[inline(always)]
pub(crate) fn is_zero<T: Ieee>(bits: T) -> bool {
    bits.widen() & !(1 << sign_position::<T>()) == 0
}

/// `bits` with the sign inverted.
#[inline(always)]
pub(crate) fn negate<T: Ieee>(bits: T) -> T {
    T::narrow(bits.widen() ^ (1 << sign_position::<T>()))
}

/// Whether `bits` is a finite number so far above the smallest normal that no underflow rule can apply. The
/// smallest normal number itself does not qualify, because a tiny value may have been rounded up to it.
#[inline(always)]
pub(crate) fn is_safe_result<T: Ieee>(bits: T) -> bool {
    biased_exponent(bits).wrapping_sub(2) < max_biased::<T>() - 2
}

#[inline]
fn with_sign<T: Ieee>(sign: bool, magnitude: u64) -> T {
    T::narrow(((sign as u64) << sign_position::<T>()) | magnitude)
}

/// Zero with a sign.
#[inline]
pub(crate) fn zero<T: Ieee>(sign: bool) -> T {
    with_sign(sign, 0)
}

/// Infinity with a sign.
#[inline]
pub(crate) fn infinity<T: Ieee>(sign: bool) -> T {
    with_sign(sign, (max_biased::<T>() as u64) << fraction_bits::<T>())
}

/// The largest finite number with a sign.
#[inline]
pub(crate) fn largest_finite<T: Ieee>(sign: bool) -> T {
    with_sign(sign, ((max_biased::<T>() as u64) << fraction_bits::<T>()) - 1)
}

/// The QNaN floating-point indefinite, the response to a masked #I without a NaN operand.
#[inline]
pub(crate) fn default_nan<T: Ieee>() -> T {
    with_sign(true, ((max_biased::<T>() as u64) << fraction_bits::<T>()) | quiet_bit::<T>())
}

/// The NaN `bits`, made quiet.
#[inline]
pub(crate) fn quiet<T: Ieee>(bits: T) -> T {
    T::narrow(bits.widen() | quiet_bit::<T>())
}

/// The NaN `from` in another format: sign and leading payload bits kept, made quiet.
pub(crate) fn convert_nan<S: Ieee, D: Ieee>(from: S) -> D {
    nan_from_payload(sign(from), aligned_fraction(from))
}

/// The fraction of `from`, left-aligned below bit 63.
pub(crate) fn aligned_fraction<S: Ieee>(from: S) -> u64 {
    fraction(from) << (63 - fraction_bits::<S>())
}

/// A quiet NaN with the leading bits of a fraction that is left-aligned below bit 63 (bit 63 is ignored).
pub(crate) fn nan_from_payload<D: Ieee>(sign: bool, payload: u64) -> D {
    let fraction = payload << 1 >> (64 - fraction_bits::<D>());
    quiet(with_sign(sign, ((max_biased::<D>() as u64) << fraction_bits::<D>()) | fraction))
}

/// The result if at least one operand is a NaN: the first NaN, made quiet (SDM table 4-7, SSE rows).
pub(crate) fn propagate_nan<T: Ieee>(env: &mut SseEnv, operands: &[Unpacked<T>]) -> T {
    env.raise_if(operands.iter().any(Unpacked::is_signalling), IE);
    let first = operands.iter().find(|operand| operand.is_nan()).expect("callers found a NaN");
    quiet(first.bits)
}

/// Raises #D if an operand is a denormal that DAZ did not turn into zero.
#[inline]
pub(crate) fn note_denormals<T: Ieee>(env: &mut SseEnv, operands: &[Unpacked<T>]) {
    env.raise_if(operands.iter().any(|operand| operand.denormal), DE);
}

/// Rounds an exact value into format `T` by MXCSR, raising #O, #U and #P.
pub(crate) fn round_pack<T: Ieee>(env: &mut SseEnv, value: Exact) -> T {
    let rounded = value.round(T::PRECISION, env.rounding());
    if rounded.exp > T::EMAX {
        return overflow(env, value.sign, rounded.inexact);
    }
    if rounded.exp < emin::<T>() {
        return underflow(env, value, rounded.inexact);
    }
    env.raise_if(rounded.inexact, PE);
    pack(value.sign, rounded)
}

fn overflow<T: Ieee>(env: &mut SseEnv, sign: bool, inexact: bool) -> T {
    env.raise(OE);
    // Replacing the value by infinity or the largest number is itself inexact. An unmasked overflow replaces no value.
    env.raise_if(inexact || env.overflow_masked(), PE);
    if env.rounding().overflows_to_infinity(sign) { infinity(sign) } else { largest_finite(sign) }
}

/// Rounds a tiny value, which is below the smallest normal even after rounding with an unbounded exponent.
fn underflow<T: Ieee>(env: &mut SseEnv, value: Exact, unbounded_inexact: bool) -> T {
    if env.flushes_to_zero() {
        env.raise(UE | PE);
        return zero(value.sign);
    }
    let rounded = value.round_denormal(T::PRECISION, emin::<T>(), env.rounding());
    if !env.underflow_masked() {
        env.raise(UE);
        env.raise_if(unbounded_inexact, PE);
    } else if rounded.inexact {
        env.raise(UE | PE);
    }
    pack(value.sign, rounded)
}

/// Packs a rounded significand. The integer bit of a normal number carries into the exponent field, so the field starts
/// at one less than the biased exponent.
#[inline]
pub(crate) fn pack<T: Ieee>(sign: bool, rounded: Rounded) -> T {
    let below = (rounded.exp - emin::<T>()) as u64;
    let significand = rounded.sig >> (63 - fraction_bits::<T>());
    with_sign(sign, (below << fraction_bits::<T>()) + significand)
}
