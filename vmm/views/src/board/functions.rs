//! The functions on the PCI bus, and their virtio devices.

use std::fmt::{Display, Formatter, Result as Written};

use devices::interrupt_message::InterruptMessage;
use devices::pci::{FunctionSummary, MessageSummary, MessagesSummary};
use devices::virtio::{DeviceStateV1, QueueSummary, RingSummary, SECTOR_BYTES, VirtioSummary};
use schemars::JsonSchema;
use serde::Serialize;

use super::vectors::{Names, Target};
use super::words::listed;

/// A function on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Function {
    /// The address, as `lspci` prints it.
    pub address: String,
    /// Vendor and device id, as `lspci -n` prints them.
    pub ids: String,
    /// The class, subclass and programming interface, in hex.
    pub class: String,
    /// The kind of function.
    pub name: String,
    /// Whether the memory BARs decode.
    pub is_memory_enabled: bool,
    /// Whether the I/O port BARs decode.
    pub is_ports_enabled: bool,
    /// Whether the function may access memory, and send messages.
    pub is_bus_master: bool,
    /// The 8259's line in the interrupt line register, if the function has an interrupt line (INTx).
    pub line: Option<u8>,
    /// Whether the guest has disabled the interrupt line.
    pub is_line_disabled: bool,
    /// Whether the interrupt line is up.
    pub is_line_up: bool,
    /// The BARs.
    pub bars: Vec<Bar>,
    /// MSI, if the function has this capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msi: Option<Messages>,
    /// MSI-X, if the function has this capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msix: Option<Messages>,
    /// The virtio device, if the function has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtio: Option<Virtio>,
}

/// A base address register.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Bar {
    /// The BAR's number.
    pub number: usize,
    /// The address in hex: a guest-physical address or a port.
    pub address: String,
    /// The size in bytes.
    pub bytes: u32,
    /// Whether the BAR has I/O ports.
    pub is_ports: bool,
}

/// The messages of MSI or MSI-X.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Messages {
    /// Whether the messages replace the interrupt line.
    pub is_enabled: bool,
    /// Whether all messages are masked.
    pub is_masked: bool,
    /// The messages.
    pub messages: Vec<Message>,
}

/// A message of MSI or MSI-X.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Message {
    /// The message's number.
    pub number: usize,
    /// The address that the function writes to, in hex.
    pub address: String,
    /// The number that the function writes, in hex.
    pub data: String,
    /// Whether the message is masked.
    pub is_masked: bool,
    /// Whether the message waits until it is unmasked.
    pub is_pending: bool,
    /// The processors and the vector. `None` if the address belongs to no local APIC.
    #[serde(flatten)]
    pub target: Option<Target>,
}

/// A virtio device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Virtio {
    /// The kind: `block`, `console`, `net` or `rng`.
    pub kind: &'static str,
    /// The properties that only this kind of device has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<VirtioDevice>,
    /// The bits of the device status, by name.
    pub status: Vec<&'static str>,
    /// The features that the driver has accepted, by name.
    pub features: Vec<String>,
    /// The features that the driver has not accepted, by name.
    pub refused_features: Vec<String>,
    /// The number of the MSI-X message for configuration changes.
    pub config_message: Option<u16>,
    /// The queues.
    pub queues: Vec<Queue>,
}

/// The properties that only one kind of virtio device has.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(untagged)]
pub enum VirtioDevice {
    /// A disk.
    Block {
        /// The size in bytes.
        bytes: u64,
        /// Whether the guest may only read.
        is_read_only: bool,
    },
    /// A console.
    Console {
        /// Width in characters.
        columns: u16,
        /// Height in characters.
        rows: u16,
        /// Number of typed bytes that the guest has not taken.
        waiting_bytes: usize,
    },
    /// A source of random numbers.
    Rng {
        /// Number of random words of 32 bits that the guest has taken.
        words: u64,
    },
    /// A network card.
    Net {
        /// The Ethernet address.
        mac: String,
        /// The largest number of bytes that a frame carries.
        mtu: u16,
        /// Number of frames from outside that the guest has no buffers for yet.
        waiting_frames: usize,
        /// Number of frames that the guest has sent.
        sent_frames: u64,
    },
}

/// A queue of a virtio device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Queue {
    /// The queue's number.
    pub number: usize,
    /// Whether the driver enabled the queue.
    pub is_enabled: bool,
    /// Number of entries.
    pub size: u16,
    /// Guest-physical address of the descriptor table, in hex.
    pub descriptors: String,
    /// Guest-physical address of the available ring, in hex.
    pub available: String,
    /// Guest-physical address of the used ring, in hex.
    pub used: String,
    /// Index of the next available entry that the device takes.
    pub next_available: u16,
    /// Index of the next used entry that the device fills.
    pub next_used: u16,
    /// The number of the queue's MSI-X message.
    pub message: Option<u16>,
    /// The driver's side of the queue. `None` if the queue is not enabled, or is not in RAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<Ring>,
}

