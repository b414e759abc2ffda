//! The machine and what it did, in the formats of other tools.

#![forbid(unsafe_code)]

pub mod core_file;
mod perfetto;
pub mod trace;
pub mod witness;
