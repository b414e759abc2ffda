//! A range of plain ports whose device is outside.

use super::ask::{AskV1, RegionV1};
use super::written::{WrittenV1, number};

/// See the module.
pub(crate) struct PassedPorts {
    device: u8,
    first: u16,
    last: u16,
    pub written: WrittenV1,
}

impl PassedPorts {
    /// Ports `first` to `last`.
    pub fn new(device: u8, first: u16, last: u16) -> PassedPorts {
        PassedPorts { device, first, last, written: WrittenV1::default() }
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
        told.push(ask);
        true
    }
}
