//! Compares every x87 operation that has a defined result with the processor: result, exception flags and condition
//! codes. Cases cover every rounding mode, precision control and set of masks.

use crate::cases;
use crate::is_intel;
use crate::x87_native::{self as native, Before, Instruction, State};
use seeded::Operands;
use softfloat::Relation;
use softfloat::x87::{self, C0, C1, C2, C3, Constant, F80, Pair, Remainder, X87Env};
use std::fmt::Debug;

const BASE: u32 = 100_000;
/// All condition codes.
const ALL: u16 = C0 | C1 | C2 | C3;
/// TOP after the two operands were loaded.
const TOP_BEFORE: u16 = 6;
const UNTOUCHED: [u8; 10] = [0xa5; 10];

/// A random state before an instruction, with any rounding mode and any precision control. A quarter of the states
/// have random exception masks, and the others mask all exceptions.
pub fn random_before(random: &mut Operands) -> Before {
    let masks = if random.below(4) == 0 { random.below(64) as u16 } else { 0x3f };
    let precision = [0u16, 2, 3, 3, 1][random.below(5) as usize];
    let control = 0x40 | masks | precision << 8 | (random.below(4) as u16) << 10;
    Before { control, codes: random.bits() as u16 & (C0 | C1 | C2 | C3) }
}

/// An operand: mostly a number, sometimes an encoding that no other format has.
pub fn random_f80(random: &mut Operands) -> F80 {
    let exponent = random.exponent(15);
    let mut mantissa = random.fraction(63) | 1 << 63;
    if exponent == 0 || random.below(32) == 0 {
        mantissa ^= random.below(2) << 63;
    }
    if random.below(8) == 0 {
        // A significand that fits the precision of a lower precision control, or almost fits.
        let bits = [24, 53][random.below(2) as usize];
        mantissa &= u64::MAX << (64 - bits - random.below(2));
    }
    F80 { mantissa, sign_exponent: exponent as u16 | (random.below(2) << 15) as u16 }
}

/// An operand related to `a`. The two operands may cancel in a sum, or have similar exponents. Or their product or
/// quotient is near the limits of the exponent.
fn relative(random: &mut Operands, a: F80) -> F80 {
    let other = random_f80(random);
    let exponent = i32::from(a.sign_exponent & 0x7fff);
    let jitter = random.below(7) as i32 - 3;
    let wanted = match random.below(8) {
        0 => return F80 { sign_exponent: a.sign_exponent ^ 0x8000, mantissa: a.mantissa ^ random.below(4) },
        1 => exponent + jitter,
        2 => 16383 - exponent + jitter,
        3 => exponent + 16383 + jitter,
        4 => 16383 + 32767 - exponent + jitter,
        5 => exponent + random.below(140) as i32 - 70,
        _ => return other,
    };
    let sign = other.sign_exponent & 0x8000;
    let mantissa = if wanted > 0 { other.mantissa | 1 << 63 } else { other.mantissa };
    F80 { mantissa, sign_exponent: sign | wanted.clamp(0, 32767) as u16 }
}

/// Runs `instruction` on random operands and passes the outcome and a description of the case to `judge`.
fn each(
    name: &str,
    instruction: Instruction,
    judge: impl Fn(Before, F80, F80, &State) -> Result<(), String>,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let a = random_f80(&mut random);
        let b = relative(&mut random, a);
        let state = instruction(before, a, b, UNTOUCHED);
        if let Err(problem) = judge(before, a, b, &state) {
            panic!("{name} {before:x?} {a:x?} {b:x?}\n{problem}");
        }
    }
}

/// Compares the exception flags and the condition codes in `codes`.
fn same_status(env: &X87Env, state: &State, codes: u16, expected: u16) -> Result<(), String> {
    let flags = env.raised() as u16;
    if (state.status & 0x3f, state.status & codes) == (flags, expected & codes) {
        return Ok(());
    }
    Err(format!("hardware status {:#06x}, ours: flags {flags:#04x} codes {expected:#06x}", state.status))
}

fn same<T: PartialEq + Debug>(hardware: T, ours: T) -> Result<(), String> {
    if hardware == ours { Ok(()) } else { Err(format!("hardware {hardware:x?}\nours     {ours:x?}")) }
}

fn c1_code(env: &X87Env) -> u16 {
    if env.c1() { C1 } else { 0 }
}

