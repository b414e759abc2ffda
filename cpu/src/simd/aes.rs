//! AES rounds (FIPS 197; SDM vol. 2, AESENC and friends) and carry-less multiplication.

use super::lanes::{Lane, build};
use super::packed;

packed! {
    Aesenc = |a, b, _| xor(mix_columns(sub_bytes(shift_rows(a, 5), &SBOX), [2, 3, 1, 1]), b);
    Aesenclast = |a, b, _| xor(sub_bytes(shift_rows(a, 5), &SBOX), b);
    Aesdec = |a, b, _| xor(mix_columns(sub_bytes(shift_rows(a, 13), &INVERSE), [14, 11, 13, 9]), b);
    Aesdeclast = |a, b, _| xor(sub_bytes(shift_rows(a, 13), &INVERSE), b);
    Aesimc = |_, b, _| mix_columns(b, [14, 11, 13, 9]);
    Aeskeygenassist = |_, b, imm| build(|n| key_word(&b, imm, n));
    Pclmulqdq = |a, b, imm| {
        let (x, y) = (u64::get(&a, usize::from(imm & 1)), u64::get(&b, usize::from(imm >> 4 & 1)));
        let product = carryless(x, y);
        build(|n| (product >> (64 * n)) as u64)
    };
}

const SBOX: [u8; 256] = substitution();
const INVERSE: [u8; 256] = inverse(&SBOX);

/// Multiplication in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
const fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    product
}

/// The S-box: inverse in GF(2^8), then the affine transformation. The powers of 3 are all elements but zero, and
/// 0xf6 is the inverse of 3. So equal powers of 3 and 0xf6 are an element and its inverse.
const fn substitution() -> [u8; 256] {
    let mut table = [0; 256];
    let (mut element, mut inverted) = (1_u8, 1_u8);
    loop {
        table[element as usize] = affine(inverted);
        element = multiply(element, 3);
        inverted = multiply(inverted, 0xf6);
        if element == 1 {
            break;
        }
    }
    table[0] = affine(0);
    table
}

const fn affine(x: u8) -> u8 {
    x ^ x.rotate_left(1) ^ x.rotate_left(2) ^ x.rotate_left(3) ^ x.rotate_left(4) ^ 0x63
}

const fn inverse(table: &[u8; 256]) -> [u8; 256] {
    let mut out = [0; 256];
    let mut n = 0;
    while n < 256 {
        out[table[n] as usize] = n as u8;
        n += 1;
    }
    out
}

/// Shifts rows: byte `n` of the result is byte `n * step` of the state. A step of 5 rotates row r left by r, and a
/// step of 13 rotates row r right by r.
#[inline(always)]
fn shift_rows<const N: usize>(a: [u8; N], step: usize) -> [u8; N] {
    std::array::from_fn(|n| a[n * step % N])
}

#[inline(always)]
fn sub_bytes<const N: usize>(a: [u8; N], table: &[u8; 256]) -> [u8; N] {
    a.map(|byte| table[usize::from(byte)])
}

#[inline(always)]
fn xor<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    std::array::from_fn(|n| a[n] ^ b[n])
}

/// Multiplies each column by the circulant matrix with the given first row.
#[inline(always)]
fn mix_columns<const N: usize>(a: [u8; N], row: [u8; 4]) -> [u8; N] {
    std::array::from_fn(|n| {
        let column = n & !3;
        (0..4).fold(0, |sum, k| sum ^ multiply(a[column + (n + k) % 4], row[k]))
    })
}

/// Doubleword `n` of AESKEYGENASSIST's result. An even doubleword is the next odd doubleword of the source after
/// substitution. An odd doubleword is the same value, rotated and combined with the constant.
fn key_word(b: &[u8], imm: u8, n: usize) -> u32 {
    let source = u32::get(b, n | 1);
    let substituted = u32::from_le_bytes(sub_bytes(source.to_le_bytes(), &SBOX));
    if n & 1 == 0 { substituted } else { substituted.rotate_right(8) ^ u32::from(imm) }
}

/// The product of two polynomials over GF(2).
fn carryless(x: u64, y: u64) -> u128 {
    (0..64).fold(0, |sum, bit| sum ^ (u128::from(x) << bit) & (u128::from(y >> bit & 1)).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Packed;

    fn block(value: u128) -> [u8; 16] {
        value.to_be_bytes()
    }

    /// States from FIPS 197, appendix B: the state at the start of round 1, and the state at the start of round 2.
    const STATE: u128 = 0x193d_e3be_a0f4_e22b_9ac6_8d2a_e9f8_4808;
    const KEY: u128 = 0xa0fa_fe17_8854_2cb1_23a3_3939_2a6c_7605;
    const NEXT: u128 = 0xa49c_7ff2_689f_352b_6b5b_ea43_026a_5049;

    #[test]
    fn a_round_of_the_standards_example() {
        assert_eq!(Aesenc::apply(block(STATE), block(KEY), 0), block(NEXT));
    }

    #[test]
    fn decryption_undoes_encryption() {
        let zero = [0; 16];
        let last = Aesenclast::apply(block(STATE), zero, 0);
        assert_eq!(Aesdeclast::apply(last, zero, 0), block(STATE));
        // AESDEC uses the order of operations of FIPS 197's "equivalent inverse cipher", whose round keys are
        // transformed.
        let round = Aesimc::apply(zero, Aesenc::apply(block(STATE), zero, 0), 0);
        assert_eq!(Aesdeclast::apply(round, zero, 0), block(STATE));
    }

    #[test]
    fn products_have_no_carries() {
        assert_eq!(carryless(3, 3), 5);
        assert_eq!(carryless(u64::MAX, 1 << 63), u128::from(u64::MAX) << 63);
    }
}
