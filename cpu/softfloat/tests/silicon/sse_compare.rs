//! SSE: every operation against the processor, under every rounding mode, DAZ and FTZ.

use crate::cases;
use crate::sse_native as native;
use seeded::Operands;
use softfloat::env::PE;
use softfloat::sse::{self, Predicate, SseEnv};
use std::fmt::Debug;

const BASE: u32 = 200_000;

/// An MXCSR with all exceptions masked, all flags clear, and a random rounding mode, DAZ and FTZ.
fn random_mxcsr(random: &mut Operands) -> u32 {
    let daz_ftz = [0, 0x40, 0x8000, 0x8040][random.below(4) as usize];
    0x1f80 | (random.below(4) as u32) << 13 | daz_ftz
}

/// Checks one case twice. The first check has clear flags and takes the full path, with exact flags. The second has PE
/// set, and possibly round to nearest, so that the fast path may answer.
fn check<R: PartialEq + Debug>(
    what: impl Fn() -> String,
    mxcsr: u32,
    hardware: (R, u32),
    software: impl Fn(&mut SseEnv) -> R,
) {
    let mut env = SseEnv::new(mxcsr);
    let result = software(&mut env);
    assert_eq!((&result, env.raised()), (&hardware.0, hardware.1), "{} mxcsr={mxcsr:#06x}", what());
    let mut env = SseEnv::new(mxcsr | PE);
    let result = software(&mut env);
    let after = env.finish().expect("everything is masked");
    assert_eq!(
        (&result, after & 0x3f),
        (&hardware.0, hardware.1 | PE),
        "{} mxcsr={mxcsr:#06x}, PE sticky",
        what()
    );
}

trait Operand: Copy + std::fmt::LowerHex + PartialEq + Debug {
    fn random(random: &mut Operands) -> Self;
    /// A value related to `self`, so that sums cancel and products come near the limits.
    fn relative(self, random: &mut Operands) -> Self;
}

macro_rules! operand {
    ($bits:ty, $make:ident, $fraction:literal, $max:literal) => {
        impl Operand for $bits {
            fn random(random: &mut Operands) -> Self {
                random.$make()
            }
            fn relative(self, random: &mut Operands) -> Self {
                let other = random.$make();
                let sign_fraction = other & !($max << $fraction);
                let exponent = (self >> $fraction) & $max;
                let bias = $max / 2;
                let jitter = random.below(5) as $bits;
                match random.below(8) {
                    0 => self,
                    1 => (self ^ (1 << (<$bits>::BITS - 1))).wrapping_add(jitter).wrapping_sub(2),
                    2 => sign_fraction | ((exponent + jitter).saturating_sub(2).min($max) << $fraction),
                    // Case 3 gives a product near the smallest normal number, and case 4 such a quotient. The next
                    // case gives a product near the largest number.
                    3 => sign_fraction | ((bias + jitter).saturating_sub(exponent).min($max) << $fraction),
                    4 => {
                        sign_fraction | ((exponent + bias + jitter).saturating_sub(3).min($max) << $fraction)
                    }
                    5 => {
                        sign_fraction
                            | ((bias + $max + jitter).saturating_sub(exponent + 3).min($max) << $fraction)
                    }
                    _ => other,
                }
            }
        }
    };
}

operand!(u32, f32, 23, 0xff);
operand!(u64, f64, 52, 0x7ff);

fn binary<T: Operand>(
    name: &str,
    hardware: impl Fn(u32, T, T) -> (T, u32),
    software: impl Fn(&mut SseEnv, T, T) -> T,
) {
    several(BASE, name, hardware, software);
}

fn several<T: Operand>(
    count: u32,
    name: &str,
    hardware: impl Fn(u32, T, T) -> (T, u32),
    software: impl Fn(&mut SseEnv, T, T) -> T,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(count) {
        let mxcsr = random_mxcsr(&mut random);
        let a = T::random(&mut random);
        let b = a.relative(&mut random);
        check(|| format!("{name} {a:#x} {b:#x}"), mxcsr, hardware(mxcsr, a, b), |env| software(env, a, b));
    }
}

