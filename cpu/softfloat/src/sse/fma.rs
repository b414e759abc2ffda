//! Fused multiply-add of one lane. SDM vol. 1, 14.5.2 (FMA rules); vol. 2, VFMADD132PD and similar.

use super::SseEnv;
use super::arith::zero_sum_sign;
use super::format::{
    Ieee, Kind, Unpacked, default_nan, infinity, note_denormals, propagate_nan, round_pack, zero,
};
use crate::exact::Exact;

/// `±(x * y) ± z` with one rounding.
///
/// VFMADD negates nothing, VFMSUB the addend, VFNMADD the product, VFNMSUB both. NaN operands have priority in the
/// order `x`, `y`, `z` and keep their sign. So the caller passes (destination, third, second) for the 132 forms,
/// (second, destination, third) for 213, and (second, third, destination) for 231.
pub fn mul_add<T: Ieee>(env: &mut SseEnv, x: T, y: T, z: T, negate_product: bool, negate_addend: bool) -> T {
    let [a, b, c] = [x, y, z].map(|bits| Unpacked::new(bits, env.daz()));
    let product_is_invalid =
        matches!((a.kind, b.kind), (Kind::Infinity, Kind::Zero) | (Kind::Zero, Kind::Infinity));
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return propagate_nan(env, &[a, b, c]);
    }
    let sign = a.sign ^ b.sign ^ negate_product;
    let addend = c.with_sign(c.sign ^ negate_addend);
    let infinite_product = a.is(Kind::Infinity) || b.is(Kind::Infinity);
    if product_is_invalid || (infinite_product && c.is(Kind::Infinity) && sign != addend.sign) {
        return env.invalid(default_nan());
    }
    note_denormals(env, &[a, b, c]);
    if infinite_product {
        return infinity(sign);
    }
    if c.is(Kind::Infinity) {
        return infinity(addend.sign);
    }
    let product = (a.is(Kind::Finite) && b.is(Kind::Finite))
        .then(|| Exact { sign, ..Exact::product(a.exact(), b.exact()) });
    let sum = match (product, c.is(Kind::Finite)) {
        (Some(product), true) => Exact::sum(product, addend.exact()),
        (Some(product), false) => Some(product),
        (None, true) => Some(addend.exact()),
        (None, false) => None,
    };
    match sum {
        Some(value) => round_pack(env, value),
        None => zero(zero_sum_sign(env, sign, addend.sign)),
    }
}
