//! The processor's own SSE, AVX, FMA and F16C instructions under a given MXCSR.
//!
//! Every function returns the result bits and the MXCSR flags that the instruction raised.

use std::arch::asm;

static DEFAULT_MXCSR: u32 = 0x1f80;

/// `name(mxcsr, a: A, b: B) -> (A, flags)` for `op xmm_a, xmm_b`.
macro_rules! binary {
    ($name:ident, $bits:ty, $float:ty, $op:expr) => {
        pub fn $name(mxcsr: u32, a: $bits, b: $bits) -> ($bits, u32) {
            let (mut control, mut result) = (mxcsr, <$float>::from_bits(a));
            // SAFETY: touches only its operands and MXCSR, whose default is restored; exceptions are masked.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    $op,
                    "stmxcsr [{control}]",
                    "ldmxcsr [{default}]",
                    control = in(reg) &raw mut control,
                    default = in(reg) &raw const DEFAULT_MXCSR,
                    a = inout(xmm_reg) result,
                    b = in(xmm_reg) <$float>::from_bits(b),
                    options(nostack)
                );
            }
            (result.to_bits(), control & 0x3f)
        }
    };
}

/// `name(mxcsr, a: A) -> (R, flags)` for an instruction from a register class to a register class.
macro_rules! unary {
    ($name:ident, $from:ty, $to:ty, $in_class:ident, $in:ty, $out_class:ident, $out:ty, $op:literal) => {
        pub fn $name(mxcsr: u32, a: $from) -> ($to, u32) {
            let mut control = mxcsr;
            let operand: $in = Bits::reinterpret(a);
            let result: $out;
            // SAFETY: touches only its operands and MXCSR, whose default is restored; exceptions are masked.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    $op,
                    "stmxcsr [{control}]",
                    "ldmxcsr [{default}]",
                    control = in(reg) &raw mut control,
                    default = in(reg) &raw const DEFAULT_MXCSR,
                    a = in($in_class) operand,
                    r = out($out_class) result,
                    options(nostack)
                );
            }
            (Bits::reinterpret(result), control & 0x3f)
        }
    };
}

/// Conversions between types with the same bits, like `from_bits` and `to_bits`.
trait Bits<T> {
    fn reinterpret(self) -> T;
}

macro_rules! bits {
    ($($from:ty, $to:ty, $value:ident => $expression:expr;)*) => {
        $(impl Bits<$to> for $from {
            fn reinterpret(self) -> $to {
                let $value = self;
                $expression
            }
        })*
    };
}

bits! {
    u32, f32, v => f32::from_bits(v);
    u64, f64, v => f64::from_bits(v);
    f32, u32, v => v.to_bits();
    f64, u64, v => v.to_bits();
    u32, u32, v => v;
    u64, u64, v => v;
}

binary!(addss, u32, f32, "addss {a}, {b}");
binary!(addsd, u64, f64, "addsd {a}, {b}");
binary!(subss, u32, f32, "subss {a}, {b}");
binary!(subsd, u64, f64, "subsd {a}, {b}");
binary!(mulss, u32, f32, "mulss {a}, {b}");
binary!(mulsd, u64, f64, "mulsd {a}, {b}");
binary!(divss, u32, f32, "divss {a}, {b}");
binary!(divsd, u64, f64, "divsd {a}, {b}");
binary!(minss, u32, f32, "minss {a}, {b}");
binary!(minsd, u64, f64, "minsd {a}, {b}");
binary!(maxss, u32, f32, "maxss {a}, {b}");
binary!(maxsd, u64, f64, "maxsd {a}, {b}");

