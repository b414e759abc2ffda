//! The parts of `ttvm here`: the kernel, its modules and its options, and the end of the run.

pub mod ended;
pub mod kernel;
pub mod modules;
pub mod options;
pub mod out;
