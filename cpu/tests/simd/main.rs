//! Compares the SIMD instructions of the software CPU with the processor that runs the tests. Faults and unmasked
//! exceptions are compared with the manual instead, because the processor cannot be asked.
//!
//! `instructions` builds random encodings of every instruction of these families that `iced-x86` knows. `host` executes
//! one natively and `guest` on our CPU, at the same linear addresses and from the same [`state::State`].

#[cfg(target_arch = "x86_64")]
mod against_processor;
mod faults;
mod guest;
#[cfg(target_arch = "x86_64")]
mod host;
mod instructions;
mod state;
