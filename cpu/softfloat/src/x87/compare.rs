//! FCOM, FUCOM, FTST, FCOMI, FUCOMI and FXAM (SDM vol. 2 under those names).
//!
//! Contrary to SDM vol. 1, 8.5.1.2, processors deliver the condition codes of FCOM, FUCOM and FTST even with an
//! unmasked exception. The functions here also deliver them. FCOMI and FUCOMI set EFLAGS even with an unmasked
//! exception, too. FCOM, FUCOM and FTST clear C1; FCOMI and FUCOMI change no condition codes.

use super::format::Kind;
use super::{C0, C1, C2, C3, F80, Operand, X87Env};
use crate::env::{DE, IE};
use crate::relation::Relation;
use core::cmp::Ordering;

/// FCOM, FCOMI, FICOM: every NaN is an invalid operand.
pub fn compare_ordered(env: &mut X87Env, a: impl Into<Operand>, b: impl Into<Operand>) -> Relation {
    compare(env, a.into(), b.into(), true)
}

/// FUCOM, FUCOMI: a QNaN compares unordered without an exception.
pub fn compare_unordered(env: &mut X87Env, a: F80, b: F80) -> Relation {
    compare(env, a.into(), b.into(), false)
}

/// FTST: compares with zero, as FCOM does.
pub fn test(env: &mut X87Env, a: F80) -> Relation {
    compare_ordered(env, a, F80::ZERO)
}

fn compare(env: &mut X87Env, x: Operand, y: Operand, quiet_is_invalid: bool) -> Relation {
    let invalid = |operand: &Operand| match operand.kind {
        Kind::Unsupported | Kind::SignallingNan => true,
        Kind::QuietNan => quiet_is_invalid,
        _ => false,
    };
    if [x, y].iter().any(invalid) {
        env.raise(IE);
        return Relation::Unordered;
    }
    if x.is_nan() || y.is_nan() {
        return Relation::Unordered;
    }
    if x.denormal || y.denormal {
        env.raise(DE);
    }
    order(&x, &y).into()
}

fn order(x: &Operand, y: &Operand) -> Ordering {
    let magnitudes = magnitude(x).cmp(&magnitude(y));
    match (x.sign, y.sign) {
        _ if x.is(Kind::Zero) && y.is(Kind::Zero) => Ordering::Equal,
        (false, false) => magnitudes,
        (true, true) => magnitudes.reverse(),
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
    }
}

/// A key that orders magnitudes. A pseudo-denormal equals the normal number with the same value.
fn magnitude(operand: &Operand) -> (u16, u64) {
    let biased = operand.value.biased_exponent();
    let mantissa = operand.value.mantissa;
    (if biased == 0 { (mantissa >> 63) as u16 } else { biased }, mantissa)
}

/// FXAM of a non-empty register: C3, C2, C0 for the class and C1 for the sign. For an empty register, the caller
/// reports C3 and C0, and C1 from the sign.
pub fn examine(a: F80) -> u16 {
    let operand = Operand::from(a);
    let class = match operand.kind {
        Kind::Unsupported => 0,
        Kind::QuietNan | Kind::SignallingNan => C0,
        Kind::Infinity => C2 | C0,
        Kind::Zero => C3,
        Kind::Finite if operand.denormal => C3 | C2,
        Kind::Finite => C2,
    };
    class | if a.sign() { C1 } else { 0 }
}