fn unary<A: std::fmt::LowerHex + Copy, R: PartialEq + Debug>(
    name: &str,
    operand: impl Fn(&mut Operands) -> A,
    hardware: impl Fn(u32, A) -> (R, u32),
    software: impl Fn(&mut SseEnv, A) -> R,
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let mxcsr = random_mxcsr(&mut random);
        let a = operand(&mut random);
        check(|| format!("{name} {a:#x}"), mxcsr, hardware(mxcsr, a), |env| software(env, a));
    }
}

#[test]
fn arithmetic() {
    binary("addss", native::addss, sse::add);
    binary("addsd", native::addsd, sse::add);
    binary("subss", native::subss, sse::sub);
    binary("subsd", native::subsd, sse::sub);
    binary("mulss", native::mulss, sse::mul);
    binary("mulsd", native::mulsd, sse::mul);
    binary("divss", native::divss, sse::div);
    binary("divsd", native::divsd, sse::div);
}

/// Tests exact results, which have a separate fast path, and zeros of both signs.
#[test]
fn small_whole_numbers() {
    type Binary = (fn(u32, u64, u64) -> (u64, u32), fn(&mut SseEnv, u64, u64) -> u64);
    let operations: [Binary; 4] = [
        (native::addsd, sse::add),
        (native::subsd, sse::sub),
        (native::mulsd, sse::mul),
        (native::divsd, sse::div),
    ];
    let bits = |value: i32| if value == -21 { (-0.0f64).to_bits() } else { f64::from(value).to_bits() };
    for (a, b) in (-21..=20).flat_map(|a| (-21..=20).map(move |b| (bits(a), bits(b)))) {
        for mxcsr in [0x1f80, 0x3f80, 0x5f80, 0x7f80] {
            for (hardware, software) in operations {
                check(|| format!("{a:#x} {b:#x}"), mxcsr, hardware(mxcsr, a, b), |env| software(env, a, b));
            }
            check(|| format!("sqrt {b:#x}"), mxcsr, native::sqrtsd(mxcsr, b), |env| sse::sqrt(env, b));
        }
    }
}

#[test]
fn minimum_and_maximum() {
    binary("minss", native::minss, sse::min);
    binary("minsd", native::minsd, sse::min);
    binary("maxss", native::maxss, sse::max);
    binary("maxsd", native::maxsd, sse::max);
}

#[test]
fn square_root() {
    unary("sqrtss", Operands::f32, native::sqrtss, sse::sqrt);
    unary("sqrtsd", Operands::f64, native::sqrtsd, sse::sqrt);
}

#[test]
fn between_formats() {
    unary("cvtss2sd", Operands::f32, native::cvtss2sd, sse::f32_to_f64);
    unary("cvtsd2ss", near_f32, native::cvtsd2ss, sse::f64_to_f32);
}

/// A binary64 value, often around the limits of binary32.
fn near_f32(random: &mut Operands) -> u64 {
    let exponent = match random.below(4) {
        0 => 1023 - 127 + random.below(4),
        1 => 1023 - 152 + random.below(30),
        2 => 1023 + 127 - random.below(3),
        _ => return random.f64(),
    };
    (random.f64() & !(0x7ff << 52)) | exponent << 52
}

#[test]
fn from_integers() {
    let narrow = |random: &mut Operands| random.integer() as u32;
    unary("cvtsi2ss32", narrow, native::cvtsi2ss32, |env, a| sse::from_i32(env, a as i32));
    unary("cvtsi2sd32", narrow, native::cvtsi2sd32, |env, a| sse::from_i32(env, a as i32));
    unary("cvtsi2ss64", Operands::integer, native::cvtsi2ss64, |env, a| sse::from_i64(env, a as i64));
    unary("cvtsi2sd64", Operands::integer, native::cvtsi2sd64, |env, a| sse::from_i64(env, a as i64));
}

#[test]
fn to_integers() {
    let (f32, f64) = (Operands::f32, Operands::f64);
    unary("cvtss2si32", f32, native::cvtss2si32, |env, a| sse::to_i32(env, a) as u32);
    unary("cvtss2si64", f32, native::cvtss2si64, |env, a| sse::to_i64(env, a) as u64);
    unary("cvtsd2si32", f64, native::cvtsd2si32, |env, a| sse::to_i32(env, a) as u32);
    unary("cvtsd2si64", f64, native::cvtsd2si64, |env, a| sse::to_i64(env, a) as u64);
    unary("cvttss2si32", f32, native::cvttss2si32, |env, a| sse::to_i32_truncating(env, a) as u32);
    unary("cvttss2si64", f32, native::cvttss2si64, |env, a| sse::to_i64_truncating(env, a) as u64);
    unary("cvttsd2si32", f64, native::cvttsd2si32, |env, a| sse::to_i32_truncating(env, a) as u32);
    unary("cvttsd2si64", f64, native::cvttsd2si64, |env, a| sse::to_i64_truncating(env, a) as u64);
}

