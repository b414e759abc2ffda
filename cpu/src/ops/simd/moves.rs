//! Moves between registers and memory that change no bits. Each form has its own handler, because moves are
//! the most frequent SIMD instructions of ordinary programs.

use iced_x86::Code;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};

/// How the operands of a move are stored in the fields of an op.
enum Shape {
    /// Operand 0 is the destination register, operand 1 a register or memory.
    Load(Handler, Handler),
    /// Operand 0 is a register or memory, operand 1 the source register.
    Store(Handler, Handler),
}
use Shape::{Load, Store};

/// Raises #UD, for an encoding without a register form or without a memory form.
fn none(core: &mut Core, _bus: &mut dyn Bus, _op: &Op) -> Res<()> {
    Err(core.ud())
}

fn shape(code: Code) -> Option<Shape> {
    use Code::*;
    Some(match code {
        Movaps_xmm_xmmm128 | Movapd_xmm_xmmm128 | Movdqa_xmm_xmmm128 => Load(copy, load_aligned),
        Movups_xmm_xmmm128 | Movupd_xmm_xmmm128 | Movdqu_xmm_xmmm128 => Load(copy, load_unaligned),
        Movaps_xmmm128_xmm | Movapd_xmmm128_xmm | Movdqa_xmmm128_xmm => Store(copy, store_aligned),
        Movups_xmmm128_xmm | Movupd_xmmm128_xmm | Movdqu_xmmm128_xmm => Store(copy, store_unaligned),
        Lddqu_xmm_m128 => Load(none, load_unaligned),
        Movntdqa_xmm_m128 => Load(none, load_aligned),
        Movntdq_m128_xmm | Movntps_m128_xmm | Movntpd_m128_xmm => Store(none, store_aligned),
        Movq_xmm_xmmm64 => Load(copy_quad, load_quad),
        Movq_xmmm64_xmm => Store(copy_quad, store_low_quad),
        Movd_xmm_rm32 => Load(from_gpr32, load_double),
        Movq_xmm_rm64 => Load(from_gpr64, load_quad),
        Movd_rm32_xmm => Store(to_gpr32, store_low_double),
        Movq_rm64_xmm => Store(to_gpr64, store_low_quad),
        Movss_xmm_xmmm32 => Load(merge_double, load_double),
        Movss_xmmm32_xmm => Store(merge_double, store_low_double),
        Movsd_xmm_xmmm64 => Load(merge_quad, load_quad),
        Movsd_xmmm64_xmm => Store(merge_quad, store_low_quad),
        Movlps_xmm_m64 | Movlpd_xmm_m64 => Load(none, load_low),
        Movhps_xmm_m64 | Movhpd_xmm_m64 => Load(none, load_high),
        Movlps_m64_xmm | Movlpd_m64_xmm => Store(none, store_low_quad),
        Movhps_m64_xmm | Movhpd_m64_xmm => Store(none, store_high_quad),
        Movhlps_xmm_xmm => Load(high_to_low, none),
        Movlhps_xmm_xmm => Load(low_to_high, none),
        Movq_mm_mmm64 => Load(mm_copy, mm_load_quad),
        Movq_mmm64_mm => Store(mm_copy, mm_store_quad),
        Movd_mm_rm32 => Load(mm_from_gpr32, mm_load_double),
        Movq_mm_rm64 => Load(mm_from_gpr64, mm_load_quad),
        Movd_rm32_mm => Store(mm_to_gpr32, mm_store_double),
        Movq_rm64_mm => Store(mm_to_gpr64, mm_store_quad),
        Movntq_m64_mm => Store(none, mm_store_quad),
        Movq2dq_xmm_mm => Load(mm_to_xmm, none),
        Movdq2q_mm_xmm => Load(xmm_to_mm, none),
        Movnti_m32_r32 => Store(none, movnti32),
        Movnti_m64_r64 => Store(none, movnti64),
        _ => return None,
    })
}

/// Lowers moves.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    Some(match shape(insn.code())? {
        Load(_, handler) if insn.is_memory(1) => insn.address(Op::new(handler).r0(insn.register(0))),
        Store(_, handler) if insn.is_memory(0) => insn.address(Op::new(handler).r1(insn.register(1))),
        Load(handler, _) | Store(handler, _) => Op::new(handler).r0(insn.register(0)).r1(insn.register(1)),
    })
}

/// Defines handlers that begin with a check and cannot fail afterwards unless they access memory.
macro_rules! moves {
    ($check:ident; $($name:ident = |$core:ident, $bus:pat_param, $op:ident| $body:expr;)*) => {$(
        fn $name($core: &mut Core, $bus: &mut dyn Bus, $op: &Op) -> Res<()> {
            $core.$check()?;
            $body;
            Ok(())
        }
    )*};
}

