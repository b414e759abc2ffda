//! FSIN, FCOS, FSINCOS, FPTAN and FPATAN. SDM vol. 1, 8.3.8; vol. 2 under those names.
//!
//! Arguments are reduced with Intel's 66-bit pi. Apart from that, results are correctly rounded by the rounding control
//! (see `wide.rs`). Precision control does not apply.

use super::format::{Kind, check_nans, round_transcendental};
use super::{F80, Operand, Pair, X87Env, wide};
use crate::exact::Exact;

/// The outcome of an instruction that takes an angle. If the instruction's function returns `None` in place of an
/// `Angle`, an unmasked exception left no result. The caller must then clear C2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Angle<T> {
    /// The result. The caller must clear C2.
    InRange(T),
    /// The operand's magnitude is 2^63 or more. The caller must set C2, clear C1 and change nothing else.
    OutOfRange,
}

/// An angle after reduction: its distance from the nearest multiple of pi / 2, and that multiple's number modulo 4.
type Reduced = (Exact, u32);

/// FSIN.
pub fn fsin(env: &mut X87Env, a: F80) -> Option<Angle<F80>> {
    with_angle(
        env,
        a,
        |value| value,
        |env, reduced| match reduced {
            Some(reduced) => round_transcendental(env, sine(reduced)),
            None => a,
        },
    )
}

/// FCOS.
pub fn fcos(env: &mut X87Env, a: F80) -> Option<Angle<F80>> {
    with_angle(
        env,
        a,
        |value| value,
        |env, reduced| match reduced {
            Some(reduced) => round_transcendental(env, cosine(reduced)),
            None => F80::ONE,
        },
    )
}

/// FSINCOS: the sine replaces the operand, the cosine is pushed. C1 reports the cosine's rounding.
pub fn fsincos(env: &mut X87Env, a: F80) -> Option<Angle<Pair>> {
    with_angle(env, a, twice, |env, reduced| match reduced {
        Some(reduced) => Pair {
            replaced: round_transcendental(env, sine(reduced)),
            pushed: round_transcendental(env, cosine(reduced)),
        },
        None => Pair { replaced: a, pushed: F80::ONE },
    })
}

/// FPTAN: the tangent replaces the operand, and 1 is pushed.
pub fn fptan(env: &mut X87Env, a: F80) -> Option<Angle<Pair>> {
    with_angle(env, a, twice, |env, reduced| {
        let replaced = reduced.map_or(a, |reduced| round_transcendental(env, tangent(reduced)));
        Pair { replaced, pushed: F80::ONE }
    })
}

/// The results of FSINCOS or FPTAN for a NaN operand: both results are the NaN.
fn twice(nan: F80) -> Pair {
    Pair { replaced: nan, pushed: nan }
}

/// The common part of FSIN, FCOS, FSINCOS and FPTAN: special operands, and the reduction of the angle. `compute` gets
/// `None` for an angle of zero.
fn with_angle<T>(
    env: &mut X87Env,
    a: F80,
    from_nan: impl Fn(F80) -> T,
    compute: impl FnOnce(&mut X87Env, Option<Reduced>) -> T,
) -> Option<Angle<T>> {
    let x = Operand::from(a);
    if let Err(outcome) = check_nans(env, &[x]) {
        return outcome.map(|nan| Angle::InRange(from_nan(nan)));
    }
    match x.kind {
        Kind::Zero => return Some(Angle::InRange(compute(env, None))),
        Kind::Infinity => return env.invalid(Angle::InRange(from_nan(F80::INDEFINITE))),
        _ => env.note_denormal(x.denormal)?,
    }
    let value = x.exact();
    if value.exp >= 63 {
        return Some(Angle::OutOfRange);
    }
    Some(Angle::InRange(compute(env, Some(wide::reduce_by_half_pi(value)))))
}

fn sine((rest, quadrant): Reduced) -> Exact {
    match quadrant {
        0 => wide::sin(rest),
        1 => wide::cos(rest),
        2 => wide::sin(rest).negated(),
        _ => wide::cos(rest).negated(),
    }
}

fn cosine((rest, quadrant): Reduced) -> Exact {
    sine((rest, (quadrant + 1) & 3))
}

fn tangent((rest, quadrant): Reduced) -> Exact {
    let tangent = wide::tan(rest);
    // tan(x + pi/2) = -1 / tan(x)
    if quadrant & 1 == 0 { tangent } else { wide::div(wide::ONE, tangent).negated() }
}

/// FPATAN: the angle of the point (x, y), with `x` in ST(0) and `y` in ST(1); between -pi and pi.
pub fn fpatan(env: &mut X87Env, x: F80, y: F80) -> Option<F80> {
    let (x, y) = (Operand::from(x), Operand::from(y));
    if let Err(outcome) = check_nans(env, &[x, y]) {
        return outcome;
    }
    env.note_denormal(x.denormal || y.denormal)?;
    Some(match arc_tangent(&x, &y) {
        Some(angle) => round_transcendental(env, angle.with_sign(y.sign)),
        None => F80::zero(y.sign),
    })
}

/// The magnitude of the angle; `None` for zero.
fn arc_tangent(x: &Operand, y: &Operand) -> Option<Exact> {
    let three_quarters_pi = || Exact::sum(wide::HALF_PI, wide::QUARTER_PI);
    match (x.kind, y.kind) {
        (Kind::Infinity, Kind::Infinity) if x.sign => three_quarters_pi(),
        (Kind::Infinity, Kind::Infinity) => Some(wide::QUARTER_PI),
        (Kind::Infinity, _) | (_, Kind::Zero) => x.sign.then_some(wide::PI),
        (Kind::Zero, _) | (_, Kind::Infinity) => Some(wide::HALF_PI),
        _ => Some(finite_arc_tangent(x.exact().with_sign(false), y.exact().with_sign(false), x.sign)),
    }
}

fn finite_arc_tangent(x: Exact, y: Exact, left: bool) -> Exact {
    let steep = (y.exp, y.sig) > (x.exp, x.sig);
    let ratio = if steep { Exact::quotient(x, y) } else { Exact::quotient(y, x) };
    let angle = wide::atan(ratio);
    // Measure from the nearest axis: 0, pi/2 or pi.
    let (axis, angle) = match (steep, left) {
        (false, false) => return angle,
        (false, true) => (wide::PI, angle.negated()),
        (true, false) => (wide::HALF_PI, angle.negated()),
        (true, true) => (wide::HALF_PI, angle),
    };
    Exact::sum(axis, angle).expect("an angle of at most pi/4 cannot cancel an axis")
}
