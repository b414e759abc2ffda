//! Runs the tests of `system` again with all code translated before its first execution, and adds tests of the
//! translator.

#[path = "../system/alignment.rs"]
mod alignment;
#[path = "../system/coherence.rs"]
mod coherence;
#[path = "../system/control.rs"]
mod control;
#[path = "../system/cuts.rs"]
mod cuts;
#[path = "../system/debug.rs"]
mod debug;
#[path = "../system/flags.rs"]
mod flags;
#[path = "../system/forks.rs"]
mod forks;
#[path = "../system/harness.rs"]
mod harness;
#[path = "../system/legacy.rs"]
mod legacy;
#[path = "../system/legacy_integer.rs"]
mod legacy_integer;
#[path = "../system/long_mode.rs"]
mod long_mode;
#[path = "../system/models.rs"]
mod models;
mod observers;
#[path = "../system/peek.rs"]
mod peek;
#[path = "../system/processors.rs"]
mod processors;
#[path = "../system/random.rs"]
mod random;
#[path = "../system/real.rs"]
mod real;
#[path = "../system/registers.rs"]
mod registers;
#[path = "../system/strings.rs"]
mod strings;
#[path = "../system/tables.rs"]
mod tables;
mod tiers;
#[path = "../system/watchpoints.rs"]
mod watchpoints;
