//! Operands and results of PCMPESTRI, PCMPESTRM, PCMPISTRI and PCMPISTRM; [`crate::simd::string`] does the comparison.
//! The memory operand need not be aligned.

use iced_x86::Mnemonic;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::LazyFlags;
use crate::insn::Insn;
use crate::op::Op;
use crate::simd::string::{self, Outcome};

/// A bit of `aux`: RAX and RDX hold the lengths of the strings.
const EXPLICIT: u8 = 1;
/// A bit of `aux`: the lengths of an [`EXPLICIT`] comparison have 64 bits (REX.W).
const WIDE: u8 = 2;
/// A bit of `aux`: the result is a mask in XMM0, not an index in ECX.
const MASK: u8 = 4;

/// Lowers string comparisons.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let aux = match insn.mnemonic() {
        Mnemonic::Pcmpistri => 0,
        Mnemonic::Pcmpistrm => MASK,
        Mnemonic::Pcmpestri => EXPLICIT,
        Mnemonic::Pcmpestri64 => EXPLICIT | WIDE,
        Mnemonic::Pcmpestrm => EXPLICIT | MASK,
        Mnemonic::Pcmpestrm64 => EXPLICIT | MASK | WIDE,
        _ => return None,
    };
    let op = Op::new(from_register).r0(insn.register(0)).aux(aux).imm(insn.immediate(2) & 0xff);
    Some(if insn.is_memory(1) {
        let mut op = insn.address(op);
        op.handler = from_memory;
        op
    } else {
        op.r1(insn.register(1))
    })
}

fn from_register(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    compare(core, op, core.xmm(op.r1));
    Ok(())
}

fn from_memory(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let second = core.load_unaligned(bus, op)?;
    compare(core, op, second);
    Ok(())
}

fn compare(core: &mut Core, op: &Op, second: u128) {
    let imm = op.imm as u8;
    let (a, b) = (core.xmm(op.r0).to_le_bytes(), second.to_le_bytes());
    let (a_length, b_length) = if op.aux & EXPLICIT != 0 {
        (register_length(core, op, 0), register_length(core, op, 2))
    } else {
        (string::implicit_length(a, imm), string::implicit_length(b, imm))
    };
    finish(core, op, string::compare(a, a_length, b, b_length, imm));
}

fn register_length(core: &Core, op: &Op, register: u8) -> usize {
    let value = core.reg64(register) as i64;
    let length = if op.aux & WIDE != 0 { value } else { i64::from(value as i32) };
    string::explicit_length(length, op.imm as u8)
}

fn finish(core: &mut Core, op: &Op, outcome: Outcome) {
    let imm = op.imm as u8;
    if op.aux & MASK != 0 {
        core.set_xmm(0, u128::from_le_bytes(outcome.mask(imm)));
    } else {
        core.set_reg32(1, outcome.index(imm));
    }
    core.flags = LazyFlags::from_bits(outcome.rflags());
}
