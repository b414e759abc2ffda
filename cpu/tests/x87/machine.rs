//! The state that an x87 instruction can read and change, in a form that our CPU and the processor share.

use seeded::Operands;

/// Bytes of the memory operand. The longest operand is FSAVE's.
pub const MEMORY_BYTES: usize = 128;
/// A value in place of the address of the instruction under test.
pub const POINTER_TO_CODE: u64 = u64::MAX;
/// A value in place of the address of the memory operand.
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
    /// A random state. Without `pending`, no unmasked exception is pending.
    pub fn random(random: &mut Operands, pending: bool) -> Machine {
        let masks = if random.below(2) == 0 { EXCEPTIONS } else { random.bits() as u16 & EXCEPTIONS };
        let control = 0x40 | masks | (random.bits() as u16 & 0xf00) | (random.below(8) == 0) as u16 * 0x1000;
        let mut status = random.bits() as u16 & !SUMMARY;
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
            opcode: random.bits() as u16 & 0x7ff,
            instruction_pointer: random.below(1 << 32),
            data_pointer: random.below(1 << 32),
            registers: registers(random),
            flags: random.bits() & ARITHMETIC,
            ax: random.bits() as u16,
            memory: memory(random),
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Machine {
    /// Clears FIP, FDP and FOP, also in an image that FNSTENV or FNSAVE stored.
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

/// Register contents, sometimes several equal ones for comparisons.
fn registers(random: &mut Operands) -> [(u64, u16); 8] {
    let mut registers = std::array::from_fn(|_| extended(random));
    if random.below(8) == 0 {
        registers = [registers[0]; 8];
    }
    registers
}

/// An extended value of any class, most often a normal number near one.
fn extended(random: &mut Operands) -> (u64, u16) {
    let exponent = match random.below(12) {
        0 => 0,
        1 => 0x7fff,
        2 => random.below(0x8000),
        3 => 0x3fff + random.below(70),
        4 => random.pick(&[1, 2, 0x7ffe, 0x7ffd, 0x3c00, 0x3c01, 0x43fe, 0x43ff, 0x3f80, 0x3f81, 0x407e]),
        _ => 0x3fff - 8 + random.below(24),
    };
    let explicit = if exponent == 0 || random.below(32) == 0 { random.below(2) } else { 1 };
    (explicit << 63 | random.fraction(63), (random.below(2) << 15 | exponent) as u16)
}

/// A memory operand of some format, followed by random bytes.
fn memory(random: &mut Operands) -> [u8; MEMORY_BYTES] {
    let mut memory = [0; MEMORY_BYTES];
    for chunk in memory.chunks_mut(8) {
        chunk.copy_from_slice(&random.bits().to_le_bytes());
    }
    match random.below(6) {
        0 => memory[..8].copy_from_slice(&random.f64().to_le_bytes()),
        1 => memory[..4].copy_from_slice(&random.f32().to_le_bytes()),
        2 => memory[..8].copy_from_slice(&(random.below(200) as i64 - 100).to_le_bytes()),
        3 => memory[..10].fill_with(|| (random.below(10) << 4 | random.below(10)) as u8),
        4 => {
            let (mantissa, sign_exponent) = extended(random);
            memory[..8].copy_from_slice(&mantissa.to_le_bytes());
            memory[8..10].copy_from_slice(&sign_exponent.to_le_bytes());
        }
        _ => {}
    }
    memory
}

/// Tags, mostly of stacks without holes, of any depth.
fn valid(random: &mut Operands, top: u32) -> u8 {
    match random.below(4) {
        0 => random.bits() as u8,
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