/// The driver's side of a queue, as the guest's memory has it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Ring {
    /// Index of the next entry that the driver makes available.
    pub available_index: u16,
    /// Index of the next used entry, as the driver sees it.
    pub used_index: u16,
    /// Number of entries that wait for the device. `None` if the driver's index is impossible.
    pub waiting: Option<u16>,
    /// Number of further used entries after which the driver wants an interrupt. `None` if the driver wants no
    /// interrupt.
    pub interrupt_after: Option<u16>,
}

impl Function {
    pub(super) fn all(names: &Names<'_>) -> Vec<Function> {
        names.board().bus().functions().into_iter().map(|function| Function::of(function, names)).collect()
    }

    fn of(function: FunctionSummary, names: &Names<'_>) -> Function {
        let name = match (&function.virtio, function.slot) {
            (Some(virtio), _) => format!("virtio {}", virtio.kind()),
            (None, 0) => "host bridge".to_string(),
            (None, _) => "passed through".to_string(),
        };
        Function {
            address: format!("00:{:02x}.0", function.slot),
            ids: format!("{:04x}:{:04x}", function.vendor, function.device),
            class: format!("{:06x}", function.class),
            name,
            is_memory_enabled: function.is_memory_enabled,
            is_ports_enabled: function.is_ports_enabled,
            is_bus_master: function.is_bus_master,
            line: function.has_line.then_some(function.line),
            is_line_disabled: function.is_line_disabled,
            is_line_up: function.is_line_up,
            bars: function
                .bars
                .iter()
                .map(|bar| Bar {
                    number: bar.index,
                    address: format!("{:#x}", bar.address),
                    bytes: bar.size_bytes,
                    is_ports: bar.is_ports,
                })
                .collect(),
            msi: function.msi.map(|messages| Messages::of(messages, names)),
            msix: function.msix.map(|messages| Messages::of(messages, names)),
            virtio: function.virtio.map(|virtio| Virtio::of(virtio, names)),
        }
    }
}

impl Messages {
    fn of(summary: MessagesSummary, names: &Names<'_>) -> Messages {
        let message = |(number, summary): (usize, MessageSummary)| {
            let (address, data) = (summary.message.address, summary.message.data);
            Message {
                number,
                address: format!("{address:#x}"),
                data: format!("{data:#x}"),
                is_masked: summary.is_masked,
                is_pending: summary.is_pending,
                target: InterruptMessage::from_msi(address, data).map(|message| names.target(&message)),
            }
        };
        let MessagesSummary { is_enabled, is_masked, messages } = summary;
        Messages { is_enabled, is_masked, messages: messages.into_iter().enumerate().map(message).collect() }
    }
}

impl Virtio {
    fn of(summary: VirtioSummary, names: &Names<'_>) -> Virtio {
        let ram = names.machine.ram().memory();
        let queue = |(number, queue): (usize, &QueueSummary)| {
            Queue::of(number, queue, queue.ring(ram).map(Ring::from))
        };
        Virtio {
            kind: summary.kind(),
            status: summary.status_names(),
            features: summary.feature_names(summary.accepted),
            refused_features: summary.feature_names(summary.offered & !summary.accepted),
            config_message: summary.config_vector,
            queues: summary.queues.iter().enumerate().map(queue).collect(),
            device: VirtioDevice::of(summary.device),
        }
    }
}

impl VirtioDevice {
    fn of(state: DeviceStateV1) -> Option<VirtioDevice> {
        Some(match state {
            DeviceStateV1::Block { capacity_sectors, read_only } => VirtioDevice::Block {
                bytes: capacity_sectors.saturating_mul(SECTOR_BYTES as u64),
                is_read_only: read_only,
            },
            DeviceStateV1::Console { columns, rows, input } => {
                VirtioDevice::Console { columns, rows, waiting_bytes: input.len() }
            }
            DeviceStateV1::Rng { word_position, .. } => VirtioDevice::Rng { words: word_position },
            DeviceStateV1::Net { mac, mtu, waiting, sent_count, .. } => VirtioDevice::Net {
                mac: mac.map(|byte| format!("{byte:02x}")).join(":"),
                mtu,
                waiting_frames: waiting.len(),
                sent_frames: sent_count,
            },
            _ => return None,
        })
    }
}

impl Queue {
    fn of(number: usize, queue: &QueueSummary, ring: Option<Ring>) -> Queue {
        let registers = &queue.registers;
        Queue {
            number,
            is_enabled: registers.enabled,
            size: registers.size,
            descriptors: format!("{:#x}", registers.descriptors),
            available: format!("{:#x}", registers.available),
            used: format!("{:#x}", registers.used),
            next_available: registers.next_available,
            next_used: registers.next_used,
            message: queue.vector,
            ring,
        }
    }
}

