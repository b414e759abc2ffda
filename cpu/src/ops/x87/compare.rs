//! FCOM, FUCOM, FICOM, FTST, FXAM, FCOMI and FUCOMI, with their popping forms (SDM vol. 2 under those names).
//!
//! An unmasked exception does not stop processors from writing the condition codes, but it prevents the pop.

use softfloat::Relation;
use softfloat::x87::{self, C0, C1, C2, C3, F80};

use super::arith::{Double, Dword, Single, Source, Word};
use super::unit::Outcome;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::LazyFlags;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

/// A comparison's relation and outcome. If the outcome has a value, the popping forms pop.
type Compared = (Relation, Outcome<()>);

/// Compares ST(0) with ST(i).
fn with_register<const QUIET: bool>(fpu: &FpuState, st: u8) -> Compared {
    match fpu.operands(0, st) {
        Some((a, b)) if QUIET => relation_of(fpu, |env| x87::compare_unordered(env, a, b)),
        Some((a, b)) => relation_of(fpu, |env| x87::compare_ordered(env, a, b)),
        None => (Relation::Unordered, Outcome::underflow(fpu, ())),
    }
}

fn relation_of(fpu: &FpuState, compare: impl FnOnce(&mut x87::X87Env) -> Relation) -> Compared {
    let mut relation = Relation::Unordered;
    let outcome = Outcome::compute(fpu, |env| {
        relation = compare(env);
        (env.unmasked() == 0).then_some(())
    });
    (relation, outcome)
}

/// Sets the condition codes for the relation. Then pops `pops` registers, unless an unmasked exception prevents
/// this.
fn finish(fpu: &mut FpuState, (relation, outcome): Compared, pops: u8) {
    fpu.set_codes(C0 | C2 | C3, relation.condition_codes());
    if fpu.commit(outcome).is_some() {
        fpu.pop(pops);
    }
}

/// FCOM, FUCOM with a register.
fn registers<const QUIET: bool>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let compared = with_register::<QUIET>(fpu, op.r1);
        finish(fpu, compared, op.aux);
    })
}

/// FCOMI, FUCOMI.
fn registers_to_flags<const QUIET: bool>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let (relation, outcome) = with_register::<QUIET>(&core.state.fpu, op.r1);
        core.flags = LazyFlags::from_bits(u64::from(relation.eflags()));
        if core.state.fpu.commit_keeping_c1(outcome).is_some() {
            core.state.fpu.pop(op.aux);
        }
    })
}

/// FCOM, FICOM with memory.
fn memory<S: Source>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let load = |core: &mut Core, bus: &mut dyn Bus, address| core.load_sized(bus, address, S::BYTES);
    core.x87_run_load(bus, op, S::BYTES, load, |fpu, raw| {
        let compared = match fpu.operand(0) {
            Some(a) => relation_of(fpu, |env| x87::compare_ordered(env, a, S::operand(raw))),
            None => (Relation::Unordered, Outcome::underflow(fpu, ())),
        };
        finish(fpu, compared, op.aux);
    })
}

fn ftst(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let compared = match fpu.operand(0) {
            Some(a) => relation_of(fpu, |env| x87::compare_ordered(env, a, F80::ZERO)),
            None => (Relation::Unordered, Outcome::underflow(fpu, ())),
        };
        finish(fpu, compared, 0);
    })
}

fn fxam(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let mut codes = x87::examine(fpu.st(0));
        if fpu.is_empty(0) {
            codes = codes & C1 | C3 | C0;
        }
        fpu.set_codes(C0 | C1 | C2 | C3, codes);
    })
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use iced_x86::Code::*;
    let (handler, pops): (Handler, u8) = match insn.code() {
        Fcom_st0_sti | Fcom_st0_sti_DCD0 => (registers::<false>, 0),
        Fcomp_st0_sti | Fcomp_st0_sti_DCD8 | Fcomp_st0_sti_DED0 => (registers::<false>, 1),
        Fucom_st0_sti => (registers::<true>, 0),
        Fucomp_st0_sti => (registers::<true>, 1),
        Fcompp => return Some(Op::new(registers::<false>).r1(1).aux(2)),
        Fucompp => return Some(Op::new(registers::<true>).r1(1).aux(2)),
        Fcomi_st0_sti => (registers_to_flags::<false>, 0),
        Fcomip_st0_sti => (registers_to_flags::<false>, 1),
        Fucomi_st0_sti => (registers_to_flags::<true>, 0),
        Fucomip_st0_sti => (registers_to_flags::<true>, 1),
        Fcom_m32fp => (memory::<Single>, 0),
        Fcomp_m32fp => (memory::<Single>, 1),
        Fcom_m64fp => (memory::<Double>, 0),
        Fcomp_m64fp => (memory::<Double>, 1),
        Ficom_m16int => (memory::<Word>, 0),
        Ficomp_m16int => (memory::<Word>, 1),
        Ficom_m32int => (memory::<Dword>, 0),
        Ficomp_m32int => (memory::<Dword>, 1),
        Ftst => return Some(Op::new(ftst)),
        Fxam => return Some(Op::new(fxam)),
        _ => return None,
    };
    let source = if insn.is_register(1) { insn.register(1) } else { 0 };
    Some(Op::new(handler).r1(source).aux(pops))
}
