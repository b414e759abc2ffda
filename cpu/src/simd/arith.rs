//! Lane-wise integer arithmetic, minima and maxima, multiplications, sums of differences.

use super::lanes::{Lane, build, map, zip};
use super::packed;

packed! {
    Paddb = |a, b, _| zip(a, b, u8::wrapping_add);
    Paddw = |a, b, _| zip(a, b, u16::wrapping_add);
    Paddd = |a, b, _| zip(a, b, u32::wrapping_add);
    Paddq = |a, b, _| zip(a, b, u64::wrapping_add);
    Paddsb = |a, b, _| zip(a, b, i8::saturating_add);
    Paddsw = |a, b, _| zip(a, b, i16::saturating_add);
    Paddusb = |a, b, _| zip(a, b, u8::saturating_add);
    Paddusw = |a, b, _| zip(a, b, u16::saturating_add);
    Psubb = |a, b, _| zip(a, b, u8::wrapping_sub);
    Psubw = |a, b, _| zip(a, b, u16::wrapping_sub);
    Psubd = |a, b, _| zip(a, b, u32::wrapping_sub);
    Psubq = |a, b, _| zip(a, b, u64::wrapping_sub);
    Psubsb = |a, b, _| zip(a, b, i8::saturating_sub);
    Psubsw = |a, b, _| zip(a, b, i16::saturating_sub);
    Psubusb = |a, b, _| zip(a, b, u8::saturating_sub);
    Psubusw = |a, b, _| zip(a, b, u16::saturating_sub);
    Pavgb = |a, b, _| zip(a, b, |x: u8, y: u8| ((u16::from(x) + u16::from(y) + 1) >> 1) as u8);
    Pavgw = |a, b, _| zip(a, b, |x: u16, y: u16| ((u32::from(x) + u32::from(y) + 1) >> 1) as u16);
    Pminub = |a, b, _| zip(a, b, u8::min);
    Pminuw = |a, b, _| zip(a, b, u16::min);
    Pminud = |a, b, _| zip(a, b, u32::min);
    Pminsb = |a, b, _| zip(a, b, i8::min);
    Pminsw = |a, b, _| zip(a, b, i16::min);
    Pminsd = |a, b, _| zip(a, b, i32::min);
    Pmaxub = |a, b, _| zip(a, b, u8::max);
    Pmaxuw = |a, b, _| zip(a, b, u16::max);
    Pmaxud = |a, b, _| zip(a, b, u32::max);
    Pmaxsb = |a, b, _| zip(a, b, i8::max);
    Pmaxsw = |a, b, _| zip(a, b, i16::max);
    Pmaxsd = |a, b, _| zip(a, b, i32::max);
    Pabsb = |_, b, _| map(b, i8::wrapping_abs);
    Pabsw = |_, b, _| map(b, i16::wrapping_abs);
    Pabsd = |_, b, _| map(b, i32::wrapping_abs);
    Psignb = |a, b, _| zip(a, b, |x: i8, y: i8| x.wrapping_mul(y.signum()));
    Psignw = |a, b, _| zip(a, b, |x: i16, y: i16| x.wrapping_mul(y.signum()));
    Psignd = |a, b, _| zip(a, b, |x: i32, y: i32| x.wrapping_mul(y.signum()));
    Pmullw = |a, b, _| zip(a, b, i16::wrapping_mul);
    Pmulld = |a, b, _| zip(a, b, i32::wrapping_mul);
    Pmulhw = |a, b, _| zip(a, b, |x: i16, y: i16| ((i32::from(x) * i32::from(y)) >> 16) as i16);
    Pmulhuw = |a, b, _| zip(a, b, |x: u16, y: u16| ((u32::from(x) * u32::from(y)) >> 16) as u16);
    Pmulhrsw = |a, b, _| zip(a, b, |x: i16, y: i16| ((((i32::from(x) * i32::from(y)) >> 14) + 1) >> 1) as i16);
    Pmuludq = |a, b, _| zip(a, b, |x: u64, y: u64| (x & 0xffff_ffff) * (y & 0xffff_ffff));
    Pmuldq = |a, b, _| zip(a, b, |x: i64, y: i64| i64::from(x as i32) * i64::from(y as i32));
    Pmaddwd = |a, b, _| build(|n| multiply_add_words(&a, &b, n));
    Pmaddubsw = |a, b, _| build(|n| multiply_add_bytes(&a, &b, n));
    Psadbw = |a, b, _| build(|n| {
        (8 * n..8 * n + 8).map(|i| u64::from(a[i].abs_diff(b[i]))).sum::<u64>()
    });
    Mpsadbw = |a, b, imm| build(|n| {
        let (from_a, from_b) = (usize::from(imm >> 2 & 1) * 4 + n, usize::from(imm & 3) * 4);
        (0..4).map(|i| u16::from(a[from_a + i].abs_diff(b[from_b + i]))).sum::<u16>()
    });
    Phminposuw = |_, b, _| minimum_position(b);
}

/// The sum of two signed products. Only the sum 2 * (-0x8000)^2 does not fit, and wraps around.
#[inline(always)]
fn multiply_add_words(a: &[u8], b: &[u8], n: usize) -> i32 {
    let product = |i| i32::from(i16::get(a, i)) * i32::from(i16::get(b, i));
    product(2 * n).wrapping_add(product(2 * n + 1))
}

/// Multiplies unsigned bytes of the destination with signed bytes of the source, and adds neighbouring products
/// with saturation.
#[inline(always)]
fn multiply_add_bytes(a: &[u8], b: &[u8], n: usize) -> i16 {
    let product = |i: usize| i32::from(a[i]) * i32::from(b[i] as i8);
    (product(2 * n) + product(2 * n + 1)).clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

fn minimum_position<const N: usize>(b: [u8; N]) -> [u8; N] {
    let mut best = (u16::MAX, 0);
    for index in (0..N / 2).rev() {
        let value = u16::get(&b, index);
        if value <= best.0 {
            best = (value, index as u16);
        }
    }
    let mut out = [0; N];
    best.0.put(&mut out, 0);
    best.1.put(&mut out, 1);
    out
}
