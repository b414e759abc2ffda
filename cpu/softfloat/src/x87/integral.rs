//! FRNDINT, FSCALE and FXTRACT (SDM vol. 2 under those names).

use super::format::{Kind, check_nans, round_pack_extended};
use super::{F80, Operand, Pair, X87Env};
use crate::env::{PE, Rounding, ZE};
use crate::exact::{Exact, Integer};

/// FRNDINT: rounds to an integral value by the rounding control.
pub fn round_to_integer(env: &mut X87Env, a: F80) -> Option<F80> {
    let x = Operand::from(a);
    if let Err(outcome) = check_nans(env, &[x]) {
        return outcome;
    }
    if !x.is(Kind::Finite) {
        return Some(a);
    }
    env.note_denormal(x.denormal)?;
    // A number that exceeds 64 bits has no fraction.
    let Some(rounded) = x.exact().to_integer(env.rounding()) else { return Some(a) };
    if rounded.inexact {
        env.raise(PE);
    }
    env.set_c1(rounded.up);
    Some(F80::from_integer(rounded))
}

/// FSCALE: `a * 2^trunc(b)`.
pub fn scale(env: &mut X87Env, a: F80, b: F80) -> Option<F80> {
    let (x, y) = (Operand::from(a), Operand::from(b));
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    match (x.kind, y.kind, y.sign) {
        (Kind::Infinity, Kind::Infinity, true) | (Kind::Zero, Kind::Infinity, false) => {
            return env.invalid(F80::INDEFINITE);
        }
        _ => env.note_denormal(x.denormal || y.denormal)?,
    }
    Some(match (x.kind, y.kind, y.sign) {
        (Kind::Infinity | Kind::Zero, ..) | (_, Kind::Zero, _) => x.canonical(),
        (_, Kind::Infinity, false) => F80::infinity(x.sign),
        (_, Kind::Infinity, true) => F80::zero(x.sign),
        _ => {
            let value = x.exact();
            round_pack_extended(env, Exact { exp: value.exp + scale_exponent(&y), ..value })
        }
    })
}

/// `trunc(y)`, with its magnitude limited to 2^17. An exponent of this size makes every result overflow or
/// underflow, even after the adjustment for an unmasked exception.
fn scale_exponent(y: &Operand) -> i32 {
    const LIMIT: u64 = 1 << 17;
    let magnitude =
        y.exact().to_integer(Rounding::Zero).map_or(LIMIT, |whole| whole.magnitude.min(LIMIT)) as i32;
    if y.sign { -magnitude } else { magnitude }
}

/// FXTRACT: the unbiased exponent replaces the operand. The significand, with its sign, is pushed.
pub fn extract(env: &mut X87Env, a: F80) -> Option<Pair> {
    let x = Operand::from(a);
    if let Err(outcome) = check_nans(env, &[x]) {
        return outcome.map(|nan| Pair { replaced: nan, pushed: nan });
    }
    match x.kind {
        Kind::Infinity => return Some(Pair { replaced: F80::infinity(false), pushed: a }),
        Kind::Zero => {
            env.before(ZE)?;
            return Some(Pair { replaced: F80::infinity(true), pushed: a });
        }
        _ => env.note_denormal(x.denormal)?,
    }
    let value = x.exact();
    let magnitude = u64::from(value.exp.unsigned_abs());
    let exponent = Integer { sign: value.exp < 0, magnitude, inexact: false, up: false };
    Some(Pair {
        replaced: F80::from_integer(exponent),
        pushed: round_pack_extended(env, Exact { exp: 0, ..value }),
    })
}
