//! The ports and addresses of each chip.

use vm_memory::GuestMemory;

use super::Platform;
use super::bus::ExpansionBus;
use crate::layout::*;
use crate::misc_ports::{DEBUG_CONSOLE_PRESENT, PVPANIC_FEATURES};
use crate::pic::PicChip;

const PAGE_SIZE: u64 = 0x1000;
const PIC_MASTER_END: u16 = PIC_MASTER_PORT + 1;
const PIC_SLAVE_END: u16 = PIC_SLAVE_PORT + 1;
const PIT_END: u16 = PIT_PORT + 3;
const CMOS_END: u16 = CMOS_PORT + 1;
const SERIAL_END: u16 = SERIAL_PORT + 7;
const PM_END: u16 = PM_TIMER_PORT + 3;
const PCI_CONFIG_END: u16 = PCI_CONFIG_PORT + 7;
const POST_CODE_PORT: u16 = 0x80;
const PORT_92: u16 = 0x92;
const ELCR_MASTER: u16 = 0x4D0;
const ELCR_SLAVE: u16 = 0x4D1;

const _: () = assert!(PM1_CONTROL_PORT == PM1_EVENT_PORT + 4 && PM_TIMER_PORT == PM1_EVENT_PORT + 8);

impl<B: ExpansionBus> Platform<B> {
    /// Reads `size` bytes (1, 2 or 4) from a port for the guest.
    pub fn pio_read<M: GuestMemory>(&mut self, _mem: &M, now_ns: u64, port: u16, size: u8) -> u32 {
        self.advance(now_ns);
        let mut bytes = [0; 4];
        let data = &mut bytes[..usize::from(size.min(4))];
        if is_bus_port(port, data.len()) {
            if !self.bus.io_read(port, data) {
                data.fill(0xFF);
            }
        } else {
            // The chips are eight bits wide: the board turns a wide access into several byte accesses.
            for (address, byte) in byte_ports(port).zip(data) {
                *byte = self.read_byte(address, now_ns);
            }
        }
        self.update_interrupts(now_ns);
        u32::from_le_bytes(bytes)
    }

    /// Writes `size` bytes (1, 2 or 4) to a port for the guest.
    pub fn pio_write<M: GuestMemory>(&mut self, mem: &M, now_ns: u64, port: u16, size: u8, value: u32) {
        self.advance(now_ns);
        let bytes = value.to_le_bytes();
        let data = &bytes[..usize::from(size.min(4))];
        if self.debug_ports.exit == Some(port) {
            // Only the debug-exit port takes an access of any width as one number.
            let zero_extended = data.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
            self.misc_ports.write_debug_exit(zero_extended);
        } else if is_bus_port(port, data.len()) {
            self.bus.io_write(mem, port, data);
        } else {
            for (address, &byte) in byte_ports(port).zip(data) {
                self.write_byte(address, byte, now_ns);
            }
        }
        self.update_interrupts(now_ns);
    }

    /// Reads a guest-physical address that is not RAM, for the guest.
    pub fn mmio_read<M: GuestMemory>(&mut self, mem: &M, now_ns: u64, gpa: u64, data: &mut [u8]) {
        self.advance(now_ns);
        if let Some(offset) = self.lapic_offset(gpa) {
            read_registers(offset, data, |register| self.lapic().read(register, now_ns));
            return self.route();
        }
        if let Some(offset) = page_offset(IOAPIC_BASE, gpa) {
            return read_registers(offset, data, |register| self.ioapic.read(register));
        }
        if !self.bus.mmio_read(mem, gpa, data) {
            data.fill(0xFF);
        }
        self.update_interrupts(now_ns);
    }

    /// Writes a guest-physical address that is not RAM, for the guest.
    pub fn mmio_write<M: GuestMemory>(&mut self, mem: &M, now_ns: u64, gpa: u64, data: &[u8]) {
        self.advance(now_ns);
        if let Some(offset) = self.lapic_offset(gpa) {
            // Writes of fewer than four bytes are undefined, and are ignored. Of a longer write, the first four
            // bytes reach the register.
            if let Some(value) = data.first_chunk() {
                self.lapic().write(offset, u32::from_le_bytes(*value), now_ns);
            }
            return self.route();
        }
        if let Some(offset) = page_offset(IOAPIC_BASE, gpa).filter(|_| !data.is_empty()) {
            let value = data.iter().take(4).rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
            self.ioapic.write(offset, value);
            return self.route();
        }
        if !self.bus.mmio_write(mem, gpa, data) {
            log::trace!("write to {gpa:#x}: no chip answers");
        }
        self.update_interrupts(now_ns);
    }

    /// Whether a chip of the board answers at an address. Chips take precedence over the expansion bus.
    pub fn has_chip_at(&self, gpa: u64) -> bool {
        self.lapic_offset(gpa).is_some() || page_offset(IOAPIC_BASE, gpa).is_some()
    }

