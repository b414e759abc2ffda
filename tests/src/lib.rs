//! The harness of the whole-system tests. The harness builds machines from the guests in `guest-images/out`, types
//! text at their consoles by a script, and saves and restores whole machines. The harness reads no clock and no
//! host randomness, so a test does the same in every run. Only [`network`] and [`terminal`] read the clock, because
//! they test ttvm together with other programs of the host.
//!
//! The harness is not a test framework: each function panics with an error message if the test has failed.

#![forbid(unsafe_code)]

pub mod elf;
pub mod gdb;
pub mod guests;
pub mod lab;
pub mod listings;
pub mod network;
pub mod program;
pub mod random;
pub mod record;
pub mod run;
pub mod saved;
pub mod shared;
pub mod terminal;
pub mod tools;
pub mod traveller;
