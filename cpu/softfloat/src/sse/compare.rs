//! CMPcc, COMIS and UCOMIS of one lane. SDM vol. 2, CMPPD (table 3-1), COMISD, UCOMISD.

use super::SseEnv;
use super::format::{Ieee, Unpacked, is_normal, note_denormals, sign, sign_position};
use crate::env::IE;
use crate::relation::Relation;
use core::cmp::Ordering;

/// A CMPcc predicate: the low five bits of `imm8` (three for the SSE encodings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicate(u8);

impl Predicate {
    /// The predicate of an SSE instruction, which uses three bits of `imm8`.
    #[inline]
    pub const fn sse(imm8: u8) -> Predicate {
        Predicate(imm8 & 7)
    }

    /// The predicate of an AVX instruction, which uses five bits of `imm8`.
    #[inline]
    pub const fn avx(imm8: u8) -> Predicate {
        Predicate(imm8 & 31)
    }

    /// Whether a QNaN operand also raises #I. The second sixteen predicates invert the behaviour of the first sixteen.
    #[inline]
    const fn signals_quiet_nans(self) -> bool {
        matches!(self.0 & 15, 1 | 2 | 5 | 6 | 9 | 10 | 13 | 14) != (self.0 & 16 != 0)
    }

    /// Whether the predicate holds for a relation.
    #[inline]
    const fn holds(self, relation: Relation) -> bool {
        use Relation::*;
        match self.0 & 15 {
            0 => matches!(relation, Equal),
            1 => matches!(relation, Less),
            2 => matches!(relation, Less | Equal),
            3 => matches!(relation, Unordered),
            4 => !matches!(relation, Equal),
            5 => !matches!(relation, Less),
            6 => !matches!(relation, Less | Equal),
            7 => !matches!(relation, Unordered),
            8 => matches!(relation, Equal | Unordered),
            9 => !matches!(relation, Greater | Equal),
            10 => !matches!(relation, Greater),
            11 => false,
            12 => matches!(relation, Less | Greater),
            13 => matches!(relation, Greater | Equal),
            14 => matches!(relation, Greater),
            _ => true,
        }
    }
}

/// CMPcc: whether `predicate` holds. The instruction writes all ones if the predicate holds, else all zeros.
#[inline]
pub fn compare<T: Ieee>(env: &mut SseEnv, a: T, b: T, predicate: Predicate) -> bool {
    predicate.holds(relate(env, a, b, predicate.signals_quiet_nans()))
}

/// COMIS: any NaN raises #I.
#[inline]
pub fn comi<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> Relation {
    relate(env, a, b, true)
}

/// UCOMIS: only an SNaN raises #I.
#[inline]
pub fn ucomi<T: Ieee>(env: &mut SseEnv, a: T, b: T) -> Relation {
    relate(env, a, b, false)
}

#[inline]
fn relate<T: Ieee>(env: &mut SseEnv, a: T, b: T, signal_quiet: bool) -> Relation {
    if is_normal(a) && is_normal(b) {
        return order(a, b).into();
    }
    relate_slow(env, a, b, signal_quiet)
}

fn relate_slow<T: Ieee>(env: &mut SseEnv, a: T, b: T, signal_quiet: bool) -> Relation {
    let (x, y) = (Unpacked::new(a, env.daz()), Unpacked::new(b, env.daz()));
    if x.is_nan() || y.is_nan() {
        env.raise_if(signal_quiet || x.is_signalling() || y.is_signalling(), IE);
        return Relation::Unordered;
    }
    note_denormals(env, &[x, y]);
    order(x.bits, y.bits).into()
}

/// The order of two bit patterns that are not NaNs.
#[inline]
pub(crate) fn order<T: Ieee>(a: T, b: T) -> Ordering {
    key(a).cmp(&key(b))
}

/// Maps a number to a signed integer. Two such integers compare as the two numbers do. Both zeros map to 0.
#[inline]
fn key<T: Ieee>(bits: T) -> i64 {
    let sign_bit = 1 << sign_position::<T>();
    let magnitude = (bits.widen() & !sign_bit) as i64;
    if sign(bits) { -magnitude } else { magnitude }
}
