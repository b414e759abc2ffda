//! The message that travels from an interrupt source to the local APIC.

/// How an interrupt is delivered (Intel SDM volume 3, "Interrupt Command Register").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The processor gets the vector of the message.
    Fixed,
    /// Only one of the addressed processors gets the vector of the message: in this model, the first.
    LowestPriority,
    /// System management interrupt.
    Smi,
    /// Non-maskable interrupt.
    Nmi,
    /// INIT.
    Init,
    /// A start-up message, which only a CPU sends to other CPUs.
    StartUp,
    /// The vector comes from the 8259.
    ExtInt,
    /// A reserved encoding.
    Reserved,
}

impl DeliveryMode {
    /// Decodes a delivery mode from the low three bits of `bits`.
    pub fn from_bits(bits: u64) -> DeliveryMode {
        match bits & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            2 => DeliveryMode::Smi,
            4 => DeliveryMode::Nmi,
            5 => DeliveryMode::Init,
            6 => DeliveryMode::StartUp,
            7 => DeliveryMode::ExtInt,
            _ => DeliveryMode::Reserved,
        }
    }
}

/// The processors that a message of another processor is for. The sender itself is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// All processors.
    All,
    /// The processor with this APIC id.
    Physical(u32),
    /// The processors in this logical destination.
    Logical(u32),
}

/// An inter-processor interrupt on its way from one local APIC to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipi {
    /// The processors that the interrupt is for.
    pub to: Destination,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The vector, for the modes that have one. A start-up message's vector is the page where the processor starts.
    pub vector: u8,
}

/// An interrupt on its way to a local APIC, from the I/O APIC or from a device (MSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptMessage {
    /// Destination, an APIC id or a logical destination.
    pub destination: u8,
    /// Whether `destination` is a logical destination.
    pub logical: bool,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The vector, for the modes that have one.
    pub vector: u8,
    /// Whether the interrupt is level triggered. The local APIC then reports the EOI back to the I/O APIC.
    pub level: bool,
}

impl InterruptMessage {
    /// Decodes a message-signalled interrupt, a write of `data` to `address` (Intel SDM volume 3, "Message
    /// Signalled Interrupts"). Returns `None` if `address` is outside of the local APICs' range, or if the message
    /// only lowers a level.
    pub fn from_msi(address: u64, data: u32) -> Option<InterruptMessage> {
        let withdraws = data & 0xC000 == 0x8000;
        (address >> 20 == 0xFEE && !withdraws).then(|| InterruptMessage {
            destination: (address >> 12) as u8,
            logical: address & 0x04 != 0,
            mode: DeliveryMode::from_bits(u64::from(data >> 8)),
            vector: data as u8,
            level: data & 0x8000 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_msi_is_decoded() {
        let message = InterruptMessage::from_msi(0xFEE0_1004, 0xC141).unwrap();
        let expected = InterruptMessage {
            destination: 1,
            logical: true,
            mode: DeliveryMode::LowestPriority,
            vector: 0x41,
            level: true,
        };
        assert_eq!(message, expected);
        assert_eq!(InterruptMessage::from_msi(0xFEE0_0000, 0x8041), None, "level withdrawn");
        assert_eq!(InterruptMessage::from_msi(0xFED0_0000, 0x41), None);
        assert_eq!(InterruptMessage::from_msi(0x1_FEE0_0000, 0x41), None);
    }
}
