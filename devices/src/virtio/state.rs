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
    /// The queues, in the order of their numbers.
    pub queues: Vec<QueueStateV1>,
    /// The part of the state that only this kind of device has.
    pub device: DeviceStateV1,
}

/// The registers of the virtio-pci transport (VIRTIO 1.2, section 4.1.4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportStateV1 {
    /// Device status.
    pub status: u8,
    /// Interrupt status: bit 0 for a queue, bit 1 for the configuration.
    pub isr: u8,
    /// Generation of the device configuration.
    pub generation: u8,
    /// Features the driver has accepted.
    pub driver_features: u64,
    /// Selects the visible half of the device's features.
    pub device_feature_select: u32,
    /// Selects the visible half of the driver's features.
    pub driver_feature_select: u32,
    /// Selects the queue with visible registers.
    pub queue_select: u16,
    /// Number of the MSI-X vector for configuration changes; 0xFFFF if they have no vector.
    pub config_vector: u16,
}

/// One virtqueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStateV1 {
    /// Number of entries of the queue.
    pub size: u16,
    /// Whether the driver enabled the queue.
    pub enabled: bool,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    /// Index of the next available entry that the device takes.
    pub next_available: u16,
    /// Index of the next used entry that the device fills.
    pub next_used: u16,
    /// Number of the MSI-X vector for the queue's interrupts; 0xFFFF if the queue has no vector.
    pub vector: u16,
}

/// The state of one kind of device. Passed-through devices were added later and are not virtio devices. The enum has
/// their states too, so that the bus's state keeps its form. Passed-through devices have no transport and no queues. Of
/// these devices, only PCI functions have a configuration space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceStateV1 {
    /// Block: the properties of the disk that the guest can read. A restore compares them, to detect a wrong disk.
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
        /// The card's Ethernet address.
        mac: [u8; 6],
        /// The largest number of bytes that a frame carries.
        mtu: u16,
        /// Whether the driver may leave TCP segmentation to the device.
        segments: bool,
        /// Frames from outside that the guest had no buffers for yet, oldest first.
        waiting: Vec<Vec<u8>>,
        /// Frames that the guest sent so far.
        sent_count: u64,
        /// Chained XXH3-128 of all sent frames.
        sent_hash: [u8; 16],
    },
    /// A PCI function of the host.
    PassedFunction {
        /// Whether the function's interrupt line is up.
        line: bool,
        /// Digest of the guest's writes to the function.
        written: WrittenV1,
    },
    /// Plain ports of the host.
    PassedPorts {
        /// Digest of the guest's writes to the ports.
        written: WrittenV1,
    },
    /// The IOMMU for passed-through functions.
    Translation(TranslationStateV1),
    /// Plain ports of the host with an ISA interrupt line.
    PassedPortsWithLine {
        /// Whether the interrupt line is up.
        line: bool,
        /// Digest of the guest's writes to the ports.
        written: WrittenV1,
    },
}
