//! Loads and stores of other formats: FLD, FST, FILD, FIST, FISTTP, FBLD, FBSTP (SDM vol. 2 under those names).
//!
//! Stores do not report denormal operands. A store with an unmasked overflow or underflow does not happen at all (SDM
//! vol. 1, 8.5.4 and 8.5.5). Memory has no room for the scaled result that a register would get.

use super::format::Kind;
use super::{F80, Operand, X87Env};
use crate::env::{DE, IE, OE, PE, Rounding, UE};
use crate::exact::{Exact, Integer};
use crate::sse::Ieee;
use crate::sse::format::{self, emin, pack};

/// FLD m32fp: an SNaN raises #IA and becomes quiet, a denormal raises #D.
pub fn from_f32(env: &mut X87Env, bits: u32) -> Option<F80> {
    load(env, Operand::from_f32(bits))
}

/// FLD m64fp, like [`from_f32`].
pub fn from_f64(env: &mut X87Env, bits: u64) -> Option<F80> {
    load(env, Operand::from_f64(bits))
}

fn load(env: &mut X87Env, operand: Operand) -> Option<F80> {
    match operand.kind {
        Kind::SignallingNan => env.invalid(operand.quieted()),
        _ => {
            // FLD m32fp and FLD m64fp deliver the value even if #D is unmasked. All other x87 instructions deliver
            // no result then.
            if operand.denormal {
                env.raise(DE);
            }
            Some(operand.value)
        }
    }
}

/// FST m32fp.
pub fn to_f32(env: &mut X87Env, a: F80) -> Option<u32> {
    store(env, a)
}

/// FST m64fp.
pub fn to_f64(env: &mut X87Env, a: F80) -> Option<u64> {
    store(env, a)
}

fn store<T: Ieee>(env: &mut X87Env, a: F80) -> Option<T> {
    let x = Operand::from(a);
    match x.kind {
        Kind::Unsupported => env.invalid(format::default_nan()),
        Kind::SignallingNan => env.invalid(format::nan_from_payload(x.sign, a.mantissa)),
        Kind::QuietNan => Some(format::nan_from_payload(x.sign, a.mantissa)),
        Kind::Infinity => Some(format::infinity(x.sign)),
        Kind::Zero => Some(format::zero(x.sign)),
        Kind::Finite => store_finite(env, x.exact()),
    }
}

fn store_finite<T: Ieee>(env: &mut X87Env, value: Exact) -> Option<T> {
    let mode = env.rounding();
    let mut rounded = value.round(T::PRECISION, mode);
    if rounded.exp > T::EMAX {
        return store_overflow(env, value.sign);
    }
    if rounded.exp < emin::<T>() {
        rounded = value.round_denormal(T::PRECISION, emin::<T>(), mode);
        if !env.masks(UE) {
            env.raise(UE);
            return None;
        }
        env.raise(if rounded.inexact { UE } else { 0 });
    }
    env.raise(if rounded.inexact { PE } else { 0 });
    env.set_c1(rounded.up);
    Some(pack(value.sign, rounded))
}

fn store_overflow<T: Ieee>(env: &mut X87Env, sign: bool) -> Option<T> {
    env.raise(OE);
    if !env.masks(OE) {
        return None;
    }
    env.raise(PE);
    let to_infinity = env.rounding().overflows_to_infinity(sign);
    env.set_c1(to_infinity);
    Some(if to_infinity { format::infinity(sign) } else { format::largest_finite(sign) })
}

/// FILD of any width, sign-extended. The conversion is exact and raises nothing.
pub fn from_i64(value: i64) -> F80 {
    F80::from_i64(value)
}

macro_rules! to_integer {
    ($rounding:ident, $truncating:ident, $int:ty, $width:literal) => {
        #[doc = concat!("FIST m", $width, "int, by the rounding control. NaN and out of range: #IA, integer indefinite.")]
        pub fn $rounding(env: &mut X87Env, a: F80) -> Option<$int> {
            to_integer(env, a, env.rounding(), $width).map(|value| value as $int)
        }

        #[doc = concat!("FISTTP m", $width, "int: truncates. NaN and out of range: #IA, integer indefinite.")]
        pub fn $truncating(env: &mut X87Env, a: F80) -> Option<$int> {
            to_integer(env, a, Rounding::Zero, $width).map(|value| value as $int)
        }
    };
}

to_integer!(to_i16, to_i16_truncating, i16, 16);
to_integer!(to_i32, to_i32_truncating, i32, 32);
to_integer!(to_i64, to_i64_truncating, i64, 64);

fn to_integer(env: &mut X87Env, a: F80, mode: Rounding, bits: u32) -> Option<i64> {
    let rounded = whole(&Operand::from(a), mode);
    match rounded.and_then(|rounded| Some((rounded, rounded.signed(bits)?))) {
        Some((rounded, value)) => {
            note_rounding(env, rounded);
            Some(value)
        }
        // The integer indefinite: the most negative integer of the width.
        None => env.invalid(i64::MIN >> (64 - bits)),
    }
}

/// The operand as an integer; `None` if it is not a number or exceeds 64 bits.
fn whole(x: &Operand, mode: Rounding) -> Option<Integer> {
    match x.kind {
        Kind::Zero => Some(Integer { sign: x.sign, magnitude: 0, inexact: false, up: false }),
        Kind::Finite => x.exact().to_integer(mode),
        _ => None,
    }
}

fn note_rounding(env: &mut X87Env, rounded: Integer) {
    env.raise(if rounded.inexact { PE } else { 0 });
    env.set_c1(rounded.up);
}

const BCD_DIGITS: u32 = 18;
/// The packed BCD indefinite (SDM vol. 1, table 4-4).
const BCD_INDEFINITE: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0xff];

/// FBLD: 18 packed decimal digits and a sign. Nibbles above 9 are undefined in the SDM; they count as 10 to 15.
pub fn from_bcd(bytes: [u8; 10]) -> F80 {
    let pair = |byte: u8| u64::from(byte >> 4) * 10 + u64::from(byte & 15);
    let magnitude = bytes[..9].iter().rev().fold(0, |value, &byte| value * 100 + pair(byte));
    F80::from_integer(Integer { sign: bytes[9] & 0x80 != 0, magnitude, inexact: false, up: false })
}

/// FBSTP: rounds by the rounding control. A NaN, or a magnitude of 10^18 or more, raises #IA and gives the packed BCD
/// indefinite.
pub fn to_bcd(env: &mut X87Env, a: F80) -> Option<[u8; 10]> {
    let rounded = whole(&Operand::from(a), env.rounding());
    let Some(rounded) = rounded.filter(|rounded| rounded.magnitude < 10u64.pow(BCD_DIGITS)) else {
        env.before(IE)?;
        return Some(BCD_INDEFINITE);
    };
    note_rounding(env, rounded);
    let mut bytes = [0; 10];
    let mut rest = rounded.magnitude;
    for byte in &mut bytes[..9] {
        *byte = (rest % 10) as u8 | ((rest / 10 % 10) as u8) << 4;
        rest /= 100;
    }
    bytes[9] = if rounded.sign { 0x80 } else { 0 };
    Some(bytes)
}
