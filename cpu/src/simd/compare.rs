//! Comparisons, whose results are masks, and bitwise logic.

use super::lanes::{test, zip};
use super::packed;

packed! {
    Pcmpeqb = |a, b, _| test(a, b, |x: u8, y| x == y);
    Pcmpeqw = |a, b, _| test(a, b, |x: u16, y| x == y);
    Pcmpeqd = |a, b, _| test(a, b, |x: u32, y| x == y);
    Pcmpeqq = |a, b, _| test(a, b, |x: u64, y| x == y);
    Pcmpgtb = |a, b, _| test(a, b, |x: i8, y| x > y);
    Pcmpgtw = |a, b, _| test(a, b, |x: i16, y| x > y);
    Pcmpgtd = |a, b, _| test(a, b, |x: i32, y| x > y);
    Pcmpgtq = |a, b, _| test(a, b, |x: i64, y| x > y);
    Pand = |a, b, _| zip(a, b, |x: u64, y| x & y);
    Pandn = |a, b, _| zip(a, b, |x: u64, y| !x & y);
    Por = |a, b, _| zip(a, b, |x: u64, y| x | y);
    Pxor = |a, b, _| zip(a, b, |x: u64, y| x ^ y);
}
