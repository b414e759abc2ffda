//! Far transfers, software interrupts, and the fast system calls.

use cpu_model::registers::{cr0, efer};
use iced_x86::{Code, OpKind};

use crate::bus::Bus;
use crate::core::Core;
use crate::debug::DR6_BS;
use crate::exception;
use crate::exception::{Break, Res};
use crate::flags;
use crate::insn::Insn;
use crate::op::Op;
use crate::segmentation::far::FarTransfer;
use crate::state::{SegReg, Segment};

/// The flags of all ops in this module: each op ends its block and sets RIP.
const JUMPS: u8 = Op::ENDS_BLOCK | Op::SETS_RIP;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let op = match insn.code() {
        Code::Int_imm8 => Op::new(int_n).imm(insn.raw.immediate8().into()),
        Code::Int3 => Op::new(int3),
        Code::Into => Op::new(into),
        Code::Int1 => Op::new(int1),
        Code::Iretw => Op::new(iret).aux(2),
        Code::Iretd => Op::new(iret).aux(4),
        Code::Iretq => Op::new(iret).aux(8),
        Code::Retfw => Op::new(retf).aux(2),
        Code::Retfd => Op::new(retf).aux(4),
        Code::Retfq => Op::new(retf).aux(8),
        Code::Retfw_imm16 => Op::new(retf).aux(2).imm(insn.raw.immediate16().into()),
        Code::Retfd_imm16 => Op::new(retf).aux(4).imm(insn.raw.immediate16().into()),
        Code::Retfq_imm16 => Op::new(retf).aux(8).imm(insn.raw.immediate16().into()),
        Code::Jmp_ptr1616 | Code::Jmp_ptr1632 => direct(insn, jmp_direct),
        Code::Call_ptr1616 | Code::Call_ptr1632 => direct(insn, call_direct),
        Code::Jmp_m1616 => insn.address(Op::new(jmp_indirect).aux(2)),
        Code::Jmp_m1632 => insn.address(Op::new(jmp_indirect).aux(4)),
        Code::Jmp_m1664 => insn.address(Op::new(jmp_indirect).aux(8)),
        Code::Call_m1616 => insn.address(Op::new(call_indirect).aux(2)),
        Code::Call_m1632 => insn.address(Op::new(call_indirect).aux(4)),
        Code::Call_m1664 => insn.address(Op::new(call_indirect).aux(8)),
        Code::Syscall => Op::new(syscall),
        Code::Sysretd => Op::new(sysret).aux(4),
        Code::Sysretq => Op::new(sysret).aux(8),
        Code::Sysenter => Op::new(sysenter),
        Code::Sysexitd | Code::Sysexitq => Op::new(sysexit),
        _ => return None,
    };
    Some(op.with(JUMPS))
}

/// Packs the pointer into the immediate: offset in the low bits, selector in bits 32-47.
fn direct(insn: &Insn<'_>, handler: crate::op::Handler) -> Op {
    let raw = insn.raw;
    let (size, offset) = match raw.op_kind(0) {
        OpKind::FarBranch16 => (2, u64::from(raw.far_branch16())),
        _ => (4, u64::from(raw.far_branch32())),
    };
    Op::new(handler).aux(size).imm(u64::from(raw.far_branch_selector()) << 32 | offset)
}

fn direct_transfer(core: &mut Core, bus: &mut dyn Bus, op: &Op, call: bool) -> Res<()> {
    let to = FarTransfer {
        selector: (op.imm >> 32) as u16,
        offset: op.imm & 0xffff_ffff,
        size_bytes: op.aux.into(),
        call,
        next_rip: core.return_rip(op),
    };
    core.far_transfer(bus, to)
}

fn jmp_direct(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    direct_transfer(core, bus, op, false)
}

fn call_direct(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    direct_transfer(core, bus, op, true)
}

