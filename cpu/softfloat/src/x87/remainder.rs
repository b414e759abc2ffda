//! FPREM and FPREM1 (SDM vol. 2 under those names).
//!
//! The SDM lets one execution reduce the exponent difference D by "32 to 63" if D is 64 or more. Processors and this
//! code reduce by 32 + D mod 32. C1 and C2 are cleared even without a result (`None`).

use super::format::{Kind, check_nans, round_pack_extended};
use super::{C0, C1, C2, C3, F80, Operand, X87Env};
use crate::exact::Exact;

/// The result of FPREM or FPREM1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder {
    /// The new ST(0).
    pub value: F80,
    /// C2 for an incomplete reduction, otherwise the quotient's low bits in C0, C3, C1.
    pub condition_codes: u16,
    /// The condition codes that are written; the others keep their values. A NaN result writes only C2 and C1.
    pub written: u16,
}

/// FPREM: remainder of `a / b` with the quotient truncated.
pub fn prem(env: &mut X87Env, a: F80, b: F80) -> Option<Remainder> {
    remainder(env, a, b, false)
}

/// FPREM1: remainder of `a / b` with the quotient rounded to nearest (the IEEE remainder).
pub fn prem1(env: &mut X87Env, a: F80, b: F80) -> Option<Remainder> {
    remainder(env, a, b, true)
}

fn remainder(env: &mut X87Env, a: F80, b: F80, to_nearest: bool) -> Option<Remainder> {
    let (x, y) = (Operand::from(a), Operand::from(b));
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome.map(no_quotient);
    }
    if x.is(Kind::Infinity) || y.is(Kind::Zero) {
        return env.invalid(no_quotient(F80::INDEFINITE));
    }
    env.note_denormal(x.denormal || y.denormal)?;
    if x.is(Kind::Zero) || y.is(Kind::Infinity) {
        return Some(complete(x.canonical()));
    }
    let reduced = reduce(x.exact(), y.exact(), to_nearest);
    let value = match reduced.rest {
        Some(rest) => round_pack_extended(env, rest),
        None => F80::zero(x.sign),
    };
    let condition_codes = if reduced.partial { C2 } else { quotient_codes(reduced.quotient) };
    Some(Remainder { value, condition_codes, written: ALL_CODES })
}

const ALL_CODES: u16 = C0 | C1 | C2 | C3;

/// A finished reduction with quotient zero.
fn complete(value: F80) -> Remainder {
    Remainder { value, condition_codes: 0, written: ALL_CODES }
}

fn no_quotient(nan: F80) -> Remainder {
    Remainder { value: nan, condition_codes: 0, written: C1 | C2 }
}

fn quotient_codes(quotient: u64) -> u16 {
    let code = |bit: u64, code: u16| if quotient & bit != 0 { code } else { 0 };
    code(1, C1) | code(2, C3) | code(4, C0)
}

struct Reduced {
    /// The remainder of the reduction; `None` if the remainder is zero.
    rest: Option<Exact>,
    quotient: u64,
    partial: bool,
}

fn reduce(a: Exact, b: Exact, to_nearest: bool) -> Reduced {
    let difference = a.exp - b.exp;
    if difference < -1 || (difference < 0 && !to_nearest) {
        return Reduced { rest: Some(a), quotient: 0, partial: false };
    }
    let partial = difference >= 64;
    let steps = if partial { (difference & 31) | 32 } else { difference };
    // Integers in units of 2^unit: a has up to 127 bits, b up to 65.
    let unit = a.exp.min(a.exp - steps) - 63;
    let dividend = (a.sig >> 64) << steps.max(0);
    let divisor = (b.sig >> 64) << (-steps).max(0);
    let (mut quotient, mut rest, mut sign) = (dividend / divisor, dividend % divisor, a.sign);
    if to_nearest && !partial && (2 * rest, quotient & 1) > (divisor, 0) {
        (quotient, rest, sign) = (quotient + 1, divisor - rest, !sign);
    }
    let rest = (rest != 0).then(|| Exact::normalized(sign, unit + 127, rest));
    Reduced { rest, quotient: quotient as u64, partial }
}
