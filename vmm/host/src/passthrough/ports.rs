//! I/O ports of the host, by /dev/port. The host does not pass interrupts of a device at these ports to programs. The
//! recorder polls a serial port to find its interrupts ([`super::serial`]). At other ports, the guest's driver must
//! poll.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use devices::passthrough::FREE_ISA_IRQS;

use crate::passthrough::serial::{Registers, Serial};
use machine::error::Error;

/// Ports that may be passed through: serial ports, parallel ports and the game port. At other ports the host has its
/// own devices, and a guest with access to them could crash the host.
pub const ALLOWED_PORTS: [(u16, u16); 7] = [
    (0x200, 0x207),
    (0x278, 0x27f),
    (0x2e8, 0x2ef),
    (0x2f8, 0x2ff),
    (0x378, 0x37f),
    (0x3e8, 0x3ef),
    (0x3bc, 0x3bf),
];

/// The serial ports.
const SERIAL_PORTS: [(u16, u16); 3] = [(0x2e8, 0x2ef), (0x2f8, 0x2ff), (0x3e8, 0x3ef)];

/// A range of I/O ports of the host in use by a guest.
pub(super) struct LivePorts {
    ports: HostPorts,
    /// Polls for interrupts, if the guest's device has an interrupt.
    serial: Option<Serial>,
}

struct HostPorts {
    file: File,
    first: u16,
    is_gone: bool,
}

impl LivePorts {
    /// Opens a range of allowed ports. The ports' device has the interrupt `irq` in the guest.
    pub fn open(first: u16, last: u16, irq: Option<u8>) -> Result<LivePorts, Error> {
        if !ALLOWED_PORTS.iter().any(|allowed| first <= last && first >= allowed.0 && last <= allowed.1) {
            let list: Vec<_> =
                ALLOWED_PORTS.iter().map(|(first, last)| format!("{first:#x}-{last:#x}")).collect();
            let why = format!(
                "ports {first:#x}-{last:#x} cannot be passed through; allowed are {}",
                list.join(", ")
            );
            return Err(Error::Unsupported(why));
        }
        irq.map_or(Ok(()), |irq| check_irq(first, last, irq)).map_err(Error::Unsupported)?;
        let file = OpenOptions::new().read(true).write(true).open("/dev/port").map_err(|source| {
            Error::Unsupported(format!("cannot open /dev/port: {source}; run ttvm as root"))
        })?;
        let mut ports = HostPorts { file, first, is_gone: false };
        let serial = irq.map(|_| Serial::new(&mut ports));
        Ok(LivePorts { ports, serial })
    }

    /// Reads for the guest. A serial port's registers are bytes.
    pub fn read(&mut self, offset: u32, size_bytes: u8) -> u64 {
        let Some(serial) = &mut self.serial else { return self.ports.read(offset, size_bytes) };
        let registers = (offset as u8..).take(size_bytes.into());
        let bytes: Vec<_> = registers.map(|register| serial.read(&mut self.ports, register)).collect();
        bytes.into_iter().rev().fold(0, |value, byte| value << 8 | u64::from(byte))
    }

    /// Writes for the guest.
    pub fn write(&mut self, offset: u32, data: &[u8]) {
        let Some(serial) = &mut self.serial else { return self.ports.write(offset, data) };
        for (register, &value) in (offset as u8..).zip(data) {
            serial.write(&mut self.ports, register, value);
        }
    }

    /// Whether the recorder must poll the device for interrupts.
    pub fn is_watched(&self) -> bool {
        self.serial.as_ref().is_some_and(Serial::is_watched)
    }

    /// Returns whether the guest must be interrupted now. Returns true only once for an interrupt.
    pub fn take_interrupt(&mut self) -> bool {
        self.serial.as_mut().is_some_and(|serial| serial.take_interrupt(&mut self.ports))
    }
}

/// Checks that the device at these ports can have this interrupt in the guest.
fn check_irq(first: u16, last: u16, irq: u8) -> Result<(), String> {
    if !SERIAL_PORTS.contains(&(first, last)) {
        return Err(format!(
            "ttvm sees interrupts of serial ports only, and ports {first:#x}-{last:#x} are not one: leave irq= out, \
             so that the guest's driver polls"
        ));
    }
    if !FREE_ISA_IRQS.contains(&irq) {
        return Err(format!("IRQ {irq} is in use or does not exist; irq= can be one of {FREE_ISA_IRQS:?}"));
    }
    Ok(())
}

impl HostPorts {
    fn read(&mut self, offset: u32, size_bytes: u8) -> u64 {
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

    fn write(&mut self, offset: u32, data: &[u8]) {
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

impl Registers for HostPorts {
    fn read(&mut self, register: u8) -> u8 {
        HostPorts::read(self, register.into(), 1) as u8
    }

    fn write(&mut self, register: u8, value: u8) {
        HostPorts::write(self, register.into(), &[value]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_ports_are_opened() {
        for (first, last) in [(0x2f0, 0x2ff), (0x2f8, 0x300), (0x70, 0x71), (0x2ff, 0x2f8), (0, u16::MAX)] {
            let why =
                LivePorts::open(first, last, None).err().expect("they are not passed through").to_string();
            assert!(why.contains("0x2f8-0x2ff"), "{why}");
        }
    }

    #[test]
    fn only_whole_serial_ports_have_an_interrupt_and_only_one_that_is_free() {
        for (first, last, irq, part) in [
            (0x378, 0x37f, 7, "leave irq= out"),
            (0x2f8, 0x2fb, 3, "leave irq= out"),
            (0x2f8, 0x2ff, 4, "one of [3, 5, 6, 7, 12, 14, 15]"),
            (0x2f8, 0x2ff, 16, "one of [3, 5, 6, 7, 12, 14, 15]"),
        ] {
            let why = LivePorts::open(first, last, Some(irq)).err().expect("it is refused").to_string();
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(check_irq(0x2f8, 0x2ff, 3), Ok(()));
    }
}
