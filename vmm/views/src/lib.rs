//! The machine and what it did, in the formats of other tools.

#![forbid(unsafe_code)]

pub mod core_file;
pub mod guest_kernel;
mod perfetto;
pub mod trace;
