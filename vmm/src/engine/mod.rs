//! What executes the guest. [`contract`] is what the machine needs of it; [`soft`] is the software CPU, [`kvm`] the Linux kernel's
//! KVM. What both are told and say ([`Leave`], [`Mark`], [`End`]) is the package `engine-contract`, because the package `kvm` speaks
//! it too.

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
