//! Floating-point arithmetic and comparison with the `softfloat` crate. Each instruction has its own [`SseEnv`],
//! which collects exception flags. At the instruction's end, the flags are set in MXCSR. An unmasked exception
//! raises #XM and leaves the destination unchanged.

use std::marker::PhantomData;

use cpu_model::registers::cr4;
use iced_x86::Mnemonic;
use softfloat::sse::{self, Host, Predicate, SseEnv, Unmasked};

use crate::bus::Bus;
use crate::core::Core;
use crate::exception;
use crate::exception::{Break, Res};
use crate::flags::LazyFlags;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::simd::lanes::{Lane, build};

/// The bits of one floating-point number in a register.
pub(super) trait Element: Host + Lane {
    /// The lane as the low bits of a `u64`.
    fn to_u64(self) -> u64;
    /// The low bits of a `u64` as a lane.
    fn from_u64(bits: u64) -> Self;
    /// Loads the op's memory operand.
    fn load(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<Self>;
    /// The low lane of a register.
    fn low(core: &Core, register: u8) -> Self;
    /// Replaces the low lane of a register.
    fn set_low(self, core: &mut Core, register: u8);
}

macro_rules! element {
    ($type:ty, $load:ident, $set_low:ident) => {
        impl Element for $type {
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self.into()
            }
            #[inline(always)]
            fn from_u64(bits: u64) -> $type {
                bits as $type
            }
            #[inline(always)]
            fn load(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<$type> {
                core.$load(bus, op)
            }
            #[inline(always)]
            fn low(core: &Core, register: u8) -> $type {
                core.xmm(register) as $type
            }
            #[inline(always)]
            fn set_low(self, core: &mut Core, register: u8) {
                core.$set_low(register, self);
            }
        }
    };
}
element!(u32, load_double, set_xmm_low32);
element!(u64, load_quad, set_xmm_low64);

impl Core {
    /// A new floating-point environment for the running instruction.
    #[inline(always)]
    pub(super) fn sse_env(&self) -> SseEnv {
        SseEnv::new(self.state.mxcsr)
    }

    /// Sets the instruction's exception flags in MXCSR. Raises #XM for an unmasked exception.
    #[inline(always)]
    pub(super) fn finish_sse(&mut self, env: SseEnv) -> Res<()> {
        match env.finish() {
            Ok(mxcsr) => {
                self.state.mxcsr = mxcsr;
                Ok(())
            }
            Err(unmasked) => Err(self.simd_error(unmasked)),
        }
    }

    #[cold]
    #[inline(never)]
    fn simd_error(&mut self, unmasked: Unmasked) -> Break {
        self.state.mxcsr = unmasked.mxcsr;
        if self.state.cr4 & cr4::OSXMMEXCPT != 0 { self.fault(exception::XM) } else { self.ud() }
    }
}

/// An operation on one lane: `a` is the destination's lane, `b` the source's.
trait LaneOp: 'static {
    fn lane<T: Element>(env: &mut SseEnv, a: T, b: T, imm: u8) -> T;
}

/// An operation on whole registers.
pub(super) trait VectorOp: 'static {
    fn apply(env: &mut SseEnv, a: [u8; 16], b: [u8; 16], imm: u8) -> [u8; 16];
}

macro_rules! lane_ops {
    ($($name:ident = |$env:pat_param, $a:pat_param, $b:pat_param, $imm:pat_param| $body:expr;)*) => {$(
        struct $name;
        impl LaneOp for $name {
            #[inline(always)]
            fn lane<T: Element>($env: &mut SseEnv, $a: T, $b: T, $imm: u8) -> T {
                $body
            }
        }
    )*};
}

lane_ops! {
    Add = |env, a, b, _| sse::add(env, a, b);
    Sub = |env, a, b, _| sse::sub(env, a, b);
    Mul = |env, a, b, _| sse::mul(env, a, b);
    Div = |env, a, b, _| sse::div(env, a, b);
    Min = |env, a, b, _| sse::min(env, a, b);
    Max = |env, a, b, _| sse::max(env, a, b);
    Sqrt = |env, _, b, _| sse::sqrt(env, b);
    Round = |env, _, b, imm| sse::round_to_integral(env, b, imm);
    Cmp = |env, a, b, imm| if sse::compare(env, a, b, Predicate::sse(imm)) { T::ONES } else { T::ZERO };
    Rcp = |_, _, b, _| T::from_u64(sse::reciprocal(b.to_u64() as u32).into());
    Rsqrt = |_, _, b, _| T::from_u64(sse::reciprocal_square_root(b.to_u64() as u32).into());
}

/// Applies a lane operation to every lane.
struct Each<O, T>(PhantomData<(O, T)>);

impl<O: LaneOp, T: Element> VectorOp for Each<O, T> {
    #[inline(always)]
    fn apply(env: &mut SseEnv, a: [u8; 16], b: [u8; 16], imm: u8) -> [u8; 16] {
        build(|n| O::lane(env, T::get(&a, n), T::get(&b, n), imm))
    }
}

