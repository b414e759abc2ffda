//! SSE/AVX scalar arithmetic on bit patterns. Packed instructions call these functions once per lane.
//!
//! The functions are generic over [`Ieee`]: `u32` means binary32, `u64` binary64. One [`SseEnv`] serves all
//! lanes of one *instruction*. The environment takes MXCSR in and returns the flags that the instruction
//! raised.
//!
//! ```
//! use softfloat::sse::{self, SseEnv};
//! let mut env = SseEnv::new(0x1f80);
//! let sum = sse::add(&mut env, 1.5f64.to_bits(), 2.25f64.to_bits());
//! assert_eq!(f64::from_bits(sum), 3.75);
//! assert_eq!(env.finish(), Ok(0x1f80)); // the new MXCSR; Err: #XM is due, leave the destination alone
//! ```

pub mod arith;
pub mod compare;
pub mod convert;
mod env;
pub mod estimate;
pub mod fma;
pub(crate) mod format;
pub mod half;
mod provably_exact;

pub use crate::relation::Relation;
pub use arith::{add, div, max, min, mul, sqrt, sub};
pub use compare::{Predicate, comi, compare, ucomi};
pub use convert::{
    f32_to_f64, f64_to_f32, from_i32, from_i64, from_u32, from_u64, round_to_integral, to_i32,
    to_i32_truncating, to_i64, to_i64_truncating, to_u32, to_u32_truncating, to_u64, to_u64_truncating,
};
pub use env::{SseEnv, Unmasked};
pub use estimate::{reciprocal, reciprocal_square_root};
pub use fma::mul_add;
pub use format::{Host, Ieee};
pub use half::{f16_to_f32, f32_to_f16};
