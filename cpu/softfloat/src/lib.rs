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
//! Everything is hand-written integer arithmetic: no library matches every bit and flag of x87 and SSE,
//! including NaNs. For hot operations, a *fast path* uses the host's `+ - * /` and square root. IEEE 754
//! fixes the results of these host operations. The fast path is taken only if neither the result nor any
//! observable flag can depend on anything else (see [`sse::arith`]).
//!
//! This crate does not decode instructions and knows no register files. The caller handles the x87 stack with its
//! faults and tags, and delivers #XM and #MF. The crate reports which exceptions an operation raised and whether a
//! result exists.
//!
//! Manual: Intel SDM volume 1 chapters 4 (formats, NaNs, exceptions), 8 (x87), 10-11 (SSE), 14 (FMA, F16C); volume 2
//! for single instructions. `tests/silicon` compares the crate with the processor that runs the test.

#![forbid(unsafe_code)]

pub mod env;
mod exact;
mod relation;
pub mod sse;
pub mod x87;

pub use relation::Relation;
