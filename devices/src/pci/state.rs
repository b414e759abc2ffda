//! The saved form of the bus, version 1.

use serde::{Deserialize, Serialize};

use crate::virtio::VirtioFunctionStateV1;

/// The current version of the saved form.
pub type PciBusState = PciBusStateV1;

/// Saved state of the bus and everything on it. Equal machines give equal states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciBusStateV1 {
    /// The configuration address register (port 0xCF8).
    pub address: u32,
    /// The host bridge's 256 bytes of configuration space.
    pub host_bridge: Vec<u8>,
    /// The devices, slot 1 first.
    pub functions: Vec<VirtioFunctionStateV1>,
    /// Messages not yet taken by the owner: address and data.
    pub msis: Vec<(u64, u32)>,
}

/// Why a saved state cannot be restored into this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved PCI state does not fit this machine: {what}")]
pub struct StateError {
    what: String,
}

impl StateError {
    pub(crate) fn new(what: impl Into<String>) -> StateError {
        StateError { what: what.into() }
    }

    pub(crate) fn in_slot(self, slot: usize) -> StateError {
        StateError { what: format!("slot {slot}: {}", self.what) }
    }
}