/// HADDPx and HSUBPx: applies a lane operation to pairs of neighbouring lanes. The results for the pairs of `a`
/// come first, then the results for `b`.
struct Pairs<O, T>(PhantomData<(O, T)>);

impl<O: LaneOp, T: Element> VectorOp for Pairs<O, T> {
    fn apply(env: &mut SseEnv, a: [u8; 16], b: [u8; 16], imm: u8) -> [u8; 16] {
        let half = 8 / T::BYTES;
        build(|n| {
            let (source, pair) = if n < half { (&a, n) } else { (&b, n - half) };
            O::lane(env, T::get(source, 2 * pair), T::get(source, 2 * pair + 1), imm)
        })
    }
}

/// ADDSUBPx: even lanes are subtracted, odd ones added.
struct AddSub<T>(PhantomData<T>);

impl<T: Element> VectorOp for AddSub<T> {
    fn apply(env: &mut SseEnv, a: [u8; 16], b: [u8; 16], _: u8) -> [u8; 16] {
        build(|n| {
            let (x, y) = (T::get(&a, n), T::get(&b, n));
            if n & 1 == 0 { sse::sub(env, x, y) } else { sse::add(env, x, y) }
        })
    }
}

/// DPPS and DPPD. The result of each step of the dot product is rounded. An unmasked exception in a step prevents
/// the next step, and leaves the flags of earlier steps in MXCSR. If both operands of an addition are NaNs, the
/// result depends on their order, which the manual leaves open. Each lane uses the same order as on real
/// processors.
struct DotProduct<T>(PhantomData<T>);

impl DotProduct<u32> {
    fn sums(env: &mut SseEnv, products: [u8; 16]) -> [u8; 16] {
        let pairs: [u8; 16] = build(|n| sse::add(env, u32::get(&products, n ^ 1), u32::get(&products, n)));
        if !next_step(env) {
            return pairs;
        }
        build(|n| sse::add(env, u32::get(&pairs, n), u32::get(&pairs, n ^ 2)))
    }
}

impl DotProduct<u64> {
    fn sums(env: &mut SseEnv, products: [u8; 16]) -> [u8; 16] {
        build(|n| sse::add(env, u64::get(&products, n), u64::get(&products, n ^ 1)))
    }
}

/// Sets the exception flags of a step in MXCSR. Returns `false` if the step raised an unmasked exception, which
/// prevents the next step.
fn next_step(env: &mut SseEnv) -> bool {
    let Ok(mxcsr) = env.finish() else { return false };
    *env = SseEnv::new(mxcsr);
    true
}

macro_rules! dot_product {
    ($type:ty) => {
        impl VectorOp for DotProduct<$type> {
            fn apply(env: &mut SseEnv, a: [u8; 16], b: [u8; 16], imm: u8) -> [u8; 16] {
                let products: [u8; 16] = build(|n| match imm >> (4 + n) & 1 {
                    0 => 0,
                    _ => sse::mul(env, <$type>::get(&a, n), <$type>::get(&b, n)),
                });
                if !next_step(env) {
                    return products;
                }
                let sums = Self::sums(env, products);
                build(|n| if imm >> n & 1 != 0 { <$type>::get(&sums, n) } else { 0 })
            }
        }
    };
}
dot_product!(u32);
dot_product!(u64);

#[inline(always)]
fn apply<V: VectorOp>(core: &mut Core, op: &Op, source: [u8; 16]) -> Res<()> {
    let mut env = core.sse_env();
    let result = V::apply(&mut env, core.xmm_bytes(op.r0), source, op.imm as u8);
    core.finish_sse(env)?;
    core.set_xmm_bytes(op.r0, result);
    Ok(())
}

/// A vector operation on registers.
pub(super) fn packed_reg<V: VectorOp>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    apply::<V>(core, op, core.xmm_bytes(op.r1))
}

/// A vector operation with an aligned 16-byte memory operand.
pub(super) fn packed_mem<V: VectorOp>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_aligned(bus, op)?;
    apply::<V>(core, op, source.to_le_bytes())
}

/// A vector operation with an 8-byte memory operand.
pub(super) fn packed_half<V: VectorOp>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_quad(bus, op)?;
    apply::<V>(core, op, u128::from(source).to_le_bytes())
}

#[inline(always)]
fn apply_low<O: LaneOp, T: Element>(core: &mut Core, op: &Op, source: T) -> Res<()> {
    let mut env = core.sse_env();
    let result = O::lane(&mut env, T::low(core, op.r0), source, op.imm as u8);
    core.finish_sse(env)?;
    result.set_low(core, op.r0);
    Ok(())
}

fn scalar_reg<O: LaneOp, T: Element>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    apply_low::<O, T>(core, op, T::low(core, op.r1))
}

fn scalar_mem<O: LaneOp, T: Element>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = T::load(core, bus, op)?;
    apply_low::<O, T>(core, op, source)
}

