//! Compares transcendental instructions. Our results are correctly rounded; the processor's are within about one unit
//! in the last place (SDM vol. 1, 8.3.10). The results for special operands, the flags and C2 must be equal.

use crate::cases;
use crate::is_intel;
use crate::x87_compare::{random_before, random_f80};
use crate::x87_native::{self as native, Before, Instruction, State};
use seeded::Operands;
use softfloat::env::{OE, UE};
use softfloat::x87::{self, Angle, C0, C1, C2, C3, F80, Pair, X87Env};

const BASE: u32 = 30_000;
/// The allowed difference in units in the last place, for any rounding mode.
const TOLERANCE: u128 = 1;

/// Units in the last place between two results; infinity is one beyond the largest number. `None` if the signs differ
/// or one result is a NaN.
fn distance(a: F80, b: F80) -> Option<u128> {
    let key = |value: F80| {
        let exponent = i128::from(value.sign_exponent & 0x7fff);
        let magnitude = (exponent << 63) + i128::from(value.mantissa & (u64::MAX >> 1));
        let nan = exponent == 0x7fff && value.mantissa != 1 << 63;
        (!nan).then_some(if value.sign() { -magnitude } else { magnitude })
    };
    if a == b {
        return Some(0);
    }
    // A result with the wrong sign is wrong even if it is small.
    (a.sign() == b.sign()).then_some(key(a)?.abs_diff(key(b)?))
}

fn close(hardware: F80, ours: F80) -> Result<(), String> {
    match distance(hardware, ours) {
        Some(distance) if distance <= TOLERANCE => Ok(()),
        distance => Err(format!("hardware {hardware:x?}\nours     {ours:x?}\ndistance {distance:?}")),
    }
}

/// Flags that depend on a result's last place. UE is uncertain next to the smallest normal number, OE next to the
/// largest number.
fn uncertain_flags(state: &State) -> u32 {
    let near = |result: F80, mantissa: u64, exponent: u16| {
        let limit = F80 { mantissa, sign_exponent: exponent | (result.sign_exponent & 0x8000) };
        distance(result, limit).is_some_and(|distance| distance <= TOLERANCE)
    };
    state.registers[..2].iter().fold(0, |flags, &result| {
        // A result on one side of the limit is unscaled. On the other side, an unmasked exception may have scaled
        // the result's exponent by 24576.
        let tiny = if near(result, 1 << 63, 1) || near(result, u64::MAX, 0x6000) { UE } else { 0 };
        let huge = if near(result, u64::MAX, 0x7ffe) || near(result, 1 << 63, 0x1fff) { OE } else { 0 };
        flags | tiny | huge
    })
}

/// Whether an uncertain flag's exception is unmasked, which makes the result look entirely different.
fn is_undecidable(before: Before, state: &State) -> bool {
    uncertain_flags(state) & !u32::from(before.control) != 0
}

fn same_flags(env: &X87Env, state: &State) -> Result<(), String> {
    let (hardware, ours) = (u32::from(state.status & 0x3f), env.raised());
    if (hardware ^ ours) & !uncertain_flags(state) == 0 {
        Ok(())
    } else {
        Err(format!("hardware flags {hardware:#x}, ours {ours:#x}"))
    }
}

/// A number of moderate size in most cases.
fn moderate(random: &mut Operands, lowest: i32, highest: i32) -> F80 {
    let value = random_f80(random);
    if random.below(4) == 0 {
        return value;
    }
    let exponent = lowest + random.below((highest - lowest + 1) as u64) as i32;
    let sign_exponent = (value.sign_exponent & 0x8000) | (exponent + 16383) as u16;
    F80 { mantissa: value.mantissa | 1 << 63, sign_exponent }
}

/// Checks that C0 and C3 are as before. C1 depends on the last place, and the tests of angles check C2.
fn other_codes(before: Before, state: &State) -> Result<(), String> {
    let changed = (before.codes ^ state.status) & (C0 | C3);
    if changed == 0 { Ok(()) } else { Err(format!("hardware changed {changed:#x}")) }
}

