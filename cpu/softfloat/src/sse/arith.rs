//! ADD, SUB, MUL, DIV, SQRT, MIN and MAX of one lane. SDM vol. 2, ADDSS and similar; vol. 1, 11.5.
//!
//! The first fast path needs round to nearest, and PE masked and already set. With normal operands and a result safely
//! inside the normal range, only PE can be raised. The host's result is then the complete answer. The fast path never
//! returns the host's NaNs or denormals, so differences between hosts do not matter. The second fast path, which is not
//! inlined, recognises exact results and zeros (see `provably_exact.rs`).

use super::format::{
    Host, Ieee, Kind, Unpacked, default_nan, infinity, is_normal, is_safe_result, note_denormals,
    propagate_nan, round_pack, zero,
};
use super::{SseEnv, provably_exact};
use crate::env::{IE, Rounding, ZE};
use crate::exact::Exact;

macro_rules! with_fast_path {
    ($(#[$doc:meta])* $name:ident, $host:ident, $exact:path, $other:ident, $full:path) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<T: Host>(env: &mut SseEnv, a: T, b: T) -> T {
            if env.is_plain() && is_normal(a) && is_normal(b) {
                let result = a.$host(b);
                if is_safe_result(result) {
                    return result;
                }
            }
            $other(env, a, b)
        }

        #[inline(never)]
        fn $other<T: Host>(env: &mut SseEnv, a: T, b: T) -> T {
            $exact(env, a, b).unwrap_or_else(|| $full(env, a, b))
        }
    };
}

with_fast_path!(
    /// `a + b`.
    add, host_add, provably_exact::sum, add_other, add_full);
with_fast_path!(
    /// `a - b`.
    sub, host_sub, provably_exact::difference, sub_other, sub_full);
with_fast_path!(
    /// `a * b`.
    mul, host_mul, provably_exact::product, mul_other, mul_full);
with_fast_path!(
    /// `a / b`.
    div, host_div, provably_exact::quotient, div_other, div_full);

/// The square root of `a`.
#[inline(always)]
pub fn sqrt<T: Host>(env: &mut SseEnv, a: T) -> T {
    // The root of a positive normal number is always well inside the normal range.
    if env.is_plain() && is_normal(a) && !super::format::sign(a) {
        return a.host_sqrt();
    }
    sqrt_other(env, a)
}

#[inline(never)]
fn sqrt_other<T: Host>(env: &mut SseEnv, a: T) -> T {
    provably_exact::square_root(a).unwrap_or_else(|| sqrt_full(env, a))
}

/// MINSS and similar: the smaller operand. Returns `b` if an operand is a NaN or both are zero.
#[inline]
pub fn min<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    select(env, a, b, core::cmp::Ordering::Less)
}

/// MAXSS and similar: the larger operand. Returns `b` if an operand is a NaN or both are zero.
#[inline]
pub fn max<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    select(env, a, b, core::cmp::Ordering::Greater)
}

fn select<T: Ieee>(env: &mut SseEnv, a: T, b: T, first_if: core::cmp::Ordering) -> T {
    if is_normal(a) && is_normal(b) {
        return if super::compare::order(a, b) == first_if { a } else { b };
    }
    let (x, y) = (Unpacked::new(a, env.daz()), Unpacked::new(b, env.daz()));
    if x.is_nan() || y.is_nan() {
        return env.invalid(y.bits);
    }
    note_denormals(env, &[x, y]);
    if super::compare::order(x.bits, y.bits) == first_if { x.bits } else { y.bits }
}

/// Runs `operation` on operands that are not NaNs.
#[inline]
fn binary<T: Ieee>(
    env: &mut SseEnv,
    a: T,
    b: T,
    operation: impl FnOnce(&mut SseEnv, Unpacked<T>, Unpacked<T>) -> T,
) -> T {
    let (x, y) = (Unpacked::new(a, env.daz()), Unpacked::new(b, env.daz()));
    if x.is_nan() || y.is_nan() {
        return propagate_nan(env, &[x, y]);
    }
    operation(env, x, y)
}

fn add_full<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    binary(env, a, b, sum)
}

fn sub_full<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    // Not `a + (-b)`: a NaN operand must keep its sign.
    binary(env, a, b, |env, x, y| sum(env, x, y.with_sign(!y.sign)))
}

fn sum<T: Ieee>(env: &mut SseEnv, x: Unpacked<T>, y: Unpacked<T>) -> T {
    if x.is(Kind::Infinity) && y.is(Kind::Infinity) && x.sign != y.sign {
        return env.invalid(default_nan());
    }
    note_denormals(env, &[x, y]);
    match (x.kind, y.kind) {
        (Kind::Infinity, _) => infinity(x.sign),
        (_, Kind::Infinity) => infinity(y.sign),
        (Kind::Zero, Kind::Zero) => zero(zero_sum_sign(env, x.sign, y.sign)),
        (Kind::Zero, _) => round_pack(env, y.exact()),
        (_, Kind::Zero) => round_pack(env, x.exact()),
        _ => match Exact::sum(x.exact(), y.exact()) {
            Some(value) => round_pack(env, value),
            None => zero(zero_sum_sign(env, x.sign, y.sign)),
        },
    }
}

/// The sign of a sum that is exactly zero.
pub(crate) fn zero_sum_sign(env: &SseEnv, a: bool, b: bool) -> bool {
    if a == b { a } else { env.rounding() == Rounding::Down }
}

fn mul_full<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    binary(env, a, b, |env, x, y| {
        let sign = x.sign != y.sign;
        match (x.kind, y.kind) {
            (Kind::Infinity, Kind::Zero) | (Kind::Zero, Kind::Infinity) => return env.invalid(default_nan()),
            _ => note_denormals(env, &[x, y]),
        }
        match (x.kind, y.kind) {
            (Kind::Infinity, _) | (_, Kind::Infinity) => infinity(sign),
            (Kind::Zero, _) | (_, Kind::Zero) => zero(sign),
            _ => round_pack(env, Exact::product(x.exact(), y.exact())),
        }
    })
}

fn div_full<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> T {
    binary(env, a, b, |env, x, y| {
        let sign = x.sign != y.sign;
        match (x.kind, y.kind) {
            (Kind::Infinity, Kind::Infinity) | (Kind::Zero, Kind::Zero) => return env.invalid(default_nan()),
            (Kind::Finite, Kind::Zero) => {
                env.raise(ZE);
                return infinity(sign);
            }
            _ => note_denormals(env, &[x, y]),
        }
        match (x.kind, y.kind) {
            (Kind::Infinity, _) => infinity(sign),
            (Kind::Zero, _) | (_, Kind::Infinity) => zero(sign),
            _ => round_pack(env, Exact::quotient(x.exact(), y.exact())),
        }
    })
}

fn sqrt_full<T: Ieee>(env: &mut SseEnv, a: T) -> T {
    let x = Unpacked::new(a, env.daz());
    match x.kind {
        Kind::Nan => propagate_nan(env, &[x]),
        Kind::Zero => x.bits,
        _ if x.sign => {
            env.raise(IE);
            default_nan()
        }
        Kind::Infinity => x.bits,
        Kind::Finite => {
            note_denormals(env, &[x]);
            round_pack(env, Exact::square_root(x.exact()))
        }
    }
}
