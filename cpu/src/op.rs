//! A decoded instruction: one [`Op`] of 40 bytes, with the function that executes it.

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::slots::{REG_ZERO, SEG_NONE};

/// Executes one instruction. `Ok` means that the instruction is complete. The run loop computes the next RIP, unless
/// the handler sets RIP itself.
pub type Handler = fn(&mut Core, &mut dyn Bus, &Op) -> Res<()>;

/// One decoded instruction.
#[derive(Clone, Copy)]
pub struct Op {
    /// The function that executes the instruction.
    pub handler: Handler,
    /// The immediate, sign- or zero-extended as the instruction needs it. For near branches, the displacement.
    pub imm: u64,
    /// Displacement of the memory operand. The displacement of a RIP-relative operand is relative to the block's
    /// start.
    pub disp: i64,
    /// Base register of the memory operand, or [`REG_ZERO`], or [`REG_BLOCK_RIP`](crate::slots::REG_BLOCK_RIP).
    pub base: u8,
    /// Index register of the memory operand, or [`REG_ZERO`].
    pub index: u8,
    /// The number of bits by which the index is shifted, 0 to 3.
    pub scale: u8,
    /// Segment slot of the memory operand: 0 to 5, or [`SEG_NONE`].
    pub seg: u8,
    /// First (usually destination) register number.
    pub r0: u8,
    /// Second (usually source) register number.
    pub r1: u8,
    /// A value whose meaning each family of handlers defines, such as a sub-operation or a third register.
    pub aux: u8,
    /// A combination of [`Op::LEGACY_EA`] and the other constants of this type.
    pub flags: u8,
    /// Offset of the instruction from the block's start.
    pub start: u16,
    /// Offset of the next instruction from the block's start.
    pub next: u16,
}

impl Op {
    /// The effective address wraps at 16 or 32 bits, or needs segment checks.
    pub const LEGACY_EA: u8 = 1;
    /// With [`Op::LEGACY_EA`]: the offset wraps at 16 bits.
    pub const ADDR16: u8 = 2;
    /// With [`Op::LEGACY_EA`]: the offset wraps at 32 bits.
    pub const ADDR32: u8 = 4;
    /// The segment's limit and rights are checked (outside 64-bit mode).
    pub const CHECK_SEGMENT: u8 = 8;
    /// A non-canonical address of the memory operand raises #SS instead of #GP.
    pub const STACK: u8 = 16;
    /// The op is the last op of its block. The last op may change RIP or a mode that the block was decoded for.
    pub const ENDS_BLOCK: u8 = 32;
    /// The handler sets RIP itself (branches).
    pub const SETS_RIP: u8 = 64;
    /// A flag whose meaning each family of instructions defines.
    pub const FAMILY: u8 = 128;

    /// An op without operands.
    pub fn new(handler: Handler) -> Op {
        Op {
            handler,
            imm: 0,
            disp: 0,
            base: REG_ZERO,
            index: REG_ZERO,
            scale: 0,
            seg: SEG_NONE,
            r0: 0,
            r1: 0,
            aux: 0,
            flags: 0,
            start: 0,
            next: 0,
        }
    }

    /// Sets the first register.
    pub fn r0(mut self, register: u8) -> Op {
        self.r0 = register;
        self
    }

    /// Sets the second register.
    pub fn r1(mut self, register: u8) -> Op {
        self.r1 = register;
        self
    }

    /// Sets the immediate.
    pub fn imm(mut self, value: u64) -> Op {
        self.imm = value;
        self
    }

    /// Sets `aux`, the byte whose meaning the family defines.
    pub fn aux(mut self, value: u8) -> Op {
        self.aux = value;
        self
    }

    /// Adds bits to `flags`.
    pub fn with(mut self, flags: u8) -> Op {
        self.flags |= flags;
        self
    }

    /// Length of the instruction in bytes.
    pub fn length(&self) -> u64 {
        u64::from(self.next - self.start)
    }
}
