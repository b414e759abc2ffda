//! A decoded instruction that is not yet an [`Op`]. The functions that lower an instruction to an op get from
//! [`Insn`] the values of the op's fields.

use cpu_model::Features;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::core::CodeSize;
use crate::op::Op;
use crate::slots::{HIGH_BYTE, REG_BLOCK_RIP, REG_ZERO, SEG_NONE};

/// The conditions, besides the bytes, that decoding depends on.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub code_size: CodeSize,
    /// The features of the CPU model. A change of the CPU model drops all decoded code.
    pub features: &'static Features,
    /// Whether PAUSE ends the turn of the processor, because there are several processors.
    pub yields: bool,
}

impl Mode {
    /// Whether the code runs in 64-bit mode.
    pub fn is_64bit(self) -> bool {
        self.code_size == CodeSize::Bits64
    }

    /// The code size in bits, which `iced-x86` needs for decoding.
    pub fn bitness(self) -> u32 {
        self.code_size.bits()
    }
}

/// A decoded instruction, from which a lowering function makes an op.
pub(crate) struct Insn<'a> {
    /// The instruction as `iced-x86` decoded it.
    pub raw: &'a Instruction,
    /// The instruction's bytes, and the bytes that follow.
    pub bytes: &'a [u8],
    /// The mode that the instruction runs in.
    pub mode: Mode,
    /// RIP of the first byte of the block; RIP-relative operands become relative to this address.
    block_rip: u64,
}

impl<'a> Insn<'a> {
    /// Wraps a decoded instruction.
    pub fn new(raw: &'a Instruction, bytes: &'a [u8], mode: Mode, block_rip: u64) -> Insn<'a> {
        Insn { raw, bytes, mode, block_rip }
    }

    /// The distance of an address from the block's start. At run time the register [`REG_BLOCK_RIP`] holds the RIP
    /// of the block's start.
    pub fn relative_to_block(&self, address: u64) -> u64 {
        address.wrapping_sub(self.block_rip)
    }

    /// The mnemonic.
    pub fn mnemonic(&self) -> Mnemonic {
        self.raw.mnemonic()
    }

    /// The exact encoding of the instruction, as `iced-x86` names it.
    pub fn code(&self) -> Code {
        self.raw.code()
    }

    /// Whether operand `n` is the memory operand.
    pub fn is_memory(&self, n: u32) -> bool {
        n < self.raw.op_count() && self.raw.op_kind(n) == OpKind::Memory
    }

    /// Whether operand `n` is a register.
    pub fn is_register(&self, n: u32) -> bool {
        n < self.raw.op_count() && self.raw.op_kind(n) == OpKind::Register
    }

    /// Whether operand `n` is an immediate of any kind.
    pub fn is_immediate(&self, n: u32) -> bool {
        n < self.raw.op_count()
            && !matches!(self.raw.op_kind(n), OpKind::Register | OpKind::Memory)
            && self.raw.try_immediate(n).is_ok()
    }

    /// The register number of operand `n`, as fields of ops hold it: the numbers of AH to BH have the bit
    /// [`HIGH_BYTE`].
    pub fn register(&self, n: u32) -> u8 {
        number(self.raw.op_register(n))
    }

    /// Immediate operand `n`, sign-extended to 64 bits where the encoding sign-extends.
    pub fn immediate(&self, n: u32) -> u64 {
        self.raw.immediate(n)
    }

    /// Size in bytes of operand `n`, which is a register or the memory operand.
    pub fn size(&self, n: u32) -> u32 {
        match self.raw.op_kind(n) {
            OpKind::Register => self.raw.op_register(n).size() as u32,
            OpKind::Memory => self.raw.memory_size().size() as u32,
            _ => 0,
        }
    }

    /// Sets the fields of an op that describe the memory operand's address. Does nothing for an instruction without
    /// a memory operand.
    pub fn address(&self, mut op: Op) -> Op {
        let raw = self.raw;
        let base = raw.memory_base();
        op.disp = raw.memory_displacement64() as i64;
        if base == Register::RIP || base == Register::EIP {
            op.base = REG_BLOCK_RIP;
            op.disp = self.relative_to_block(raw.memory_displacement64()) as i64;
        } else {
            op.base = optional(base);
        }
        op.index = optional(raw.memory_index());
        op.scale = raw.memory_index_scale().trailing_zeros() as u8;
        op.seg = self.segment_slot(raw.memory_segment());
        if self.in_stack_segment() {
            op.flags |= Op::STACK;
        }
        op.flags |= match self.address_bytes() {
            2 => Op::LEGACY_EA | Op::ADDR16,
            4 => Op::LEGACY_EA | Op::ADDR32,
            _ => 0,
        };
        if !self.mode.is_64bit() {
            op.flags |= Op::CHECK_SEGMENT;
        }
        op
    }

    /// Whether the memory operand is in the stack segment. In 64-bit mode a prefix for SS or DS has no effect.
    fn in_stack_segment(&self) -> bool {
        let (base, segment) = (self.raw.memory_base(), self.raw.memory_segment());
        if self.mode.is_64bit() {
            let stack_base = matches!(base.full_register(), Register::RSP | Register::RBP);
            return stack_base && !matches!(segment, Register::FS | Register::GS);
        }
        segment == Register::SS
    }

    /// The segment slot of a segment register, as fields of ops hold it. In 64-bit mode only FS and GS have bases.
    pub fn segment_slot(&self, segment: Register) -> u8 {
        let slot = match segment {
            Register::ES => 0,
            Register::CS => 1,
            Register::SS => 2,
            Register::DS => 3,
            Register::FS => 4,
            Register::GS => 5,
            _ => SEG_NONE,
        };
        if self.mode.is_64bit() && slot < 4 { SEG_NONE } else { slot }
    }

    /// Address size in bytes of the explicit or implied memory operand.
    pub fn address_bytes(&self) -> u32 {
        let raw = self.raw;
        for register in [raw.memory_base(), raw.memory_index()] {
            if register != Register::None && !register.is_xmm() {
                return register.size() as u32;
            }
        }
        match raw.memory_displ_size() {
            0 => match self.mode.code_size {
                CodeSize::Bits16 => 2,
                CodeSize::Bits32 => 4,
                CodeSize::Bits64 => 8,
            },
            size => size.max(2),
        }
    }
}

fn optional(register: Register) -> u8 {
    if register == Register::None { REG_ZERO } else { number(register) }
}

/// Register number within its class.
fn number(register: Register) -> u8 {
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => {
            (register as u8 - Register::AH as u8) | HIGH_BYTE
        }
        Register::None => REG_ZERO,
        // `iced-x86` numbers AH to BH before SPL, so the number of SPL itself would be 8. The number of the full
        // register RSP is 4.
        _ => register.full_register().number() as u8,
    }
}
