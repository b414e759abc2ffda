//! FLD, FILD, FBLD, the constants, FST and FSTP to registers, FXCH, FCMOVcc (SDM vol. 2 under those names).

use iced_x86::Code;
use softfloat::x87::{self, C1, Constant, F80, X87Env};

use super::unit::Outcome;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::state::FpuState;

/// The format of a memory operand that an instruction converts and pushes.
trait Load: 'static {
    const BYTES: u64;
    fn value(env: &mut X87Env, bytes: [u8; 10]) -> Option<F80>;
}

macro_rules! loads {
    ($($name:ident, $bytes:literal, |$env:pat_param, $raw:ident| $value:expr;)*) => {
        $(struct $name;

        impl Load for $name {
            const BYTES: u64 = $bytes;
            #[inline(always)]
            fn value($env: &mut X87Env, bytes: [u8; 10]) -> Option<F80> {
                let $raw = low_quadword(bytes);
                $value
            }
        })*
    };
}

loads! {
    Single, 4, |env, raw| x87::from_f32(env, raw as u32);
    Double, 8, |env, raw| x87::from_f64(env, raw);
    Word, 2, |_, raw| Some(x87::from_i64(i64::from(raw as i16)));
    Dword, 4, |_, raw| Some(x87::from_i64(i64::from(raw as i32)));
    Qword, 8, |_, raw| Some(x87::from_i64(raw as i64));
}

/// Alignment of 10-byte operands, in bytes (SDM vol. 3, table 6-7).
const EXTENDED_ALIGNMENT: u64 = 8;

struct Extended;

impl Load for Extended {
    const BYTES: u64 = 10;
    fn value(_: &mut X87Env, bytes: [u8; 10]) -> Option<F80> {
        Some(F80::from_bytes(bytes))
    }
}

struct Decimal;

impl Load for Decimal {
    const BYTES: u64 = 10;
    fn value(_: &mut X87Env, bytes: [u8; 10]) -> Option<F80> {
        Some(x87::from_bcd(bytes))
    }
}

fn low_quadword(bytes: [u8; 10]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

/// The outcome of a push of the computed value, or of a stack overflow if the register for the push is not empty.
fn pushing(fpu: &FpuState, compute: impl FnOnce(&mut X87Env) -> Option<F80>) -> Outcome<F80> {
    if fpu.is_empty(7) { Outcome::compute(fpu, compute) } else { Outcome::overflow(fpu, F80::INDEFINITE) }
}

fn load<L: Load>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let read = |core: &mut Core, bus: &mut dyn Bus, address| {
        let mut bytes = [0; 10];
        if L::BYTES > 8 {
            core.check_aligned_read(address, L::BYTES, EXTENDED_ALIGNMENT)?;
            core.load_bytes(bus, address, &mut bytes)?;
        } else {
            bytes[..8].copy_from_slice(&core.load_sized(bus, address, L::BYTES)?.to_le_bytes());
        }
        Ok(bytes)
    };
    core.x87_run_load(bus, op, L::BYTES, read, |fpu, bytes| {
        let outcome = pushing(fpu, |env| L::value(env, bytes));
        fpu.commit_push(outcome);
    })
}

/// FLD ST(i).
fn load_register(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operand(op.r0) {
            Some(value) => pushing(fpu, |_| Some(value)),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_push(outcome);
    })
}

/// FLD1 and the other instructions that push a constant. `aux` is the low three bits of the instruction's last
/// byte.
fn load_constant(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    const CONSTANTS: [Constant; 8] = [
        Constant::One,
        Constant::Log2Of10,
        Constant::Log2OfE,
        Constant::Pi,
        Constant::Log10Of2,
        Constant::LnOf2,
        Constant::Zero,
        Constant::Zero,
    ];
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let constant = CONSTANTS[usize::from(op.aux & 7)];
        let outcome = pushing(fpu, |env| Some(x87::load_constant(env, constant)));
        fpu.commit_push(outcome);
    })
}

/// FST, FSTP to ST(i).
fn store_register(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operand(0) {
            Some(value) => Outcome::exact(value),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        fpu.commit_to(op.r0, outcome, op.aux);
    })
}