unary!(sqrtss, u32, u32, xmm_reg, f32, xmm_reg, f32, "sqrtss {r}, {a}");
unary!(sqrtsd, u64, u64, xmm_reg, f64, xmm_reg, f64, "sqrtsd {r}, {a}");
unary!(cvtss2sd, u32, u64, xmm_reg, f32, xmm_reg, f64, "cvtss2sd {r}, {a}");
unary!(cvtsd2ss, u64, u32, xmm_reg, f64, xmm_reg, f32, "cvtsd2ss {r}, {a}");
unary!(cvtsi2ss32, u32, u32, reg, u32, xmm_reg, f32, "cvtsi2ss {r}, {a:e}");
unary!(cvtsi2sd32, u32, u64, reg, u32, xmm_reg, f64, "cvtsi2sd {r}, {a:e}");
unary!(cvtsi2ss64, u64, u32, reg, u64, xmm_reg, f32, "cvtsi2ss {r}, {a:r}");
unary!(cvtsi2sd64, u64, u64, reg, u64, xmm_reg, f64, "cvtsi2sd {r}, {a:r}");
unary!(cvtss2si32, u32, u32, xmm_reg, f32, reg, u32, "cvtss2si {r:e}, {a}");
unary!(cvtss2si64, u32, u64, xmm_reg, f32, reg, u64, "cvtss2si {r:r}, {a}");
unary!(cvtsd2si32, u64, u32, xmm_reg, f64, reg, u32, "cvtsd2si {r:e}, {a}");
unary!(cvtsd2si64, u64, u64, xmm_reg, f64, reg, u64, "cvtsd2si {r:r}, {a}");
unary!(cvttss2si32, u32, u32, xmm_reg, f32, reg, u32, "cvttss2si {r:e}, {a}");
unary!(cvttss2si64, u32, u64, xmm_reg, f32, reg, u64, "cvttss2si {r:r}, {a}");
unary!(cvttsd2si32, u64, u32, xmm_reg, f64, reg, u32, "cvttsd2si {r:e}, {a}");
unary!(cvttsd2si64, u64, u64, xmm_reg, f64, reg, u64, "cvttsd2si {r:r}, {a}");

// AVX-512F.
unary!(vcvtusi2ss32, u32, u32, reg, u32, xmm_reg, f32, "vcvtusi2ss {r}, {r}, {a:e}");
unary!(vcvtusi2sd64, u64, u64, reg, u64, xmm_reg, f64, "vcvtusi2sd {r}, {r}, {a:r}");
unary!(vcvtusi2ss64, u64, u32, reg, u64, xmm_reg, f32, "vcvtusi2ss {r}, {r}, {a:r}");
unary!(vcvtss2usi32, u32, u32, xmm_reg, f32, reg, u32, "vcvtss2usi {r:e}, {a}");
unary!(vcvtsd2usi64, u64, u64, xmm_reg, f64, reg, u64, "vcvtsd2usi {r:r}, {a}");
unary!(vcvttsd2usi32, u64, u32, xmm_reg, f64, reg, u32, "vcvttsd2usi {r:e}, {a}");
unary!(vcvttss2usi64, u32, u64, xmm_reg, f32, reg, u64, "vcvttss2usi {r:r}, {a}");

// F16C. The binary16 operand is in the low half of a register.
unary!(vcvtph2ps, u32, u32, xmm_reg, f32, xmm_reg, f32, "vcvtph2ps {r}, {a}");

/// EFLAGS bits ZF, PF, CF after a comparison.
macro_rules! comi {
    ($name:ident, $bits:ty, $float:ty, $op:literal) => {
        pub fn $name(mxcsr: u32, a: $bits, b: $bits) -> (u32, u32) {
            let mut control = mxcsr;
            let eflags: u64;
            // SAFETY: touches only its operands and MXCSR, whose default is restored; exceptions are masked. Pushes and
            // pops one word.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    $op,
                    "pushfq",
                    "pop {eflags}",
                    "stmxcsr [{control}]",
                    "ldmxcsr [{default}]",
                    control = in(reg) &raw mut control,
                    default = in(reg) &raw const DEFAULT_MXCSR,
                    a = in(xmm_reg) <$float>::from_bits(a),
                    b = in(xmm_reg) <$float>::from_bits(b),
                    eflags = out(reg) eflags,
                );
            }
            (eflags as u32 & 0x45, control & 0x3f)
        }
    };
}

