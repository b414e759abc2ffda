//! Compares the SIMD instructions of the software CPU with the processor that runs the tests. Faults and unmasked
//! exceptions are compared with the manual instead, because the test program does not raise them on the processor.
//!
//! `instructions` builds random encodings of every instruction of these families that `iced-x86` knows. `host`
//! executes an encoding natively, and `guest` executes it on our CPU, at the same linear addresses and from the
//! same [`state::State`].

#[cfg(target_arch = "x86_64")]
mod against_processor;
mod faults;
mod guest;
#[cfg(target_arch = "x86_64")]
mod host;
mod instructions;
mod state;
