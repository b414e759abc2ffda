//! Conversions between floating-point formats and to and from integers.

use iced_x86::Code;
use softfloat::sse::{self, SseEnv};

use super::fp::{Element, VectorOp, packed_half, packed_mem, packed_reg};
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::simd::lanes::{Lane, build};

macro_rules! vector_ops {
    ($($name:ident = |$env:ident, $a:pat_param, $b:ident| $body:expr;)*) => {$(
        struct $name;
        impl VectorOp for $name {
            fn apply($env: &mut SseEnv, $a: [u8; 16], $b: [u8; 16], _: u8) -> [u8; 16] {
                $body
            }
        }
    )*};
}

// If the results are narrower than the sources, the conversion clears the upper half of the destination.
vector_ops! {
    Ps2Pd = |env, _, b| build(|n| sse::f32_to_f64(env, u32::get(&b, n)));
    Pd2Ps = |env, _, b| build(|n| if n < 2 { sse::f64_to_f32(env, u64::get(&b, n)) } else { 0 });
    Dq2Ps = |env, _, b| build(|n| sse::from_i32::<u32>(env, i32::get(&b, n)));
    Dq2Pd = |env, _, b| build(|n| sse::from_i32::<u64>(env, i32::get(&b, n)));
    Ps2Dq = |env, _, b| build(|n| sse::to_i32(env, u32::get(&b, n)));
    Ps2DqTruncating = |env, _, b| build(|n| sse::to_i32_truncating(env, u32::get(&b, n)));
    Pd2Dq = |env, _, b| build(|n| if n < 2 { sse::to_i32(env, u64::get(&b, n)) } else { 0 });
    Pd2DqTruncating =
        |env, _, b| build(|n| if n < 2 { sse::to_i32_truncating(env, u64::get(&b, n)) } else { 0 });
    Pi2Ps = |env, a, b| build(|n| {
        if n < 2 { sse::from_i32::<u32>(env, i32::get(&b, n)) } else { u32::get(&a, n) }
    });
}

/// The handlers of an instruction's register form and memory form.
type Pair = (Handler, Handler);

const fn whole<V: VectorOp>() -> Pair {
    (packed_reg::<V>, packed_mem::<V>)
}

const fn half<V: VectorOp>() -> Pair {
    (packed_reg::<V>, packed_half::<V>)
}

fn handlers(code: Code) -> Option<Pair> {
    use Code::*;
    Some(match code {
        Cvtps2pd_xmm_xmmm64 => half::<Ps2Pd>(),
        Cvtpd2ps_xmm_xmmm128 => whole::<Pd2Ps>(),
        Cvtdq2ps_xmm_xmmm128 => whole::<Dq2Ps>(),
        Cvtdq2pd_xmm_xmmm64 => half::<Dq2Pd>(),
        Cvtps2dq_xmm_xmmm128 => whole::<Ps2Dq>(),
        Cvttps2dq_xmm_xmmm128 => whole::<Ps2DqTruncating>(),
        Cvtpd2dq_xmm_xmmm128 => whole::<Pd2Dq>(),
        Cvttpd2dq_xmm_xmmm128 => whole::<Pd2DqTruncating>(),
        Cvtss2sd_xmm_xmmm32 => (widen_reg, widen_mem),
        Cvtsd2ss_xmm_xmmm64 => (narrow_reg, narrow_mem),
        Cvtsi2ss_xmm_rm32 => (from_gpr::<u32, false>, from_integer_mem::<u32, false>),
        Cvtsi2ss_xmm_rm64 => (from_gpr::<u32, true>, from_integer_mem::<u32, true>),
        Cvtsi2sd_xmm_rm32 => (from_gpr::<u64, false>, from_integer_mem::<u64, false>),
        Cvtsi2sd_xmm_rm64 => (from_gpr::<u64, true>, from_integer_mem::<u64, true>),
        Cvtss2si_r32_xmmm32 => to_gpr::<u32, false, false>(),
        Cvtss2si_r64_xmmm32 => to_gpr::<u32, true, false>(),
        Cvtsd2si_r32_xmmm64 => to_gpr::<u64, false, false>(),
        Cvtsd2si_r64_xmmm64 => to_gpr::<u64, true, false>(),
        Cvttss2si_r32_xmmm32 => to_gpr::<u32, false, true>(),
        Cvttss2si_r64_xmmm32 => to_gpr::<u32, true, true>(),
        Cvttsd2si_r32_xmmm64 => to_gpr::<u64, false, true>(),
        Cvttsd2si_r64_xmmm64 => to_gpr::<u64, true, true>(),
        Cvtpi2ps_xmm_mmm64 => (from_mm::<Pi2Ps>, packed_half::<Pi2Ps>),
        Cvtpi2pd_xmm_mmm64 => (from_mm::<Dq2Pd>, packed_half::<Dq2Pd>),
        Cvtps2pi_mm_xmmm64 => (to_mm_low::<Ps2Dq>, to_mm_half::<Ps2Dq>),
        Cvttps2pi_mm_xmmm64 => (to_mm_low::<Ps2DqTruncating>, to_mm_half::<Ps2DqTruncating>),
        Cvtpd2pi_mm_xmmm128 => (to_mm::<Pd2Dq>, to_mm_whole::<Pd2Dq>),
        Cvttpd2pi_mm_xmmm128 => (to_mm::<Pd2DqTruncating>, to_mm_whole::<Pd2DqTruncating>),
        _ => return None,
    })
}