#[test]
fn unsigned_integers() {
    if !std::is_x86_feature_detected!("avx512f") {
        return skip::test("this processor has no AVX-512F");
    }
    let narrow = |random: &mut Operands| random.integer() as u32;
    unary("vcvtusi2ss32", narrow, native::vcvtusi2ss32, sse::from_u32);
    unary("vcvtusi2ss64", Operands::integer, native::vcvtusi2ss64, sse::from_u64);
    unary("vcvtusi2sd64", Operands::integer, native::vcvtusi2sd64, sse::from_u64);
    unary("vcvtss2usi32", Operands::f32, native::vcvtss2usi32, sse::to_u32);
    unary("vcvtsd2usi64", Operands::f64, native::vcvtsd2usi64, sse::to_u64);
    unary("vcvttsd2usi32", Operands::f64, native::vcvttsd2usi32, sse::to_u32_truncating);
    unary("vcvttss2usi64", Operands::f32, native::vcvttss2usi64, sse::to_u64_truncating);
}

#[test]
fn integral_values() {
    if !std::is_x86_feature_detected!("sse4.1") {
        return skip::test("this processor has no SSE4.1");
    }
    for imm8 in [0, 1, 2, 3, 4, 8, 9, 10, 11, 12] {
        let single = |mxcsr, a| native::roundss(mxcsr, 0, a, imm8);
        let double = |mxcsr, a| native::roundsd(mxcsr, 0, a, imm8);
        unary(&format!("roundss {imm8}"), Operands::f32, single, |env, a| {
            sse::round_to_integral(env, a, imm8)
        });
        unary(&format!("roundsd {imm8}"), Operands::f64, double, |env, a| {
            sse::round_to_integral(env, a, imm8)
        });
    }
}

#[test]
fn predicates() {
    if !std::is_x86_feature_detected!("avx") {
        return skip::test("this processor has no AVX");
    }
    for imm8 in 0..32 {
        let predicate = Predicate::avx(imm8);
        let mask = |holds: bool| if holds { u64::MAX } else { 0 };
        several(
            BASE / 8,
            &format!("vcmpss {imm8}"),
            |mxcsr, a, b| native::cmpss(mxcsr, a, b, imm8),
            |env, a, b| mask(sse::compare(env, a, b, predicate)) as u32,
        );
        several(
            BASE / 8,
            &format!("vcmpsd {imm8}"),
            |mxcsr, a, b| native::cmpsd(mxcsr, a, b, imm8),
            |env, a, b| mask(sse::compare(env, a, b, predicate)),
        );
    }
}

#[test]
fn ordered_and_unordered_comparison() {
    let widen = |(flags, raised)| (u64::from(flags), raised);
    binary("comiss", native::comiss, |env, a, b| sse::comi(env, a, b).eflags());
    binary("ucomiss", native::ucomiss, |env, a, b| sse::ucomi(env, a, b).eflags());
    binary(
        "comisd",
        |mxcsr, a, b| widen(native::comisd(mxcsr, a, b)),
        |env, a, b| sse::comi(env, a, b).eflags().into(),
    );
    binary(
        "ucomisd",
        |mxcsr, a, b| widen(native::ucomisd(mxcsr, a, b)),
        |env, a, b| sse::ucomi(env, a, b).eflags().into(),
    );
}

/// The indexes in (destination, second, third) of x, y and z of `x * y + z`.
const FORM_132: [usize; 3] = [0, 2, 1];
const FORM_213: [usize; 3] = [1, 0, 2];
const FORM_231: [usize; 3] = [1, 2, 0];

