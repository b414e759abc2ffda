//! A range of plain ports whose device is outside, and perhaps an ISA interrupt line of its own.

use super::ask::{AskV1, RegionV1};
use super::written::{WrittenV1, number};

/// ISA interrupts that a device of the host may have: the machine itself has no use for them, and guests find them edge
/// triggered.
pub const FREE_ISA_IRQS: [u8; 7] = [3, 5, 6, 7, 12, 14, 15];

/// See the module.
pub(crate) struct PassedPorts {
    device: u8,
    first: u16,
    last: u16,
    pub written: WrittenV1,
    line: Option<IsaLine>,
}

/// An ISA interrupt line. It is up from an interrupt on until the guest next touches the device, as a handler does.
struct IsaLine {
    irq: u8,
    up: bool,
}

impl PassedPorts {
    /// Ports `first` to `last`, with one of [`FREE_ISA_IRQS`], or none.
    pub fn new(device: u8, first: u16, last: u16, irq: Option<u8>) -> PassedPorts {
        assert!(irq.is_none_or(|irq| FREE_ISA_IRQS.contains(&irq)), "the line is the machine's own");
        let line = irq.map(|irq| IsaLine { irq, up: false });
        PassedPorts { device, first, last, written: WrittenV1::default(), line }
    }

    /// Where in the range an access of this size lies, if all of it does.
    fn offset(&self, port: u16, size: usize) -> Option<u32> {
        let end = usize::from(port) + size - 1;
        (port >= self.first && end <= usize::from(self.last)).then(|| u32::from(port - self.first))
    }

    /// What a read of a port is to be asked.
    pub fn read(&self, port: u16, size: u8) -> Option<AskV1> {
        let offset = self.offset(port, usize::from(size))?;
        Some(AskV1::Read { device: self.device, region: RegionV1::Ports, offset, size_bytes: size })
    }

    /// A write to a port; false if it is none of these.
    pub fn write(&mut self, port: u16, data: &[u8], told: &mut Vec<AskV1>) -> bool {
        let Some(offset) = self.offset(port, data.len()) else { return false };
        let (device, size_bytes, value) = (self.device, data.len() as u8, number(data));
        let ask = AskV1::Write { device, region: RegionV1::Ports, offset, size_bytes, value };
        self.written.note(&ask);
        self.was_touched();
        told.push(ask);
        true
    }

    /// The device interrupts.
    pub fn interrupt(&mut self) {
        self.set_line(Some(true));
    }

    /// The guest has read or written a port.
    pub fn was_touched(&mut self) {
        self.set_line(Some(false));
    }

    /// Whether the line is up; `None` where there is none.
    pub fn line(&self) -> Option<bool> {
        self.line.as_ref().map(|line| line.up)
    }

    /// Sets the line, if there is one.
    pub fn set_line(&mut self, up: Option<bool>) {
        if let (Some(line), Some(up)) = (&mut self.line, up) {
            line.up = up;
        }
    }

    /// Levels of the ISA lines, by their numbers.
    pub fn isa_levels(&self) -> u32 {
        self.line.as_ref().map_or(0, |line| u32::from(line.up) << line.irq)
    }
}
