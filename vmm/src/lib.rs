//! The virtual machine monitor: the machine, what comes into it from outside, recordings of that, and travel
//! through them. The program `ttvm` (the package in `vmm/cli`) is a thin layer over this library.
//!
//! It does not know how a CPU, a chip, a page store or gdb's protocol works: the packages `cpu`, `devices`,
//! `checkpoint` and `gdb` do. It never parses a command line.
//!
//! Where to start reading: [`machine::run`] has the whole machine and its run loop; [`machine::inputs`] is
//! the one door through which anything from outside comes in; [`position`] says what names a point of a run;
//! [`timeline`] is time travel. The folders use one another in one direction only, which `ARCHITECTURE.md`
//! states and `scripts/layers` checks.

#![forbid(unsafe_code)]

pub mod debug;
pub mod divergence;
pub mod engine;
pub mod error;
pub mod exits;
pub mod export;
pub mod live;
pub mod machine;
pub mod new_file;
pub mod notation;
pub mod position;
pub mod recording;
pub mod replay;
pub mod timeline;
