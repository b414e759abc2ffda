//! The saved form of the bus, version 1.

use serde::{Deserialize, Serialize};

use crate::virtio::state::VirtioFunctionStateV1;

/// Saved state of the bus and everything on it. Equal machines give equal states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciBusStateV1 {
    /// The configuration address register (port 0xCF8).
    pub address: u32,
    /// The host bridge's 256 bytes of configuration space.
    pub host_bridge: Vec<u8>,
    /// The devices, slot 1 first.
    pub functions: Vec<VirtioFunctionStateV1>,
    /// Messages that the owner has not taken yet: address and data.
    pub msis: Vec<(u64, u32)>,
}
