//! What executes the guest.
//!
//! Start with [`contract`], which is what the machine needs of an engine; [`soft`] is the software CPU,
//! [`kvm`] the Linux kernel's KVM. The words in which a machine tells an engine when to leave the guest
//! ([`Leave`], [`Mark`], [`End`]) are in the package `engine-contract`, because the package `kvm` uses them
//! too.
//!
//! Engines know no devices, inputs or logs: they see RAM and a bus.

pub mod contract;
pub mod kvm;
pub mod soft;

use std::sync::Arc;

pub use contract::{End, Engine, Leave, Mark, Statistics};
use cpu::CpuModel;
use guest_ram::GuestRam;

use crate::engine::kvm::KvmEngine;
use crate::engine::soft::SoftEngine;
use crate::error::Error;

/// Which engine executes a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The software CPU.
    #[default]
    Soft,
    /// KVM.
    Kvm,
}

impl EngineKind {
    /// An engine of this kind over `ram`, in reset state.
    pub fn build(self, ram: Arc<GuestRam>, model: CpuModel) -> Result<Box<dyn Engine>, Error> {
        Ok(match self {
            EngineKind::Soft => Box::new(SoftEngine::new(ram, model)),
            EngineKind::Kvm => Box::new(KvmEngine::new(ram, model)?),
        })
    }
}
