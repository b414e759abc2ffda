//! F2XM1, FYL2X and FYL2XP1. SDM vol. 1, 8.3.9 to 8.3.10; vol. 2 under those names.
//!
//! Results are correctly rounded by the rounding control (see `wide.rs`). Processors stay within one unit in the last
//! place of the correct result, and differ among themselves. Precision control does not apply.

use super::format::{Kind, check_nans, round_transcendental};
use super::{F80, Operand, X87Env, wide};
use crate::env::{PE, ZE};
use crate::exact::Exact;

/// F2XM1: `2^a - 1` for `-1 <= a <= 1`. Outside this range, where the SDM defines no result, F2XM1 gives `a`.
pub fn f2xm1(env: &mut X87Env, a: F80) -> Option<F80> {
    let x = Operand::from(a);
    if let Err(outcome) = check_nans(env, &[x]) {
        return outcome;
    }
    match x.kind {
        Kind::Infinity if x.sign => return Some(F80::ONE.with_sign(true)),
        Kind::Zero | Kind::Infinity => return Some(a),
        _ => env.note_denormal(x.denormal)?,
    }
    let value = x.exact();
    if value.exp >= 0 {
        env.raise(PE);
        return Some(f2xm1_of_large(a));
    }
    Some(round_transcendental(env, wide::exp2_minus_1(value)))
}

fn f2xm1_of_large(a: F80) -> F80 {
    let minus_one = F80::ONE.with_sign(true);
    let minus_half = F80 { sign_exponent: minus_one.sign_exponent - 1, ..minus_one };
    if a == minus_one { minus_half } else { a }
}

/// FYL2X: `y * log2(x)`, with `x` in ST(0) and `y` in ST(1).
pub fn fyl2x(env: &mut X87Env, x: F80, y: F80) -> Option<F80> {
    let (x, y) = (Operand::from(x), Operand::from(y));
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    let logarithm = match x.kind {
        Kind::Zero => Logarithm::Infinite { sign: true },
        _ if x.sign => return env.invalid(F80::INDEFINITE),
        Kind::Infinity => Logarithm::Infinite { sign: false },
        _ => wide::log2(x.exact()).map_or(Logarithm::Zero { sign: false }, Logarithm::Finite),
    };
    // The logarithm of zero times a finite number is a division by zero.
    if x.is(Kind::Zero) && y.is(Kind::Finite) {
        env.before(ZE)?;
        return Some(F80::infinity(!y.sign));
    }
    times_logarithm(env, logarithm, &x, &y)
}

/// FYL2XP1: `y * log2(x + 1)`, with `x` in ST(0) and `y` in ST(1).
///
/// The SDM defines the instruction for `|x| <= 1 - sqrt(1/2)`. Processors and this function give the right result
/// for larger `x`, too. For `x` of -1 and less there is no logarithm, and the result is `x` itself.
pub fn fyl2xp1(env: &mut X87Env, x: F80, y: F80) -> Option<F80> {
    let (x, y) = (Operand::from(x), Operand::from(y));
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    let logarithm = match x.kind {
        Kind::Zero => Logarithm::Zero { sign: x.sign },
        Kind::Infinity if !x.sign => Logarithm::Infinite { sign: false },
        Kind::Finite if x.sign && x.exact().exp >= 0 => {
            if y.is(Kind::Finite) {
                env.note_denormal(y.denormal)?;
                env.raise(PE);
                return Some(x.value);
            }
            // If y is zero or infinite, only the sign of the logarithm matters.
            Logarithm::Finite(wide::ONE.negated())
        }
        Kind::Finite => Logarithm::Finite(wide::log2_of_1_plus(x.exact())),
        _ => return env.invalid(F80::INDEFINITE),
    };
    times_logarithm(env, logarithm, &x, &y)
}

enum Logarithm {
    Zero { sign: bool },
    Finite(Exact),
    Infinite { sign: bool },
}

/// Multiplies the logarithm of `x` by `y`. Neither operand is a NaN.
fn times_logarithm(env: &mut X87Env, logarithm: Logarithm, x: &Operand, y: &Operand) -> Option<F80> {
    if matches!(
        (&logarithm, y.kind),
        (Logarithm::Zero { .. }, Kind::Infinity) | (Logarithm::Infinite { .. }, Kind::Zero)
    ) {
        return env.invalid(F80::INDEFINITE);
    }
    env.note_denormal(x.denormal || y.denormal)?;
    let (Logarithm::Zero { sign } | Logarithm::Infinite { sign } | Logarithm::Finite(Exact { sign, .. })) =
        logarithm;
    let sign = sign != y.sign;
    Some(match (logarithm, y.kind) {
        (Logarithm::Infinite { .. }, _) | (_, Kind::Infinity) => F80::infinity(sign),
        (Logarithm::Zero { .. }, _) | (_, Kind::Zero) => F80::zero(sign),
        (Logarithm::Finite(logarithm), _) => round_transcendental(env, wide::mul(logarithm, y.exact())),
    })
}
