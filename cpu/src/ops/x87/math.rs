//! FCHS, FABS, FSQRT, FRNDINT, FSCALE, FXTRACT, FPREM, FPREM1 and the transcendental instructions (SDM vol. 2 under
//! those names).

use softfloat::x87::{self, Angle, C1, C2, F80, Pair, Remainder, X87Env};

use super::unit::Outcome;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

type Unary = fn(&mut X87Env, F80) -> Option<F80>;
type Binary = fn(&mut X87Env, F80, F80) -> Option<F80>;
type Partial = fn(&mut X87Env, F80, F80) -> Option<Remainder>;

const NO_PAIR: Pair = Pair { replaced: F80::INDEFINITE, pushed: F80::INDEFINITE };

/// `ST(0) = function(ST(0))`.
fn unary(core: &mut Core, op: &Op, function: Unary) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operand(0) {
            Some(a) => Outcome::compute(fpu, |env| function(env, a)),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_to(0, outcome, 0);
    })
}

/// `ST(to) = function(ST(0), ST(1))`, then pops.
fn binary(core: &mut Core, op: &Op, to: u8, pops: u8, function: Binary) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operands(0, 1) {
            Some((a, b)) => Outcome::compute(fpu, |env| function(env, a, b)),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_to(to, outcome, pops);
    })
}

/// FPREM and FPREM1. C1 and C2 are cleared even if there is no result.
fn remainder(core: &mut Core, op: &Op, function: Partial) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let no_remainder = Remainder { value: F80::INDEFINITE, condition_codes: 0, written: C1 | C2 };
        let outcome = match fpu.operands(0, 1) {
            Some((a, b)) => Outcome::compute(fpu, |env| function(env, a, b)),
            None => Outcome::underflow(fpu, no_remainder),
        };
        fpu.set_codes(C2, 0);
        if let Some(remainder) = fpu.commit(outcome) {
            fpu.set_codes(remainder.written, remainder.condition_codes);
            fpu.set_st(0, remainder.value);
        }
    })
}

/// The outcome of an instruction that replaces ST(0) and pushes another value.
fn replacing_and_pushing<T>(
    fpu: &FpuState,
    response: T,
    function: impl FnOnce(&mut X87Env, F80) -> Option<T>,
) -> Outcome<T> {
    match fpu.operand(0) {
        None => Outcome::underflow(fpu, response),
        Some(_) if !fpu.is_empty(7) => Outcome::overflow(fpu, response),
        Some(a) => Outcome::compute(fpu, |env| function(env, a)),
    }
}

fn replace_and_push(fpu: &mut FpuState, pair: Pair) {
    fpu.set_st(0, pair.replaced);
    fpu.push(pair.pushed);
}

fn fxtract(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = replacing_and_pushing(fpu, NO_PAIR, x87::extract);
        if let Some(pair) = fpu.commit(outcome) {
            replace_and_push(fpu, pair);
        }
    })
}

/// Sets C2 if the angle was out of range and clears C2 otherwise. If there is a result, calls `deliver` with the
/// result.
fn commit_angle<T>(fpu: &mut FpuState, outcome: Outcome<Angle<T>>, deliver: impl FnOnce(&mut FpuState, T)) {
    match fpu.commit(outcome) {
        Some(Angle::OutOfRange) => fpu.set_codes(C2, C2),
        Some(Angle::InRange(value)) => {
            fpu.set_codes(C2, 0);
            deliver(fpu, value);
        }
        None => fpu.set_codes(C2, 0),
    }
}

/// FSIN, FCOS.
fn of_angle(core: &mut Core, op: &Op, function: fn(&mut X87Env, F80) -> Option<Angle<F80>>) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operand(0) {
            Some(a) => Outcome::compute(fpu, |env| function(env, a)),
            None => Outcome::underflow(fpu, Angle::InRange(F80::INDEFINITE)),
        };
        commit_angle(fpu, outcome, |fpu, value| fpu.set_st(0, value));
    })
}

/// FSINCOS, FPTAN.
fn pair_of_angle(core: &mut Core, op: &Op, function: fn(&mut X87Env, F80) -> Option<Angle<Pair>>) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = replacing_and_pushing(fpu, Angle::InRange(NO_PAIR), function);
        commit_angle(fpu, outcome, replace_and_push);
    })
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Code::*;
    let handler: Handler = match insn.code() {
        Fchs => |core, _, op| unary(core, op, |_, a| Some(x87::change_sign(a))),
        Fabs => |core, _, op| unary(core, op, |_, a| Some(x87::abs(a))),
        Fsqrt => |core, _, op| unary(core, op, x87::sqrt),
        Frndint => |core, _, op| unary(core, op, x87::round_to_integer),
        F2xm1 => |core, _, op| unary(core, op, x87::f2xm1),
        Fscale => |core, _, op| binary(core, op, 0, 0, x87::scale),
        Fpatan => |core, _, op| binary(core, op, 1, 1, x87::fpatan),
        Fyl2x => |core, _, op| binary(core, op, 1, 1, x87::fyl2x),
        Fyl2xp1 => |core, _, op| binary(core, op, 1, 1, x87::fyl2xp1),
        Fprem => |core, _, op| remainder(core, op, x87::prem),
        Fprem1 => |core, _, op| remainder(core, op, x87::prem1),
        Fsin => |core, _, op| of_angle(core, op, x87::fsin),
        Fcos => |core, _, op| of_angle(core, op, x87::fcos),
        Fsincos => |core, _, op| pair_of_angle(core, op, x87::fsincos),
        Fptan => |core, _, op| pair_of_angle(core, op, x87::fptan),
        Fxtract => fxtract,
        _ => return None,
    };
    Some(Op::new(handler))
}
