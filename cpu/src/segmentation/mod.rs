//! Segmentation (SDM vol. 3, chapter 5 and 3.4-3.5): descriptors, loads of segment registers, far transfers, returns
//! and task switches.
//!
//! The functions of these modules first read and check everything, and then change registers. So a fault leaves
//! registers unchanged. As on hardware, accessed bits in memory may have changed before a fault.

pub(crate) mod descriptor;
pub(crate) mod far;
mod iret;
mod load;
pub(crate) mod stack;
pub(crate) mod task;
