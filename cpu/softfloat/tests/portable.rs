//! Tests that must pass on every host, regardless of its processor: known answers, and digests of many answers.
//!
//! The digests were taken on a host whose processor passed the tests in `tests/silicon`. A different digest on
//! another host means that results depend on the host.

use seeded::Operands;
use softfloat::sse::{self, SseEnv};
use softfloat::x87::{self, Angle, F80, X87Env};

fn extended(text: &str) -> F80 {
    let (sign_exponent, mantissa) = text.split_once('.').expect("two parts");
    F80 {
        mantissa: u64::from_str_radix(mantissa, 16).expect("hexadecimal"),
        sign_exponent: u16::from_str_radix(sign_exponent, 16).expect("hexadecimal"),
    }
}

fn in_range<T>(outcome: Option<Angle<T>>) -> Option<T> {
    match outcome? {
        Angle::InRange(result) => Some(result),
        Angle::OutOfRange => None,
    }
}

fn transcendental(instruction: &str, env: &mut X87Env, a: F80, b: F80) -> Option<F80> {
    match instruction {
        "f2xm1" => x87::f2xm1(env, a),
        "fyl2x" => x87::fyl2x(env, a, b),
        "fyl2xp1" => x87::fyl2xp1(env, a, b),
        "fpatan" => x87::fpatan(env, a, b),
        "fsin" => in_range(x87::fsin(env, a)),
        "fcos" => in_range(x87::fcos(env, a)),
        "fptan" => in_range(x87::fptan(env, a)).map(|pair| pair.replaced),
        other => panic!("the table has no {other}"),
    }
}

#[test]
fn transcendentals_are_correctly_rounded() {
    let table = include_str!("transcendental_vectors.txt");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [instruction, rounding, a, b, expected, up] = fields[..] else { panic!("malformed: {line}") };
        let rounding: u16 = rounding.parse().expect("a number");
        let mut env = X87Env::new(0x037f | rounding << 10);
        let result = transcendental(instruction, &mut env, extended(a), extended(b));
        assert_eq!((result, env.c1()), (Some(extended(expected)), up == "1"), "{line}");
    }
}

/// FNV-1a over 64-bit words.
fn digest(words: impl Iterator<Item = u64>) -> u64 {
    words
        .fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23))
}

const CASES: usize = 20_000;

/// Digests results and flags of an SSE operation. In every second case PE is set before the operation, so that the
/// fast path may run.
fn sse_digest(operation: impl Fn(&mut SseEnv, u64, u64) -> u64) -> u64 {
    let mut random = Operands::new(1);
    digest((0..CASES).flat_map(|index| {
        let sticky = if index % 2 == 0 { 0x20 } else { 0 };
        let mut env = SseEnv::new(0x1f80 | sticky | (random.below(4) as u32) << 13);
        let (a, b) = (random.f64(), random.f64());
        let result = operation(&mut env, a, b);
        [result, env.finish().expect("everything is masked").into()]
    }))
}

fn x87_digest(operation: impl Fn(&mut X87Env, F80, F80) -> Option<F80>) -> u64 {
    let mut random = Operands::new(2);
    digest((0..CASES).flat_map(|_| {
        let mut env = X87Env::new(0x40 | (random.below(0x1000) & 0xf3f) as u16);
        let [a, b] = [(), ()].map(|()| F80 {
            mantissa: random.fraction(64) | 1 << 63,
            sign_exponent: random.exponent(16) as u16,
        });
        let result = operation(&mut env, a, b).unwrap_or(a);
        [result.mantissa, result.sign_exponent.into(), env.raised().into(), env.c1().into()]
    }))
}

fn narrow(a: u64) -> u32 {
    (a >> 32) as u32
}

#[test]
fn results_do_not_depend_on_the_host() {
    let digests = [
        ("add f64", sse_digest(sse::add)),
        ("mul f64", sse_digest(sse::mul)),
        ("div f64", sse_digest(sse::div)),
        ("sqrt f64", sse_digest(|env, a, _| sse::sqrt(env, a))),
        ("add f32", sse_digest(|env, a, b| sse::add(env, narrow(a), narrow(b)).into())),
        ("div f32", sse_digest(|env, a, b| sse::div(env, narrow(a), narrow(b)).into())),
        ("fma f64", sse_digest(|env, a, b| sse::mul_add(env, a, b, a ^ b, false, false))),
        ("f64 to f32", sse_digest(|env, a, _| sse::f64_to_f32(env, a).into())),
        ("f64 to i32", sse_digest(|env, a, _| sse::to_i32_truncating(env, a) as u64)),
        ("rcp f32", sse_digest(|_, a, _| sse::reciprocal(narrow(a)).into())),
        ("rsqrt f32", sse_digest(|_, a, _| sse::reciprocal_square_root(narrow(a)).into())),
        ("fadd", x87_digest(x87::add)),
        ("fmul", x87_digest(x87::mul)),
        ("fdiv", x87_digest(x87::div)),
        ("fsqrt", x87_digest(|env, a, _| x87::sqrt(env, a))),
        ("fprem", x87_digest(|env, a, b| x87::prem(env, a, b).map(|rest| rest.value))),
        ("fsin", x87_digest(|env, a, _| in_range(x87::fsin(env, a)))),
        ("fyl2x", x87_digest(x87::fyl2x)),
        ("fpatan", x87_digest(x87::fpatan)),
        ("f2xm1", x87_digest(|env, a, _| x87::f2xm1(env, a))),
    ];
    let text: String = digests.iter().map(|(name, digest)| format!("{name}: {digest:016x}\n")).collect();
    assert_eq!(text, include_str!("digests.txt"));
}
