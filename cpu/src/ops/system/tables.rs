//! Loads and stores of descriptor-table registers, and the instructions that check a selector.

use iced_x86::{Code, Mnemonic};

use super::operand::{operand, read16, write16};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::exception::{GP, NP};
use crate::flags::{self, LazyFlags};
use crate::insn::Insn;
use crate::op::Op;
use crate::segmentation::descriptor::{Descriptor, null_segment, system_type};
use crate::state::{Segment, TableRegister};

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let size = |n| insn.size(n) as u8;
    Some(match insn.mnemonic() {
        Mnemonic::Lgdt => insn.address(Op::new(lgdt).aux(table_width(insn.code()))),
        Mnemonic::Lidt => insn.address(Op::new(lidt).aux(table_width(insn.code()))),
        Mnemonic::Sgdt => insn.address(Op::new(sgdt)),
        Mnemonic::Sidt => insn.address(Op::new(sidt)),
        Mnemonic::Lldt => operand(insn, Op::new(lldt), 0).with(Op::ENDS_BLOCK),
        Mnemonic::Ltr => operand(insn, Op::new(ltr), 0).with(Op::ENDS_BLOCK),
        Mnemonic::Sldt => operand(insn, Op::new(sldt).aux(size(0)), 0),
        Mnemonic::Str => operand(insn, Op::new(str_op).aux(size(0)), 0),
        Mnemonic::Lar => question(insn, lar),
        Mnemonic::Lsl => question(insn, lsl),
        Mnemonic::Verr => operand(insn, Op::new(verr), 0),
        Mnemonic::Verw => operand(insn, Op::new(verw), 0),
        Mnemonic::Arpl => operand(insn, Op::new(arpl).aux(2), 0).r1(insn.register(1)),
        _ => return None,
    })
}

/// The number of bytes of the base that LGDT and LIDT load: 3, 4 or 8.
fn table_width(code: Code) -> u8 {
    match code {
        Code::Lgdt_m1632_16 | Code::Lidt_m1632_16 => 3,
        Code::Lgdt_m1632 | Code::Lidt_m1632 => 4,
        _ => 8,
    }
}

/// Builds the op of an instruction that checks a selector. The selector is in register `r0` or in memory, `r1` is
/// the destination, and `aux` is the destination's size.
fn question(insn: &Insn<'_>, handler: crate::op::Handler) -> Op {
    operand(insn, Op::new(handler).aux(insn.size(0) as u8), 1).r1(insn.register(0))
}

fn read_table(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<TableRegister> {
    core.require_cpl0()?;
    let base_bytes = if op.aux == 8 { 8 } else { 4 };
    let address = core.linear(op, 2 + base_bytes)?;
    let limit = core.load_u16(bus, address)?;
    let behind = core.table_address(address, 2);
    let base = core.load_sized(bus, behind, base_bytes)?;
    if op.aux == 8 && !crate::memory::canonical(base) {
        return Err(core.gp(0));
    }
    Ok(TableRegister { base: if op.aux == 3 { base & 0xff_ffff } else { base }, limit })
}

fn lgdt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.state.gdtr = read_table(core, bus, op)?;
    Ok(())
}

fn lidt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.state.idtr = read_table(core, bus, op)?;
    Ok(())
}

/// Stores all bytes of the base for any operand size, as every processor since the 386 does.
fn store_table(core: &mut Core, bus: &mut dyn Bus, op: &Op, table: TableRegister) -> Res<()> {
    core.check_umip()?;
    let base_bytes = if core.is_64bit() { 8 } else { 4 };
    let address = core.linear_write(op, 2 + base_bytes)?;
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&table.limit.to_le_bytes());
    bytes[2..].copy_from_slice(&table.base.to_le_bytes());
    // For alignment checks, limit and base are separate operands (SDM vol. 3, 3.5.1).
    core.check_aligned_write(bus, address, 2 + base_bytes, 2)?;
    core.check_alignment(core.table_address(address, 2), base_bytes)?;
    core.store_bytes(bus, address, &bytes[..2 + base_bytes as usize])
}

fn sgdt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let table = core.state.gdtr;
    store_table(core, bus, op, table)
}

fn sidt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let table = core.state.idtr;
    store_table(core, bus, op, table)
}

fn sldt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    core.check_umip()?;
    let selector = core.state.ldtr.selector;
    write16(core, bus, op, u64::from(selector))
}

fn str_op(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    core.check_umip()?;
    let selector = core.state.tr.selector;
    write16(core, bus, op, u64::from(selector))
}

