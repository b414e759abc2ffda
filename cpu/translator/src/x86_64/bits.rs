//! Instructions of BMI1 and BMI2 that have a VEX prefix. All processors give the same results, and the same
//! values of the flags that the manuals define. The interpreter clears the other flags.

use iced_x86::{Instruction, Mnemonic};

use super::asm::{RORX, Vex};

/// Flags as in AH after LAHF.
const C: u8 = 0x01;
const Z: u8 = 0x40;
const S: u8 = 0x80;

/// The meaning of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    /// A destination, a source that may be in memory, and a register.
    SourceAndRegister,
    /// A destination, a register, and a source that may be in memory.
    RegisterAndSource,
    /// A destination, a source that may be in memory, and an immediate.
    SourceAndImmediate,
    /// A destination and a source that may be in memory; the opcode has this `/n`.
    Source(u8),
    /// MULX: the high half, the low half, and a factor that may be in memory.
    Product,
}

/// A BMI instruction with a VEX prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub vex: Vex,
    pub operands: Operands,
    /// The flags, as in AH after LAHF, that the host's instruction computes. All other flags become clear. If the set
    /// is empty, the instruction changes no flags.
    pub flags: u8,
}

impl Bits {
    /// The instruction, if it is one of these BMI instructions and the host's processor has it.
    pub fn of(instruction: &Instruction) -> Option<Bits> {
        use Operands::*;
        let [defined, zero] = [S | Z | C, Z];
        let first = is_x86_feature_detected!("bmi1");
        let second = is_x86_feature_detected!("bmi2");
        // The mandatory prefix is none, 66h, F3h or F2h.
        let vex = |map, prefix, opcode| Vex { map, prefix, opcode };
        let (host_has_it, vex, operands, flags) = match instruction.mnemonic() {
            Mnemonic::Andn => (first, vex(2, 0, 0xf2), RegisterAndSource, defined),
            Mnemonic::Bextr => (first, vex(2, 0, 0xf7), SourceAndRegister, zero),
            Mnemonic::Blsr => (first, vex(2, 0, 0xf3), Source(1), defined),
            Mnemonic::Blsmsk => (first, vex(2, 0, 0xf3), Source(2), defined),
            Mnemonic::Blsi => (first, vex(2, 0, 0xf3), Source(3), defined),
            Mnemonic::Bzhi => (second, vex(2, 0, 0xf5), SourceAndRegister, defined),
            Mnemonic::Shlx => (second, vex(2, 1, 0xf7), SourceAndRegister, 0),
            Mnemonic::Sarx => (second, vex(2, 2, 0xf7), SourceAndRegister, 0),
            Mnemonic::Shrx => (second, vex(2, 3, 0xf7), SourceAndRegister, 0),
            Mnemonic::Pext => (second, vex(2, 2, 0xf5), RegisterAndSource, 0),
            Mnemonic::Pdep => (second, vex(2, 3, 0xf5), RegisterAndSource, 0),
            Mnemonic::Mulx => (second, vex(2, 3, 0xf6), Product, 0),
            Mnemonic::Rorx => (second, RORX, SourceAndImmediate, 0),
            _ => return None,
        };
        host_has_it.then_some(Bits { vex, operands, flags })
    }

    /// Whether the instruction leaves all flags unchanged.
    pub fn keeps_flags(self) -> bool {
        self.flags == 0
    }

    /// The number of operands that the instruction writes, from the first on.
    pub fn destinations(self) -> u32 {
        if self.operands == Operands::Product { 2 } else { 1 }
    }
}
