//! What an x87 instruction can see and change, in a form that our CPU and the processor share.

use crate::random::Random;

/// Bytes of the memory operand: the longest is FSAVE's.
pub const MEMORY_BYTES: usize = 128;
/// Stands for the address of the instruction under test.
pub const POINTER_TO_CODE: u64 = u64::MAX;
/// Stands for the address of the memory operand.
pub const POINTER_TO_DATA: u64 = u64::MAX - 1;
/// The arithmetic flags.
pub const ARITHMETIC: u64 = 0x8d5;
/// The exception flags and masks.
pub const EXCEPTIONS: u16 = 0x3f;
/// ES and B.
pub const SUMMARY: u16 = 0x8080;

/// One state.
#[derive(Clone, PartialEq, Eq)]
pub struct Machine {
    pub control: u16,
    pub status: u16,
    /// A bit for each physical register that is not empty.
    pub valid: u8,
    pub opcode: u16,
    pub instruction_pointer: u64,
    pub data_pointer: u64,
    /// ST(0) to ST(7): mantissa, sign and exponent.
    pub registers: [(u64, u16); 8],
    pub flags: u64,
    pub ax: u16,
    pub memory: [u8; MEMORY_BYTES],
}

impl Machine {
    /// A random state. Without `pending`, no unmasked exception waits in it.
    pub fn random(random: &mut Random, pending: bool) -> Machine {
        let masks = if random.below(2) == 0 { EXCEPTIONS } else { random.next() as u16 & EXCEPTIONS };
        let control = 0x40 | masks | (random.next() as u16 & 0xf00) | (random.below(8) == 0) as u16 * 0x1000;
        let mut status = random.next() as u16 & !SUMMARY;
        if !pending {
            status &= !EXCEPTIONS | control & EXCEPTIONS;
        }
        if random.below(2) == 0 {
            status &= !EXCEPTIONS;
        }
        if status & !control & EXCEPTIONS != 0 {
            status |= SUMMARY;
        }
        Machine {
            control,
            status,
            valid: valid(random, u32::from(status >> 11 & 7)),
            opcode: random.next() as u16 & 0x7ff,
            instruction_pointer: random.below(1 << 32),
            data_pointer: random.below(1 << 32),
            registers: random.registers(),
            flags: random.next() & ARITHMETIC,
            ax: random.next() as u16,
            memory: random.memory(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Machine {
    /// Clears FIP, FDP and FOP, also in the image that FNSTENV or FNSAVE stored.
    pub fn forget_pointers(&mut self, code: iced_x86::Code) {
        use iced_x86::Code::*;
        (self.opcode, self.instruction_pointer, self.data_pointer) = (0, 0, 0);
        match code {
            Fnstenv_m14byte | Fnsave_m94byte => self.memory[6..14].fill(0),
            Fnstenv_m28byte | Fnsave_m108byte => self.memory[12..28].fill(0),
            _ => {}
        }
    }
}

/// Mostly stacks without holes, of any depth.
fn valid(random: &mut Random, top: u32) -> u8 {
    match random.below(4) {
        0 => random.next() as u8,
        _ => (0xff_u8 >> random.below(8)).rotate_left(top),
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let top = u32::from(self.status >> 11 & 7);
        writeln!(
            f,
            "control {:04x} status {:04x} top {top} valid (ST7..ST0) {:08b} opcode {:03x} ip {:x} dp {:x} flags {:x} ax {:x}",
            self.control,
            self.status,
            self.valid.rotate_right(top),
            self.opcode,
            self.instruction_pointer,
            self.data_pointer,
            self.flags,
            self.ax
        )?;
        for (mantissa, sign_exponent) in self.registers {
            write!(f, " {sign_exponent:04x}:{mantissa:016x}")?;
        }
        write!(f, "\n memory ")?;
        self.memory.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
