//! A range of I/O ports whose device is on the host, perhaps with an ISA interrupt line.

use super::ask::{AskV1, RegionV1};
use super::written::{WrittenV1, number};

/// ISA interrupts that a device of the host may have. No chip of the machine uses these interrupts, and they are
/// edge triggered.
pub const FREE_ISA_IRQS: [u8; 7] = [3, 5, 6, 7, 12, 14, 15];

/// A passed-through range of ports, and the level of its interrupt line.
pub(crate) struct PassedPorts {
    device: u8,
    first: u16,
    last: u16,
    pub written: WrittenV1,
    line: Option<IsaLine>,
}

/// An ISA interrupt line. The line stays up from an interrupt until the guest next touches the device, as an
/// interrupt handler does.
struct IsaLine {
    irq: u8,
    up: bool,
}

impl PassedPorts {
    /// Passes through ports `first` to `last`, perhaps with one of [`FREE_ISA_IRQS`].
    pub fn new(device: u8, first: u16, last: u16, irq: Option<u8>) -> PassedPorts {
        assert!(irq.is_none_or(|irq| FREE_ISA_IRQS.contains(&irq)), "the line is the machine's own");
        let line = irq.map(|irq| IsaLine { irq, up: false });
        PassedPorts { device, first, last, written: WrittenV1::default(), line }
    }

    /// The offset of an access in the range, if the whole access lies inside the range.
    fn offset(&self, port: u16, size: usize) -> Option<u32> {
        let end = usize::from(port) + size - 1;
        (port >= self.first && end <= usize::from(self.last)).then(|| u32::from(port - self.first))
    }

    /// The question for a read of a port.
    pub fn read(&self, port: u16, size: u8) -> Option<AskV1> {
        let offset = self.offset(port, usize::from(size))?;
        Some(AskV1::Read { device: self.device, region: RegionV1::Ports, offset, size_bytes: size })
    }

    /// Writes a port for the guest. Returns false if the port is not in the range.
    pub fn write(&mut self, port: u16, data: &[u8], told: &mut Vec<AskV1>) -> bool {
        let Some(offset) = self.offset(port, data.len()) else { return false };
        let (device, size_bytes, value) = (self.device, data.len() as u8, number(data));
        let ask = AskV1::Write { device, region: RegionV1::Ports, offset, size_bytes, value };
        self.written.note(&ask);
        self.was_touched();
        told.push(ask);
        true
    }

    /// Passes an interrupt of the device on to the guest.
    pub fn interrupt(&mut self) {
        self.set_line(Some(true));
    }

    /// Lowers the interrupt line, because the guest has read or written a port.
    pub fn was_touched(&mut self) {
        self.set_line(Some(false));
    }

    /// Whether the line is raised; `None` if there is no line.
    pub fn line(&self) -> Option<bool> {
        self.line.as_ref().map(|line| line.up)
    }

    /// Sets the level of the interrupt line, if there is one.
    pub fn set_line(&mut self, up: Option<bool>) {
        if let (Some(line), Some(up)) = (&mut self.line, up) {
            line.up = up;
        }
    }

    /// Levels of the ISA lines; bit n is line n.
    pub fn isa_levels(&self) -> u32 {
        self.line.as_ref().map_or(0, |line| u32::from(line.up) << line.irq)
    }
}
