//! Bit-exact x86 floating point, the same on every host.
//!
//! ```
//! use softfloat::sse::{self, SseEnv};
//!
//! // A third, under the MXCSR of a reset processor.
//! let mut env = SseEnv::new(0x1f80);
//! let third = sse::div(&mut env, 1_f64.to_bits(), 3_f64.to_bits());
//! assert_eq!(f64::from_bits(third), 1.0 / 3.0);
//! // The result is rounded: the flag PE is set.
//! assert_eq!(env.finish(), Ok(0x1fa0));
//! ```
//!
//! Two halves share one rounding core:
//!
//! * [`sse`]: binary32/binary64 (and binary16 conversions) under an MXCSR, on bit patterns `u32`/`u64`.
//! * [`x87`]: the 80-bit extended format under an x87 control word.
//!
//! ```text
//!            sse::{arith, compare, convert, fma, half, estimate}      x87::{arith, compare, convert, ...}
//!  bits ──► unpack ──► exact value (sign, exponent, 128-bit significand) ──► round + pack ──► bits, flags
//!                                     exact.rs
//! ```
//!
//! Everything is integer arithmetic, by hand: no library has every bit and flag of x87 and SSE, NaNs included, as
//! processors have them. Where an operation is so hot that it matters, a *fast path* uses the host's `+ - * /` and
//! square root. IEEE 754 fixes their results, and the fast path is taken only where neither the result nor any
//! observable flag can depend on anything else (see [`sse::arith`]).
//!
//! What this crate does not do: decode instructions, know register files or the x87 stack (stack faults and tags are
//! the caller's), deliver #XM or #MF. It reports which exceptions an operation raised and whether a result exists; the
//! caller delivers.
//!
//! Manual: Intel SDM volume 1 chapters 4 (formats, NaNs, exceptions), 8 (x87), 10-11 (SSE), 14 (FMA, F16C); volume 2
//! for single instructions. `tests/silicon` compares all of it with the processor it runs on.

#![forbid(unsafe_code)]

pub mod env;
mod exact;
mod relation;
pub mod sse;
pub mod x87;

pub use relation::Relation;
