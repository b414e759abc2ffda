//! Conversions between formats, to and from integers, and rounding to integral values.
//!
//! SDM vol. 2, CVTxx2yy, CVTTxx2yy, ROUNDSD. Integer indefinite: vol. 1, table 4-1 and 11.5.2.1. Conversions to
//! integers do not report denormals (#D): a denormal is only inexact.

use super::SseEnv;
use super::format::{
    Host, Ieee, Kind, Unpacked, biased_exponent, convert_nan, infinity, is_normal, is_safe_result,
    note_denormals, pack, propagate_nan, round_pack, zero,
};
use crate::env::{IE, PE, Rounding};
use crate::exact::{Exact, Integer};

/// CVTSS2SD.
#[inline]
pub fn f32_to_f64(env: &mut SseEnv, a: u32) -> u64 {
    if is_normal(a) {
        return f64::from(f32::from_bits(a)).to_bits();
    }
    convert(env, a)
}

/// CVTSD2SS.
#[inline]
pub fn f64_to_f32(env: &mut SseEnv, a: u64) -> u32 {
    if is_normal(a) {
        let result = (f64::from_bits(a) as f32).to_bits();
        let exact = || f64::from(f32::from_bits(result)).to_bits() == a;
        if is_safe_result(result) && (env.is_plain() || exact()) {
            return result;
        }
    }
    convert(env, a)
}

fn convert<S: Ieee, D: Ieee>(env: &mut SseEnv, a: S) -> D {
    let x = Unpacked::new(a, env.daz());
    match x.kind {
        Kind::Nan => {
            env.raise_if(x.is_signalling(), IE);
            convert_nan(x.bits)
        }
        Kind::Infinity => infinity(x.sign),
        Kind::Zero => zero(x.sign),
        Kind::Finite => {
            note_denormals(env, &[x]);
            round_pack(env, x.exact())
        }
    }
}

/// CVTSI2SS / CVTSI2SD from a 32-bit integer.
#[inline]
pub fn from_i32<T: Host>(env: &mut SseEnv, a: i32) -> T {
    from_i64(env, i64::from(a))
}

/// CVTSI2SS / CVTSI2SD from a 64-bit integer.
#[inline]
pub fn from_i64<T: Host>(env: &mut SseEnv, a: i64) -> T {
    if a.unsigned_abs() >> T::PRECISION == 0 {
        return T::host_from_i64(a);
    }
    from_magnitude(env, a < 0, a.unsigned_abs())
}

/// VCVTUSI2SS / VCVTUSI2SD from a 32-bit integer.
#[inline]
pub fn from_u32<T: Ieee>(env: &mut SseEnv, a: u32) -> T {
    from_magnitude(env, false, u64::from(a))
}

/// VCVTUSI2SS / VCVTUSI2SD from a 64-bit integer.
#[inline]
pub fn from_u64<T: Ieee>(env: &mut SseEnv, a: u64) -> T {
    from_magnitude(env, false, a)
}

fn from_magnitude<T: Ieee>(env: &mut SseEnv, sign: bool, magnitude: u64) -> T {
    if magnitude == 0 {
        return zero(false);
    }
    round_pack(env, Exact::normalized(sign, 127, u128::from(magnitude)))
}

