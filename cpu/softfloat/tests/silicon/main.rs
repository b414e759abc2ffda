//! Compares the library with the processor the test runs on: results, flags, C1 and condition codes.
//!
//! Operands are random but biased towards trouble. The seed is fixed and printed; `SOFTFLOAT_SCALE=20` runs
//! twenty times as many cases, `SOFTFLOAT_SEED=n` other ones. Only masked exceptions can be compared for SSE
//! (an unmasked one is a signal); x87 exceptions stay pending until the next waiting instruction, so there
//! the unmasked responses are compared as well.
#![cfg(target_arch = "x86_64")]

mod random;
mod sse_compare;
mod sse_native;
mod x87_compare;
mod x87_native;
mod x87_transcendental;