/// An instruction whose result replaces ST(0).
fn register(name: &str, instruction: Instruction, software: impl Fn(&mut X87Env, F80, F80) -> Option<F80>) {
    each(name, instruction, |before, a, b, state| {
        let mut env = before.env();
        let result = software(&mut env, a, b);
        same(state.registers[0], result.unwrap_or(a))?;
        same_status(&env, state, ALL, c1_code(&env) | before.codes & !C1)
    });
}

#[test]
fn arithmetic() {
    register("fadd", native::fadd, x87::add);
    register("fsub", native::fsub, x87::sub);
    register("fsubr", native::fsubr, |env, a, b| x87::sub(env, b, a));
    register("fmul", native::fmul, x87::mul);
    register("fdiv", native::fdiv, x87::div);
    register("fdivr", native::fdivr, |env, a, b| x87::div(env, b, a));
    register("fsqrt", native::fsqrt, |env, a, _| x87::sqrt(env, a));
    register("fabs", native::fabs, |_, a, _| Some(x87::abs(a)));
    register("fchs", native::fchs, |_, a, _| Some(x87::change_sign(a)));
}

#[test]
fn integral_values_and_scaling() {
    register("frndint", native::frndint, |env, a, _| x87::round_to_integer(env, a));
    // FSCALE of a denormal by zero, under an unmasked underflow: only Intel's processors leave the denormal unchanged.
    if is_intel() {
        register("fscale", native::fscale, x87::scale);
    }
}

#[test]
fn extraction() {
    each("fxtract", native::fxtract, |before, a, b, state| {
        let mut env = before.env();
        match x87::extract(&mut env, a) {
            Some(Pair { replaced, pushed }) => {
                same([state.registers[1], state.registers[0]], [replaced, pushed])?
            }
            None => same([state.registers[0], state.registers[1]], [a, b])?,
        }
        same_status(&env, state, ALL, before.codes & !C1)
    });
}

#[test]
fn remainders() {
    if !is_intel() {
        return;
    }
    for (name, instruction, software) in [
        ("fprem", native::fprem as Instruction, x87::prem as fn(&mut X87Env, F80, F80) -> Option<Remainder>),
        ("fprem1", native::fprem1, x87::prem1),
    ] {
        each(name, instruction, |before, a, b, state| {
            let mut env = before.env();
            let result = software(&mut env, a, b);
            same(state.registers[0], result.map_or(a, |result| result.value))?;
            let (written, codes) =
                result.map_or((C1 | C2, 0), |result| (result.written, result.condition_codes));
            let codes = (before.codes & !written) | codes;
            same_status(&env, state, ALL, codes)
        });
    }
}

fn comparison(name: &str, instruction: Instruction, software: impl Fn(&mut X87Env, F80, F80) -> Relation) {
    each(name, instruction, |before, a, b, state| {
        let mut env = before.env();
        let relation = software(&mut env, a, b);
        same_status(&env, state, ALL, relation.condition_codes())
    });
}

#[test]
fn comparisons() {
    comparison("fcom", native::fcom, x87::compare_ordered);
    comparison("fucom", native::fucom, x87::compare_unordered);
    comparison("ftst", native::ftst, |env, a, _| x87::test(env, a));
    each("fxam", native::fxam, |before, a, _, state| same_status(&before.env(), state, ALL, x87::examine(a)));
}

/// Comparisons deliver their outcome even with an unmasked exception, but then do not pop.
#[test]
fn comparisons_that_pop() {
    let pops = |env: &X87Env, state: &State| {
        same(state.top(), if env.is_abandoned() { TOP_BEFORE } else { TOP_BEFORE + 1 })
    };
    each("fcomp", native::fcomp, |before, a, b, state| {
        let mut env = before.env();
        let relation = x87::compare_ordered(&mut env, a, b);
        same_status(&env, state, ALL, relation.condition_codes())?;
        pops(&env, state)
    });
    each("fcomip", native::fcomip, |before, a, b, state| {
        let mut env = before.env();
        let relation = x87::compare_ordered(&mut env, a, b);
        // Bit 1 of EFLAGS is always set. SF and AF, set before, must be clear.
        same(u32::from(state.memory[0]), relation.eflags() | 2)?;
        same_status(&env, state, ALL, before.codes)?;
        pops(&env, state)
    });
}

