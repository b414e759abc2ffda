//! The functions on the bus, decoded for people.

use super::msix::MessagesSummary;
use crate::virtio::VirtioSummary;

/// A function on the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionSummary {
    /// The slot; the host bridge has slot 0. Each slot has only function 0.
    pub slot: usize,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Whether the function's memory BARs decode.
    pub is_memory_enabled: bool,
    /// Whether the function's I/O port BARs decode.
    pub is_ports_enabled: bool,
    /// Whether the function may access memory, and send messages.
    pub is_bus_master: bool,
    /// Whether the guest has disabled the interrupt line (INTx).
    pub is_line_disabled: bool,
    /// Whether the function has an interrupt line.
    pub has_line: bool,
    /// The interrupt line register. Software, and no chip, uses this register.
    pub line: u8,
    /// Whether the interrupt line is up.
    pub is_line_up: bool,
    /// The BARs.
    pub bars: Vec<BarSummary>,
    /// The message of MSI, if the function has this capability.
    pub msi: Option<MessagesSummary>,
    /// The messages of MSI-X, if the function has this capability.
    pub msix: Option<MessagesSummary>,
    /// The virtio device, if the function has one.
    pub virtio: Option<VirtioSummary>,
}

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarSummary {
    /// The BAR's number.
    pub index: usize,
    /// The address, a guest-physical address or a port.
    pub address: u64,
    /// The size in bytes.
    pub size_bytes: u32,
    /// Whether the BAR has I/O ports.
    pub is_ports: bool,
}
