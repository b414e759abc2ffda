//! MOV and similar moves, LEA, XCHG, CMOVcc, SETcc, sign extensions, flag moves, exchanges with compare.

use iced_x86::Mnemonic;

use super::alu::{add, sub};
use super::select::{by_condition, by_width, condition_number};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags;
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::{W8, W16, W32, W64, Width};

fn mov_reg_reg<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    W::set(core, op.r0, W::get(core, op.r1));
    Ok(())
}

fn mov_reg_imm<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    W::set(core, op.r0, op.imm);
    Ok(())
}

fn mov_reg_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let value = W::load(core, bus, address)?;
    W::set(core, op.r0, value);
    Ok(())
}

fn mov_mem_reg<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::store(core, bus, address, W::get(core, op.r1))
}

fn mov_mem_imm<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::store(core, bus, address, op.imm)
}

fn lower_mov(insn: &Insn<'_>) -> Op {
    let size = insn.size(0);
    if insn.is_memory(0) {
        return if insn.is_immediate(1) {
            insn.address(Op::new(by_width!(size, mov_mem_imm))).imm(insn.immediate(1))
        } else {
            insn.address(Op::new(by_width!(size, mov_mem_reg))).r1(insn.register(1))
        };
    }
    let op = if insn.is_memory(1) {
        insn.address(Op::new(by_width!(size, mov_reg_mem)))
    } else if insn.is_immediate(1) {
        Op::new(by_width!(size, mov_reg_imm)).imm(insn.immediate(1))
    } else {
        Op::new(by_width!(size, mov_reg_reg)).r1(insn.register(1))
    };
    op.r0(insn.register(0))
}

/// MOVZX (`SIGNED` false) and MOVSX.
fn extend_reg<S: Width, D: Width, const SIGNED: bool>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = S::get(core, op.r1);
    D::set(core, op.r0, if SIGNED { S::sext(value) } else { value });
    Ok(())
}

fn extend_mem<S: Width, D: Width, const SIGNED: bool>(
    core: &mut Core,
    bus: &mut dyn Bus,
    op: &Op,
) -> Res<()> {
    let address = core.linear(op, S::BYTES)?;
    let value = S::load(core, bus, address)?;
    D::set(core, op.r0, if SIGNED { S::sext(value) } else { value });
    Ok(())
}

fn lower_extend<const SIGNED: bool>(insn: &Insn<'_>) -> Op {
    macro_rules! pick {
        ($function:ident) => {
            match (insn.size(1), insn.size(0)) {
                (1, 2) => $function::<W8, W16, SIGNED> as crate::op::Handler,
                (1, 4) => $function::<W8, W32, SIGNED>,
                (1, _) => $function::<W8, W64, SIGNED>,
                (2, 2) => $function::<W16, W16, SIGNED>,
                (2, 4) => $function::<W16, W32, SIGNED>,
                (2, _) => $function::<W16, W64, SIGNED>,
                (_, 2) => $function::<W32, W16, SIGNED>,
                (_, 4) => $function::<W32, W32, SIGNED>,
                _ => $function::<W32, W64, SIGNED>,
            }
        };
    }
    if insn.is_memory(1) {
        insn.address(Op::new(pick!(extend_mem))).r0(insn.register(0))
    } else {
        Op::new(pick!(extend_reg)).r0(insn.register(0)).r1(insn.register(1))
    }
}

fn lea<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.effective_address(op);
    W::set(core, op.r0, address);
    Ok(())
}

fn xchg_reg<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let (a, b) = (W::get(core, op.r0), W::get(core, op.r1));
    W::set(core, op.r0, b);
    W::set(core, op.r1, a);
    Ok(())
}

fn xchg_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::update(core, bus, address, |core, old| {
        let new = W::get(core, op.r0);
        W::set(core, op.r0, old);
        new
    })
}

/// XADD to a register. If both operands are the same register, that register holds the sum at the end.
fn xadd_reg<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let (a, b) = (W::get(core, op.r0), W::get(core, op.r1));
    let sum = add::<W>(core, a, b, 0);
    W::set(core, op.r1, a);
    W::set(core, op.r0, sum);
    Ok(())
}

