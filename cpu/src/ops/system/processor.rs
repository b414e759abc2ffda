//! CPUID, counters, model-specific registers, HLT, cache and TLB instructions, FS/GS bases.

use cpu_model::registers::cr4;
use iced_x86::Mnemonic;

use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::cpuid;
use crate::exception::Res;
use crate::insn::Insn;
use crate::memory::canonical;
use crate::mmu::paging::Access;
use crate::op::Op;
use crate::state::SegReg;

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let ends = Op::ENDS_BLOCK;
    Some(match insn.mnemonic() {
        Mnemonic::Cpuid => Op::new(cpuid_op),
        Mnemonic::Rdtsc => Op::new(rdtsc),
        Mnemonic::Rdtscp => Op::new(rdtscp),
        Mnemonic::Rdpmc => Op::new(rdpmc),
        Mnemonic::Rdmsr => Op::new(rdmsr).with(ends),
        Mnemonic::Wrmsr => Op::new(wrmsr).with(ends),
        Mnemonic::Hlt => Op::new(hlt).with(ends | Op::SETS_RIP),
        Mnemonic::Invd | Mnemonic::Wbinvd | Mnemonic::Wbnoinvd => Op::new(privileged_nop),
        Mnemonic::Invlpg => insn.address(Op::new(privileged_nop)),
        Mnemonic::Invpcid => insn.address(Op::new(invpcid).r0(insn.register(0))),
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb => insn.address(Op::new(touch_line)),
        Mnemonic::Xgetbv => Op::new(xgetbv),
        Mnemonic::Xsetbv => Op::new(xsetbv).with(ends),
        Mnemonic::Swapgs => Op::new(swapgs),
        Mnemonic::Rdfsbase => base_op(insn, read_base, 4),
        Mnemonic::Rdgsbase => base_op(insn, read_base, 5),
        Mnemonic::Wrfsbase => base_op(insn, write_base, 4),
        Mnemonic::Wrgsbase => base_op(insn, write_base, 5),
        _ => return None,
    })
}

/// Builds the op of an instruction that reads or writes the base of FS or GS. `aux` is the operand size, and `r1`
/// the segment register's number.
fn base_op(insn: &Insn<'_>, handler: crate::op::Handler, segment: u8) -> Op {
    Op::new(handler).r0(insn.register(0)).r1(segment).aux(insn.size(0) as u8)
}

fn cpuid_op(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    let [eax, ebx, ecx, edx] = cpuid::leaf(core, bus, core.reg32(0), core.reg32(1));
    core.set_reg32(0, eax);
    core.set_reg32(3, ebx);
    core.set_reg32(1, ecx);
    core.set_reg32(2, edx);
    Ok(())
}

fn set_pair(core: &mut Core, value: u64) {
    core.set_reg32(0, value as u32);
    core.set_reg32(2, (value >> 32) as u32);
}

fn pair(core: &Core) -> u64 {
    u64::from(core.reg32(2)) << 32 | u64::from(core.reg32(0))
}

fn rdtsc(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    core.check_tsc()?;
    let value = core.guest_tsc(bus);
    set_pair(core, value);
    Ok(())
}

fn rdtscp(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    rdtsc(core, bus, op)?;
    core.set_reg32(1, core.state.msrs.tsc_aux as u32);
    Ok(())
}

/// RDPMC always raises #GP, because there are no performance counters to read. KVM guests have no counters either.
fn rdpmc(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    Err(core.gp(0))
}

fn rdmsr(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    core.require_cpl0()?;
    check_not_v86(core)?;
    let value = core.read_msr(bus, core.reg32(1))?;
    set_pair(core, value);
    Ok(())
}

fn wrmsr(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    core.require_cpl0()?;
    check_not_v86(core)?;
    core.write_msr(bus, core.reg32(1), pair(core))
}

fn check_not_v86(core: &mut Core) -> Res<()> {
    if core.rflags & crate::flags::VM != 0 { Err(core.gp(0)) } else { Ok(()) }
}

