//! Instructions that move control and debug registers (SDM vol. 3, 2.5 and 18.2; vol. 2, MOV).

use cpu_model::registers::{cr0, cr4};
use iced_x86::{Code, Mnemonic};

use super::operand::{operand, read16, write16};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags;
use crate::insn::Insn;
use crate::op::Op;

/// The bits of DR6 that software can change. The next constant has the bits that always read as one.
const DR6_WRITABLE: u64 = 0xe00f;
const DR6_ONES: u64 = 0xffff_0ff0;
const DR6_BD: u64 = 1 << 13;
/// The bits of DR7 that software can change.
const DR7_WRITABLE: u64 = 0xffff_23ff;
const DR7_ONES: u64 = 0x400;
const DR7_GD: u64 = 1 << 13;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let ends = Op::ENDS_BLOCK;
    let number = |n: u32| insn.raw.op_register(n).number() as u8;
    Some(match insn.code() {
        Code::Mov_r32_cr | Code::Mov_r64_cr if control_exists(number(1)) => {
            Op::new(mov_from_cr).r0(number(0)).aux(number(1)).with(ends)
        }
        Code::Mov_cr_r32 | Code::Mov_cr_r64 if control_exists(number(0)) => {
            Op::new(mov_to_cr).r0(number(1)).aux(number(0)).with(ends)
        }
        Code::Mov_r32_dr | Code::Mov_r64_dr if number(1) < 8 => {
            Op::new(mov_from_dr).r0(number(0)).aux(number(1)).with(ends)
        }
        Code::Mov_dr_r32 | Code::Mov_dr_r64 if number(0) < 8 => {
            Op::new(mov_to_dr).r0(number(1)).aux(number(0)).with(ends)
        }
        _ => match insn.mnemonic() {
            Mnemonic::Clts => Op::new(clts).with(ends),
            Mnemonic::Lmsw => operand(insn, Op::new(lmsw), 0).with(ends),
            Mnemonic::Smsw => operand(insn, Op::new(smsw).aux(insn.size(0) as u8), 0),
            _ => return None,
        },
    })
}

fn control_exists(number: u8) -> bool {
    matches!(number, 0 | 2 | 3 | 4 | 8)
}

/// The source of a MOV to a control or debug register: 32 bits outside 64-bit mode.
fn source(core: &Core, op: &Op) -> u64 {
    if core.is_64bit() { core.reg64(op.r0) } else { u64::from(core.reg32(op.r0)) }
}

fn give(core: &mut Core, op: &Op, value: u64) {
    if core.is_64bit() {
        core.set_reg64(op.r0, value);
    } else {
        core.set_reg32(op.r0, value as u32);
    }
}

fn check_privilege(core: &mut Core) -> Res<()> {
    core.require_cpl0()?;
    if core.rflags & flags::VM != 0 { Err(core.gp(0)) } else { Ok(()) }
}

fn mov_from_cr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = match op.aux {
        0 => core.state.cr0,
        2 => core.state.cr2,
        3 => core.state.cr3,
        4 => core.state.cr4,
        _ => {
            let value = bus.cr8();
            core.bus_was_used();
            value
        }
    };
    give(core, op, value);
    Ok(())
}

fn mov_to_cr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = source(core, op);
    match op.aux {
        0 => core.write_cr0(value),
        2 => {
            core.state.cr2 = value;
            Ok(())
        }
        3 => core.write_cr3(value),
        4 => core.write_cr4(value),
        _ => {
            if value > 15 {
                return Err(core.gp(0));
            }
            bus.set_cr8(core.steps(), value);
            core.bus_was_used();
            Ok(())
        }
    }
}

fn clts(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    check_privilege(core)?;
    core.state.cr0 &= !cr0::TS;
    Ok(())
}

/// LMSW, which can set PE but not clear it.
fn lmsw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    check_privilege(core)?;
    let value = u64::from(read16(core, bus, op)?) & 0xf;
    let old = core.state.cr0;
    core.write_cr0(old & !0xe | value | old & cr0::PE)
}

/// SMSW. The instruction stores 16 bits of CR0 to memory, or as many bits of CR0 to a register as the operand size
/// has.
fn smsw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.check_umip()?;
    let value = core.state.cr0;
    write16(core, bus, op, value)
}

/// Checks whether a debug register may be accessed: CR4.DE for DR4 and DR5, the privilege level, and DR7.GD.
/// Returns the register's number, which is 6 or 7 for DR4 or DR5.
fn check_debug(core: &mut Core, op: &Op) -> Res<u8> {
    let mut number = op.aux;
    if matches!(number, 4 | 5) {
        if core.state.cr4 & cr4::DE != 0 {
            return Err(core.ud());
        }
        number += 2;
    }
    check_privilege(core)?;
    if core.state.dr7 & DR7_GD != 0 {
        // This #DB is a fault, so the pushed RFLAGS image must have RF set. The delivery clears GD and RF.
        core.take_pending_debug();
        core.state.dr6 |= DR6_BD;
        core.rflags |= flags::RF;
        return Err(core.fault(crate::exception::DB));
    }
    Ok(number)
}

fn mov_from_dr(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let number = check_debug(core, op)?;
    let value = match number {
        6 => core.state.dr6,
        7 => core.state.dr7,
        n => core.state.dr[usize::from(n & 3)],
    };
    give(core, op, value);
    Ok(())
}

fn mov_to_dr(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let number = check_debug(core, op)?;
    let value = source(core, op);
    if number >= 6 && value >> 32 != 0 {
        return Err(core.gp(0));
    }
    match number {
        6 => core.state.dr6 = value & DR6_WRITABLE | DR6_ONES,
        7 => core.state.dr7 = value & DR7_WRITABLE | DR7_ONES,
        n => core.state.dr[usize::from(n & 3)] = value,
    }
    core.debug_registers_changed();
    Ok(())
}
