//! FADD, FSUB, FSUBR, FMUL, FDIV and FDIVR with their popping and integer forms (SDM vol. 2 under those names).

use iced_x86::Code;
use softfloat::x87::{self, F80, Operand, X87Env};

use super::unit::Outcome;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};

/// `destination <op> source`.
trait Operation: 'static {
    fn compute(env: &mut X87Env, destination: Operand, source: Operand) -> Option<F80>;
}

macro_rules! operations {
    ($($name:ident: |$a:ident, $b:ident| $function:ident($first:ident, $second:ident);)*) => {
        $(struct $name;

        impl Operation for $name {
            #[inline(always)]
            fn compute(env: &mut X87Env, $a: Operand, $b: Operand) -> Option<F80> {
                x87::$function(env, $first, $second)
            }
        })*
    };
}

operations! {
    Sum: |a, b| add(a, b);
    Subtract: |a, b| sub(a, b);
    SubtractReversed: |a, b| sub(b, a);
    Multiply: |a, b| mul(a, b);
    Divide: |a, b| div(a, b);
    DivideReversed: |a, b| div(b, a);
}

/// The format of a memory operand that is a source of arithmetic.
pub(super) trait Source: 'static {
    const BYTES: u64;
    fn operand(raw: u64) -> Operand;
}

macro_rules! sources {
    ($($name:ident, $bytes:literal, |$raw:ident| $operand:expr;)*) => {
        $(#[doc = concat!("A memory operand of ", stringify!($bytes), " bytes.")]
        pub(super) struct $name;

        impl Source for $name {
            const BYTES: u64 = $bytes;
            #[inline(always)]
            fn operand($raw: u64) -> Operand {
                $operand
            }
        })*
    };
}

sources! {
    Single, 4, |raw| Operand::from_f32(raw as u32);
    Double, 8, |raw| Operand::from_f64(raw);
    Word, 2, |raw| Operand::from_integer(i64::from(raw as i16));
    Dword, 4, |raw| Operand::from_integer(i64::from(raw as i32));
}

/// Computes `ST(r0) <op>= ST(r1)`, then pops `aux` registers.
fn registers<O: Operation>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operands(op.r0, op.r1) {
            Some((a, b)) => Outcome::compute(fpu, |env| O::compute(env, a.into(), b.into())),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_to(op.r0, outcome, op.aux);
    })
}

/// Computes `ST(0) <op>= memory`.
fn memory<O: Operation, S: Source>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let load = |core: &mut Core, bus: &mut dyn Bus, address| core.load_sized(bus, address, S::BYTES);
    core.x87_run_load(bus, op, S::BYTES, load, |fpu, raw| {
        let outcome = match fpu.operand(0) {
            Some(a) => Outcome::compute(fpu, |env| O::compute(env, a.into(), S::operand(raw))),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_to(0, outcome, 0);
    })
}

fn memory_handler<O: Operation>(code: Code) -> Option<Handler> {
    use Code::*;
    Some(match code {
        Fadd_m32fp | Fsub_m32fp | Fsubr_m32fp | Fmul_m32fp | Fdiv_m32fp | Fdivr_m32fp => memory::<O, Single>,
        Fadd_m64fp | Fsub_m64fp | Fsubr_m64fp | Fmul_m64fp | Fdiv_m64fp | Fdivr_m64fp => memory::<O, Double>,
        Fiadd_m16int | Fisub_m16int | Fisubr_m16int | Fimul_m16int | Fidiv_m16int | Fidivr_m16int => {
            memory::<O, Word>
        }
        Fiadd_m32int | Fisub_m32int | Fisubr_m32int | Fimul_m32int | Fidiv_m32int | Fidivr_m32int => {
            memory::<O, Dword>
        }
        _ => return None,
    })
}

fn lower_as<O: Operation>(insn: &Insn<'_>, pops: u8) -> Option<Op> {
    match memory_handler::<O>(insn.code()) {
        Some(handler) => Some(Op::new(handler)),
        None => Some(Op::new(registers::<O>).r0(insn.register(0)).r1(insn.register(1)).aux(pops)),
    }
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Mnemonic::*;
    match insn.mnemonic() {
        Fadd | Fiadd => lower_as::<Sum>(insn, 0),
        Fsub | Fisub => lower_as::<Subtract>(insn, 0),
        Fsubr | Fisubr => lower_as::<SubtractReversed>(insn, 0),
        Fmul | Fimul => lower_as::<Multiply>(insn, 0),
        Fdiv | Fidiv => lower_as::<Divide>(insn, 0),
        Fdivr | Fidivr => lower_as::<DivideReversed>(insn, 0),
        Faddp => lower_as::<Sum>(insn, 1),
        Fsubp => lower_as::<Subtract>(insn, 1),
        Fsubrp => lower_as::<SubtractReversed>(insn, 1),
        Fmulp => lower_as::<Multiply>(insn, 1),
        Fdivp => lower_as::<Divide>(insn, 1),
        Fdivrp => lower_as::<DivideReversed>(insn, 1),
        _ => None,
    }
}
