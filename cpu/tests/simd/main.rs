//! The SIMD instructions of the software CPU against the processor the tests run on, and against the manual
//! where the processor cannot be asked (faults, unmasked exceptions).
//!
//! `instructions` builds random encodings of every instruction that `iced-x86` knows of the families in
//! question; `host` executes one natively, `guest` on our CPU, both at the same linear addresses and from the
//! same [`state::State`].

#[cfg(target_arch = "x86_64")]
mod against_processor;
mod faults;
mod guest;
#[cfg(target_arch = "x86_64")]
mod host;
mod instructions;
mod state;