moves! {
    require_sse;
    copy = |core, _, op| core.set_xmm_bytes(op.r0, core.xmm_bytes(op.r1));
    load_aligned = |core, bus, op| {
        let address = core.linear(op, 16)?;
        core.require_aligned(address, 16)?;
        load_whole(core, bus, op, address)?
    };
    load_unaligned = |core, bus, op| {
        let address = core.linear(op, 16)?;
        load_whole(core, bus, op, address)?
    };
    store_aligned = |core, bus, op| core.store_aligned(bus, op, core.xmm(op.r1))?;
    store_unaligned = |core, bus, op| core.store_unaligned(bus, op, core.xmm(op.r1))?;
    copy_quad = |core, _, op| core.set_xmm(op.r0, (core.xmm(op.r1) as u64).into());
    load_quad = |core, bus, op| { let value = core.load_quad(bus, op)?; core.set_xmm(op.r0, value.into()) };
    load_double = |core, bus, op| { let value = core.load_double(bus, op)?; core.set_xmm(op.r0, value.into()) };
    store_low_quad = |core, bus, op| core.store_quad(bus, op, core.xmm(op.r1) as u64)?;
    store_high_quad = |core, bus, op| core.store_quad(bus, op, (core.xmm(op.r1) >> 64) as u64)?;
    store_low_double = |core, bus, op| core.store_double(bus, op, core.xmm(op.r1) as u32)?;
    from_gpr32 = |core, _, op| core.set_xmm(op.r0, core.reg32(op.r1).into());
    from_gpr64 = |core, _, op| core.set_xmm(op.r0, core.reg64(op.r1).into());
    to_gpr32 = |core, _, op| core.set_reg32(op.r0, core.xmm(op.r1) as u32);
    to_gpr64 = |core, _, op| core.set_reg64(op.r0, core.xmm(op.r1) as u64);
    merge_double = |core, _, op| core.set_xmm_low32(op.r0, core.xmm(op.r1) as u32);
    merge_quad = |core, _, op| core.set_xmm_low64(op.r0, core.xmm(op.r1) as u64);
    load_low = |core, bus, op| { let value = core.load_quad(bus, op)?; core.set_xmm_low64(op.r0, value) };
    load_high = |core, bus, op| { let value = core.load_quad(bus, op)?; set_high(core, op.r0, value) };
    high_to_low = |core, _, op| core.set_xmm_low64(op.r0, (core.xmm(op.r1) >> 64) as u64);
    low_to_high = |core, _, op| set_high(core, op.r0, core.xmm(op.r1) as u64);
}

moves! {
    require_mmx;
    mm_copy = |core, _, op| core.set_mm(op.r0, core.mm(op.r1));
    mm_load_quad = |core, bus, op| { let value = core.load_quad(bus, op)?; core.set_mm(op.r0, value) };
    mm_load_double = |core, bus, op| { let value = core.load_double(bus, op)?; core.set_mm(op.r0, value.into()) };
    // TOP becomes zero even if the store faults. The tags change only if the store succeeds.
    mm_store_quad = |core, bus, op| {
        core.state.fpu.clear_top();
        core.store_quad(bus, op, core.mm(op.r1))?;
        core.state.fpu.enter_mmx()
    };
    mm_store_double = |core, bus, op| {
        core.state.fpu.clear_top();
        core.store_double(bus, op, core.mm(op.r1) as u32)?;
        core.state.fpu.enter_mmx()
    };
    mm_from_gpr32 = |core, _, op| core.set_mm(op.r0, core.reg32(op.r1).into());
    mm_from_gpr64 = |core, _, op| core.set_mm(op.r0, core.reg64(op.r1));
    mm_to_gpr32 = |core, _, op| { core.state.fpu.enter_mmx(); core.set_reg32(op.r0, core.mm(op.r1) as u32) };
    mm_to_gpr64 = |core, _, op| { core.state.fpu.enter_mmx(); core.set_reg64(op.r0, core.mm(op.r1)) };
}

moves! {
    require_sse_and_mmx;
    mm_to_xmm = |core, _, op| { core.state.fpu.enter_mmx(); core.set_xmm(op.r0, core.mm(op.r1).into()) };
    xmm_to_mm = |core, _, op| core.set_mm(op.r0, core.xmm(op.r1) as u64);
}

#[inline(always)]
fn load_whole(core: &mut Core, bus: &mut dyn Bus, op: &Op, address: u64) -> Res<()> {
    match core.fast_vector(address) {
        Some(value) => core.set_xmm_bytes(op.r0, value),
        None => load_whole_slow(core, bus, op, address)?,
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn load_whole_slow(core: &mut Core, bus: &mut dyn Bus, op: &Op, address: u64) -> Res<()> {
    let value = core.load_u128(bus, address)?;
    core.set_xmm(op.r0, value);
    Ok(())
}

fn set_high(core: &mut Core, register: u8, value: u64) {
    core.set_xmm(register, u128::from(core.xmm(register) as u64) | u128::from(value) << 64);
}

// MOVNTI moves general registers, so CR0.TS and CR4.OSFXSR do not affect it.
fn movnti32(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.store_double(bus, op, core.reg32(op.r1))
}

fn movnti64(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.store_quad(bus, op, core.reg64(op.r1))
}
