//! The machine and what it did, in the formats of other tools.

pub mod core_file;
mod perfetto;
pub mod trace;
pub mod witness;