/// Compares `software` with the processor's `instruction` on random operands. The second operand, of type `T`, is in
/// memory.
fn memory_operand<T: Copy + Debug>(
    name: &str,
    instruction: Instruction,
    operand: impl Fn(&mut Operands) -> (T, [u8; 10]),
    software: impl Fn(&mut X87Env, F80, T) -> Option<F80>,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let a = random_f80(&mut random);
        let (value, memory) = operand(&mut random);
        let state = instruction(before, a, F80::ONE, memory);
        let mut env = before.env();
        let result = software(&mut env, a, value);
        let outcome = same(state.registers[0], result.unwrap_or(a))
            .and_then(|()| same_status(&env, &state, ALL, c1_code(&env) | before.codes & !C1));
        if let Err(problem) = outcome {
            panic!("{name} {before:x?} {a:x?} {value:x?}\n{problem}");
        }
    }
}

fn bytes(value: u64) -> [u8; 10] {
    let mut bytes = UNTOUCHED;
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn f32_operand(random: &mut Operands) -> (u32, [u8; 10]) {
    let value = random.f32();
    (value, bytes(value.into()))
}

fn f64_operand(random: &mut Operands) -> (u64, [u8; 10]) {
    let value = random.f64();
    (value, bytes(value))
}

fn integer_operand(random: &mut Operands) -> (i64, [u8; 10]) {
    let value = random.integer();
    (value as i64, bytes(value))
}

#[test]
fn memory_operands() {
    use x87::Operand;
    memory_operand("fadd m32", native::fadd_m32, f32_operand, |env, a, m| {
        x87::add(env, a, Operand::from_f32(m))
    });
    memory_operand("fsubr m32", native::fsubr_m32, f32_operand, |env, a, m| {
        x87::sub(env, Operand::from_f32(m), a)
    });
    memory_operand("fmul m64", native::fmul_m64, f64_operand, |env, a, m| {
        x87::mul(env, a, Operand::from_f64(m))
    });
    memory_operand("fdiv m64", native::fdiv_m64, f64_operand, |env, a, m| {
        x87::div(env, a, Operand::from_f64(m))
    });
    memory_operand("fiadd m32", native::fiadd_m32, integer_operand, |env, a, m| {
        x87::add(env, a, Operand::from_integer(i64::from(m as i32)))
    });
    memory_operand("fidiv m16", native::fidiv_m16, integer_operand, |env, a, m| {
        x87::div(env, a, Operand::from_integer(i64::from(m as i16)))
    });
}

#[test]
fn memory_comparisons() {
    let mut random = Operands::for_test("fcom m32, m64", "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let a = random_f80(&mut random);
        let ((single, m32), (double, m64)) = (f32_operand(&mut random), f64_operand(&mut random));
        for (state, operand) in [
            (native::fcom_m32(before, a, a, m32), x87::Operand::from_f32(single)),
            (native::fcom_m64(before, a, a, m64), x87::Operand::from_f64(double)),
        ] {
            let mut env = before.env();
            let relation = x87::compare_ordered(&mut env, a, operand);
            let outcome = same_status(&env, &state, ALL, relation.condition_codes());
            assert_eq!(outcome, Ok(()), "fcom {before:x?} {a:x?} {operand:x?}");
        }
    }
}

/// Tests a load instruction, which pushes its result. Without a result the stack does not change.
fn load<T: Copy + Debug>(
    name: &str,
    instruction: Instruction,
    operand: impl Fn(&mut Operands) -> (T, [u8; 10]),
    software: impl Fn(&mut X87Env, T) -> Option<F80>,
) {
    memory_operand(name, instruction, operand, |env, _, value| software(env, value));
}

#[test]
fn loads() {
    load("fld m32", native::fld_m32, f32_operand, x87::from_f32);
    load("fld m64", native::fld_m64, f64_operand, x87::from_f64);
    load("fild m64", native::fild_m64, integer_operand, |_, value| Some(x87::from_i64(value)));
    let extended = |random: &mut Operands| {
        let value = random_f80(random);
        (value, value.to_bytes())
    };
    load("fld m80", native::fld_m80, extended, |_, value| Some(value));
    let bcd = |random: &mut Operands| -> ([u8; 10], [u8; 10]) {
        // Half of the cases have nibbles that are no digits.
        let limit = if random.below(2) == 0 { 10 } else { 16 };
        let digits = std::array::from_fn(|_| (random.below(limit) | random.below(limit) << 4) as u8);
        (digits, digits)
    };
    load("fbld", native::fbld, bcd, |_, digits| Some(x87::from_bcd(digits)));
}

/// A value near the limits of a format: its exponent is near `minimum`, near `maximum`, or in the range of the
/// integers.
fn near_limits(random: &mut Operands, minimum: i32, maximum: i32) -> F80 {
    let value = random_f80(random);
    let exponent = match random.below(5) {
        0 => minimum - 3 + random.below(6) as i32,
        1 => minimum - random.below(70) as i32,
        2 => maximum - 3 + random.below(6) as i32,
        3 => random.below(70) as i32 - 4,
        _ => return value,
    };
    let sign_exponent = (value.sign_exponent & 0x8000) | (exponent + 16383) as u16;
    F80 { mantissa: value.mantissa | 1 << 63, sign_exponent }
}

fn store<const SIZE: usize>(
    name: &str,
    instruction: Instruction,
    (minimum, maximum): (i32, i32),
    software: impl Fn(&mut X87Env, F80) -> Option<[u8; SIZE]>,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let a = near_limits(&mut random, minimum, maximum);
        let state = instruction(before, a, F80::ONE, UNTOUCHED);
        let mut env = before.env();
        let mut expected = UNTOUCHED;
        let result = software(&mut env, a);
        if let Some(stored) = result {
            expected[..SIZE].copy_from_slice(&stored);
        }
        let outcome = same(state.memory, expected)
            .and_then(|()| same_status(&env, &state, ALL, c1_code(&env) | before.codes & !C1))
            .and_then(|()| if result.is_none() { same(state.top(), TOP_BEFORE) } else { Ok(()) });
        if let Err(problem) = outcome {
            panic!("{name} {before:x?} {a:x?}\n{problem}");
        }
    }
}

