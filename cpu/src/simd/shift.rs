//! Shifts. The count is the low quadword of the source. If the count is not less than the lane's width, the result
//! is zero, or for arithmetic shifts a lane of sign bits.

use super::lanes::{Lane, map};
use super::packed;

packed! {
    Psllw = |a, b, _| { let n = count(&b); map(a, |x: u16| if n < 16 { x << n } else { 0 }) };
    Pslld = |a, b, _| { let n = count(&b); map(a, |x: u32| if n < 32 { x << n } else { 0 }) };
    Psllq = |a, b, _| { let n = count(&b); map(a, |x: u64| if n < 64 { x << n } else { 0 }) };
    Psrlw = |a, b, _| { let n = count(&b); map(a, |x: u16| if n < 16 { x >> n } else { 0 }) };
    Psrld = |a, b, _| { let n = count(&b); map(a, |x: u32| if n < 32 { x >> n } else { 0 }) };
    Psrlq = |a, b, _| { let n = count(&b); map(a, |x: u64| if n < 64 { x >> n } else { 0 }) };
    Psraw = |a, b, _| { let n = count(&b).min(15); map(a, |x: i16| x >> n) };
    Psrad = |a, b, _| { let n = count(&b).min(31); map(a, |x: i32| x >> n) };
    Pslldq = |a, b, _| {
        let n = count(&b).min(N as u64) as usize;
        let mut out = [0; N];
        out[n..].copy_from_slice(&a[..N - n]);
        out
    };
    Psrldq = |a, b, _| {
        let n = count(&b).min(N as u64) as usize;
        let mut out = [0; N];
        out[..N - n].copy_from_slice(&a[n..]);
        out
    };
}

#[inline(always)]
fn count(b: &[u8]) -> u64 {
    u64::get(b, 0)
}