macro_rules! to_integer {
    ($(#[$doc:meta])* $rounding:ident, $truncating:ident, $int:ty, $fit:path, $indefinite:expr, $fast:ident) => {
        $(#[$doc])*
        /// Rounds by MXCSR.RC. NaNs and values out of range raise #I and give the integer indefinite.
        #[inline]
        pub fn $rounding<T: Host>(env: &mut SseEnv, a: T) -> $int {
            to_integer(env, a, env.rounding(), $fit).map_or($indefinite, |value| value as $int)
        }

        $(#[$doc])*
        /// Truncates. NaNs and values out of range raise #I and give the integer indefinite.
        #[inline]
        pub fn $truncating<T: Host>(env: &mut SseEnv, a: T) -> $int {
            if $fast(a) {
                let value = a.host_to_i64();
                if env.is_plain() || T::host_from_i64(value) == a {
                    return value as $int;
                }
            }
            to_integer(env, a, Rounding::Zero, $fit).map_or($indefinite, |value| value as $int)
        }
    };
}

to_integer!(
    /// To `i32`: CVTxx2SI, CVTPx2DQ.
    to_i32, to_i32_truncating, i32, fit_i32, i32::MIN, surely_fits_i32);
to_integer!(
    /// To `i64`: CVTxx2SI with REX.W.
    to_i64, to_i64_truncating, i64, fit_i64, i64::MIN, surely_fits_i64);
to_integer!(
    /// To `u32`: VCVTxx2USI.
    to_u32, to_u32_truncating, u32, fit_u32, u32::MAX, never);
to_integer!(
    /// To `u64`: VCVTxx2USI with 64-bit destination.
    to_u64, to_u64_truncating, u64, fit_u64, u64::MAX, never);

/// Whether truncation to `i32` is certainly in range, judged by the exponent alone.
#[inline(always)]
fn surely_fits_i32<T: Ieee>(a: T) -> bool {
    is_normal(a) && biased_exponent(a) < T::EMAX as u32 + 31
}

/// Whether truncation to `i64` is certainly in range, judged by the exponent alone.
#[inline(always)]
fn surely_fits_i64<T: Ieee>(a: T) -> bool {
    is_normal(a) && biased_exponent(a) < T::EMAX as u32 + 63
}

/// Never takes the fast path: the unsigned conversions are too rare.
#[inline(always)]
fn never<T: Ieee>(_: T) -> bool {
    false
}

fn fit_i32(value: Integer) -> Option<u64> {
    value.signed(32).map(|value| value as u64)
}

fn fit_i64(value: Integer) -> Option<u64> {
    value.signed(64).map(|value| value as u64)
}

fn fit_u32(value: Integer) -> Option<u64> {
    fit_u64(value).filter(|&value| value <= u64::from(u32::MAX))
}

fn fit_u64(value: Integer) -> Option<u64> {
    (!value.sign || value.magnitude == 0).then_some(value.magnitude)
}

/// Rounds to an integer and converts the integer with `fit`. Raises #I and returns `None` if there is no integer or
/// if it does not fit.
fn to_integer<T: Ieee>(
    env: &mut SseEnv,
    a: T,
    mode: Rounding,
    fit: impl FnOnce(Integer) -> Option<u64>,
) -> Option<u64> {
    let x = Unpacked::new(a, env.daz());
    let rounded = match x.kind {
        Kind::Zero => return Some(0),
        Kind::Finite => x.exact().to_integer(mode),
        Kind::Infinity | Kind::Nan => None,
    };
    let Some((inexact, value)) = rounded.and_then(|value| Some((value.inexact, fit(value)?))) else {
        return env.invalid(None);
    };
    env.raise_if(inexact, PE);
    Some(value)
}

/// ROUNDSS / ROUNDSD: bits 1:0 of `imm8` are the mode, bit 2 selects MXCSR.RC instead, bit 3 suppresses #P.
pub fn round_to_integral<T: Ieee>(env: &mut SseEnv, a: T, imm8: u8) -> T {
    let mode = if imm8 & 4 != 0 { env.rounding() } else { Rounding::from_bits(u32::from(imm8)) };
    let x = Unpacked::new(a, env.daz());
    match x.kind {
        Kind::Nan => return propagate_nan(env, &[x]),
        Kind::Zero | Kind::Infinity => return x.bits,
        Kind::Finite => {}
    }
    // A number that exceeds 64 bits has no fraction.
    let Some(rounded) = x.exact().to_integer(mode) else { return x.bits };
    env.raise_if(rounded.inexact && imm8 & 8 == 0, PE);
    if rounded.magnitude == 0 {
        return zero(x.sign);
    }
    let value = Exact::normalized(x.sign, 127, u128::from(rounded.magnitude));
    pack(x.sign, value.round(T::PRECISION, Rounding::Zero))
}