fn xadd_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::update(core, bus, address, |core, a| {
        let sum = add::<W>(core, a, W::get(core, op.r0), 0);
        W::set(core, op.r0, a);
        sum
    })
}

/// CMPXCHG to a register.
fn cmpxchg_reg<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let (accumulator, old) = (W::get(core, 0), W::get(core, op.r0));
    sub::<W>(core, accumulator, old, 0);
    if accumulator == old {
        W::set(core, op.r0, W::get(core, op.r1));
    } else {
        W::set(core, 0, old);
    }
    Ok(())
}

/// CMPXCHG to memory. Memory is written even if the comparison fails.
fn cmpxchg_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::update(core, bus, address, |core, old| {
        let accumulator = W::get(core, 0);
        sub::<W>(core, accumulator, old, 0);
        if accumulator == old {
            W::get(core, op.r1)
        } else {
            W::set(core, 0, old);
            old
        }
    })
}

fn set_zero_flag(core: &mut Core, zero: bool) {
    let bits = core.flags.bits() & !flags::ZF | if zero { flags::ZF } else { 0 };
    core.flags = flags::LazyFlags::from_bits(bits);
}

fn cmpxchg8b(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, 8)?;
    core.update_u64(bus, address, |core, old| {
        let expected = u64::from(core.reg32(2)) << 32 | u64::from(core.reg32(0));
        set_zero_flag(core, old == expected);
        if old == expected {
            return u64::from(core.reg32(1)) << 32 | u64::from(core.reg32(3));
        }
        core.set_reg32(0, old as u32);
        core.set_reg32(2, (old >> 32) as u32);
        old
    })
}

fn cmpxchg16b(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, 16)?;
    if address & 15 != 0 {
        return Err(core.gp(0));
    }
    core.update_u128(bus, address, |core, old| {
        let expected = u128::from(core.reg64(2)) << 64 | u128::from(core.reg64(0));
        set_zero_flag(core, old == expected);
        if old == expected {
            return u128::from(core.reg64(1)) << 64 | u128::from(core.reg64(3));
        }
        core.set_reg64(0, old as u64);
        core.set_reg64(2, (old >> 64) as u64);
        old
    })
}

/// CMOVcc. The source is read, and a 32-bit destination is zero-extended, even if the condition is false.
fn cmov_reg<W: Width, const CC: u8>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let from = if core.flags.condition::<CC>() { op.r1 } else { op.r0 };
    W::set(core, op.r0, W::get(core, from));
    Ok(())
}

fn cmov_mem<W: Width, const CC: u8>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let value = W::load(core, bus, address)?;
    let value = if core.flags.condition::<CC>() { value } else { W::get(core, op.r0) };
    W::set(core, op.r0, value);
    Ok(())
}

fn set_reg<const CC: u8>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.set_reg8(op.r0, u8::from(core.flags.condition::<CC>()));
    Ok(())
}

fn set_mem<const CC: u8>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, 1)?;
    core.store_u8(bus, address, u8::from(core.flags.condition::<CC>()))
}

fn lower_conditional(insn: &Insn<'_>) -> Option<Op> {
    let cc = condition_number(insn)?;
    let operands = insn.raw.op_count();
    if operands == 1 {
        if insn.size(0) != 1 || insn.raw.op_kind(0) != iced_x86::OpKind::Register && !insn.is_memory(0) {
            return None;
        }
        return Some(if insn.is_memory(0) {
            insn.address(Op::new(by_condition!(cc, set_mem)))
        } else {
            Op::new(by_condition!(cc, set_reg)).r0(insn.register(0))
        });
    }
    // CMPccXADD also has a condition code, but three operands.
    if operands != 2 || !matches!(insn.size(0), 2 | 4 | 8) || insn.raw.op_register(0).is_st() {
        return None;
    }
    macro_rules! pick {
        ($function:ident) => {
            match insn.size(0) {
                2 => by_condition!(cc, $function, W16),
                4 => by_condition!(cc, $function, W32),
                _ => by_condition!(cc, $function, W64),
            }
        };
    }
    let op = if insn.is_memory(1) {
        insn.address(Op::new(pick!(cmov_mem)))
    } else {
        Op::new(pick!(cmov_reg)).r1(insn.register(1))
    };
    Some(op.r0(insn.register(0)))
}

