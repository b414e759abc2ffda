//! A type-0 configuration space: 256 bytes, and a mask of the bits that the guest may change.
//!
//! The mask alone implements BAR sizing (the low bits of a BAR are read-only) and read-only identity registers. The
//! function that owns the space interprets a write. Error bits of the status register are never set, so their
//! write-one-to-clear behaviour is not modelled.
//!
//! PCI Local Bus Specification 3.0, chapter 6.

use super::error::StateError;
use super::summary::{BarSummary, FunctionSummary};

/// Size of a conventional configuration space in bytes.
pub(crate) const CONFIG_BYTES: usize = 256;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const FIRST_BAR: usize = 0x10;
const BARS: usize = 6;
const CAPABILITIES_POINTER: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3C;
const INTERRUPT_PIN: usize = 0x3D;
const FIRST_CAPABILITY: usize = 0x40;

const COMMAND_PORTS: u16 = 1 << 0;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// Bit 0 of an I/O port BAR.
const BAR_PORTS: u32 = 1;
/// Writable command bits: memory enable, bus master, parity response, SERR enable, INTx disable.
const COMMAND_WRITABLE: u16 = COMMAND_MEMORY | COMMAND_BUS_MASTER | 1 << 6 | 1 << 8 | COMMAND_INTX_DISABLE;
const STATUS_INTERRUPT: u8 = 1 << 3;
const STATUS_CAPABILITIES: u8 = 1 << 4;

/// The registers that identify a function.
pub(crate) struct Identity {
    pub vendor: u16,
    pub device: u16,
    pub revision: u8,
    /// Class, subclass and programming interface, as in the upper 24 bits of register 0x08.
    pub class: u32,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
}

/// The configuration space of one function.
#[derive(Clone)]
pub(crate) struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES],
    writable: [u8; CONFIG_BYTES],
    /// The offset at which the next capability will begin. `last_link` is the offset of the byte that will point to
    /// this capability.
    next_capability: usize,
    last_link: usize,
}