#[inline(always)]
fn set_order<T: Element, const QUIET: bool>(core: &mut Core, op: &Op, source: T) -> Res<()> {
    let mut env = core.sse_env();
    let a = T::low(core, op.r0);
    let relation = if QUIET { sse::ucomi(&mut env, a, source) } else { sse::comi(&mut env, a, source) };
    core.finish_sse(env)?;
    core.flags = LazyFlags::from_bits(relation.eflags().into());
    Ok(())
}

fn comi_reg<T: Element, const QUIET: bool>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    set_order::<T, QUIET>(core, op, T::low(core, op.r1))
}

fn comi_mem<T: Element, const QUIET: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = T::load(core, bus, op)?;
    set_order::<T, QUIET>(core, op, source)
}

/// The handlers of an instruction's register form and memory form.
type Pair = (Handler, Handler);

const fn packed<V: VectorOp>() -> Pair {
    (packed_reg::<V>, packed_mem::<V>)
}

const fn each<O: LaneOp, T: Element>() -> Pair {
    packed::<Each<O, T>>()
}

const fn scalar<O: LaneOp, T: Element>() -> Pair {
    (scalar_reg::<O, T>, scalar_mem::<O, T>)
}

const fn comi<T: Element, const QUIET: bool>() -> Pair {
    (comi_reg::<T, QUIET>, comi_mem::<T, QUIET>)
}

fn handlers(mnemonic: Mnemonic) -> Option<Pair> {
    use Mnemonic as M;
    Some(match mnemonic {
        M::Addps => each::<Add, u32>(),
        M::Addpd => each::<Add, u64>(),
        M::Addss => scalar::<Add, u32>(),
        M::Addsd => scalar::<Add, u64>(),
        M::Subps => each::<Sub, u32>(),
        M::Subpd => each::<Sub, u64>(),
        M::Subss => scalar::<Sub, u32>(),
        M::Subsd => scalar::<Sub, u64>(),
        M::Mulps => each::<Mul, u32>(),
        M::Mulpd => each::<Mul, u64>(),
        M::Mulss => scalar::<Mul, u32>(),
        M::Mulsd => scalar::<Mul, u64>(),
        M::Divps => each::<Div, u32>(),
        M::Divpd => each::<Div, u64>(),
        M::Divss => scalar::<Div, u32>(),
        M::Divsd => scalar::<Div, u64>(),
        M::Minps => each::<Min, u32>(),
        M::Minpd => each::<Min, u64>(),
        M::Minss => scalar::<Min, u32>(),
        M::Minsd => scalar::<Min, u64>(),
        M::Maxps => each::<Max, u32>(),
        M::Maxpd => each::<Max, u64>(),
        M::Maxss => scalar::<Max, u32>(),
        M::Maxsd => scalar::<Max, u64>(),
        M::Sqrtps => each::<Sqrt, u32>(),
        M::Sqrtpd => each::<Sqrt, u64>(),
        M::Sqrtss => scalar::<Sqrt, u32>(),
        M::Sqrtsd => scalar::<Sqrt, u64>(),
        M::Roundps => each::<Round, u32>(),
        M::Roundpd => each::<Round, u64>(),
        M::Roundss => scalar::<Round, u32>(),
        M::Roundsd => scalar::<Round, u64>(),
        M::Cmpps => each::<Cmp, u32>(),
        M::Cmppd => each::<Cmp, u64>(),
        M::Cmpss => scalar::<Cmp, u32>(),
        M::Cmpsd => scalar::<Cmp, u64>(),
        M::Rcpps => each::<Rcp, u32>(),
        M::Rcpss => scalar::<Rcp, u32>(),
        M::Rsqrtps => each::<Rsqrt, u32>(),
        M::Rsqrtss => scalar::<Rsqrt, u32>(),
        M::Haddps => packed::<Pairs<Add, u32>>(),
        M::Haddpd => packed::<Pairs<Add, u64>>(),
        M::Hsubps => packed::<Pairs<Sub, u32>>(),
        M::Hsubpd => packed::<Pairs<Sub, u64>>(),
        M::Addsubps => packed::<AddSub<u32>>(),
        M::Addsubpd => packed::<AddSub<u64>>(),
        M::Dpps => packed::<DotProduct<u32>>(),
        M::Dppd => packed::<DotProduct<u64>>(),
        M::Comiss => comi::<u32, false>(),
        M::Comisd => comi::<u64, false>(),
        M::Ucomiss => comi::<u32, true>(),
        M::Ucomisd => comi::<u64, true>(),
        _ => return None,
    })
}

/// Lowers arithmetic and comparisons.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    // CMPSD is also a string instruction, which has no register operands.
    if !insn.raw.op0_register().is_xmm() {
        return None;
    }
    let (register, memory) = handlers(insn.mnemonic())?;
    let mut op = Op::new(register).r0(insn.register(0));
    if insn.is_memory(1) {
        op.handler = memory;
        op = insn.address(op);
    } else {
        op = op.r1(insn.register(1));
    }
    if insn.is_immediate(2) {
        op = op.imm(insn.immediate(2) & 0xff);
    }
    Some(op)
}