fn bswap<W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    // BSWAP of a 16-bit register is undefined; processors set the register to zero.
    let value = if W::BITS == 16 { 0 } else { W::get(core, op.r0).swap_bytes() >> (64 - W::BITS) };
    W::set(core, op.r0, value);
    Ok(())
}

fn movbe_load<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let value = W::load(core, bus, address)?;
    W::set(core, op.r0, value.swap_bytes() >> (64 - W::BITS));
    Ok(())
}

fn movbe_store<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    let value = W::get(core, op.r1).swap_bytes() >> (64 - W::BITS);
    W::store(core, bus, address, value)
}

/// CBW, CWDE, CDQE: sign-extends the lower half of the accumulator into the whole accumulator.
fn extend_accumulator<S: Width, D: Width>(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let value = S::sext(S::get(core, 0));
    D::set(core, 0, value);
    Ok(())
}

/// CWD, CDQ, CQO: fills the data register with the accumulator's sign.
fn sign_to_data<W: Width>(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let sign = W::sext(W::get(core, 0)) as i64 >> 63;
    W::set(core, 2, sign as u64);
    Ok(())
}

fn lahf(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let value = core.flags.bits() as u8 | 2;
    core.set_reg8(crate::slots::HIGH_BYTE, value);
    Ok(())
}

fn sahf(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    const LOW: u64 = flags::SF | flags::ZF | flags::AF | flags::PF | flags::CF;
    let bits = core.flags.bits() & flags::OF | u64::from(core.reg8(crate::slots::HIGH_BYTE)) & LOW;
    core.flags = flags::LazyFlags::from_bits(bits);
    Ok(())
}

/// CLC, STC, CMC: sets CF to `aux`, or inverts it if `aux` is 2.
fn change_carry(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let carry = if op.aux == 2 { !core.flags.cf() } else { op.aux == 1 };
    let overflow = core.flags.of();
    core.flags.aux = core.flags.aux & !(3 << 62) | flags::carry_overflow(carry, overflow);
    Ok(())
}

fn change_direction(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.rflags = core.rflags & !flags::DF | if op.aux == 1 { flags::DF } else { 0 };
    Ok(())
}

fn xlat(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let mut at = *op;
    at.disp = i64::from(core.reg8(0));
    let address = core.linear(&at, 1)?;
    let value = core.load_u8(bus, address)?;
    core.set_reg8(0, value);
    Ok(())
}

/// PAUSE in a machine with several processors: ends the turn, so that the other processors run.
fn pause(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    core.yields = true;
    core.break_block = true;
    Ok(())
}

fn nothing(_: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    Ok(())
}

