//! The comparison of PCMPESTRI, PCMPESTRM, PCMPISTRI and PCMPISTRM. SDM vol. 2, 4.1, defines the control byte, the
//! aggregation operations, and the comparison of elements beyond a string's end.

use super::lanes::{Lane, build};

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// IntRes2: one bit per element.
    pub bits: u16,
    /// Elements in a vector: 16 or 8.
    pub elements: u32,
    /// Whether the first string ends inside its vector (SF).
    pub first_ends: bool,
    /// Whether the second string ends inside its vector (ZF).
    pub second_ends: bool,
}

impl Outcome {
    /// The index that PCMPxSTRI writes to ECX.
    pub fn index(self, imm: u8) -> u32 {
        if self.bits == 0 {
            self.elements
        } else if imm & 0x40 != 0 {
            15 - self.bits.leading_zeros()
        } else {
            self.bits.trailing_zeros()
        }
    }

    /// The mask that PCMPxSTRM writes to XMM0.
    pub fn mask(self, imm: u8) -> [u8; 16] {
        match (imm & 0x40 != 0, self.elements) {
            (false, _) => u128::from(self.bits).to_le_bytes(),
            (true, 16) => build(|n| if self.bits >> n & 1 != 0 { u8::MAX } else { 0 }),
            (true, _) => build(|n| if self.bits >> n & 1 != 0 { u16::MAX } else { 0 }),
        }
    }

    /// The arithmetic flags as RFLAGS bits. CF says that a bit of the result is set, ZF and SF are `second_ends`
    /// and `first_ends`, and OF is bit 0.
    pub fn rflags(self) -> u64 {
        u64::from(self.bits != 0)
            | u64::from(self.second_ends) << 6
            | u64::from(self.first_ends) << 7
            | u64::from(self.bits & 1) << 11
    }
}

/// The number of elements in a vector, as the control byte selects.
fn elements(imm: u8) -> usize {
    if imm & 1 == 0 { 16 } else { 8 }
}

/// The elements of a vector, widened so that one comparison function can serve all four formats.
fn widen(vector: [u8; 16], imm: u8) -> [i32; 16] {
    std::array::from_fn(|n| match imm & 3 {
        0 => i32::from(vector[n]),
        2 => i32::from(vector[n] as i8),
        _ if n >= 8 => 0,
        1 => i32::from(u16::get(&vector, n)),
        _ => i32::from(i16::get(&vector, n)),
    })
}

/// Length of a string that ends at its first zero element.
pub(crate) fn implicit_length(vector: [u8; 16], imm: u8) -> usize {
    let count = elements(imm);
    widen(vector, imm)[..count].iter().position(|&element| element == 0).unwrap_or(count)
}

/// Length of a string whose length is in a register: the register's absolute value, at most the number of elements
/// in a vector.
pub(crate) fn explicit_length(register: i64, imm: u8) -> usize {
    register.unsigned_abs().min(elements(imm) as u64) as usize
}

/// Compares `a` (the first operand) of `a_length` elements with `b` (the second) of `b_length`.
pub(crate) fn compare(a: [u8; 16], a_length: usize, b: [u8; 16], b_length: usize, imm: u8) -> Outcome {
    let count = elements(imm);
    let (x, y) = (widen(a, imm), widen(b, imm));
    let aggregated = match imm >> 2 & 3 {
        0 => equal_any(&x[..a_length], &y[..b_length]),
        1 => ranges(&x[..a_length], &y[..b_length]),
        2 => equal_each(&x[..a_length], &y[..b_length], count),
        _ => equal_ordered(&x[..a_length], &y[..b_length], count),
    };
    let all = ones(count);
    let bits = match imm >> 4 & 3 {
        1 => aggregated ^ all,
        3 => aggregated ^ ones(b_length),
        _ => aggregated,
    };
    Outcome { bits, elements: count as u32, first_ends: a_length < count, second_ends: b_length < count }
}

fn ones(count: usize) -> u16 {
    ((1_u32 << count) - 1) as u16
}

/// A bit for each element of `y` that satisfies a condition. Bits beyond the end of `y` stay clear.
fn each(y: &[i32], holds: impl Fn(i32) -> bool) -> u16 {
    y.iter().enumerate().fold(0, |bits, (n, &element)| bits | u16::from(holds(element)) << n)
}

fn equal_any(x: &[i32], y: &[i32]) -> u16 {
    each(y, |element| x.contains(&element))
}

/// A bit for each element of `y` in a range. `x` holds pairs of bounds; an incomplete last pair is ignored.
fn ranges(x: &[i32], y: &[i32]) -> u16 {
    each(y, |element| x.chunks_exact(2).any(|bounds| (bounds[0]..=bounds[1]).contains(&element)))
}

/// A bit for each pair of equal elements. Elements beyond the ends of both strings are equal.
fn equal_each(x: &[i32], y: &[i32], count: usize) -> u16 {
    (0..count).fold(0, |bits, n| bits | u16::from(x.get(n) == y.get(n)) << n)
}

/// A bit for each position at which `y` contains `x`. At the end of the vector, a beginning of `x` is enough.
fn equal_ordered(x: &[i32], y: &[i32], count: usize) -> u16 {
    let starts_at = |start: usize| {
        let visible = x.len().min(count - start);
        (0..visible).all(|n| y.get(start + n) == Some(&x[n]))
    };
    (0..count).fold(0, |bits, n| bits | u16::from(starts_at(n)) << n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ([u8; 16], usize) {
        let mut vector = [0; 16];
        vector[..text.len()].copy_from_slice(text.as_bytes());
        (vector, text.len())
    }

    /// Each case: the control byte, the first and the second string, and the result's bits and index.
    #[test]
    fn textbook_comparisons() {
        for (imm, first, second, bits, index) in [
            (0x00, "aeiou", "strength", 1 << 3, 3),
            (0x04, "azAZ", "12x4Q", 0b10100, 2),
            (0x44, "azAZ", "12x4Q", 0b10100, 4),
            (0x08, "equal", "equip", 0xffe7, 0),
            (0x18, "equal", "equip", 0x0018, 3),
            (0x38, "equal", "equip", 0xfff8, 3),
            (0x0c, "ab", "xxabxab", 1 << 2 | 1 << 5, 2),
            (0x0c, "ab", "", 0, 16),
        ] {
            let ((a, a_length), (b, b_length)) = (text(first), text(second));
            assert_eq!((implicit_length(a, imm), implicit_length(b, imm)), (a_length, b_length));
            let outcome = compare(a, a_length, b, b_length, imm);
            assert_eq!((outcome.bits, outcome.index(imm)), (bits, index), "{imm:#x} {first} {second}");
        }
    }
}