    fn lapic_offset(&self, gpa: u64) -> Option<u64> {
        page_offset(self.lapics[self.seat].mmio_base()?, gpa)
    }

    fn read_byte(&mut self, port: u16, now_ns: u64) -> u8 {
        match port {
            PIC_MASTER_PORT..=PIC_MASTER_END => self.pic.read(PicChip::Master, port - PIC_MASTER_PORT),
            PIC_SLAVE_PORT..=PIC_SLAVE_END => self.pic.read(PicChip::Slave, port - PIC_SLAVE_PORT),
            ELCR_MASTER => self.pic.read_elcr(PicChip::Master),
            ELCR_SLAVE => self.pic.read_elcr(PicChip::Slave),
            PIT_PORT..=PIT_END => self.pit.read(port - PIT_PORT, now_ns),
            PORT_B => self.misc_ports.read_port_b(self.pit.output2(now_ns), now_ns),
            KEYBOARD_COMMAND_PORT => self.misc_ports.read_keyboard_status(),
            CMOS_PORT..=CMOS_END => self.rtc.read(port - CMOS_PORT, now_ns),
            POST_CODE_PORT => self.misc_ports.read_post_code(),
            PORT_92 => self.misc_ports.read_port_92(),
            DEBUG_CONSOLE_PORT if self.debug_ports.console => DEBUG_CONSOLE_PRESENT,
            SERIAL_PORT..=SERIAL_END => self.uart.read(port - SERIAL_PORT),
            PVPANIC_PORT => PVPANIC_FEATURES,
            PM1_EVENT_PORT..=PM_END => self.pm.read(port - PM1_EVENT_PORT, now_ns),
            RESET_PORT => self.misc_ports.read_reset_control(),
            _ => {
                log::trace!("read of port {port:#x}: no chip answers");
                0xFF
            }
        }
    }

    fn write_byte(&mut self, port: u16, value: u8, now_ns: u64) {
        match port {
            PIC_MASTER_PORT..=PIC_MASTER_END => {
                self.pic.write(PicChip::Master, port - PIC_MASTER_PORT, value)
            }
            PIC_SLAVE_PORT..=PIC_SLAVE_END => self.pic.write(PicChip::Slave, port - PIC_SLAVE_PORT, value),
            ELCR_MASTER => self.pic.write_elcr(PicChip::Master, value),
            ELCR_SLAVE => self.pic.write_elcr(PicChip::Slave, value),
            PIT_PORT..=PIT_END => self.pit.write(port - PIT_PORT, value, now_ns),
            PORT_B => {
                let gate2 = self.misc_ports.write_port_b(value);
                self.pit.set_gate2(gate2, now_ns);
            }
            KEYBOARD_COMMAND_PORT => self.misc_ports.write_keyboard_command(value),
            CMOS_PORT..=CMOS_END => self.rtc.write(port - CMOS_PORT, value, now_ns),
            POST_CODE_PORT => self.misc_ports.write_post_code(value),
            PORT_92 => self.misc_ports.write_port_92(value),
            DEBUG_CONSOLE_PORT if self.debug_ports.console => self.misc_ports.write_debug_console(value),
            SERIAL_PORT..=SERIAL_END => self.uart.write(port - SERIAL_PORT, value),
            PVPANIC_PORT => self.misc_ports.write_pvpanic(value),
            PM1_EVENT_PORT..=PM_END => self.pm.write(port - PM1_EVENT_PORT, value, now_ns),
            RESET_PORT => self.misc_ports.write_reset_control(value),
            _ => log::trace!("write of {value:#x} to port {port:#x}: no chip answers"),
        }
    }
}

/// Whether an access goes to the bus. The bus owns the configuration ports, except for byte accesses to the reset
/// register (0xCF9). Wider accesses never reach the reset register, because a probe of the configuration ports must not
/// reset the machine.
fn is_bus_port(port: u16, size: usize) -> bool {
    (PCI_CONFIG_PORT..=PCI_CONFIG_END).contains(&port) && !(port == RESET_PORT && size == 1)
}

/// `port` and its successors; the port after 0xFFFF is 0.
fn byte_ports(port: u16) -> impl Iterator<Item = u16> {
    (0..).map(move |index| port.wrapping_add(index))
}

fn page_offset(base: u64, gpa: u64) -> Option<u64> {
    gpa.checked_sub(base).filter(|&offset| offset < PAGE_SIZE)
}

/// Reads bytes from a page of 32-bit registers, each register once.
fn read_registers(offset: u64, data: &mut [u8], mut read: impl FnMut(u64) -> u32) {
    let mut value = [0; 4];
    for (index, byte) in data.iter_mut().enumerate() {
        let at = (offset + index as u64) % PAGE_SIZE;
        if index == 0 || at.is_multiple_of(4) {
            value = read(at & !3).to_le_bytes();
        }
        *byte = value[(at % 4) as usize];
    }
}