impl From<RingSummary> for Ring {
    fn from(ring: RingSummary) -> Ring {
        let RingSummary { available_index, used_index, waiting, interrupt_after } = ring;
        Ring { available_index, used_index, waiting, interrupt_after }
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}  {}  {}", self.address, self.ids, self.name)?;
        if !self.is_bus_master && self.virtio.is_some() {
            write!(f, ", may not access memory")?;
        }
        if self.is_line_up {
            write!(f, ", interrupt line up")?;
        }
        for Bar { number, address, bytes, is_ports } in &self.bars {
            let kind = if *is_ports { "ports" } else { "memory" };
            write!(f, "\n    BAR {number}: {kind} at {address}, {bytes} bytes")?;
        }
        for (name, messages) in [("MSI", &self.msi), ("MSI-X", &self.msix)] {
            if let Some(messages) = messages {
                write!(f, "\n    {name} {messages}")?;
            }
        }
        self.virtio.as_ref().map_or(Ok(()), |virtio| write!(f, "\n    {virtio}"))
    }
}

impl Display for Messages {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str(match (self.is_enabled, self.is_masked) {
            (false, _) => "off",
            (true, true) => "on, all masked",
            (true, false) => "on",
        })?;
        let written = |message: &&Message| message.target.is_some() || message.is_pending;
        self.messages.iter().filter(written).try_for_each(|message| write!(f, "\n      {message}"))
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Message { number, address, data, is_masked, is_pending, target } = self;
        write!(f, "message {number}: {data} to {address}")?;
        if let Some(target) = target {
            write!(f, ", {target}")?;
        }
        let notes = [(is_masked, "masked"), (is_pending, "waiting")];
        notes.iter().filter(|(is_so, _)| **is_so).try_for_each(|(_, note)| write!(f, ", {note}"))
    }
}

impl Display for Virtio {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        if let Some(device) = &self.device {
            write!(f, "{device}\n    ")?;
        }
        write!(f, "status: {}\n    features: {}", listed(&self.status), listed(&self.features))?;
        self.queues.iter().try_for_each(|queue| write!(f, "\n    {queue}"))
    }
}

impl Display for VirtioDevice {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        match self {
            VirtioDevice::Block { bytes, is_read_only: true } => write!(f, "{bytes} bytes, read-only"),
            VirtioDevice::Block { bytes, is_read_only: false } => write!(f, "{bytes} bytes"),
            VirtioDevice::Console { columns, rows, waiting_bytes } => {
                write!(f, "{columns}x{rows}, {waiting_bytes} typed bytes wait")
            }
            VirtioDevice::Rng { words } => write!(f, "{words} random words drawn"),
            VirtioDevice::Net { mac, mtu, waiting_frames, sent_frames } => {
                write!(
                    f,
                    "{mac}, MTU {mtu}, {sent_frames} frames sent, {waiting_frames} received frames wait"
                )
            }
        }
    }
}

impl Display for Queue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Queue { number, size, .. } = self;
        if !self.is_enabled {
            return write!(f, "queue {number}: off");
        }
        let Queue { descriptors, available, used, next_available, next_used, .. } = self;
        write!(f, "queue {number}: {size} entries, rings at {descriptors}, {available} and {used}")?;
        write!(f, "\n      the device takes entry {next_available} next, and uses entry {next_used} next")?;
        if let Some(message) = self.message {
            write!(f, "; MSI-X message {message}")?;
        }
        match &self.ring {
            Some(ring) => write!(f, "\n      {ring}"),
            None => write!(f, "\n      the rings are not in RAM"),
        }
    }
}

impl Display for Ring {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Ring { available_index, used_index, waiting, interrupt_after } = self;
        write!(f, "the driver's indices are {available_index} and {used_index}; ")?;
        match waiting {
            Some(waiting) => write!(f, "{waiting} entries wait for the device; ")?,
            None => write!(f, "the driver's index is impossible; ")?,
        }
        match interrupt_after {
            Some(1) => write!(f, "an interrupt follows the next used entry"),
            Some(count) => write!(f, "an interrupt follows after {count} used entries"),
            None => write!(f, "no interrupt is wanted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(waiting: Option<u16>, interrupt_after: Option<u16>) -> String {
        Ring { available_index: 7, used_index: 5, waiting, interrupt_after }.to_string()
    }

    #[test]
    fn a_ring_is_told_in_words() {
        let begin = "the driver's indices are 7 and 5; ";
        let next = "an interrupt follows the next used entry";
        assert_eq!(ring(Some(2), Some(1)), format!("{begin}2 entries wait for the device; {next}"));
        assert!(ring(Some(2), Some(3)).ends_with("an interrupt follows after 3 used entries"));
        assert_eq!(
            ring(None, None),
            format!("{begin}the driver's index is impossible; no interrupt is wanted")
        );
    }

    #[test]
    fn messages_that_nobody_wrote_are_left_out_of_the_text() {
        let message = |number: usize, is_pending: bool| Message {
            number,
            address: "0x0".to_string(),
            data: "0x0".to_string(),
            is_masked: true,
            is_pending,
            target: None,
        };
        let messages = vec![message(0, false), message(1, true)];
        let shown = Messages { is_enabled: true, is_masked: true, messages };
        assert_eq!(shown.to_string(), "on, all masked\n      message 1: 0x0 to 0x0, masked, waiting");
    }
}
