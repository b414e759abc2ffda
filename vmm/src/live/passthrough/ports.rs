//! Plain ports of the host, by /dev/port. The host gives a program no interrupts of such a device: its driver polls.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::error::Error;

/// Ports that may be passed through: those of serial and parallel ports and of the game port. At others the host itself
/// has devices that a guest could bring it down with.
pub const ALLOWED_PORTS: [(u16, u16); 7] = [
    (0x200, 0x207),
    (0x278, 0x27f),
    (0x2e8, 0x2ef),
    (0x2f8, 0x2ff),
    (0x378, 0x37f),
    (0x3e8, 0x3ef),
    (0x3bc, 0x3bf),
];

/// See the module.
pub(super) struct LivePorts {
    file: File,
    first: u16,
    is_gone: bool,
}

impl LivePorts {
    /// Opens a range, all of which must be allowed.
    pub fn open(first: u16, last: u16) -> Result<LivePorts, Error> {
        if !ALLOWED_PORTS.iter().any(|allowed| first <= last && first >= allowed.0 && last <= allowed.1) {
            let list: Vec<_> =
                ALLOWED_PORTS.iter().map(|(first, last)| format!("{first:#x}-{last:#x}")).collect();
            let why = format!(
                "ports {first:#x}-{last:#x} are not passed through; those that may be are {}",
                list.join(", ")
            );
            return Err(Error::Unsupported(why));
        }
        let file = OpenOptions::new().read(true).write(true).open("/dev/port").map_err(|source| {
            Error::Unsupported(format!("cannot open /dev/port: {source}; passing ports through needs root"))
        })?;
        Ok(LivePorts { file, first, is_gone: false })
    }

    /// The guest reads.
    pub fn read(&mut self, offset: u32, size_bytes: u8) -> u64 {
        let mut bytes = [0xFF; 8];
        let data = &mut bytes[..usize::from(size_bytes.min(4))];
        if !self.is_gone
            && let Err(error) = self.file.read_exact_at(data, u64::from(self.first) + u64::from(offset))
        {
            self.lose(&error);
            bytes = [0xFF; 8];
        }
        u64::from_le_bytes(bytes)
    }

    /// The guest writes.
    pub fn write(&mut self, offset: u32, data: &[u8]) {
        if !self.is_gone
            && let Err(error) = self.file.write_all_at(data, u64::from(self.first) + u64::from(offset))
        {
            self.lose(&error);
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        self.is_gone = true;
        log::warn!(
            "the passed-through ports at {:#x} fail ({error}); the guest goes on without them",
            self.first
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_ports_are_opened() {
        for (first, last) in [(0x2f0, 0x2ff), (0x2f8, 0x300), (0x70, 0x71), (0x2ff, 0x2f8), (0, u16::MAX)] {
            let why = LivePorts::open(first, last).err().expect("they are not passed through").to_string();
            assert!(why.contains("0x2f8-0x2ff"), "{why}");
        }
    }
}