fn fused<T: Operand + sse::Ieee>(
    name: &str,
    form: [usize; 3],
    negate: (bool, bool),
    hardware: impl Fn(u32, [T; 3]) -> (T, u32),
) {
    let mut random = Operands::for_test(name, "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let mxcsr = random_mxcsr(&mut random);
        let a = T::random(&mut random);
        let operands = [a, a.relative(&mut random), a.relative(&mut random)];
        let [x, y, z] = form.map(|index| operands[index]);
        check(
            || format!("{name} {operands:x?}"),
            mxcsr,
            hardware(mxcsr, operands),
            |env| sse::mul_add(env, x, y, z, negate.0, negate.1),
        );
    }
}

#[test]
fn fused_multiply_add() {
    if !std::is_x86_feature_detected!("fma") {
        return skip::test("this processor has no FMA");
    }
    fused("vfmadd132ss", FORM_132, (false, false), native::vfmadd132ss);
    fused("vfmadd213ss", FORM_213, (false, false), native::vfmadd213ss);
    fused("vfmadd231ss", FORM_231, (false, false), native::vfmadd231ss);
    fused("vfmsub213ss", FORM_213, (false, true), native::vfmsub213ss);
    fused("vfnmadd231ss", FORM_231, (true, false), native::vfnmadd231ss);
    fused("vfnmsub132ss", FORM_132, (true, true), native::vfnmsub132ss);
    fused("vfmadd132sd", FORM_132, (false, false), native::vfmadd132sd);
    fused("vfmadd213sd", FORM_213, (false, false), native::vfmadd213sd);
    fused("vfmadd231sd", FORM_231, (false, false), native::vfmadd231sd);
    fused("vfmsub213sd", FORM_213, (false, true), native::vfmsub213sd);
    fused("vfnmadd231sd", FORM_231, (true, false), native::vfnmadd231sd);
    fused("vfnmsub132sd", FORM_132, (true, true), native::vfnmsub132sd);
}

#[test]
fn half_precision() {
    if !std::is_x86_feature_detected!("f16c") {
        return skip::test("this processor has no F16C");
    }
    for bits in 0..=u16::MAX {
        for mxcsr in [0x1f80, 0x1fc0, 0x9f80] {
            let hardware = native::vcvtph2ps(mxcsr, u32::from(bits));
            check(|| format!("vcvtph2ps {bits:#x}"), mxcsr, hardware, |env| sse::f16_to_f32(env, bits));
        }
    }
    for imm8 in 0..5 {
        let hardware = |mxcsr, a| {
            let (result, flags) = native::vcvtps2ph(mxcsr, 0, a, imm8);
            (result as u16, flags)
        };
        let name = format!("vcvtps2ph {imm8}");
        unary(&name, near_f16, hardware, |env, a| sse::f32_to_f16(env, a, imm8));
    }
}

/// A binary32 value, mostly around the limits of binary16.
fn near_f16(random: &mut Operands) -> u32 {
    let exponent = match random.below(4) {
        0 => 127 - 16 + random.below(4) as u32,
        1 => 127 - 28 + random.below(16) as u32,
        2 => 127 + 17 - random.below(4) as u32,
        _ => return random.f32(),
    };
    (random.f32() & !(0xff << 23)) | exponent << 23
}

/// The crate defines its own estimates. These estimates must meet the SDM's bound. Special operands must give the
/// processor's results.
#[test]
fn estimates() {
    let mut random = Operands::for_test("estimates", "SOFTFLOAT_SEED");
    for _ in 0..cases(BASE) {
        let a = random.f32();
        estimate(a, sse::reciprocal(a), native::rcpss(a), |x| 1.0 / x);
        estimate(a, sse::reciprocal_square_root(a), native::rsqrtss(a), |x| 1.0 / x.sqrt());
    }
}

fn estimate(a: u32, software: u32, hardware: u32, exact: impl Fn(f64) -> f64) {
    let exact = exact(f64::from(f32::from_bits(a)));
    let result = f64::from(f32::from_bits(software));
    let ordinary = exact.is_normal() && result != 0.0 && result.is_finite();
    if ordinary {
        let error = (result / exact - 1.0).abs();
        assert!(error < 1.5 / 4096.0, "{a:#x} gave {software:#x}, relative error {error:e}");
    } else {
        // Near the smallest normal number, the error of an estimate decides whether it becomes zero. Implementations
        // may differ there.
        let borderline = exact.abs() < 1.001 * f64::from(f32::MIN_POSITIVE);
        assert!(software == hardware || borderline, "{a:#x} gave {software:#x}, hardware {hardware:#x}");
    }
}
