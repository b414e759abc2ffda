//! Sums and differences of neighbouring lanes.

use super::lanes::{Lane, build};
use super::packed;

packed! {
    Phaddw = |a, b, _| pairs(&a, &b, i16::wrapping_add);
    Phaddd = |a, b, _| pairs(&a, &b, i32::wrapping_add);
    Phaddsw = |a, b, _| pairs(&a, &b, i16::saturating_add);
    Phsubw = |a, b, _| pairs(&a, &b, i16::wrapping_sub);
    Phsubd = |a, b, _| pairs(&a, &b, i32::wrapping_sub);
    Phsubsw = |a, b, _| pairs(&a, &b, i16::saturating_sub);
}

/// Combines neighbouring lanes. Pairs of `a` fill the lower half, pairs of `b` the upper.
#[inline(always)]
fn pairs<L: Lane, const N: usize>(a: &[u8; N], b: &[u8; N], f: impl Fn(L, L) -> L) -> [u8; N] {
    let half = N / L::BYTES / 2;
    build(|n| {
        let (source, pair) = if n < half { (a, n) } else { (b, n - half) };
        f(L::get(source, 2 * pair), L::get(source, 2 * pair + 1))
    })
}