fn hlt(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_cpl0()?;
    core.rip = core.next_rip(core.block_rip(), op.next);
    let mut following = [0];
    let known = core.is_64bit() && core.peek(core.rip, &mut following) == 1;
    let time = bus.halt(core.steps(), known.then_some(following[0]));
    core.bus_was_used();
    if let Some(raw) = time {
        core.rip = core.rip.wrapping_add(following.len() as u64);
        set_pair(core, raw.wrapping_add(core.state.msrs.tsc_offset));
        return Ok(());
    }
    core.state.halted = true;
    core.attention |= attention::HALTED | attention::SIGNALS;
    core.break_block = true;
    Ok(())
}

/// INVD, WBINVD and INVLPG have no effect: there are no caches, and translations are never stale.
fn privileged_nop(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.require_cpl0()
}

/// INVPCID, which makes its checks and otherwise has no effect, like INVLPG.
fn invpcid(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_protected()?;
    core.require_cpl0()?;
    let kind = if core.is_64bit() { core.reg64(op.r0) } else { u64::from(core.reg32(op.r0)) };
    let address = core.linear(op, 16)?;
    let descriptor = core.load_u128(bus, address)?;
    let (pcid, target) = (descriptor as u64, (descriptor >> 64) as u64);
    let no_pcids = core.state.cr4 & cr4::PCIDE == 0;
    let bad = match kind {
        0 => pcid >> 12 != 0 || !canonical(target) || (no_pcids && pcid != 0),
        1 => pcid >> 12 != 0 || (no_pcids && pcid != 0),
        2 | 3 => pcid >> 12 != 0,
        _ => true,
    };
    if bad { Err(core.gp(0)) } else { Ok(()) }
}

/// CLFLUSH and similar instructions raise the faults that a read of one byte would raise, and otherwise do nothing.
fn touch_line(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, 1)?;
    let index = core.mmu.index();
    core.translate(address, Access::Read, index)?;
    Ok(())
}

fn check_osxsave(core: &mut Core) -> Res<()> {
    if core.state.cr4 & cr4::OSXSAVE != 0 { Ok(()) } else { Err(core.ud()) }
}

fn xgetbv(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    check_osxsave(core)?;
    if core.reg32(1) != 0 {
        return Err(core.gp(0));
    }
    let value = core.state.xcr0;
    set_pair(core, value);
    Ok(())
}

/// XSETBV. XCR0 has the bits for x87, which must be set, and for SSE.
fn xsetbv(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    check_osxsave(core)?;
    core.require_cpl0()?;
    let value = pair(core);
    if core.reg32(1) != 0 || value & 1 == 0 || value & !3 != 0 {
        return Err(core.gp(0));
    }
    core.state.xcr0 = value;
    Ok(())
}

fn swapgs(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    if !core.is_64bit() {
        return Err(core.ud());
    }
    core.require_cpl0()?;
    let old = core.segment(SegReg::Gs).base;
    let new = std::mem::replace(&mut core.state.msrs.kernel_gs_base, old);
    core.set_base(SegReg::Gs, new);
    Ok(())
}

fn check_base(core: &mut Core) -> Res<()> {
    let on = core.is_64bit() && core.state.cr4 & cr4::FSGSBASE != 0;
    if on { Ok(()) } else { Err(core.ud()) }
}

fn register(op: &Op) -> SegReg {
    if op.r1 == 4 { SegReg::Fs } else { SegReg::Gs }
}

fn read_base(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    check_base(core)?;
    let base = core.segment(register(op)).base;
    core.set_reg64(op.r0, if op.aux == 4 { base & 0xffff_ffff } else { base });
    Ok(())
}

fn write_base(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    check_base(core)?;
    let base = if op.aux == 4 { u64::from(core.reg32(op.r0)) } else { core.reg64(op.r0) };
    if !canonical(base) {
        return Err(core.gp(0));
    }
    core.set_base(register(op), base);
    Ok(())
}
