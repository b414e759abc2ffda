//! Loads, stores, pushes and pops of segment registers, and LDS, LES, LFS, LGS, LSS.

use iced_x86::{Code, Mnemonic, Register};

use super::operand::{operand, read16, write16};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::Op;
use crate::state::SegReg;

const ENDS: u8 = Op::ENDS_BLOCK;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let code = insn.code();
    Some(match code {
        // MOV to CS is undefined.
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 => {
            let register = loadable(insn.raw.op_register(0))?;
            operand(insn, Op::new(mov_to_segment), 1).r1(register).with(ENDS)
        }
        Code::Mov_rm16_Sreg => mov_from(insn, 2),
        Code::Mov_r32m16_Sreg => mov_from(insn, 4),
        Code::Mov_r64m16_Sreg => mov_from(insn, 8),
        Code::Pushw_ES
        | Code::Pushw_CS
        | Code::Pushw_SS
        | Code::Pushw_DS
        | Code::Pushw_FS
        | Code::Pushw_GS => push_op(insn, 2),
        Code::Pushd_ES
        | Code::Pushd_CS
        | Code::Pushd_SS
        | Code::Pushd_DS
        | Code::Pushd_FS
        | Code::Pushd_GS => push_op(insn, 4),
        Code::Pushq_FS | Code::Pushq_GS => push_op(insn, 8),
        Code::Popw_ES | Code::Popw_SS | Code::Popw_DS | Code::Popw_FS | Code::Popw_GS => pop_op(insn, 2)?,
        Code::Popd_ES | Code::Popd_SS | Code::Popd_DS | Code::Popd_FS | Code::Popd_GS => pop_op(insn, 4)?,
        Code::Popq_FS | Code::Popq_GS => pop_op(insn, 8)?,
        _ => return far_load(insn),
    })
}

fn far_load(insn: &Insn<'_>) -> Option<Op> {
    let register = match insn.mnemonic() {
        Mnemonic::Les => SegReg::Es,
        Mnemonic::Lss => SegReg::Ss,
        Mnemonic::Lds => SegReg::Ds,
        Mnemonic::Lfs => SegReg::Fs,
        Mnemonic::Lgs => SegReg::Gs,
        _ => return None,
    };
    let op = Op::new(load_far_pointer).r0(insn.register(0)).r1(register as u8).aux(insn.size(0) as u8);
    Some(insn.address(op).with(ENDS))
}

fn mov_from(insn: &Insn<'_>, size: u8) -> Op {
    operand(insn, Op::new(mov_from_segment).aux(size), 0).r1(number(insn.raw.op_register(1)))
}

fn push_op(insn: &Insn<'_>, size: u8) -> Op {
    Op::new(push_segment).r1(number(insn.raw.op_register(0))).aux(size)
}

fn pop_op(insn: &Insn<'_>, size: u8) -> Option<Op> {
    Some(Op::new(pop_segment).r1(loadable(insn.raw.op_register(0))?).aux(size).with(ENDS))
}

fn number(register: Register) -> u8 {
    register.number() as u8
}

fn loadable(register: Register) -> Option<u8> {
    (register != Register::CS && number(register) < 6).then(|| number(register))
}

fn segment_register(op: &Op) -> SegReg {
    [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs][usize::from(op.r1 % 6)]
}

/// Loads a segment register. MOV and POP to SS delay interrupts and debug traps until the next instruction, which
/// normally loads the stack pointer, has completed.
fn load(core: &mut Core, bus: &mut dyn Bus, op: &Op, selector: u16) -> Res<()> {
    let register = segment_register(op);
    core.load_segment(bus, register, selector)?;
    if register == SegReg::Ss {
        core.set_interrupt_shadow(true);
    }
    Ok(())
}

fn mov_to_segment(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let selector = read16(core, bus, op)?;
    load(core, bus, op, selector)
}

fn mov_from_segment(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let selector = core.segment(segment_register(op)).selector;
    write16(core, bus, op, u64::from(selector))
}

/// Pushes a selector zero-extended to the operand size, as on AMD. Some other processors write only 16 bits of the
/// pushed value.
fn push_segment(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let selector = core.segment(segment_register(op)).selector;
    core.push(bus, u64::from(op.aux), u64::from(selector))
}

fn pop_segment(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let size = u64::from(op.aux);
    let sp = core.frame.regs[4];
    let selector = core.load_stack(bus, sp & core.stack_mask, size)? as u16;
    // Even if the instruction loads SS, the stack pointer is changed with the width of the old stack segment.
    let mask = core.stack_mask;
    load(core, bus, op, selector)?;
    let after = sp.wrapping_add(size);
    core.frame.regs[4] = if mask == 0xffff { sp & !mask | after & mask } else { after & mask };
    Ok(())
}

fn load_far_pointer(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let size = u64::from(op.aux);
    let address = core.linear(op, size + 2)?;
    let offset = core.load_sized(bus, address, size)?;
    let behind = core.table_address(address, size);
    let selector = core.load_u16(bus, behind)?;
    core.load_segment(bus, segment_register(op), selector)?;
    match op.aux {
        2 => core.set_reg16(op.r0, offset as u16),
        4 => core.set_reg32(op.r0, offset as u32),
        _ => core.set_reg64(op.r0, offset),
    }
    Ok(())
}