fn lower_xlat(insn: &Insn<'_>) -> Op {
    let mut op = Op::new(xlat);
    op.base = 3;
    op.seg = insn.segment_slot(insn.raw.memory_segment());
    op.flags |= match insn.address_bytes() {
        2 => Op::LEGACY_EA | Op::ADDR16,
        4 => Op::LEGACY_EA | Op::ADDR32,
        _ => 0,
    };
    if !insn.mode.is_64bit() {
        op.flags |= Op::CHECK_SEGMENT;
    }
    op
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let size = if insn.raw.op_count() > 0 { insn.size(0) } else { 0 };
    Some(match insn.mnemonic() {
        Mnemonic::Mov => lower_mov(insn),
        Mnemonic::Movzx => lower_extend::<false>(insn),
        Mnemonic::Movsx | Mnemonic::Movsxd => lower_extend::<true>(insn),
        Mnemonic::Lea => insn.address(Op::new(by_width!(size, lea))).r0(insn.register(0)),
        Mnemonic::Xchg if insn.is_memory(0) => {
            insn.address(Op::new(by_width!(size, xchg_mem))).r0(insn.register(1))
        }
        Mnemonic::Xchg if insn.is_memory(1) => {
            insn.address(Op::new(by_width!(size, xchg_mem))).r0(insn.register(0))
        }
        Mnemonic::Xchg => Op::new(by_width!(size, xchg_reg)).r0(insn.register(0)).r1(insn.register(1)),
        Mnemonic::Xadd if insn.is_memory(0) => {
            insn.address(Op::new(by_width!(size, xadd_mem))).r0(insn.register(1))
        }
        Mnemonic::Xadd => Op::new(by_width!(size, xadd_reg)).r0(insn.register(0)).r1(insn.register(1)),
        Mnemonic::Cmpxchg if insn.is_memory(0) => {
            insn.address(Op::new(by_width!(size, cmpxchg_mem))).r1(insn.register(1))
        }
        Mnemonic::Cmpxchg => Op::new(by_width!(size, cmpxchg_reg)).r0(insn.register(0)).r1(insn.register(1)),
        Mnemonic::Cmpxchg8b => insn.address(Op::new(cmpxchg8b)),
        Mnemonic::Cmpxchg16b => insn.address(Op::new(cmpxchg16b)),
        Mnemonic::Bswap => Op::new(by_width!(size, bswap)).r0(insn.register(0)),
        Mnemonic::Movbe if insn.is_memory(0) => {
            insn.address(Op::new(by_width!(size, movbe_store))).r1(insn.register(1))
        }
        Mnemonic::Movbe => insn.address(Op::new(by_width!(size, movbe_load))).r0(insn.register(0)),
        Mnemonic::Cbw => Op::new(extend_accumulator::<W8, W16>),
        Mnemonic::Cwde => Op::new(extend_accumulator::<W16, W32>),
        Mnemonic::Cdqe => Op::new(extend_accumulator::<W32, W64>),
        Mnemonic::Cwd => Op::new(sign_to_data::<W16>),
        Mnemonic::Cdq => Op::new(sign_to_data::<W32>),
        Mnemonic::Cqo => Op::new(sign_to_data::<W64>),
        Mnemonic::Lahf => Op::new(lahf),
        Mnemonic::Sahf => Op::new(sahf),
        Mnemonic::Clc => Op::new(change_carry).aux(0),
        Mnemonic::Stc => Op::new(change_carry).aux(1),
        Mnemonic::Cmc => Op::new(change_carry).aux(2),
        Mnemonic::Cld => Op::new(change_direction).aux(0),
        Mnemonic::Std => Op::new(change_direction).aux(1),
        Mnemonic::Xlatb => lower_xlat(insn),
        Mnemonic::Pause if insn.mode.yields => Op::new(pause).with(Op::ENDS_BLOCK),
        Mnemonic::Nop | Mnemonic::Pause | Mnemonic::Endbr32 | Mnemonic::Endbr64 => Op::new(nothing),
        Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence => Op::new(nothing),
        Mnemonic::Prefetch
        | Mnemonic::Prefetchw
        | Mnemonic::Prefetchwt1
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2
        | Mnemonic::Prefetchit0
        | Mnemonic::Prefetchit1
        | Mnemonic::Cldemote
        | Mnemonic::Reservednop => Op::new(nothing),
        // There are no shadow stacks, so reading the shadow-stack pointer does nothing.
        Mnemonic::Rdsspd | Mnemonic::Rdsspq => Op::new(nothing),
        _ => return lower_conditional(insn).filter(|_| is_set_or_cmov(insn)),
    })
}

/// Whether an instruction with a condition code is SETcc or CMOVcc. Jcc and FCMOVcc also have condition codes, and
/// other modules lower these.
fn is_set_or_cmov(insn: &Insn<'_>) -> bool {
    let raw = insn.raw;
    !raw.is_jcc_short_or_near() && !raw.is_loop() && !raw.is_loopcc() && !raw.is_jcx_short()
}
