//! What a machine asks its devices outside, and what comes from them. These are the types that recordings hold.

use serde::{Deserialize, Serialize};

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionV1 {
    /// A base address register's range.
    Bar(u8),
    /// Configuration space.
    Config,
    /// Plain ports.
    Ports,
}

/// How a PCI function may interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptModeV1 {
    /// Not at all.
    Off,
    /// By its line.
    Line,
    /// By one message.
    Msi,
    /// By so many messages.
    Msix(u16),
}

/// What the machine asks or tells a device outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskV1 {
    /// The guest reads.
    Read {
        /// Which of the passed-through devices.
        device: u8,
        /// Which part of it.
        region: RegionV1,
        /// Where in it.
        offset: u32,
        /// 1, 2, 4 or 8.
        size_bytes: u8,
    },
    /// The guest writes.
    Write {
        /// Which of the passed-through devices.
        device: u8,
        /// Which part of it.
        region: RegionV1,
        /// Where in it.
        offset: u32,
        /// 1, 2, 4 or 8.
        size_bytes: u8,
        /// What.
        value: u64,
    },
    /// The guest says how a device is to interrupt.
    Interrupts {
        /// Which of the passed-through devices.
        device: u8,
        /// How.
        mode: InterruptModeV1,
    },
    /// The guest changed what devices see of memory.
    Translate {
        /// The root table's address; `None` while nothing is to be seen.
        root: Option<u64>,
        /// First address, as devices see it, of what changed.
        first: u64,
        /// Number of pages that changed; 0 for all.
        pages: u64,
    },
}

impl AskV1 {
    /// Whether something comes back that the guest gets to see: a value, or what devices wrote before.
    pub fn is_answered(&self) -> bool {
        matches!(self, AskV1::Read { .. } | AskV1::Translate { .. })
    }
}

/// What a device wrote to memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DmaV1 {
    /// Guest-physical address.
    pub gpa: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A device interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptV1 {
    /// Which of the passed-through devices.
    pub device: u8,
    /// Which of its messages; 0 for its line.
    pub vector: u16,
}

/// What comes from devices outside at one moment: first the memory they wrote, then the interrupts, then the value that
/// was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInputV1 {
    /// What it answers, unless it comes unasked.
    pub asked: Option<AskV1>,
    /// What devices wrote to memory.
    pub dma: Vec<DmaV1>,
    /// Interrupts.
    pub interrupts: Vec<InterruptV1>,
    /// What a read gives, little endian. An answer without it is not all of the answer: the same is asked again.
    pub value: Option<u64>,
}

impl DeviceInputV1 {
    /// What is read where there is no device.
    pub fn nothing_there(asked: AskV1) -> DeviceInputV1 {
        DeviceInputV1 { asked: Some(asked), value: Some(u64::MAX), ..DeviceInputV1::default() }
    }

    /// Bytes written to memory.
    pub fn dma_bytes(&self) -> usize {
        self.dma.iter().map(|write| write.bytes.len()).sum()
    }
}