#[test]
fn stores() {
    const SINGLE: (i32, i32) = (-126, 127);
    const DOUBLE: (i32, i32) = (-1022, 1023);
    const INTEGER: (i32, i32) = (-1, 63);
    store("fst m32", native::fst_m32, SINGLE, |env, a| x87::to_f32(env, a).map(u32::to_le_bytes));
    store("fst m64", native::fst_m64, DOUBLE, |env, a| x87::to_f64(env, a).map(u64::to_le_bytes));
    store("fstp m80", native::fstp_m80, SINGLE, |_, a| Some(a.to_bytes()));
    store("fist m16", native::fist_m16, (-1, 15), |env, a| x87::to_i16(env, a).map(i16::to_le_bytes));
    store("fist m32", native::fist_m32, (-1, 31), |env, a| x87::to_i32(env, a).map(i32::to_le_bytes));
    store("fistp m64", native::fistp_m64, INTEGER, |env, a| x87::to_i64(env, a).map(i64::to_le_bytes));
    store("fisttp m16", native::fisttp_m16, (-1, 15), |env, a| {
        x87::to_i16_truncating(env, a).map(i16::to_le_bytes)
    });
    store("fisttp m32", native::fisttp_m32, (-1, 31), |env, a| {
        x87::to_i32_truncating(env, a).map(i32::to_le_bytes)
    });
    store("fisttp m64", native::fisttp_m64, INTEGER, |env, a| {
        x87::to_i64_truncating(env, a).map(i64::to_le_bytes)
    });
    store("fbstp", native::fbstp, (-1, 59), x87::to_bcd);
}

#[test]
fn constants() {
    for control in (0..0x1000).step_by(0x100).map(|control| control | 0x7f) {
        for (instruction, constant) in [
            (native::fldz as Instruction, Constant::Zero),
            (native::fld1, Constant::One),
            (native::fldl2t, Constant::Log2Of10),
            (native::fldl2e, Constant::Log2OfE),
            (native::fldpi, Constant::Pi),
            (native::fldlg2, Constant::Log10Of2),
            (native::fldln2, Constant::LnOf2),
        ] {
            let before = Before { control, codes: C0 | C1 | C2 | C3 };
            let state = instruction(before, F80::ONE, F80::ONE, UNTOUCHED);
            let env = before.env();
            assert_eq!(
                state.registers[0],
                x87::load_constant(&env, constant),
                "{constant:?} cw={control:#x}"
            );
            assert_eq!(
                same_status(&env, &state, ALL, before.codes & !C1),
                Ok(()),
                "{constant:?} cw={control:#x}"
            );
        }
    }
}