fn each(
    name: &str,
    instruction: Instruction,
    operands: impl Fn(&mut Operands) -> (F80, F80),
    judge: impl Fn(&mut X87Env, F80, F80, &State) -> Result<(), String>,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let (a, b) = operands(&mut random);
        let state = instruction(before, a, b, [0; 10]);
        if is_undecidable(before, &state) {
            continue;
        }
        let mut env = before.env();
        let outcome = judge(&mut env, a, b, &state)
            .and_then(|()| same_flags(&env, &state))
            .and_then(|()| other_codes(before, &state));
        if let Err(problem) = outcome {
            panic!("{name} {before:x?} {a:x?} {b:x?}\n{problem}");
        }
    }
}

#[test]
fn f2xm1() {
    if !is_intel() {
        return;
    }
    let operands = |random: &mut Operands| (moderate(random, -70, 0), F80::ONE);
    each("f2xm1", native::f2xm1, operands, |env, a, _, state| {
        close(state.registers[0], x87::f2xm1(env, a).unwrap_or(a))
    });
}

/// Tests an instruction with two operands that pops one. Afterwards the result is in ST(0), or, without a result,
/// both operands are still in ST(0) and ST(1).
fn popping(
    name: &str,
    instruction: Instruction,
    operands: impl Fn(&mut Operands) -> (F80, F80),
    software: impl Fn(&mut X87Env, F80, F80) -> Option<F80>,
) {
    each(name, instruction, operands, |env, a, b, state| match software(env, a, b) {
        Some(result) => close(state.registers[0], result),
        None if (state.registers[0], state.registers[1]) == (a, b) => Ok(()),
        None => Err("the processor had a result".into()),
    });
}

#[test]
fn fyl2x() {
    if !is_intel() {
        return;
    }
    let operands = |random: &mut Operands| {
        let mut x = moderate(random, -3, 3);
        x.sign_exponent &= if random.below(8) == 0 { 0xffff } else { 0x7fff };
        (x, moderate(random, -40, 40))
    };
    popping("fyl2x", native::fyl2x, operands, x87::fyl2x);
}

#[test]
fn fyl2xp1() {
    if !is_intel() {
        return;
    }
    let operands = |random: &mut Operands| (moderate(random, -70, 3), moderate(random, -40, 40));
    popping("fyl2xp1", native::fyl2xp1, operands, x87::fyl2xp1);
}

#[test]
fn fpatan() {
    if !is_intel() {
        return;
    }
    let operands = |random: &mut Operands| (moderate(random, -6, 6), moderate(random, -6, 6));
    popping("fpatan", native::fpatan, operands, x87::fpatan);
}

fn angle(random: &mut Operands) -> (F80, F80) {
    (moderate(random, -40, 64), F80::ONE)
}

fn out_of_range(a: F80, state: &State) -> Result<(), String> {
    if state.status & (C1 | C2) == C2 && state.registers[0] == a {
        Ok(())
    } else {
        Err("the processor had a result".into())
    }
}

fn in_range(state: &State) -> Result<(), String> {
    if state.status & C2 == 0 { Ok(()) } else { Err("the processor found it out of range".into()) }
}

fn one_angle(name: &str, instruction: Instruction, software: fn(&mut X87Env, F80) -> Option<Angle<F80>>) {
    each(name, instruction, angle, |env, a, _, state| match software(env, a) {
        Some(Angle::InRange(result)) => in_range(state).and_then(|()| close(state.registers[0], result)),
        Some(Angle::OutOfRange) => out_of_range(a, state),
        None => in_range(state).and_then(|()| close(state.registers[0], a)),
    });
}

fn two_results(name: &str, instruction: Instruction, software: fn(&mut X87Env, F80) -> Option<Angle<Pair>>) {
    each(name, instruction, angle, |env, a, b, state| match software(env, a) {
        Some(Angle::InRange(Pair { replaced, pushed })) => {
            in_range(state)?;
            close(state.registers[1], replaced)?;
            close(state.registers[0], pushed)
        }
        Some(Angle::OutOfRange) => out_of_range(a, state),
        None => in_range(state)
            .and_then(|()| close(state.registers[0], a))
            .and_then(|()| close(state.registers[1], b)),
    });
}

#[test]
fn sine_and_cosine() {
    if !is_intel() {
        return;
    }
    one_angle("fsin", native::fsin, x87::fsin);
    one_angle("fcos", native::fcos, x87::fcos);
    two_results("fsincos", native::fsincos, x87::fsincos);
}

#[test]
fn tangent() {
    if !is_intel() {
        return;
    }
    two_results("fptan", native::fptan, x87::fptan);
}
