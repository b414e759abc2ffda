//! FADD, FSUB, FSUBR, FMUL, FDIV, FDIVR, FSQRT, FABS, FCHS (SDM vol. 2 under those names).

use super::format::{Kind, check_nans, round_pack};
use super::{F80, Operand, X87Env};
use crate::env::{Rounding, ZE};
use crate::exact::Exact;

/// FADD: `a + b`.
pub fn add(env: &mut X87Env, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
    sum(env, a.into(), b.into())
}

/// FSUB: `a - b`. FSUBR is the same with the operands exchanged.
pub fn sub(env: &mut X87Env, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
    sum(env, a.into(), b.into().negated())
}

fn sum(env: &mut X87Env, x: Operand, y: Operand) -> Option<F80> {
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    if x.is(Kind::Infinity) && y.is(Kind::Infinity) && x.sign != y.sign {
        return env.invalid(F80::INDEFINITE);
    }
    env.note_denormal(x.denormal || y.denormal)?;
    let zero_sign = if x.sign == y.sign { x.sign } else { env.rounding() == Rounding::Down };
    let value = match (x.kind, y.kind) {
        (Kind::Infinity, _) => return Some(x.value),
        (_, Kind::Infinity) => return Some(y.value),
        (Kind::Zero, Kind::Zero) => None,
        (Kind::Zero, _) => Some(y.exact()),
        (_, Kind::Zero) => Some(x.exact()),
        _ => Exact::sum(x.exact(), y.exact()),
    };
    Some(value.map_or(F80::zero(zero_sign), |value| round_pack(env, value)))
}

/// FMUL: `a * b`.
pub fn mul(env: &mut X87Env, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
    let (x, y) = (a.into(), b.into());
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    let sign = x.sign != y.sign;
    if let (Kind::Infinity, Kind::Zero) | (Kind::Zero, Kind::Infinity) = (x.kind, y.kind) {
        return env.invalid(F80::INDEFINITE);
    }
    env.note_denormal(x.denormal || y.denormal)?;
    Some(match (x.kind, y.kind) {
        (Kind::Infinity, _) | (_, Kind::Infinity) => F80::infinity(sign),
        (Kind::Zero, _) | (_, Kind::Zero) => F80::zero(sign),
        _ => round_pack(env, Exact::product(x.exact(), y.exact())),
    })
}

/// FDIV: `a / b`. FDIVR is the same with the operands exchanged.
pub fn div(env: &mut X87Env, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
    let (x, y) = (a.into(), b.into());
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    let sign = x.sign != y.sign;
    match (x.kind, y.kind) {
        (Kind::Infinity, Kind::Infinity) | (Kind::Zero, Kind::Zero) => return env.invalid(F80::INDEFINITE),
        (Kind::Finite, Kind::Zero) => {
            env.before(ZE)?;
            return Some(F80::infinity(sign));
        }
        _ => env.note_denormal(x.denormal || y.denormal)?,
    }
    Some(match (x.kind, y.kind) {
        (Kind::Infinity, _) => F80::infinity(sign),
        (Kind::Zero, _) | (_, Kind::Infinity) => F80::zero(sign),
        _ => round_pack(env, Exact::quotient(x.exact(), y.exact())),
    })
}

/// FSQRT.
pub fn sqrt(env: &mut X87Env, a: F80) -> Option<F80> {
    let x = Operand::from(a);
    if let Err(outcome) = check_nans(env, &[x]) {
        return outcome;
    }
    if x.is(Kind::Zero) {
        return Some(a);
    }
    if x.sign {
        return env.invalid(F80::INDEFINITE);
    }
    env.note_denormal(x.denormal)?;
    Some(if x.is(Kind::Infinity) { a } else { round_pack(env, Exact::square_root(x.exact())) })
}

/// FABS: clears the sign of any encoding. Raises nothing.
pub fn abs(a: F80) -> F80 {
    a.with_sign(false)
}

/// FCHS: inverts the sign of any encoding. Raises nothing.
pub fn change_sign(a: F80) -> F80 {
    a.with_sign(!a.sign())
}
