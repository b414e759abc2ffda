//! Places in the run that no exit names.

/// A place where a guest was stopped between two exits, by what its registers held there.
///
/// Registers may be the same at several such places. Whoever knows more of the machine (RAM) decides which it is; if
/// nothing differs at all, either will do, because the future is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Linear address of the next instruction.
    pub rip: u64,
    /// [`fold_registers`] of the general registers there.
    pub registers: u64,
    /// The place where the guest stands now was looked at and is not the one.
    pub not_here: bool,
}

/// A number that differs where one of the general registers differs, but for accidents.
pub fn fold_registers(gpr: &[u64; 16]) -> u64 {
    gpr.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, register| {
        let mixed = (sum.rotate_left(5) ^ register).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
