//! x87 arithmetic on 80-bit extended values.
//!
//! One [`X87Env`] serves one instruction: it takes the control word in and returns the exception flags and C1. Operands
//! are [`F80`], or an [`Operand`] if the instruction takes one from memory in another format. The memory format decides
//! whether such an operand is a denormal or an SNaN.
//!
//! Results are `Option`s. `None` means that an unmasked exception left no result, so destination and stack do not
//! change. The caller ors [`X87Env::raised`] into the status word. If [`X87Env::unmasked`] is not zero, the caller then
//! sets ES, and #MF becomes pending. An unmasked overflow or underflow with a register destination has a result, scaled
//! by 2^±24576.
//!
//! Condition codes: every instruction writes C1 from [`X87Env::c1`] (mostly 0), even for `None`, and does not
//! change C0, C2 and C3. If a function departs from this rule, its documentation says so. Flags, codes, pops and
//! results were all observed on a processor, even where the SDM calls them undefined; `tests/silicon` repeats the
//! observation.
//!
//! ```
//! use softfloat::x87::{self, F80, X87Env};
//! let mut env = X87Env::new(0x037f);
//! let three = x87::from_i64(3);
//! let third = x87::div(&mut env, F80::ONE, three).unwrap();
//! assert_eq!(third, F80 { mantissa: 0xaaaa_aaaa_aaaa_aaab, sign_exponent: 0x3ffd });
//! assert!(env.c1() && env.raised() == softfloat::env::PE);
//! ```
//!
//! SDM vol. 1, chapter 8; vol. 2 for the instructions. The caller handles stack faults, tags and pointers.

mod arith;
mod compare;
mod constants;
mod convert;
mod env;
mod exponential;
mod format;
mod integral;
mod remainder;
mod trigonometry;
mod wide;

pub use arith::{abs, add, change_sign, div, mul, sqrt, sub};
pub use compare::{compare_ordered, compare_unordered, examine, test};
pub use constants::{Constant, load_constant};
pub use convert::{
    from_bcd, from_f32, from_f64, from_i64, to_bcd, to_f32, to_f64, to_i16, to_i16_truncating, to_i32,
    to_i32_truncating, to_i64, to_i64_truncating,
};
pub use env::{C0, C1, C2, C3, X87Env};
pub use exponential::{f2xm1, fyl2x, fyl2xp1};
pub use format::{F80, Operand};
pub use integral::{extract, round_to_integer, scale};
pub use remainder::{Remainder, prem, prem1};
pub use trigonometry::{Angle, fcos, fpatan, fptan, fsin, fsincos};

/// The two results of FXTRACT, FSINCOS and FPTAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The value that replaces the operand in ST(0): the exponent, the sine, the tangent.
    pub replaced: F80,
    /// The value that is pushed afterwards: the significand, the cosine, 1.
    pub pushed: F80,
}
