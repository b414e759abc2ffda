//! The cut fuzzer. A *cut* interrupts a run: a budget ends, a checkpoint is taken, or a state is restored. Replay is
//! exact only if no cut changes anything that the guest can see. This package makes random small guests in every mode
//! ([`program`], [`code`]), and runs each guest in several ways ([`ways`]). The package compares state, RAM, counts and
//! devices wherever two runs pass the same step ([`campaign`]). For a difference the package finds the instruction
//! ([`explain`]).
//!
//! [`loops`] makes a second kind of programs: hot loops in 64-bit mode. The loops test the CPU's caches of often
//! executed code. A program of hot loops takes millions of steps, and most of these steps are not compared one by
//! one.
//!
//! The package can run programs on any CPU that implements [`tier::Tier`].

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
