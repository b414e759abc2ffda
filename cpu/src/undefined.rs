//! Makes machine states of different processors comparable: bits that processors leave undefined or set differently
//! are removed. The functions take a word that may be a copy of RFLAGS, or all general registers.

use crate::flags;

/// The flags that can differ between processors: CF, PF, AF, ZF, SF, OF and RF. On some processors, a breakpoint of
/// the host leaves RF set in the RFLAGS image of a following interrupt.
const UNCERTAIN_FLAGS: u64 = flags::ARITHMETIC | flags::RF;
/// The bits of RFLAGS that are always zero, below the highest bit that RFLAGS uses.
const ZERO_FLAGS: u64 = 0x8028;
const ONE_FLAG: u64 = 2;
const FLAG_BITS: u32 = 22;

/// Clears the undefined bits of a word that may be a copy of RFLAGS. Kernels keep copies of RFLAGS in memory and in
/// registers. Instructions such as BT and IMUL leave different flags on different processors.
pub fn without_undefined_flags(word: u64) -> u64 {
    let may_be_flags = word >> FLAG_BITS == 0 && word & (ZERO_FLAGS | ONE_FLAG) == ONE_FLAG;
    if may_be_flags { word & !UNCERTAIN_FLAGS } else { word }
}

/// A hash of the general registers, each without the bits that [`without_undefined_flags`] clears.
pub fn fold_registers(gpr: &[u64; 16]) -> u64 {
    gpr.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, register| {
        let mixed =
            (sum.rotate_left(5) ^ without_undefined_flags(*register)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_the_flags_are_compared_as_far_as_they_are_defined() {
        for (what, left, right, same) in [
            ("AF", 0x246, 0x256, true),
            ("ZF and PF", 0x246, 0x202, true),
            ("RF", 0x10206, 0x206, true),
            ("IF", 0x246, 0x046, false),
            ("an address", 0xffff_8880_0000_0002, 0xffff_8880_0000_0003, false),
            ("a number that is no flags", 0x8, 0x9, false),
        ] {
            assert_eq!(without_undefined_flags(left) == without_undefined_flags(right), same, "{what}");
        }
    }

    #[test]
    fn every_bit_of_every_register_counts() {
        let base = fold_registers(&[0; 16]);
        let mut seen = vec![base];
        for register in 0..16 {
            for bit in 0..64 {
                let mut gpr = [0; 16];
                gpr[register] = 1 << bit;
                seen.push(fold_registers(&gpr));
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1 + 16 * 64);
    }
}
