//! The board's memory map: ports, guest-physical ranges and interrupt lines.
//!
//! The device wiring, the ACPI tables and the boot code share this table, so they cannot disagree.

/// First byte of the 32-bit PCI memory window (directly above the largest possible RAM below 4 GiB).
pub const PCI_MMIO_START: u64 = 0xC000_0000;
/// End (exclusive) of the 32-bit PCI memory window.
pub const PCI_MMIO_END: u64 = 0xFEB0_0000;
/// I/O APIC registers (one page).
pub const IOAPIC_BASE: u64 = 0xFEC0_0000;
/// Local APIC registers (one page) after reset.
pub const LAPIC_BASE: u64 = 0xFEE0_0000;

/// 8259 master command port; its data port is the next port.
pub const PIC_MASTER_PORT: u16 = 0x20;
/// 8259 slave command port; its data port is the next port.
pub const PIC_SLAVE_PORT: u16 = 0xA0;
/// 8254 channel 0 data port (three channels, then the mode port).
pub const PIT_PORT: u16 = 0x40;
/// System control port B: PIT channel 2 gate and output.
pub const PORT_B: u16 = 0x61;
/// Keyboard controller command port; only its reset pulse (0xFE) is modelled.
pub const KEYBOARD_COMMAND_PORT: u16 = 0x64;
/// CMOS index port; data is the next port.
pub const CMOS_PORT: u16 = 0x70;
/// First serial port (eight registers).
pub const SERIAL_PORT: u16 = 0x3F8;
/// Debug console: each byte written appears on the host; a read gives 0xE9.
pub const DEBUG_CONSOLE_PORT: u16 = 0xE9;
/// Default debug-exit port: writing `v` ends the run with exit code `(v << 1) | 1`.
pub const DEBUG_EXIT_PORT: u16 = 0x501;
/// The pvpanic port: the guest reports its panic here, and can ask to keep the recording of its run.
pub const PVPANIC_PORT: u16 = 0x505;
/// ACPI PM1a event block (4 bytes: status, enable).
pub const PM1_EVENT_PORT: u16 = 0x600;
/// ACPI PM1a control block (2 bytes).
pub const PM1_CONTROL_PORT: u16 = 0x604;
/// ACPI PM timer (4 bytes).
pub const PM_TIMER_PORT: u16 = 0x608;
/// Reset control register.
pub const RESET_PORT: u16 = 0xCF9;
/// PCI configuration mechanism 1: address, then data at +4.
pub const PCI_CONFIG_PORT: u16 = 0xCF8;

/// ISA interrupt line of the PIT (its I/O APIC pin is [`PIT_GSI`]).
pub const PIT_IRQ: u8 = 0;
/// I/O APIC pin of the PIT, by the usual interrupt source override.
pub const PIT_GSI: u8 = 2;
/// Interrupt line of the first serial port.
pub const SERIAL_IRQ: u8 = 4;
/// Interrupt line of the RTC.
pub const RTC_IRQ: u8 = 8;
/// ACPI system control interrupt (level triggered, active high).
pub const SCI_IRQ: u8 = 9;
/// First I/O APIC pin of the PCI INTx lines; slot `s` uses pin `16 + s % 4`.
pub const PCI_FIRST_GSI: u8 = 16;
/// Number of I/O APIC pins.
pub const IOAPIC_PINS: u8 = 24;
/// 8259 lines of the four PCI interrupt pins, for guests that do not use the I/O APIC. Pin `n` of the PCI bus
/// (I/O APIC pin 16 + n) is also wired to line `PCI_PIC_IRQS[n]`.
pub const PCI_PIC_IRQS: [u8; 4] = [10, 11, 10, 11];
