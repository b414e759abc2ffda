//! Instructions of BMI1 and BMI2 that have a VEX prefix. Their results are the same on every processor, and so are those of
//! the flags that the manuals define; the interpreter leaves the others clear.

use iced_x86::{Instruction, Mnemonic};

use super::asm::{B4, Place, RAX, RCX, RDX, Vex, alu};
use super::block::{BlockWriter, Cannot};
use super::kind::{Effect, is_memory, set};

const GUEST_RDX: usize = 2;

/// Which of its operands are what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operands {
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

/// Such an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    vex: Vex,
    operands: Operands,
    /// The flags that are as the host has them; if there are none, it leaves all alone.
    flags: u8,
}

impl Bits {
    /// The instruction, if it is one of these and the host has it.
    pub fn of(instruction: &Instruction) -> Option<Bits> {
        use Operands::*;
        let [defined, zero] = [set::S | set::Z | set::C, set::Z];
        let first = is_x86_feature_detected!("bmi1");
        let second = is_x86_feature_detected!("bmi2");
        // The mandatory prefix is none, 66h, F3h or F2h.
        let (host_has_it, map, prefix, opcode, operands, flags) = match instruction.mnemonic() {
            Mnemonic::Andn => (first, 2, 0, 0xf2, RegisterAndSource, defined),
            Mnemonic::Bextr => (first, 2, 0, 0xf7, SourceAndRegister, zero),
            Mnemonic::Blsr => (first, 2, 0, 0xf3, Source(1), defined),
            Mnemonic::Blsmsk => (first, 2, 0, 0xf3, Source(2), defined),
            Mnemonic::Blsi => (first, 2, 0, 0xf3, Source(3), defined),
            Mnemonic::Bzhi => (second, 2, 0, 0xf5, SourceAndRegister, defined),
            Mnemonic::Shlx => (second, 2, 1, 0xf7, SourceAndRegister, 0),
            Mnemonic::Sarx => (second, 2, 2, 0xf7, SourceAndRegister, 0),
            Mnemonic::Shrx => (second, 2, 3, 0xf7, SourceAndRegister, 0),
            Mnemonic::Pext => (second, 2, 2, 0xf5, RegisterAndSource, 0),
            Mnemonic::Pdep => (second, 2, 3, 0xf5, RegisterAndSource, 0),
            Mnemonic::Mulx => (second, 2, 3, 0xf6, Product, 0),
            Mnemonic::Rorx => (second, 3, 3, 0xf0, SourceAndImmediate, 0),
            _ => return None,
        };
        host_has_it.then_some(Bits { vex: Vex { map, prefix, opcode }, operands, flags })
    }

    /// Whether it leaves all flags alone.
    pub fn keeps_flags(self) -> bool {
        self.flags == 0
    }

    /// How many operands it writes, from the first on.
    pub fn destinations(self) -> u32 {
        if self.operands == Operands::Product { 2 } else { 1 }
    }
}

impl BlockWriter<'_> {
    /// Writes such an instruction. But for what the flags need, what is written leaves them alone.
    pub fn bits(&mut self, i: &Instruction, bits: Bits, effect: &Effect) -> Result<(), Cannot> {
        let Bits { vex, operands, flags } = bits;
        let size = self.size(i, 0)?;
        let (source, register) = match operands {
            Operands::SourceAndRegister => (1, Some(2)),
            Operands::RegisterAndSource => (2, Some(1)),
            Operands::SourceAndImmediate | Operands::Source(_) => (1, None),
            Operands::Product => (2, None),
        };
        let from = if is_memory(i, source) {
            Place::Mem(self.operand(i, size, false)?)
        } else {
            Self::place(self.register(i, source))
        };
        let destination = self.register(i, 0);
        let to = match Self::place(destination) {
            Place::Reg(home) => home,
            Place::Mem(_) => RDX,
        };
        let register = register.map(|n| self.in_register(self.register(i, n), RCX));
        match operands {
            Operands::SourceAndRegister | Operands::RegisterAndSource => {
                self.asm.vex(size, vex, to.0, register, from);
            }
            Operands::Source(digit) => self.asm.vex(size, vex, digit, Some(to), from),
            Operands::SourceAndImmediate => self.asm.rotated_right(size, to, from, i.immediate8()),
            Operands::Product => {
                self.asm.load(size, RDX, Self::place(GUEST_RDX));
                self.asm.vex(size, vex, RCX.0, Some(RAX), from);
                // Where both halves go to one register, it holds the high one.
                self.set_all(self.register(i, 1), RAX);
                self.set_all(destination, RCX);
                return Ok(());
            }
        }
        self.set_all(destination, to);
        if bits.keeps_flags() {
            return Ok(());
        }
        if self.needed() & effect.kills == 0 {
            self.flags_lost(effect.kills);
            return Ok(());
        }
        self.asm.byte(0x9f);
        // LAHF has them in AH, in the order of RFLAGS; OF in AL is clear.
        let in_ah = [(set::C, 0x01), (set::Z, 0x40), (set::S, 0x80)];
        let mask: i32 = in_ah.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum();
        self.asm.alu_imm(B4, alu::AND, RAX, mask << 8);
        self.flags_from_eax();
        Ok(())
    }
}
