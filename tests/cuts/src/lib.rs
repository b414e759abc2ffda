//! The cut fuzzer. Replay is exact only if cutting a run changes nothing that the guest can see: no budget, no checkpoint,
//! no restore. This package makes random small guests in every mode ([`program`], [`code`]), runs each of them in several
//! ways ([`ways`]) and compares state, RAM, counts and devices wherever two of them pass the same step ([`campaign`]).
//! A difference is narrowed down to one instruction ([`explain`]).
//!
//! [`loops`] makes the other kind of programs: hot loops in 64-bit mode, for what the CPU remembers of code that it executes
//! often. They take millions of steps, of which most are not compared one by one.
//!
//! A way works with anything that implements [`tier::Tier`].

#![forbid(unsafe_code)]

pub mod board;
pub mod campaign;
pub mod code;
pub mod digests;
pub mod explain;
pub mod layout;
pub mod loops;
pub mod program;
pub mod tier;
pub mod ways;
