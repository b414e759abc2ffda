//! The *asks* of a machine, which are its questions and notices to its passed-through devices, and the devices'
//! answers. Recordings store these types.

use serde::{Deserialize, Serialize};

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionV1 {
    /// The range of the base address register with this number.
    Bar(u8),
    /// Configuration space.
    Config,
    /// The device's ranges of I/O ports.
    Ports,
}

/// How a PCI function may interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptModeV1 {
    /// The function cannot interrupt.
    Off,
    /// The function interrupts by its interrupt line.
    Line,
    /// The function interrupts by one message (MSI).
    Msi,
    /// The function interrupts by this number of messages (MSI-X).
    Msix(u16),
}

/// A read from, a write to or a notice for a passed-through device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskV1 {
    /// The guest reads from the device.
    Read {
        /// The passed-through device's number.
        device: u8,
        /// The part of the device.
        region: RegionV1,
        /// The offset of the access in the region.
        offset: u32,
        /// The number of bytes: 1, 2, 4 or 8.
        size_bytes: u8,
    },
    /// The guest writes to the device.
    Write {
        /// The passed-through device's number.
        device: u8,
        /// The part of the device.
        region: RegionV1,
        /// The offset of the access in the region.
        offset: u32,
        /// The number of bytes: 1, 2, 4 or 8.
        size_bytes: u8,
        /// The value.
        value: u64,
    },
    /// The guest chooses how a device interrupts.
    Interrupts {
        /// The passed-through device's number.
        device: u8,
        /// The interrupt mode.
        mode: InterruptModeV1,
    },
    /// The guest changed the mappings that decide which memory the devices can access.
    Translate {
        /// The root table's address; `None` if devices can access no memory.
        root: Option<u64>,
        /// The first changed address: an address that devices use, before translation.
        first: u64,
        /// Number of pages that changed; 0 for all.
        pages: u64,
    },
}

impl AskV1 {
    /// Whether the ask has an answer that the guest can see. The answer to a read is a value. The answer to a
    /// change of mappings is the DMA writes that devices made before the change.
    pub fn is_answered(&self) -> bool {
        matches!(self, AskV1::Read { .. } | AskV1::Translate { .. })
    }
}

/// A device's write to memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DmaV1 {
    /// Guest-physical address.
    pub gpa: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A device's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptV1 {
    /// The passed-through device's number.
    pub device: u8,
    /// The message's number; 0 for the interrupt line.
    pub vector: u16,
}

/// The input from passed-through devices at one position of the run. The input takes effect in this order: memory
/// writes, interrupts, the value of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInputV1 {
    /// The question that this input answers, if any.
    pub asked: Option<AskV1>,
    /// The devices' writes to memory.
    pub dma: Vec<DmaV1>,
    /// Interrupts.
    pub interrupts: Vec<InterruptV1>,
    /// The value of a read, little endian. If the value is missing, the answer is not complete: the machine
    /// asks again.
    pub value: Option<u64>,
}

impl DeviceInputV1 {
    /// The answer to a read of an absent device: all ones.
    pub fn nothing_there(asked: AskV1) -> DeviceInputV1 {
        DeviceInputV1 { asked: Some(asked), value: Some(u64::MAX), ..DeviceInputV1::default() }
    }

    /// The number of bytes written to memory.
    pub fn dma_bytes(&self) -> usize {
        self.dma.iter().map(|write| write.bytes.len()).sum()
    }
}
