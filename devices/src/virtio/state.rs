//! The saved form of a virtio function, version 1.

use serde::{Deserialize, Serialize};

use crate::passthrough::{TranslationStateV1, WrittenV1};
use crate::pci::msix::MsixStateV1;

/// One PCI function with its virtio device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioFunctionStateV1 {
    /// The 256 bytes of configuration space: command, BARs, MSI-X control and the rest.
    pub config: Vec<u8>,
    /// MSI-X table and pending bits.
    pub msix: MsixStateV1,
    /// The transport's registers.
    pub transport: TransportStateV1,
    /// The queues, in order.
    pub queues: Vec<QueueStateV1>,
    /// What only this kind of device has.
    pub device: DeviceStateV1,
}

/// The registers of the virtio-pci transport (VIRTIO 1.2, section 4.1.4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportStateV1 {
    /// Device status.
    pub status: u8,
    /// Interrupt status: bit 0 a queue, bit 1 the configuration.
    pub isr: u8,
    /// Generation of the device configuration.
    pub generation: u8,
    /// Features the driver has accepted.
    pub driver_features: u64,
    /// Selects the half of the device's features that is shown.
    pub device_feature_select: u32,
    /// Selects the half of the driver's features that is shown.
    pub driver_feature_select: u32,
    /// The queue whose registers are shown.
    pub queue_select: u16,
    /// Vector for configuration changes, or 0xFFFF.
    pub config_vector: u16,
}

/// One virtqueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStateV1 {
    /// Number of entries.
    pub size: u16,
    /// Whether the driver enabled it.
    pub enabled: bool,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    /// Next available entry the device takes.
    pub next_available: u16,
    /// Next used entry the device fills.
    pub next_used: u16,
    /// Interrupt vector, or 0xFFFF.
    pub vector: u16,
}

/// What only one kind of device has. Kinds that came later and are no virtio devices have their state in here too, so that
/// the bus's state keeps its form: they have no transport and no queues, and but for PCI functions no configuration space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceStateV1 {
    /// Block: what the guest knows about the disk, to notice a wrong one.
    Block {
        /// Size in sectors of 512 bytes.
        capacity_sectors: u64,
        /// Whether writes are refused.
        read_only: bool,
    },
    /// Console.
    Console {
        /// Width in characters.
        columns: u16,
        /// Height in characters.
        rows: u16,
        /// Bytes typed that the guest has not taken yet.
        input: Vec<u8>,
    },
    /// Random numbers.
    Rng {
        /// ChaCha20 key.
        seed: [u8; 32],
        /// Words of 32 bits drawn so far.
        word_position: u64,
    },
    /// Network card.
    Net {
        /// Its address.
        mac: [u8; 6],
        /// Most bytes that a frame carries.
        mtu: u16,
        /// Whether the driver may leave the segmentation of TCP to it.
        segments: bool,
        /// Frames from outside that the guest had no buffers for yet, oldest first.
        waiting: Vec<Vec<u8>>,
        /// Frames that the guest sent so far.
        sent_count: u64,
        /// Chained XXH3-128 of all of them.
        sent_hash: [u8; 16],
    },
    /// A PCI function of the host.
    PassedFunction {
        /// Whether its interrupt line is up.
        line: bool,
        /// What the guest wrote to it.
        written: WrittenV1,
    },
    /// Plain ports of the host.
    PassedPorts {
        /// What the guest wrote to them.
        written: WrittenV1,
    },
    /// The IOMMU for such functions.
    Translation(TranslationStateV1),
    /// Plain ports of the host with an ISA interrupt line.
    PassedPortsWithLine {
        /// Whether the line is up.
        line: bool,
        /// What the guest wrote to them.
        written: WrittenV1,
    },
}