/// FSTPNCE, an undocumented FSTP without the check for an empty register. If ST(0) is empty, the instruction only
/// pops.
fn store_register_unchecked(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        fpu.set_codes(C1, 0);
        if let Some(value) = fpu.operand(0) {
            fpu.set_st(op.r0, value);
        }
        fpu.pop(1);
    })
}

/// FXCH. If a register is empty and #IS is masked, the register first gets the indefinite value; then the registers
/// are exchanged.
fn exchange(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let fpu = &mut core.state.fpu;
        let filled = |st| fpu.operand(st).unwrap_or(F80::INDEFINITE);
        let values = (filled(0), filled(op.r1));
        let outcome = match fpu.operands(0, op.r1) {
            Some(_) => Outcome::exact(values),
            None => Outcome::underflow(fpu, values),
        };
        if let Some((first, second)) = fpu.commit(outcome) {
            fpu.set_st(0, second);
            fpu.set_st(op.r1, first);
        }
    })
}

/// FCMOVcc. `CC` is the condition's number, as in Jcc. An empty register causes a stack underflow, whether the
/// condition is true or not.
fn conditional_move<const CC: u8>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    core.x87_run(op, |core| {
        let holds = core.flags.condition::<CC>();
        let fpu = &mut core.state.fpu;
        let outcome = match fpu.operands(0, op.r1) {
            Some((old, new)) => Outcome::exact(if holds { new } else { old }),
            None => Outcome::underflow(fpu, F80::INDEFINITE),
        };
        if let Some(value) = fpu.commit_keeping_c1(outcome) {
            fpu.set_st(0, value);
        }
    })
}

fn memory_handler(code: Code) -> Option<Handler> {
    use Code::*;
    Some(match code {
        Fld_m32fp => load::<Single>,
        Fld_m64fp => load::<Double>,
        Fld_m80fp => load::<Extended>,
        Fild_m16int => load::<Word>,
        Fild_m32int => load::<Dword>,
        Fild_m64int => load::<Qword>,
        Fbld_m80bcd => load::<Decimal>,
        _ => return None,
    })
}

fn conditional_handler(code: Code) -> Option<Handler> {
    use Code::*;
    Some(match code {
        Fcmovb_st0_sti => conditional_move::<2>,
        Fcmovnb_st0_sti => conditional_move::<3>,
        Fcmove_st0_sti => conditional_move::<4>,
        Fcmovne_st0_sti => conditional_move::<5>,
        Fcmovbe_st0_sti => conditional_move::<6>,
        Fcmovnbe_st0_sti => conditional_move::<7>,
        Fcmovu_st0_sti => conditional_move::<10>,
        Fcmovnu_st0_sti => conditional_move::<11>,
        _ => return None,
    })
}

fn constant_number(code: Code) -> Option<u8> {
    use Code::*;
    Some(match code {
        Fld1 => 0,
        Fldl2t => 1,
        Fldl2e => 2,
        Fldpi => 3,
        Fldlg2 => 4,
        Fldln2 => 5,
        Fldz => 6,
        _ => return None,
    })
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    use Code::*;
    let code = insn.code();
    if let Some(handler) = memory_handler(code) {
        return Some(Op::new(handler));
    }
    if let Some(handler) = conditional_handler(code) {
        return Some(Op::new(handler).r1(insn.register(1)));
    }
    if let Some(number) = constant_number(code) {
        return Some(Op::new(load_constant).aux(number));
    }
    Some(match code {
        Fld_sti => Op::new(load_register).r0(insn.register(0)),
        Fst_sti => Op::new(store_register).r0(insn.register(0)),
        Fstp_sti | Fstp_sti_DFD0 | Fstp_sti_DFD8 => Op::new(store_register).r0(insn.register(0)).aux(1),
        Fstpnce_sti => Op::new(store_register_unchecked).r0(insn.register(0)),
        Fxch_st0_sti | Fxch_st0_sti_DDC8 | Fxch_st0_sti_DFC8 => Op::new(exchange).r1(insn.register(1)),
        _ => return None,
    })
}
