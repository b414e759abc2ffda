//! Turns bytes into ops. `iced-x86` decodes an instruction, and the module for its family of instructions lowers
//! the instruction to an [`Op`]. The op raises #UD if the CPU model lacks a feature that the instruction needs, or
//! if no family knows the instruction.

use iced_x86::{Decoder, DecoderError, DecoderOptions};

use crate::insn::{Insn, Mode};
use crate::op::Op;
use crate::ops;

/// Result of decoding one instruction.
pub(crate) enum Decoded {
    /// The op of an instruction, or the op that raises an exception in its place.
    Op(Op),
    /// The bytes end inside an instruction.
    NeedsMore,
}

/// Length of the longest instruction in bytes.
pub(crate) const MAX_LENGTH: usize = 15;

/// Decodes the first instruction of `bytes`, which is at address `rip`, `offset` bytes into its block.
pub(crate) fn decode(bytes: &[u8], rip: u64, offset: u16, mode: Mode) -> Decoded {
    let mut decoder = Decoder::with_ip(mode.bitness(), bytes, rip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        let short = decoder.last_error() == DecoderError::NoMoreBytes && bytes.len() < MAX_LENGTH;
        if short {
            return Decoded::NeedsMore;
        }
        // The instruction used all 15 bytes, so it is too long rather than undefined.
        let op = if decoder.position() >= MAX_LENGTH { too_long() } else { undefined(1) };
        return Decoded::Op(placed(op, offset, 1));
    }
    let length = instruction.len() as u16;
    let insn = Insn::new(&instruction, bytes, mode, rip.wrapping_sub(u64::from(offset)));
    let op = op_of(&insn).unwrap_or_else(|| {
        log::debug!("undefined instruction {instruction} at {rip:#x}");
        undefined(length)
    });
    Decoded::Op(placed(op, offset, length))
}

/// The op of an instruction; `None` if the CPU model raises #UD for the instruction. This function checks the
/// features, so the families' lowering functions need not do so.
fn op_of(insn: &Insn<'_>) -> Option<Op> {
    let is_there = insn.mode.features.include(insn.raw.cpuid_features());
    if is_there { ops::lower(insn) } else { None }
}

/// The op that raises #UD.
pub(crate) fn undefined(length: u16) -> Op {
    placed(Op::new(|core, _, _| Err(core.ud())).with(Op::ENDS_BLOCK), 0, length)
}

/// The op that raises #GP(0), for an instruction of more than 15 bytes.
fn too_long() -> Op {
    Op::new(|core, _, _| Err(core.gp(0))).with(Op::ENDS_BLOCK)
}

fn placed(mut op: Op, offset: u16, length: u16) -> Op {
    op.start = offset;
    op.next = offset + length;
    op
}

#[cfg(test)]
mod tests;
