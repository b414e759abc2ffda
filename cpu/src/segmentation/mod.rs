//! Segmentation (SDM vol. 3, chapter 5 and 3.4-3.5): descriptors, loads of segment registers, far transfers, returns
//! and task switches.
//!
//! Everything here reads and checks first and changes registers last, so that a fault leaves registers unchanged.
//! Memory may have changed by then (accessed bits), as on hardware.

pub(crate) mod descriptor;
pub(crate) mod far;
mod iret;
mod load;
pub(crate) mod stack;
pub(crate) mod task;
