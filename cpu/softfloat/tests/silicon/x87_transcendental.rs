//! Transcendental instructions: our results are correctly rounded, the processor's are within a unit in the
//! last place or so (SDM vol. 1, 8.3.10). Everything else (special operands, flags, C2) must be the same.

use crate::random::{Random, cases};
use crate::x87_compare::{random_before, random_f80};
use crate::x87_native::{self as native, Before, Instruction, State};
use softfloat::env::UE;
use softfloat::x87::{self, Angle, C2, F80, Pair, X87Env};

const BASE: u32 = 30_000;
/// In units in the last place, for any rounding mode.
const TOLERANCE: u128 = 1;

/// Units in the last place between two results; `None` if one is a NaN or an infinity and they differ.
fn distance(a: F80, b: F80) -> Option<u128> {
    let key = |value: F80| {
        let exponent = i128::from(value.sign_exponent & 0x7fff);
        let magnitude = (exponent << 63) + i128::from(value.mantissa & (u64::MAX >> 1));
        (exponent != 0x7fff).then_some(if value.sign() { -magnitude } else { magnitude })
    };
    if a == b {
        return Some(0);
    }
    // A result of the wrong sign is wrong even if it is small.
    (a.sign() == b.sign()).then_some(key(a)?.abs_diff(key(b)?))
}

fn close(hardware: F80, ours: F80) -> Result<(), String> {
    match distance(hardware, ours) {
        Some(distance) if distance <= TOLERANCE => Ok(()),
        distance => Err(format!("hardware {hardware:x?}\nours     {ours:x?}\ndistance {distance:?}")),
    }
}

/// Whether a result is so near the smallest normal that it depends on the last place whether it is tiny.
fn borderline(result: F80) -> bool {
    let smallest = F80 { mantissa: 1 << 63, sign_exponent: 1 | (result.sign_exponent & 0x8000) };
    distance(result, smallest).is_some_and(|distance| distance <= TOLERANCE)
}

/// Whether unmasked underflow makes a borderline result look entirely different.
fn undecidable(before: Before, state: &State) -> bool {
    u32::from(before.control) & UE == 0 && state.registers[..2].iter().any(|&result| borderline(result))
}

fn same_flags(env: &X87Env, state: &State) -> Result<(), String> {
    let (hardware, ours) = (u32::from(state.status & 0x3f), env.raised());
    let uncertain = if state.registers[..2].iter().any(|&result| borderline(result)) { UE } else { 0 };
    if (hardware ^ ours) & !uncertain == 0 { Ok(()) } else { Err(format!("hardware flags {hardware:#x}, ours {ours:#x}")) }
}

/// A number of moderate size as often as not.
fn moderate(random: &mut Random, lowest: i32, highest: i32) -> F80 {
    let value = random_f80(random);
    if random.below(4) == 0 {
        return value;
    }
    let exponent = lowest + random.below((highest - lowest + 1) as u64) as i32;
    let sign_exponent = (value.sign_exponent & 0x8000) | (exponent + 16383) as u16;
    F80 { mantissa: value.mantissa | 1 << 63, sign_exponent }
}

fn each(
    name: &str,
    instruction: Instruction,
    operands: impl Fn(&mut Random) -> (F80, F80),
    judge: impl Fn(&mut X87Env, F80, F80, &State) -> Result<(), String>,
) {
    let mut random = Random::for_test(name);
    for _ in 0..cases(BASE) {
        let before = random_before(&mut random);
        let (a, b) = operands(&mut random);
        let state = instruction(before, a, b, [0; 10]);
        if undecidable(before, &state) {
            continue;
        }
        let mut env = before.env();
        let outcome = judge(&mut env, a, b, &state).and_then(|()| same_flags(&env, &state));
        if let Err(problem) = outcome {
            panic!("{name} {before:x?} {a:x?} {b:x?}\n{problem}");
        }
    }
}

#[test]
fn f2xm1() {
    let operands = |random: &mut Random| (moderate(random, -70, 0), F80::ONE);
    each("f2xm1", native::f2xm1, operands, |env, a, _, state| {
        close(state.registers[0], x87::f2xm1(env, a).unwrap_or(a))
    });
}

/// An instruction that pops: the result is in ST(0), or both operands are still there.
fn popping(
    name: &str,
    instruction: Instruction,
    operands: impl Fn(&mut Random) -> (F80, F80),
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
    let operands = |random: &mut Random| {
        let mut x = moderate(random, -3, 3);
        x.sign_exponent &= if random.below(8) == 0 { 0xffff } else { 0x7fff };
        (x, moderate(random, -40, 40))
    };
    popping("fyl2x", native::fyl2x, operands, x87::fyl2x);
}

#[test]
fn fyl2xp1() {
    let operands = |random: &mut Random| (moderate(random, -70, 3), moderate(random, -40, 40));
    popping("fyl2xp1", native::fyl2xp1, operands, x87::fyl2xp1);
}

#[test]
fn fpatan() {
    let operands = |random: &mut Random| (moderate(random, -6, 6), moderate(random, -6, 6));
    popping("fpatan", native::fpatan, operands, x87::fpatan);
}

fn angle(random: &mut Random) -> (F80, F80) {
    (moderate(random, -40, 64), F80::ONE)
}

fn out_of_range(a: F80, state: &State) -> Result<(), String> {
    if state.status & C2 != 0 && state.registers[0] == a { Ok(()) } else { Err("the processor had a result".into()) }
}

fn in_range(state: &State) -> Result<(), String> {
    if state.status & C2 == 0 { Ok(()) } else { Err("the processor found it out of range".into()) }
}

fn one_angle(name: &str, instruction: Instruction, software: fn(&mut X87Env, F80) -> Option<Angle<F80>>) {
    each(name, instruction, angle, |env, a, _, state| match software(env, a) {
        Some(Angle::InRange(result)) => in_range(state).and_then(|()| close(state.registers[0], result)),
        Some(Angle::OutOfRange) => out_of_range(a, state),
        None => close(state.registers[0], a),
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
        None => close(state.registers[0], a).and_then(|()| close(state.registers[1], b)),
    });
}

#[test]
fn sine_and_cosine() {
    one_angle("fsin", native::fsin, x87::fsin);
    one_angle("fcos", native::fcos, x87::fcos);
    two_results("fsincos", native::fsincos, x87::fsincos);
}

#[test]
fn tangent() {
    two_results("fptan", native::fptan, x87::fptan);
}
