//! Permutations of lanes, blends and alignment.

use super::lanes::{Lane, build};
use super::packed;

packed! {
    Pshufb = |a, b, _| build(|n| if b[n] & 0x80 != 0 { 0 } else { a[usize::from(b[n]) & (N - 1)] });
    Pshufd = |_, b, imm| build(|n| u32::get(&b, field(imm, n)));
    Pshufw = |_, b, imm| build(|n| u16::get(&b, field(imm, n)));
    Pshuflw = |_, b, imm| build(|n| u16::get(&b, if n < 4 { field(imm, n) } else { n }));
    Pshufhw = |_, b, imm| build(|n| u16::get(&b, if n < 4 { n } else { 4 + field(imm, n - 4) }));
    Shufps = |a, b, imm| build(|n| u32::get(if n < 2 { &a } else { &b }, field(imm, n)));
    Shufpd = |a, b, imm| build(|n| u64::get(if n == 0 { &a } else { &b }, usize::from(imm >> n & 1)));
    Palignr = |a, b, imm| window_of_pair(&a, &b, usize::from(imm));
    Pblendw = |a, b, imm| build(|n| u16::get(if imm >> n & 1 == 0 { &a } else { &b }, n));
    Blendps = |a, b, imm| build(|n| u32::get(if imm >> n & 1 == 0 { &a } else { &b }, n));
    Blendpd = |a, b, imm| build(|n| u64::get(if imm >> n & 1 == 0 { &a } else { &b }, n));
    Movddup = |_, b, _| build(|_| u64::get(&b, 0));
    Movsldup = |_, b, _| build(|n| u32::get(&b, n & !1));
    Movshdup = |_, b, _| build(|n| u32::get(&b, n | 1));
}

/// Two-bit field `n` of a shuffle control byte.
#[inline(always)]
fn field(imm: u8, n: usize) -> usize {
    usize::from(imm >> (2 * n) & 3)
}

/// Joins `b`, `a` and zeros, in this order from the low end. Returns the vector that starts at byte `start` of the
/// joined bytes.
#[inline(always)]
fn window_of_pair<const N: usize>(a: &[u8; N], b: &[u8; N], start: usize) -> [u8; N] {
    // Room for `b` and `a` of the largest size, and for one more vector of zeros.
    let mut joined = [0; 48];
    joined[..N].copy_from_slice(b);
    joined[N..2 * N].copy_from_slice(a);
    let start = start.min(2 * N);
    let mut out = [0; N];
    out.copy_from_slice(&joined[start..start + N]);
    out
}

/// A blend controlled by the top bit of each lane of `mask`: PBLENDVB, BLENDVPS, BLENDVPD.
#[inline(always)]
pub(crate) fn blend_variable<L: Lane>(a: [u8; 16], b: [u8; 16], mask: [u8; 16]) -> [u8; 16] {
    build(|n| {
        let top = mask[(n + 1) * L::BYTES - 1];
        L::get(if top & 0x80 != 0 { &b } else { &a }, n)
    })
}

/// INSERTPS: `value` goes to the lane in bits 5:4, then the lanes in bits 3:0 become zero.
pub(crate) fn insert_single(a: [u8; 16], value: u32, imm: u8) -> [u8; 16] {
    let target = usize::from(imm >> 4 & 3);
    build(|n| match n {
        _ if imm >> n & 1 != 0 => 0,
        _ if n == target => value,
        _ => u32::get(&a, n),
    })
}