fn lldt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    core.require_cpl0()?;
    let selector = read16(core, bus, op)?;
    if selector & !3 == 0 {
        core.state.ldtr = null_segment(selector, 0);
        return Ok(());
    }
    if selector & 4 != 0 {
        return Err(core.selector_fault(GP, selector));
    }
    let located = core.descriptor(bus, selector, GP)?;
    let descriptor = located.descriptor;
    if !descriptor.is_system() || descriptor.kind() != system_type::LDT {
        return Err(core.selector_fault(GP, selector));
    }
    if !descriptor.present() {
        return Err(core.selector_fault(NP, selector));
    }
    let base = core.system_segment_base(bus, selector, &located)?;
    core.state.ldtr = Segment { base, ..descriptor.segment(selector) };
    Ok(())
}

fn ltr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    core.require_cpl0()?;
    let selector = read16(core, bus, op)?;
    if selector & !3 == 0 {
        return Err(core.gp(0));
    }
    if selector & 4 != 0 {
        return Err(core.selector_fault(GP, selector));
    }
    let mut located = core.descriptor(bus, selector, GP)?;
    let descriptor = located.descriptor;
    let fits = match descriptor.kind() {
        system_type::TSS32_AVAILABLE => true,
        system_type::TSS16_AVAILABLE => !core.long_mode(),
        _ => false,
    };
    if !descriptor.is_system() || !fits {
        return Err(core.selector_fault(GP, selector));
    }
    if !descriptor.present() {
        return Err(core.selector_fault(NP, selector));
    }
    let base = core.system_segment_base(bus, selector, &located)?;
    core.mark_busy(bus, &mut located)?;
    core.state.tr = Segment { base, ..located.descriptor.segment(selector) };
    Ok(())
}

fn set_zf(core: &mut Core, zf: bool) {
    let others = core.flags.bits() & !flags::ZF;
    core.flags = LazyFlags::from_bits(others | if zf { flags::ZF } else { 0 });
}

/// The descriptor of the operand's selector. `None` if there is no such descriptor, or if the running code has too
/// little privilege.
fn visible(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<Option<Descriptor>> {
    core.require_protected()?;
    let selector = read16(core, bus, op)?;
    if selector & !3 == 0 {
        return Ok(None);
    }
    let Some(located) = core.find_descriptor(bus, selector, 8)? else { return Ok(None) };
    let descriptor = located.descriptor;
    let privilege = core.cpl.max((selector & 3) as u8);
    Ok((descriptor.is_conforming() || privilege <= descriptor.dpl()).then_some(descriptor))
}

/// Whether LAR (`gates`) or LSL accepts this system descriptor type in the current mode.
fn known_system_type(core: &Core, descriptor: Descriptor, gates: bool) -> bool {
    use system_type::*;
    match descriptor.kind() {
        LDT | TSS32_AVAILABLE | TSS32_BUSY => true,
        TSS16_AVAILABLE | TSS16_BUSY => !core.long_mode(),
        CALL_GATE32 => gates,
        CALL_GATE16 | TASK_GATE => gates && !core.long_mode(),
        _ => false,
    }
}

fn answer(core: &mut Core, op: &Op, value: Option<u32>) -> Res<()> {
    match (value, op.aux) {
        (Some(value), 2) => core.set_reg16(op.r1, value as u16),
        (Some(value), _) => core.set_reg32(op.r1, value),
        (None, _) => {}
    }
    set_zf(core, value.is_some());
    Ok(())
}

fn lar(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let rights = visible(core, bus, op)?
        .filter(|&d| !d.is_system() || known_system_type(core, d, true))
        .map(|d| (d.0 >> 32) as u32 & 0x00ff_ff00);
    answer(core, op, rights)
}

fn lsl(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let limit = visible(core, bus, op)?
        .filter(|&d| !d.is_system() || known_system_type(core, d, false))
        .map(|d| d.limit());
    answer(core, op, limit)
}

fn verr(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let readable = visible(core, bus, op)?.is_some_and(|d| d.is_readable());
    set_zf(core, readable);
    Ok(())
}

fn verw(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let writable = visible(core, bus, op)?.is_some_and(|d| d.is_writable_data());
    set_zf(core, writable);
    Ok(())
}

fn arpl(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    let selector = read16(core, bus, op)?;
    let rpl = core.reg16(op.r1) & 3;
    let raised = selector & 3 < rpl;
    if raised {
        write16(core, bus, op, u64::from(selector & !3 | rpl))?;
    }
    set_zf(core, raised);
    Ok(())
}