impl ConfigSpace {
    /// A space with only identity and command register.
    pub fn new(identity: &Identity) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
            next_capability: FIRST_CAPABILITY,
            last_link: CAPABILITIES_POINTER,
        };
        space.put(0x00, &identity.vendor.to_le_bytes());
        space.put(0x02, &identity.device.to_le_bytes());
        space.put(0x08, &(identity.class << 8 | u32::from(identity.revision)).to_le_bytes());
        space.put(0x2C, &identity.subsystem_vendor.to_le_bytes());
        space.put(0x2E, &identity.subsystem.to_le_bytes());
        space.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        // Cache line size and latency timer store what firmware or the kernel writes, without effect.
        space.allow(0x0C, &[0xFF, 0xFF]);
        space
    }

    /// Adds a 32-bit, non-prefetchable memory BAR of a power-of-two size. The BAR has its address, and its
    /// decoding is enabled, as firmware leaves a BAR.
    pub fn add_memory_bar(&mut self, index: usize, size_bytes: u32, base: u32) {
        assert!(size_bytes.is_power_of_two() && size_bytes >= 16 && base.is_multiple_of(size_bytes));
        let register = FIRST_BAR + 4 * index;
        self.put(register, &base.to_le_bytes());
        self.allow(register, &(!(size_bytes - 1)).to_le_bytes());
        self.bytes[COMMAND] |= COMMAND_MEMORY as u8;
    }

    /// Adds an I/O port BAR of a power-of-two size. The BAR has its address, and its decoding is enabled.
    pub fn add_port_bar(&mut self, index: usize, size_bytes: u32, base: u32) {
        assert!(size_bytes.is_power_of_two() && size_bytes >= 4 && base.is_multiple_of(size_bytes));
        let register = FIRST_BAR + 4 * index;
        self.put(register, &(base | BAR_PORTS).to_le_bytes());
        // Port numbers have 16 bits.
        self.allow(register, &(!(size_bytes - 1) & 0xFFFF).to_le_bytes());
        self.allow(COMMAND, &(COMMAND_WRITABLE | COMMAND_PORTS).to_le_bytes());
        self.bytes[COMMAND] |= COMMAND_PORTS as u8;
    }

    /// Gives the function INTA, routed to `line`.
    pub fn add_interrupt_pin(&mut self, line: u8) {
        self.bytes[INTERRUPT_PIN] = 1;
        self.set_interrupt_line(line);
        self.writable[INTERRUPT_LINE] = 0xFF;
    }

    /// Sets the interrupt line register, as firmware does.
    pub fn set_interrupt_line(&mut self, line: u8) {
        self.bytes[INTERRUPT_LINE] = line;
    }

    /// Appends a capability to the list and returns its offset. `body` is the part after the "next" byte. The guest
    /// may change the bits of `body` that are set in `writable`.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> usize {
        let offset = self.next_capability;
        self.bytes[self.last_link] = offset as u8;
        self.put(offset, &[id, 0]);
        self.put(offset + 2, body);
        self.allow(offset + 2, writable);
        self.bytes[STATUS] |= STATUS_CAPABILITIES;
        self.last_link = offset + 1;
        self.next_capability = (offset + 2 + body.len()).next_multiple_of(4);
        offset
    }

    /// Does the same as [`ConfigSpace::add_capability`] at a given offset. The caller guarantees that the
    /// capability fits at this offset.
    pub fn add_capability_at(&mut self, offset: usize, id: u8, body: &[u8], writable: &[u8]) -> usize {
        self.next_capability = offset;
        self.add_capability(id, body, writable)
    }

    /// Reads registers; the caller's range lies inside the space. `interrupt` is the level of the function's INTx
    /// request, which the status register shows.
    pub fn read(&self, offset: usize, data: &mut [u8], interrupt: bool) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes[offset + i];
            if interrupt && offset + i == STATUS {
                *byte |= STATUS_INTERRUPT;
            }
        }
    }

    /// Changes the writable bits; the caller's range lies inside the space.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        for (i, value) in data.iter().enumerate() {
            let mask = self.writable[offset + i];
            let byte = &mut self.bytes[offset + i];
            *byte = *byte & !mask | value & mask;
        }
    }

    /// The 16-bit register at `offset`.
    pub fn u16_at(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.bytes[offset], self.bytes[offset + 1]])
    }

    /// The 32-bit register at `offset`.
    pub fn u32_at(&self, offset: usize) -> u32 {
        u32::from(self.u16_at(offset)) | u32::from(self.u16_at(offset + 2)) << 16
    }

    /// One byte.
    pub fn u8_at(&self, offset: usize) -> u8 {
        self.bytes[offset]
    }

    /// Whether memory BARs decode.
    pub fn memory_enabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_MEMORY != 0
    }

    /// Whether I/O port BARs decode.
    pub fn ports_enabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_PORTS != 0
    }

    /// Whether the function may read and write memory, which includes sending MSIs.
    pub fn bus_master(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// Whether the function must not assert INTx.
    pub fn intx_disabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_INTX_DISABLE != 0
    }

    /// The address of a memory BAR.
    pub fn bar_base(&self, index: usize) -> u64 {
        u64::from(self.u32_at(FIRST_BAR + 4 * index) & !0xF)
    }

    /// The address of a memory or I/O port BAR.
    pub fn any_bar_base(&self, index: usize) -> u64 {
        let register = self.u32_at(FIRST_BAR + 4 * index);
        u64::from(register & if register & BAR_PORTS != 0 { !3 } else { !0xF })
    }

    /// The identity, the bits of the command register, and the BARs. `slot` is the function's place on the bus.
    pub fn summary(&self, slot: usize) -> FunctionSummary {
        let command = self.u16_at(COMMAND);
        FunctionSummary {
            slot,
            vendor: self.u16_at(0x00),
            device: self.u16_at(0x02),
            class: self.u32_at(0x08) >> 8,
            is_memory_enabled: self.memory_enabled(),
            is_ports_enabled: command & COMMAND_PORTS != 0,
            is_bus_master: self.bus_master(),
            is_line_disabled: self.intx_disabled(),
            has_line: self.u8_at(INTERRUPT_PIN) != 0,
            line: self.u8_at(INTERRUPT_LINE),
            bars: (0..BARS).filter_map(|index| self.bar(index)).collect(),
            ..FunctionSummary::default()
        }
    }

    /// A BAR with its size, which follows from its writable bits.
    fn bar(&self, index: usize) -> Option<BarSummary> {
        let register = FIRST_BAR + 4 * index;
        let at = |bytes: &[u8; CONFIG_BYTES], place: usize| u32::from(bytes[register + place]) << (8 * place);
        let writable = (0..4).fold(0, |mask, place| mask | at(&self.writable, place));
        let is_ports = self.u32_at(register) & BAR_PORTS != 0;
        (writable != 0).then(|| BarSummary {
            index,
            address: self.any_bar_base(index),
            size_bytes: 1 << writable.trailing_zeros(),
            is_ports,
        })
    }

    /// All registers, for saving.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }

    /// A copy of this space with saved registers. The saved read-only bits must equal the read-only bits of this
    /// space.
    pub fn restored(&self, bytes: &[u8]) -> Result<ConfigSpace, StateError> {
        let bytes: [u8; CONFIG_BYTES] =
            bytes.try_into().map_err(|_| StateError::new("configuration space has the wrong size"))?;
        let foreign = (0..CONFIG_BYTES).find(|&i| (bytes[i] ^ self.bytes[i]) & !self.writable[i] != 0);
        match foreign {
            Some(offset) => Err(StateError::new(format!(
                "configuration register {offset:#x} is {:#x} and would have to be {:#x}",
                bytes[offset], self.bytes[offset]
            ))),
            None => Ok(ConfigSpace { bytes, ..self.clone() }),
        }
    }

    fn put(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        let identity =
            Identity { vendor: 1, device: 2, revision: 3, class: 4, subsystem_vendor: 5, subsystem: 6 };
        let mut space = ConfigSpace::new(&identity);
        space.add_memory_bar(1, 0x4000, 0xC000_0000);
        space.add_capability(9, &[0xAA], &[]);
        space.add_capability(0x11, &[0xBB, 0xCC, 0xDD], &[0x0F]);
        space
    }

    #[test]
    fn writing_all_ones_to_a_bar_shows_its_size() {
        let mut space = space();
        space.write(0x10, &[0xFF; 24]);
        let bars: Vec<u32> = (0..6).map(|i| space.u32_at(0x10 + 4 * i)).collect();
        assert_eq!(bars, [0, 0xFFFF_C000, 0, 0, 0, 0]);
        let bar = BarSummary { index: 1, address: 0xFFFF_C000, size_bytes: 0x4000, is_ports: false };
        assert_eq!(space.summary(3).bars, [bar]);
    }

    #[test]
    fn capabilities_are_linked_aligned_and_masked() {
        let mut space = space();
        assert_eq!((space.u8_at(0x34), space.u8_at(0x41), space.u8_at(0x45)), (0x40, 0x44, 0));
        assert_eq!((space.u8_at(0x40), space.u8_at(0x44)), (9, 0x11));
        assert_eq!(space.u16_at(STATUS), 0x10);
        space.write(0x40, &[0xFF; 16]);
        assert_eq!(&space.bytes[0x40..0x4A], [9, 0x44, 0xAA, 0, 0x11, 0, 0xBF, 0xCC, 0xDD, 0]);
    }

    #[test]
    fn the_status_register_shows_the_interrupt() {
        let mut data = [0; 4];
        space().read(4, &mut data, true);
        assert_eq!(data, [2, 0, 0x18, 0]);
    }

    #[test]
    fn only_writable_bits_can_be_restored() {
        let (space, mut other) = (space(), space());
        other.write(0x14, &0xD000_0000_u32.to_le_bytes());
        assert_eq!(space.restored(&other.bytes()).unwrap().bar_base(1), 0xD000_0000);
        let mut wrong = other.bytes();
        wrong[0] ^= 1;
        assert!(space.restored(&wrong).is_err());
        assert!(space.restored(&wrong[..255]).is_err());
    }
}
