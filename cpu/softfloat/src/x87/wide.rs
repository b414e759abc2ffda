//! Arithmetic with about 126 correct bits, and the series for the transcendental instructions.
//!
//! Values are [`Exact`]s that are no longer exact: each operation here may be off by a few units of 2^-127. The
//! functions of this file lose at most about ten bits to accumulated error. So a result rounded to 64 bits is correctly
//! rounded unless the true value is within 2^-50 units of a tie. No such operand is known. Directed rounding is always
//! correct, because every shortcut keeps the jammed bit (`exact.rs`).

use crate::exact::Exact;

/// A positive constant `sig * 2^(exp - 127)`.
const fn constant(exp: i32, sig: u128) -> Exact {
    Exact { sign: false, exp, sig }
}

pub(crate) const ONE: Exact = constant(0, 1 << 127);
pub(crate) const HALF: Exact = constant(-1, 1 << 127);
pub(crate) const LN_2: Exact = constant(-1, 0xb172_17f7_d1cf_79ab_c9e3_b398_03f2_f6af);
pub(crate) const TWO_OVER_LN_2: Exact = constant(1, 0xb8aa_3b29_5c17_f0bb_be87_fed0_691d_3e89);
pub(crate) const PI: Exact = constant(1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
pub(crate) const HALF_PI: Exact = Exact { exp: 0, ..PI };
pub(crate) const QUARTER_PI: Exact = Exact { exp: -1, ..PI };
const ATAN_HALF: Exact = constant(-2, 0xed63_382b_0dda_7b45_6fe4_45ec_bc3a_8d03);
/// The significand of sqrt(2), cut to 128 bits.
const SQRT_2_SIG: u128 = 0xb504_f333_f9de_6484_597d_89b3_754a_be9f;

/// The numbers of terms to compute of each series. For the allowed arguments, the omitted terms are below 2^-128.
const EXP_TERMS: u64 = 36;
const SIN_COS_TERMS: u64 = 18;
const ATANH_TERMS: u64 = 28;
const ATAN_TERMS: u64 = 34;

impl Exact {
    pub(crate) fn with_sign(self, sign: bool) -> Exact {
        Exact { sign, ..self }
    }

    pub(crate) fn negated(self) -> Exact {
        self.with_sign(!self.sign)
    }

    /// `self * 2^exp`.
    pub(crate) fn scaled(self, exp: i32) -> Exact {
        Exact { exp: self.exp + exp, ..self }
    }
}

/// A whole number, which must not be zero.
pub(crate) fn whole(value: i64) -> Exact {
    Exact::normalized(value < 0, 127, u128::from(value.unsigned_abs()))
}

/// `a * b` of significands with up to 128 bits.
pub(crate) fn mul(a: Exact, b: Exact) -> Exact {
    let low_half = |value: u128| value & u128::from(u64::MAX);
    let (a1, a0, b1, b0) = (a.sig >> 64, low_half(a.sig), b.sig >> 64, low_half(b.sig));
    let (cross1, cross2, low) = (a1 * b0, a0 * b1, a0 * b0);
    let middle = low_half(cross1) + low_half(cross2) + (low >> 64);
    let high = a1 * b1 + (cross1 >> 64) + (cross2 >> 64) + (middle >> 64);
    let sticky = (low_half(middle) | low_half(low) != 0) as u128;
    Exact::normalized(a.sign != b.sign, a.exp + b.exp + 1, high | sticky)
}

/// `a / b` of significands with up to 128 bits. Long division may be slow, because it is rarely needed.
pub(crate) fn div(a: Exact, b: Exact) -> Exact {
    let below = a.sig < b.sig;
    // One extra step makes the first quotient bit a one.
    let mut rest = if below { a.sig } else { a.sig - b.sig };
    let mut quotient: u128 = if below { 0 } else { 1 };
    while quotient >> 127 == 0 {
        let carry = rest >> 127 != 0;
        rest <<= 1;
        let digit = carry || rest >= b.sig;
        rest = if digit { rest.wrapping_sub(b.sig) } else { rest };
        quotient = (quotient << 1) | digit as u128;
    }
    Exact { sign: a.sign != b.sign, exp: a.exp - b.exp - below as i32, sig: quotient | (rest != 0) as u128 }
}

/// `a + b` if the sum cannot be zero.
fn add(a: Exact, b: Exact) -> Exact {
    Exact::sum(a, b).expect("the callers' operands never cancel completely")
}

/// `a / n` for a small positive integer.
fn div_small(a: Exact, n: u64) -> Exact {
    let n = u128::from(n);
    let (quotient, rest) = (a.sig / n, a.sig % n);
    // Refill the bits that the quotient lost, to keep the precision.
    let shift = quotient.leading_zeros();
    let more = (rest << shift) / n;
    let sticky = ((rest << shift) % n != 0) as u128;
    Exact { sign: a.sign, exp: a.exp - shift as i32, sig: (quotient << shift) | more | sticky }
}

/// `2^x - 1` for `0 < |x| < 1`: e^y - 1 = y (1 + y/2 (1 + y/3 (...))) with y = x ln 2.
pub(crate) fn exp2_minus_1(x: Exact) -> Exact {
    let y = mul(x, LN_2);
    let nested = (2..EXP_TERMS).rev().fold(ONE, |sum, n| add(ONE, div_small(mul(y, sum), n)));
    mul(y, nested)
}

/// `sin x / x` for `0 < |x| < 0.8`.
fn sin_over_x(x: Exact) -> Exact {
    let square = mul(x, x).negated();
    (1..SIN_COS_TERMS).rev().fold(ONE, |sum, n| add(ONE, div_small(mul(square, sum), 2 * n * (2 * n + 1))))
}

/// `sin x` for `0 < |x| < 0.8`.
pub(crate) fn sin(x: Exact) -> Exact {
    mul(x, sin_over_x(x))
}

/// `cos x` for `0 < |x| < 0.8`.
pub(crate) fn cos(x: Exact) -> Exact {
    let square = mul(x, x).negated();
    (1..SIN_COS_TERMS).rev().fold(ONE, |sum, n| add(ONE, div_small(mul(square, sum), 2 * n * (2 * n - 1))))
}

/// `tan x` for `0 < |x| < 0.8`.
pub(crate) fn tan(x: Exact) -> Exact {
    if x.exp < -60 {
        // x + x^3/3: rounding both sine and cosine would lose the difference.
        return mul(x, add(ONE, mul(x, x)));
    }
    mul(x, div(sin_over_x(x), cos(x)))
}

/// `2 atanh(z) / ln 2`, which is `log2((1 + z) / (1 - z))`, for `0 < |z| < 0.18`.
fn log2_of_ratio(z: Exact) -> Exact {
    let square = mul(z, z);
    let series = (0..ATANH_TERMS).rev().fold(None, |sum: Option<Exact>, n| {
        let term = div_small(ONE, 2 * n + 1);
        Some(sum.map_or(term, |sum| add(term, mul(square, sum))))
    });
    mul(mul(z, series.expect("the series has terms")), TWO_OVER_LN_2)
}

/// `log2 x` for positive `x`; `None` if it is zero.
pub(crate) fn log2(x: Exact) -> Option<Exact> {
    // x = 2^k m with m in [sqrt(1/2), sqrt(2)). The quotient below is then small, and adding k cancels few
    // bits.
    let k = x.exp + (x.sig > SQRT_2_SIG) as i32;
    let m = x.scaled(-k);
    let fraction = Exact::sum(m, ONE.negated()).map(|above| log2_of_ratio(div(above, add(m, ONE))));
    match (k, fraction) {
        (0, fraction) => fraction,
        (k, None) => Some(whole(k.into())),
        (k, Some(fraction)) => Some(add(whole(k.into()), fraction)),
    }
}

/// `log2(1 + x)` for `x > -1`, `x` not zero.
pub(crate) fn log2_of_1_plus(x: Exact) -> Exact {
    // For |x| < 1/4, ((1 + x) - 1) / ((1 + x) + 1) = x / (x + 2) keeps all bits of a small x.
    if x.exp < -2 {
        return log2_of_ratio(div(x, add(x, ONE.scaled(1))));
    }
    log2(add(ONE, x)).expect("1 + x is not 1")
}

/// `atan x` for `0 < x <= 1`.
pub(crate) fn atan(x: Exact) -> Exact {
    let quarter = HALF.scaled(-1);
    if (x.exp, x.sig) < (quarter.exp, quarter.sig) {
        return atan_series(x);
    }
    // atan x = atan c + atan((x - c) / (1 + x c)) for the nearer c of 1/2 and 1.
    let near_one = x.exp >= 0 || x.sig >> 126 == 3;
    let (centre, atan_centre) = if near_one { (ONE, QUARTER_PI) } else { (HALF, ATAN_HALF) };
    match Exact::sum(x, centre.negated()) {
        Some(distance) => add(atan_centre, atan_series(div(distance, add(ONE, mul(x, centre))))),
        None => atan_centre,
    }
}

/// `atan x` by its Taylor series, for `0 < |x| <= 1/4`.
fn atan_series(x: Exact) -> Exact {
    let square = mul(x, x).negated();
    let series = (0..ATAN_TERMS).rev().fold(None, |sum: Option<Exact>, n| {
        let term = div_small(ONE, 2 * n + 1);
        Some(sum.map_or(term, |sum| add(term, mul(square, sum))))
    });
    mul(x, series.expect("the series has terms"))
}

/// Reduces `x` modulo `pi / 2`, rounded to nearest. Returns the rest and the quotient's low two bits.
///
/// As in Intel's processors, `pi` has 66 bits, which defines the results for large arguments (SDM vol. 1, 8.3.8). With
/// this `pi` the rest is exact and never zero. `|x|` must be below 2^63.
pub(crate) fn reduce_by_half_pi(x: Exact) -> (Exact, u32) {
    /// `pi / 2` in units of 2^-65.
    const HALF_PI_66: u128 = 0xc90f_daa2_2168_c234 << 2 | 3;
    if x.exp < -1 {
        return (x, 0);
    }
    // x in units of 2^-65 has at most 64 + 64 bits.
    let units = (x.sig >> 64) << (x.exp + 2);
    let (quotient, rest) = (units / HALF_PI_66, units % HALF_PI_66);
    let up = 2 * rest > HALF_PI_66;
    let (quotient, rest) = if up { (quotient + 1, HALF_PI_66 - rest) } else { (quotient, rest) };
    let rest = Exact::normalized(x.sign != up, 127 - 65, rest);
    let quadrant = (quotient & 3) as u32;
    (rest, if x.sign { quadrant.wrapping_neg() & 3 } else { quadrant })
}