fn indirect_transfer(core: &mut Core, bus: &mut dyn Bus, op: &Op, call: bool) -> Res<()> {
    let size_bytes = u64::from(op.aux);
    let address = core.linear(op, size_bytes + 2)?;
    let offset = core.load_sized(bus, address, size_bytes)?;
    let behind = core.table_address(address, size_bytes);
    let selector = core.load_u16(bus, behind)?;
    let next_rip = core.return_rip(op);
    core.far_transfer(bus, FarTransfer { selector, offset, size_bytes, call, next_rip })
}

fn jmp_indirect(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    indirect_transfer(core, bus, op, false)
}

fn call_indirect(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    indirect_transfer(core, bus, op, true)
}

fn retf(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.far_return(bus, op.aux.into(), op.imm)
}

fn iret(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let next_rip = core.return_rip(op);
    core.interrupt_return(bus, op.aux.into(), next_rip)?;
    core.returned();
    Ok(())
}

/// The INT vector of system calls, as in 32-bit Linux.
const SYSTEM_CALL_VECTOR: u8 = 0x80;

/// Delivers a software interrupt. Instruction and delivery are one step, which this function counts, so it returns
/// [`Break::Done`]. No single-step trap follows, because the handler starts with TF clear.
fn software_interrupt(core: &mut Core, bus: &mut dyn Bus, op: &Op, vector: u8, checked: bool) -> Res<()> {
    core.rip = core.return_rip(op);
    core.software_interrupt(bus, vector, checked)?;
    if vector == SYSTEM_CALL_VECTOR {
        core.entered_system_call();
    }
    core.block_steps += 1;
    Err(Break::Done)
}

fn int_n(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let v86 = core.rflags & flags::VM != 0;
    if v86 && core.rflags & flags::IOPL != flags::IOPL {
        return Err(core.gp(0));
    }
    software_interrupt(core, bus, op, op.imm as u8, true)
}

fn int3(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    software_interrupt(core, bus, op, exception::BP, true)
}

fn into(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    if core.flags.of() {
        return software_interrupt(core, bus, op, exception::OF, true);
    }
    core.rip = core.return_rip(op);
    Ok(())
}

/// INT1. Gates treat INT1 as a hardware event and do not check privilege. INT1 itself does not change DR6. If a
/// preceding MOV SS delayed a data breakpoint, INT1's debug exception reports this breakpoint in DR6 too. After INT
/// n, INT3, INTO and SYSCALL, such a breakpoint is a separate trap before the handler's first instruction (SDM vol.
/// 3, 6.8.3).
fn int1(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.take_pending_debug();
    software_interrupt(core, bus, op, exception::DB, false)
}

/// Attributes of the flat segments that the fast system calls load.
const CODE64: u16 = 0xa09b;
const CODE32: u16 = 0xc09b;
const DATA: u16 = 0xc093;

fn flat(selector: u16, attributes: u16, dpl: u16) -> Segment {
    Segment { selector, base: 0, limit: u32::MAX, attributes: attributes | dpl << 5 }
}

fn load_flat(core: &mut Core, code: Segment, stack: Segment) {
    core.set_segment(SegReg::Ss, stack);
    core.set_segment(SegReg::Cs, code);
}

fn check_fast_calls(core: &mut Core) -> Res<()> {
    let on = core.state.msrs.efer & efer::SCE != 0 && core.protected_mode();
    if on { Ok(()) } else { Err(core.ud()) }
}

/// SYSCALL as on AMD, where it also exists in compatibility and legacy mode.
fn syscall(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    check_fast_calls(core)?;
    let next = core.return_rip(op);
    let star = core.state.msrs.star;
    let selector = (star >> 32) as u16 & !3;
    let old = core.rflags_bits() & !flags::RF;
    core.frame.regs[1] = next;
    let cleared = if core.long_mode() {
        core.frame.regs[11] = old;
        core.rip = if core.is_64bit() { core.state.msrs.lstar } else { core.state.msrs.cstar };
        core.state.msrs.sfmask
    } else {
        core.rip = star & 0xffff_ffff;
        flags::IF | flags::VM
    };
    let code = if core.long_mode() { CODE64 } else { CODE32 };
    load_flat(core, flat(selector, code, 0), flat(selector.wrapping_add(8), DATA, 0));
    core.set_rflags(old & !cleared);
    core.entered_system_call();
    trap_by_new_tf(core)
}