comi!(comiss, u32, f32, "comiss {a}, {b}");
comi!(comisd, u64, f64, "comisd {a}, {b}");
comi!(ucomiss, u32, f32, "ucomiss {a}, {b}");
comi!(ucomisd, u64, f64, "ucomisd {a}, {b}");

/// One function per value of an immediate operand.
macro_rules! immediates {
    ($name:ident, $bits:ty, $float:ty, $op:literal, [$($imm:literal)*]) => {
        pub fn $name(mxcsr: u32, a: $bits, b: $bits, imm8: u8) -> ($bits, u32) {
            match imm8 {
                $($imm => {
                    binary!(one, $bits, $float, concat!($op, ", ", $imm));
                    one(mxcsr, a, b)
                })*
                _ => unreachable!("no such immediate in this test"),
            }
        }
    };
}

immediates!(cmpss, u32, f32, "vcmpss {a}, {a}, {b}", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
    16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]);
immediates!(cmpsd, u64, f64, "vcmpsd {a}, {a}, {b}", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
    16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]);
immediates!(roundss, u32, f32, "roundss {a}, {b}", [0 1 2 3 4 8 9 10 11 12]);
immediates!(roundsd, u64, f64, "roundsd {a}, {b}", [0 1 2 3 4 8 9 10 11 12]);
immediates!(vcvtps2ph, u32, f32, "vcvtps2ph {a}, {b}", [0 1 2 3 4]);

/// `name(mxcsr, [destination, second, third])` for a fused multiply-add.
macro_rules! fused {
    ($name:ident, $bits:ty, $float:ty, $op:literal) => {
        pub fn $name(mxcsr: u32, [a, b, c]: [$bits; 3]) -> ($bits, u32) {
            let (mut control, mut result) = (mxcsr, <$float>::from_bits(a));
            // SAFETY: touches only its operands and MXCSR, whose default is restored; exceptions are masked.
            unsafe {
                asm!(
                    "ldmxcsr [{control}]",
                    concat!($op, " {a}, {b}, {c}"),
                    "stmxcsr [{control}]",
                    "ldmxcsr [{default}]",
                    control = in(reg) &raw mut control,
                    default = in(reg) &raw const DEFAULT_MXCSR,
                    a = inout(xmm_reg) result,
                    b = in(xmm_reg) <$float>::from_bits(b),
                    c = in(xmm_reg) <$float>::from_bits(c),
                    options(nostack)
                );
            }
            (result.to_bits(), control & 0x3f)
        }
    };
}

fused!(vfmadd132ss, u32, f32, "vfmadd132ss");
fused!(vfmadd213ss, u32, f32, "vfmadd213ss");
fused!(vfmadd231ss, u32, f32, "vfmadd231ss");
fused!(vfmsub213ss, u32, f32, "vfmsub213ss");
fused!(vfnmadd231ss, u32, f32, "vfnmadd231ss");
fused!(vfnmsub132ss, u32, f32, "vfnmsub132ss");
fused!(vfmadd132sd, u64, f64, "vfmadd132sd");
fused!(vfmadd213sd, u64, f64, "vfmadd213sd");
fused!(vfmadd231sd, u64, f64, "vfmadd231sd");
fused!(vfmsub213sd, u64, f64, "vfmsub213sd");
fused!(vfnmadd231sd, u64, f64, "vfnmadd231sd");
fused!(vfnmsub132sd, u64, f64, "vfnmsub132sd");

/// An estimate instruction, which ignores MXCSR.
macro_rules! estimate {
    ($name:ident, $op:literal) => {
        pub fn $name(a: u32) -> u32 {
            let result: f32;
            // SAFETY: touches only its operands.
            unsafe {
                asm!(concat!($op, " {r}, {a}"), a = in(xmm_reg) f32::from_bits(a), r = out(xmm_reg) result);
            }
            result.to_bits()
        }
    };
}

estimate!(rcpss, "rcpss");
estimate!(rsqrtss, "rsqrtss");
