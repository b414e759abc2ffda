//! The parts of `ttvm here`: the kernel, its modules and its options.

pub mod kernel;
pub mod modules;
pub mod options;
