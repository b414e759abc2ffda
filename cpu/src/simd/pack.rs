//! Narrowing with saturation, interleaving, sign and zero extension.

use super::lanes::{Lane, build};
use super::packed;

packed! {
    Packsswb = |a, b, _| narrow(&a, &b, |x: i16| x.clamp(-0x80, 0x7f) as u8);
    Packuswb = |a, b, _| narrow(&a, &b, |x: i16| x.clamp(0, 0xff) as u8);
    Packssdw = |a, b, _| narrow(&a, &b, |x: i32| x.clamp(-0x8000, 0x7fff) as u16);
    Packusdw = |a, b, _| narrow(&a, &b, |x: i32| x.clamp(0, 0xffff) as u16);
    Punpcklbw = |a, b, _| interleave::<u8, N>(&a, &b, 0);
    Punpcklwd = |a, b, _| interleave::<u16, N>(&a, &b, 0);
    Punpckldq = |a, b, _| interleave::<u32, N>(&a, &b, 0);
    Punpcklqdq = |a, b, _| interleave::<u64, N>(&a, &b, 0);
    Punpckhbw = |a, b, _| interleave::<u8, N>(&a, &b, N / 2);
    Punpckhwd = |a, b, _| interleave::<u16, N>(&a, &b, N / 4);
    Punpckhdq = |a, b, _| interleave::<u32, N>(&a, &b, N / 8);
    Punpckhqdq = |a, b, _| interleave::<u64, N>(&a, &b, N / 16);
    Pmovsxbw = |_, b, _| build(|n| i16::from(i8::get(&b, n)));
    Pmovsxbd = |_, b, _| build(|n| i32::from(i8::get(&b, n)));
    Pmovsxbq = |_, b, _| build(|n| i64::from(i8::get(&b, n)));
    Pmovsxwd = |_, b, _| build(|n| i32::from(i16::get(&b, n)));
    Pmovsxwq = |_, b, _| build(|n| i64::from(i16::get(&b, n)));
    Pmovsxdq = |_, b, _| build(|n| i64::from(i32::get(&b, n)));
    Pmovzxbw = |_, b, _| build(|n| u16::from(u8::get(&b, n)));
    Pmovzxbd = |_, b, _| build(|n| u32::from(u8::get(&b, n)));
    Pmovzxbq = |_, b, _| build(|n| u64::from(u8::get(&b, n)));
    Pmovzxwd = |_, b, _| build(|n| u32::from(u16::get(&b, n)));
    Pmovzxwq = |_, b, _| build(|n| u64::from(u16::get(&b, n)));
    Pmovzxdq = |_, b, _| build(|n| u64::from(u32::get(&b, n)));
}

/// The lanes of `a`, then the lanes of `b`, narrowed to half their width.
#[inline(always)]
fn narrow<W: Lane, L: Lane, const N: usize>(a: &[u8; N], b: &[u8; N], f: impl Fn(W) -> L) -> [u8; N] {
    let half = N / W::BYTES;
    build(|n| if n < half { f(W::get(a, n)) } else { f(W::get(b, n - half)) })
}

/// Interleaves the lanes of `a` and `b`, beginning with lane `first` of `a`.
#[inline(always)]
fn interleave<L: Lane, const N: usize>(a: &[u8; N], b: &[u8; N], first: usize) -> [u8; N] {
    build(|n| L::get(if n & 1 == 0 { a } else { b }, first + n / 2))
}