/// Ends SYSCALL or SYSRET. Raises a single-step trap if TF is set after the instruction; the value of TF before the
/// instruction does not matter. A system call that clears TF does not trap in the kernel. A SYSRET that sets TF
/// traps before the user's next instruction. Linux (arch/x86/entry) avoids SYSRET for that reason; the APM's pages
/// on SYSCALL and SYSRET do not mention it.
fn trap_by_new_tf(core: &mut Core) -> Res<()> {
    if core.rflags & flags::TF != 0 {
        core.state.pending_debug |= DR6_BS;
        core.update_debug_attention();
    }
    core.block_steps += 1;
    Err(Break::Done)
}

/// SYSRET as on AMD. A non-canonical return address faults only at the next fetch, at privilege level 3. All hidden
/// fields of SS are loaded. AMD's processors leave some of these fields unchanged, but software cannot rely on
/// that.
fn sysret(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    check_fast_calls(core)?;
    core.require_cpl0()?;
    let selector = (core.state.msrs.star >> 48) as u16 | 3;
    let to_64bit = op.aux == 8;
    let target = core.frame.regs[1];
    let (code, rip) = if to_64bit {
        (flat(selector.wrapping_add(16), CODE64, 3), target)
    } else {
        (flat(selector, CODE32, 3), target & 0xffff_ffff)
    };
    let long = core.long_mode();
    load_flat(core, code, flat(selector.wrapping_add(8), DATA, 3));
    core.rip = rip;
    if long {
        core.set_rflags(core.frame.regs[11] & !(flags::RF | flags::VM));
    } else {
        core.set_rflags(core.rflags_bits() | flags::IF);
    }
    core.returned();
    trap_by_new_tf(core)
}

/// SYSENTER and SYSEXIT do not exist in long mode on AMD.
fn check_sysenter(core: &mut Core) -> Res<u16> {
    if core.long_mode() {
        return Err(core.ud());
    }
    let selector = core.state.msrs.sysenter_cs as u16;
    if core.state.cr0 & cr0::PE == 0 || selector & !3 == 0 {
        return Err(core.gp(0));
    }
    Ok(selector & !3)
}

fn sysenter(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let selector = check_sysenter(core)?;
    core.set_rflags(core.rflags_bits() & !(flags::VM | flags::IF | flags::RF));
    load_flat(core, flat(selector, CODE32, 0), flat(selector.wrapping_add(8), DATA, 0));
    core.frame.regs[4] = core.state.msrs.sysenter_esp & 0xffff_ffff;
    core.rip = core.state.msrs.sysenter_eip & 0xffff_ffff;
    core.entered_system_call();
    Ok(())
}

fn sysexit(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let selector = check_sysenter(core)?;
    if core.cpl != 0 || core.rflags & flags::VM != 0 {
        return Err(core.gp(0));
    }
    let code = flat(selector.wrapping_add(16) | 3, CODE32, 3);
    let stack = flat(selector.wrapping_add(24) | 3, DATA, 3);
    let (rsp, rip) = (core.frame.regs[1] & 0xffff_ffff, core.frame.regs[2] & 0xffff_ffff);
    load_flat(core, code, stack);
    core.frame.regs[4] = rsp;
    core.rip = rip;
    core.returned();
    Ok(())
}

impl Core {
    /// The RIP of the instruction after the running instruction.
    fn return_rip(&self, op: &Op) -> u64 {
        self.next_rip(self.block_rip(), op.next)
    }
}
