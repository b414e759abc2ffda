//! The second fast path: operations whose result is exact under any MXCSR.
//!
//! An exact result in the safe range raises nothing and is the same in every rounding mode. So the value and the
//! mask of PE do not matter. Code that computes with small whole numbers in floating point needs this path. Such
//! code never sets PE, so the first fast path does not work. Each function returns `None` if it cannot prove
//! exactness.

use super::SseEnv;
use super::format::{Host, Ieee, fraction_bits, is_normal, is_safe_result, is_zero, negate, sign};
use crate::env::Rounding;

/// `a + b`.
pub(crate) fn sum<T: Host>(env: &SseEnv, a: T, b: T) -> Option<T> {
    if !(is_normal_or_zero(a) && is_normal_or_zero(b)) {
        return None;
    }
    let result = a.host_add(b);
    if is_zero(result) {
        // If neither number is tiny, a rounded sum of zero means that the exact sum is zero. The rounding mode RC
        // decides the sign of this zero.
        return (env.rounding() != Rounding::Down).then_some(result);
    }
    (is_safe_result(result) && is_zero(sum_error(a, b, result))).then_some(result)
}

/// `a - b`.
pub(crate) fn difference<T: Host>(env: &SseEnv, a: T, b: T) -> Option<T> {
    // `sum` returns `None` for a NaN, so the changed sign of `b` never shows in a NaN result.
    sum(env, a, negate(b))
}

/// `a * b`.
pub(crate) fn product<T: Host>(_: &SseEnv, a: T, b: T) -> Option<T> {
    if !(is_normal_or_zero(a) && is_normal_or_zero(b)) {
        return None;
    }
    let result = a.host_mul(b);
    let exact = is_zero(a) || is_zero(b) || (product_fits(a, b) && is_safe_result(result));
    exact.then_some(result)
}

/// `a / b`.
pub(crate) fn quotient<T: Host>(_: &SseEnv, a: T, b: T) -> Option<T> {
    if !(is_normal_or_zero(a) && is_normal(b)) {
        return None;
    }
    let result = a.host_div(b);
    let exact = is_zero(a) || (is_safe_result(result) && product_fits(result, b) && result.host_mul(b) == a);
    exact.then_some(result)
}

/// The square root of `a`.
pub(crate) fn square_root<T: Host>(a: T) -> Option<T> {
    if !is_normal(a) || sign(a) {
        return None;
    }
    let result = a.host_sqrt();
    (product_fits(result, result) && result.host_mul(result) == a).then_some(result)
}

fn is_normal_or_zero<T: Ieee>(bits: T) -> bool {
    is_normal(bits) || is_zero(bits)
}

/// The error of rounding `a + b` to `sum`: Knuth's TwoSum, which is exact in round to nearest.
fn sum_error<T: Host>(a: T, b: T, sum: T) -> T {
    let b_part = sum.host_sub(a);
    let a_part = sum.host_sub(b_part);
    a.host_sub(a_part).host_add(b.host_sub(b_part))
}

/// Whether the product of two normal numbers' significands fits one significand.
fn product_fits<T: Ieee>(a: T, b: T) -> bool {
    significant_bits(a) + significant_bits(b) <= T::PRECISION
}

/// The length of a normal number's significand without trailing zeros.
fn significant_bits<T: Ieee>(bits: T) -> u32 {
    T::PRECISION - bits.widen().trailing_zeros().min(fraction_bits::<T>())
}
