//! The virtio devices, decoded for people.

use std::sync::atomic::Ordering::Relaxed;

use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::*;
use virtio_bindings::virtio_ids::{VIRTIO_ID_BLOCK, VIRTIO_ID_CONSOLE, VIRTIO_ID_NET, VIRTIO_ID_RNG};
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::*;
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use super::feature::feature;
use super::state::{DeviceStateV1, QueueStateV1};

/// The state of a virtio device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtioSummary {
    /// The device's type (VIRTIO 1.2, chapter 5).
    pub virtio_type: u16,
    /// The device status register.
    pub status: u8,
    /// The features that the device offers.
    pub offered: u64,
    /// The features that the driver has accepted.
    pub accepted: u64,
    /// The MSI-X vector for configuration changes.
    pub config_vector: Option<u16>,
    /// The queues, by number.
    pub queues: Vec<QueueSummary>,
    /// The part of the state that only this kind of device has.
    pub device: DeviceStateV1,
}

/// A queue's registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSummary {
    /// Size, addresses and positions.
    pub registers: QueueStateV1,
    /// The queue's MSI-X vector.
    pub vector: Option<u16>,
    /// Whether the driver says by an index when it wants an interrupt (EVENT_IDX).
    pub has_event_index: bool,
}

/// The driver's side of a queue. The guest's memory is not trusted, so any value can occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSummary {
    /// The index of the next entry that the driver will make available.
    pub available_index: u16,
    /// The index of the next entry that the device will use, as the driver sees it.
    pub used_index: u16,
    /// Number of entries that wait for the device. `None` if the driver's index is impossible.
    pub waiting: Option<u16>,
    /// Number of further used entries after which the driver wants an interrupt. `None` if the driver wants no
    /// interrupt.
    pub interrupt_after: Option<u16>,
}

impl VirtioSummary {
    /// The kind of device in words.
    pub fn kind(&self) -> &'static str {
        match u32::from(self.virtio_type) {
            VIRTIO_ID_BLOCK => "block",
            VIRTIO_ID_CONSOLE => "console",
            VIRTIO_ID_NET => "net",
            VIRTIO_ID_RNG => "rng",
            _ => "unknown",
        }
    }

    /// The names of the bits in the status register, as the specification has them.
    pub fn status_names(&self) -> Vec<&'static str> {
        let named = |&(bit, name): &(u32, &'static str)| (u32::from(self.status) & bit != 0).then_some(name);
        STATUS.iter().filter_map(named).collect()
    }

    /// The names of features of this kind of device, as the specification has them, without their prefix.
    pub fn feature_names(&self, features: u64) -> Vec<String> {
        let own: &[(u32, &str)] = match u32::from(self.virtio_type) {
            VIRTIO_ID_BLOCK => BLOCK,
            VIRTIO_ID_CONSOLE => CONSOLE,
            VIRTIO_ID_NET => NET,
            _ => &[],
        };
        let name = |bit: u32| {
            let known = own.iter().chain(TRANSPORT).find(|(number, _)| *number == bit);
            known.map_or_else(|| format!("bit {bit}"), |(_, name)| name.to_string())
        };
        (0..u64::BITS).filter(|&bit| features & feature(bit) != 0).map(name).collect()
    }
}

impl QueueSummary {
    /// Reads the driver's side of the queue. `None` if the queue is not enabled, or lies outside of the memory.
    pub fn ring<M: GuestMemory>(&self, mem: &M) -> Option<RingSummary> {
        let QueueStateV1 { size, enabled, available, used, next_available, next_used, .. } = self.registers;
        let word = |base: u64, offset: u64| {
            let address = GuestAddress(base.checked_add(offset)?);
            mem.load::<u16>(address, Relaxed).map(u16::from_le).ok()
        };
        if !enabled {
            return None;
        }
        let available_index = word(available, 2)?;
        let interrupt_after = if self.has_event_index {
            let event = word(available, 4 + 2 * u64::from(size))?;
            event.wrapping_sub(next_used).checked_add(1).filter(|&distance| distance <= size)
        } else {
            (u32::from(word(available, 0)?) & VRING_AVAIL_F_NO_INTERRUPT == 0).then_some(1)
        };
        Some(RingSummary {
            available_index,
            used_index: word(used, 2)?,
            waiting: Some(available_index.wrapping_sub(next_available)).filter(|&waiting| waiting <= size),
            interrupt_after,
        })
    }
}

const STATUS: &[(u32, &str)] = &[
    (VIRTIO_CONFIG_S_ACKNOWLEDGE, "ACKNOWLEDGE"),
    (VIRTIO_CONFIG_S_DRIVER, "DRIVER"),
    (VIRTIO_CONFIG_S_FEATURES_OK, "FEATURES_OK"),
    (VIRTIO_CONFIG_S_DRIVER_OK, "DRIVER_OK"),
    (VIRTIO_CONFIG_S_NEEDS_RESET, "DEVICE_NEEDS_RESET"),
    (VIRTIO_CONFIG_S_FAILED, "FAILED"),
];

const TRANSPORT: &[(u32, &str)] = &[
    (VIRTIO_RING_F_INDIRECT_DESC, "INDIRECT_DESC"),
    (VIRTIO_RING_F_EVENT_IDX, "EVENT_IDX"),
    (VIRTIO_F_VERSION_1, "VERSION_1"),
    (VIRTIO_F_RING_RESET, "RING_RESET"),
];

const BLOCK: &[(u32, &str)] = &[
    (VIRTIO_BLK_F_SIZE_MAX, "SIZE_MAX"),
    (VIRTIO_BLK_F_SEG_MAX, "SEG_MAX"),
    (VIRTIO_BLK_F_RO, "RO"),
    (VIRTIO_BLK_F_BLK_SIZE, "BLK_SIZE"),
    (VIRTIO_BLK_F_FLUSH, "FLUSH"),
    (VIRTIO_BLK_F_DISCARD, "DISCARD"),
    (VIRTIO_BLK_F_WRITE_ZEROES, "WRITE_ZEROES"),
];

const CONSOLE: &[(u32, &str)] = &[(0, "SIZE"), (2, "EMERG_WRITE")];

const NET: &[(u32, &str)] = &[
    (VIRTIO_NET_F_CSUM, "CSUM"),
    (VIRTIO_NET_F_MTU, "MTU"),
    (VIRTIO_NET_F_MAC, "MAC"),
    (VIRTIO_NET_F_HOST_TSO4, "HOST_TSO4"),
    (VIRTIO_NET_F_HOST_TSO6, "HOST_TSO6"),
    (VIRTIO_NET_F_MRG_RXBUF, "MRG_RXBUF"),
    (VIRTIO_NET_F_STATUS, "STATUS"),
];