/// Lowers conversions.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let (register, memory) = handlers(insn.code())?;
    let op = Op::new(register).r0(insn.register(0));
    Some(if insn.is_memory(1) {
        let mut op = insn.address(op);
        op.handler = memory;
        op
    } else {
        op.r1(insn.register(1))
    })
}

#[inline(always)]
fn widen(core: &mut Core, op: &Op, source: u32) -> Res<()> {
    let mut env = core.sse_env();
    let result = sse::f32_to_f64(&mut env, source);
    core.finish_sse(env)?;
    core.set_xmm_low64(op.r0, result);
    Ok(())
}

fn widen_reg(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    widen(core, op, core.xmm(op.r1) as u32)
}

fn widen_mem(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_double(bus, op)?;
    widen(core, op, source)
}

#[inline(always)]
fn narrow(core: &mut Core, op: &Op, source: u64) -> Res<()> {
    let mut env = core.sse_env();
    let result = sse::f64_to_f32(&mut env, source);
    core.finish_sse(env)?;
    core.set_xmm_low32(op.r0, result);
    Ok(())
}

fn narrow_reg(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    narrow(core, op, core.xmm(op.r1) as u64)
}

fn narrow_mem(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_quad(bus, op)?;
    narrow(core, op, source)
}

#[inline(always)]
fn from_integer<T: Element, const WIDE: bool>(core: &mut Core, op: &Op, source: u64) -> Res<()> {
    let mut env = core.sse_env();
    let value = if WIDE { source as i64 } else { i64::from(source as i32) };
    let result: T = sse::from_i64(&mut env, value);
    core.finish_sse(env)?;
    result.set_low(core, op.r0);
    Ok(())
}

fn from_gpr<T: Element, const WIDE: bool>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    from_integer::<T, WIDE>(core, op, core.reg64(op.r1))
}

fn from_integer_mem<T: Element, const WIDE: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = if WIDE { core.load_quad(bus, op)? } else { core.load_double(bus, op)?.into() };
    from_integer::<T, WIDE>(core, op, source)
}

#[inline(always)]
fn to_integer<T: Element, const WIDE: bool, const TRUNCATE: bool>(
    core: &mut Core,
    op: &Op,
    source: T,
) -> Res<()> {
    let mut env = core.sse_env();
    let env_ref = &mut env;
    let value = match (WIDE, TRUNCATE) {
        (false, false) => u64::from(sse::to_i32(env_ref, source) as u32),
        (false, true) => u64::from(sse::to_i32_truncating(env_ref, source) as u32),
        (true, false) => sse::to_i64(env_ref, source) as u64,
        (true, true) => sse::to_i64_truncating(env_ref, source) as u64,
    };
    core.finish_sse(env)?;
    core.set_reg64(op.r0, value);
    Ok(())
}

const fn to_gpr<T: Element, const WIDE: bool, const TRUNCATE: bool>() -> Pair {
    (to_gpr_reg::<T, WIDE, TRUNCATE>, to_gpr_mem::<T, WIDE, TRUNCATE>)
}

fn to_gpr_reg<T: Element, const WIDE: bool, const TRUNCATE: bool>(
    core: &mut Core,
    _bus: &mut dyn Bus,
    op: &Op,
) -> Res<()> {
    core.require_sse()?;
    to_integer::<T, WIDE, TRUNCATE>(core, op, T::low(core, op.r1))
}

fn to_gpr_mem<T: Element, const WIDE: bool, const TRUNCATE: bool>(
    core: &mut Core,
    bus: &mut dyn Bus,
    op: &Op,
) -> Res<()> {
    core.require_sse()?;
    let source = T::load(core, bus, op)?;
    to_integer::<T, WIDE, TRUNCATE>(core, op, source)
}

/// Converts from an MMX register. The memory forms of CVTPI2PS and CVTPI2PD touch no MMX state. The manual says
/// this of CVTPI2PD; real processors do the same for CVTPI2PS.
fn from_mm<V: VectorOp>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse_and_mmx()?;
    let source = core.mm(op.r1);
    let mut env = core.sse_env();
    let old = core.xmm(op.r0).to_le_bytes();
    let result = V::apply(&mut env, old, u128::from(source).to_le_bytes(), 0);
    // When processors raise #XM, they have already set TOP to 0 and all tags to valid, as every MMX instruction
    // does first.
    core.state.fpu.enter_mmx();
    core.finish_sse(env)?;
    core.set_xmm(op.r0, u128::from_le_bytes(result));
    Ok(())
}

fn convert_to_mm<V: VectorOp>(core: &mut Core, op: &Op, source: u128) -> Res<()> {
    let mut env = core.sse_env();
    let result = V::apply(&mut env, [0; 16], source.to_le_bytes(), 0);
    core.state.fpu.enter_mmx();
    core.finish_sse(env)?;
    core.set_mm(op.r0, u128::from_le_bytes(result) as u64);
    Ok(())
}

/// Converts only the low quadword of the source. The upper lanes are set to zero before the conversion, so these
/// lanes raise no exceptions.
fn to_mm_low<V: VectorOp>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse_and_mmx()?;
    let source = core.xmm(op.r1) as u64;
    convert_to_mm::<V>(core, op, source.into())
}

fn to_mm<V: VectorOp>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse_and_mmx()?;
    let source = core.xmm(op.r1);
    convert_to_mm::<V>(core, op, source)
}

fn to_mm_half<V: VectorOp>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse_and_mmx()?;
    let source = core.load_quad(bus, op)?;
    convert_to_mm::<V>(core, op, source.into())
}

fn to_mm_whole<V: VectorOp>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse_and_mmx()?;
    let source = core.load_aligned(bus, op)?;
    convert_to_mm::<V>(core, op, source)
}
