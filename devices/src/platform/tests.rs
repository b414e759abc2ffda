use guest_ram::GuestRam;
use vm_memory::GuestMemory;

use super::*;
use crate::interrupt_message::InterruptMessage;
use crate::lapic::{MSR_APIC_BASE, MSR_TSC_DEADLINE};
use crate::layout::*;
use crate::pci::PciBus;
use crate::virtio::Rng;

mod random;

const START: i64 = 1_700_000_000;
const IER: u16 = SERIAL_PORT + 1;
const IIR: u16 = SERIAL_PORT + 2;
const MCR: u16 = SERIAL_PORT + 4;

/// A board with some RAM, and the current virtual time.
struct Machine<B = NoExpansion> {
    platform: Platform<B>,
    memory: GuestRam,
    now_ns: u64,
}

fn machine() -> Machine {
    machine_with(NoExpansion)
}

fn machine_with<B: ExpansionBus>(bus: B) -> Machine<B> {
    let memory = GuestRam::new(0x1000).unwrap();
    Machine { platform: Platform::new(START, bus), memory, now_ns: 0 }
}

impl<B: ExpansionBus> Machine<B> {
    fn inb(&mut self, port: u16) -> u8 {
        self.platform.pio_read(self.memory.memory(), self.now_ns, port, 1) as u8
    }

    fn outb(&mut self, port: u16, value: u8) {
        self.platform.pio_write(self.memory.memory(), self.now_ns, port, 1, u32::from(value));
    }

    fn write32(&mut self, gpa: u64, value: u32) {
        self.platform.mmio_write(self.memory.memory(), self.now_ns, gpa, &value.to_le_bytes());
    }

    fn read32(&mut self, gpa: u64) -> u32 {
        let mut data = [0; 4];
        self.platform.mmio_read(self.memory.memory(), self.now_ns, gpa, &mut data);
        u32::from_le_bytes(data)
    }

    fn redirect(&mut self, pin: u8, low: u32) {
        for (register, value) in [(0x11 + 2 * pin, 0), (0x10 + 2 * pin, low)] {
            self.write32(IOAPIC_BASE, u32::from(register));
            self.write32(IOAPIC_BASE + 0x10, value);
        }
    }

    /// Initialises the 8259 pair: vectors 0x30 and up, normal EOI, the lines in `mask` masked.
    fn init_pics(&mut self, mask: u16) {
        let [low, high] = mask.to_le_bytes();
        for (port, base, mask) in [(PIC_MASTER_PORT, 0x30, low), (PIC_SLAVE_PORT, 0x38, high)] {
            self.outb(port, 0x11);
            for value in [base, 0x04, 0x01, mask] {
                self.outb(port + 1, value);
            }
        }
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.platform.advance(now_ns);
    }

    /// Runs until an interrupt comes, and acknowledges it.
    fn wait_for_interrupt(&mut self) -> Option<u8> {
        while !self.platform.interrupt_pending() {
            let deadline_ns = self.platform.next_deadline_ns()?;
            assert!(deadline_ns > self.now_ns, "a deadline in the past");
            self.advance_to(deadline_ns);
        }
        self.platform.acknowledge_interrupt()
    }

    fn eoi(&mut self) {
        self.write32(LAPIC_BASE + 0xB0, 0);
    }

    fn start_pit(&mut self, mode: u8, count: u16) {
        self.outb(PIT_PORT + 3, 0x30 | mode << 1);
        count.to_le_bytes().into_iter().for_each(|byte| self.outb(PIT_PORT, byte));
    }
}

#[test]
fn unknown_ports_and_addresses_read_as_all_ones() {
    let mut m = machine();
    for (size, expected) in [(1, 0xFF), (2, 0xFFFF), (4, 0xFFFF_FFFF)] {
        assert_eq!(m.platform.pio_read(m.memory.memory(), 0, 0x1234, size), expected);
        assert_eq!(m.platform.pio_read(m.memory.memory(), 0, 0xCFC, size), expected);
    }
    assert_eq!(m.read32(0xFED0_0000), u32::MAX);
    m.platform.pio_write(m.memory.memory(), 0, PCI_CONFIG_PORT, 4, u32::MAX);
    assert!(!m.platform.has_requests(), "probing for PCI does not reset the machine");
    assert_eq!(m.platform.acknowledge_interrupt(), None);
}

#[test]
fn the_timer_interrupts_through_the_8259_in_virtual_wire_mode() {
    let mut m = machine();
    m.init_pics(0xFFFE);
    m.start_pit(2, 11_932);
    for tick in 1..=5 {
        assert_eq!(m.wait_for_interrupt(), Some(0x30));
        assert!(m.now_ns.abs_diff(tick * 10_000_151) < 2_000, "{}", m.now_ns);
        assert!(!m.platform.interrupt_pending());
        m.outb(PIC_MASTER_PORT, 0x20);
    }
}

#[test]
fn the_8259_works_without_local_apic_and_not_behind_a_masked_lint0() {
    for (lint0, base, expected) in [
        (0x1_0700, 0xFEE0_0900, None),
        (0x0_0700, 0xFEE0_0900, Some(0x30)),
        (0x1_0700, 0xFEE0_0100, Some(0x30)),
    ] {
        let mut m = machine();
        m.write32(LAPIC_BASE + 0x350, lint0);
        m.platform.apic_write_msr(0, MSR_APIC_BASE, base).unwrap();
        m.init_pics(0xFFFE);
        m.start_pit(0, 100);
        assert_eq!(m.wait_for_interrupt(), expected);
    }
}

#[test]
fn the_timer_is_pin_2_of_the_ioapic() {
    let mut m = machine();
    m.redirect(2, 0x30);
    m.start_pit(2, 1000);
    for _ in 0..3 {
        assert_eq!(m.wait_for_interrupt(), Some(0x30));
        m.eoi();
    }
}

#[test]
fn an_external_interrupt_can_come_through_pin_0_of_the_ioapic() {
    let mut m = machine();
    m.write32(LAPIC_BASE + 0x350, 0x1_0000);
    m.init_pics(0xFFFE);
    m.start_pit(0, 100);
    m.redirect(0, 0x700);
    assert_eq!(m.wait_for_interrupt(), Some(0x30));
}

#[test]
fn the_local_apic_timer_wakes_the_cpu_in_all_modes() {
    for (entry, initial, deadline) in [(0x0_00EC, 1000, 0), (0x2_00EC, 1000, 0), (0x4_00EC, 0, 1000)] {
        let mut m = machine();
        m.write32(LAPIC_BASE + 0x3E0, 0x0B);
        m.write32(LAPIC_BASE + 0x320, entry);
        m.write32(LAPIC_BASE + 0x380, initial);
        m.platform.apic_write_msr(0, MSR_TSC_DEADLINE, deadline).unwrap();
        assert_eq!(m.wait_for_interrupt(), Some(0xEC), "{entry:#x}");
        assert_eq!(m.now_ns, 1000);
        m.eoi();
        assert_eq!(m.platform.next_deadline_ns(), (entry == 0x2_00EC).then_some(2000));
    }
}

#[test]
fn serial_output_is_interrupt_driven_through_both_controllers() {
    for through_ioapic in [false, true] {
        let mut m = machine();
        if through_ioapic {
            m.redirect(SERIAL_IRQ, 0x34);
        } else {
            m.init_pics(!(1 << SERIAL_IRQ));
        }
        m.outb(MCR, 0x08);
        m.outb(IER, 0x02);
        for byte in *b"ok\n" {
            assert_eq!(m.wait_for_interrupt(), Some(0x34));
            assert_eq!(m.inb(IIR) & 0x0F, 0x02);
            m.outb(SERIAL_PORT, byte);
            m.outb(PIC_MASTER_PORT, 0x20);
            m.eoi();
        }
        assert_eq!(m.platform.take_output(), b"ok\n");
    }
}

/// A driver may answer a transmitter interrupt by sending, without reading IIR. Such a driver gets the next
/// interrupt although the controller is edge triggered.
#[test]
fn sending_without_reading_iir_still_makes_edges() {
    let mut m = machine();
    m.init_pics(!(1 << SERIAL_IRQ));
    m.outb(MCR, 0x08);
    m.outb(IER, 0x02);
    for _ in 0..3 {
        assert_eq!(m.wait_for_interrupt(), Some(0x34));
        m.outb(SERIAL_PORT, b'x');
        m.outb(PIC_MASTER_PORT, 0x20);
    }
}

#[test]
fn serial_input_is_accepted_up_to_the_fifo() {
    let mut m = machine();
    m.redirect(SERIAL_IRQ, 0x34);
    m.outb(IIR, 0x01);
    m.outb(MCR, 0x08);
    m.outb(IER, 0x01);
    let text: Vec<u8> = (b'a'..=b'z').collect();
    assert_eq!(m.platform.push_input(0, &text), 16);
    assert_eq!(m.platform.input_capacity(), 0);
    assert_eq!(m.wait_for_interrupt(), Some(0x34));
    let read: Vec<u8> = (0..16).map(|_| m.inb(SERIAL_PORT)).collect();
    assert_eq!(read, text[..16]);
    assert_eq!(m.platform.push_input(0, &text[16..]), 10);
}

#[test]
fn the_power_button_is_a_level_interrupt_until_acknowledged() {
    let mut m = machine();
    m.redirect(SCI_IRQ, 0x8059);
    m.outb(PM1_EVENT_PORT + 3, 0x01);
    m.platform.press_power_button(0);
    for _ in 0..2 {
        assert_eq!(m.wait_for_interrupt(), Some(0x59));
        assert!(!m.platform.interrupt_pending());
        m.eoi();
        assert!(m.platform.interrupt_pending(), "still asserted: sent again after EOI");
    }
    assert_eq!(m.platform.acknowledge_interrupt(), Some(0x59));
    m.outb(PM1_EVENT_PORT + 1, 0x01);
    m.eoi();
    assert!(!m.platform.interrupt_pending());
}

#[test]
fn the_rtc_interrupts_on_line_8() {
    let mut m = machine();
    m.redirect(RTC_IRQ, 0x38);
    m.outb(CMOS_PORT, 0x0B);
    m.outb(CMOS_PORT + 1, 0x12);
    for second in 1..4 {
        assert_eq!(m.wait_for_interrupt(), Some(0x38));
        assert_eq!(m.now_ns, second * 1_000_000_000);
        m.outb(CMOS_PORT, 0x0C);
        assert_eq!(m.inb(CMOS_PORT + 1) & 0x90, 0x90);
        m.eoi();
    }
}

/// Linux's `pit_calibrate_tsc()` over the real ports; the TSC is virtual time.
#[test]
fn linux_calibrates_through_port_b() {
    let mut m = machine();
    m.now_ns = 5_000_000;
    let port_b = m.inb(PORT_B);
    m.outb(PORT_B, port_b & !0x02 | 0x01);
    m.outb(PIT_PORT + 3, 0xB0);
    for byte in 11_931u16.to_le_bytes() {
        m.outb(PIT_PORT + 2, byte);
    }
    let mut polls = 0;
    while m.inb(PORT_B) & 0x20 == 0 {
        m.now_ns += 500;
        polls += 1;
    }
    assert!(polls > 1000);
    assert!((m.now_ns - 5_000_000).abs_diff(10_000_000) < 2_000);
}

/// The same vector comes from a level-triggered line at virtual time 1 s, and from the timer at 2 s. The later
/// interrupt decides the trigger mode, however far a call advances the time.
#[test]
fn events_happen_in_the_order_of_time() {
    for stops in [&[3_000_000_000][..], &[1_500_000_000, 3_000_000_000]] {
        let mut m = machine();
        m.redirect(RTC_IRQ, 0x8045);
        m.outb(CMOS_PORT, 0x0B);
        m.outb(CMOS_PORT + 1, 0x12);
        m.write32(LAPIC_BASE + 0x3E0, 0x0B);
        m.write32(LAPIC_BASE + 0x320, 0x45);
        m.write32(LAPIC_BASE + 0x380, 2_000_000_000);
        stops.iter().for_each(|&now_ns| m.advance_to(now_ns));
        assert_eq!(m.read32(LAPIC_BASE + 0x1A0), 0, "TMR after {stops:?}");
        assert_eq!(m.read32(LAPIC_BASE + 0x220), 1 << 5, "IRR");
    }
}

#[test]
fn cr8_holds_interrupts_back() {
    let mut m = machine();
    m.redirect(2, 0x35);
    m.start_pit(0, 10);
    m.platform.set_cr8(3);
    m.advance_to(1_000_000);
    assert!(!m.platform.interrupt_pending());
    m.platform.set_cr8(2);
    assert!(m.platform.interrupt_pending());
    assert_eq!(m.platform.cr8(), 2);
}

#[test]
fn nmis_come_from_the_button_and_from_messages() {
    let mut m = machine();
    m.platform.press_nmi_button();
    assert!(m.platform.nmi_pending() && m.platform.take_nmi() && !m.platform.take_nmi());
    m.redirect(2, 0x400);
    m.start_pit(0, 10);
    m.advance_to(1_000_000);
    assert!(m.platform.take_nmi());
    assert!(!m.platform.interrupt_pending());
}

/// Two processors that have started, with their local APICs enabled.
fn two_processors() -> Machine {
    let mut machine = machine();
    machine.platform = Platform::new(START, NoExpansion).with_processors(2);
    machine.write32(LAPIC_BASE + 0x310, 1 << 24);
    machine.write32(LAPIC_BASE + 0x300, 0x0600 | 0x10);
    machine.platform.take_seat(1);
    assert_eq!(machine.platform.take_start(), Some(0x10));
    machine.write32(LAPIC_BASE + 0xF0, 0x1FF);
    machine.platform.take_seat(0);
    machine
}

#[test]
fn each_processor_has_its_own_local_apic() {
    let mut machine = two_processors();
    machine.write32(LAPIC_BASE + 0x310, 1 << 24);
    machine.write32(LAPIC_BASE + 0x300, 0x61);
    let pending = |machine: &Machine| [0, 1].map(|number| machine.platform.interrupt_pending_for(number));
    assert_eq!(pending(&machine), [false, true]);
    assert_eq!(machine.platform.acknowledge_interrupt(), None);
    machine.platform.take_seat(1);
    assert_eq!(machine.platform.acknowledge_interrupt(), Some(0x61));
    machine.write32(LAPIC_BASE + 0x320, 0xEC);
    machine.write32(LAPIC_BASE + 0x3E0, 0xB);
    machine.write32(LAPIC_BASE + 0x380, 500);
    machine.platform.take_seat(0);
    assert_eq!(machine.platform.next_deadline_ns(), Some(500));
    machine.platform.advance(500);
    assert_eq!(pending(&machine), [false, true], "the timer is the other processor's");
}

#[test]
fn the_8259_interrupts_the_first_processor_only() {
    let mut machine = two_processors();
    machine.init_pics(!1);
    machine.outb(PIT_PORT + 3, 0x34);
    machine.outb(PIT_PORT, 0x10);
    machine.outb(PIT_PORT, 0);
    machine.now_ns = 1_000_000;
    machine.platform.advance(machine.now_ns);
    assert!(machine.platform.interrupt_pending_for(0) && !machine.platform.interrupt_pending_for(1));
    machine.platform.take_seat(1);
    assert_eq!(machine.platform.acknowledge_interrupt(), None);
    machine.platform.take_seat(0);
    assert_eq!(machine.platform.acknowledge_interrupt(), Some(0x30));
}

#[test]
fn a_message_of_lowest_priority_reaches_one_processor() {
    for (mode, expected) in [(0, [true, true]), (1, [true, false])] {
        let mut machine = two_processors();
        for (number, seat) in [(1, 0), (2, 1)] {
            machine.platform.take_seat(seat);
            machine.write32(LAPIC_BASE + 0xD0, number << 24);
        }
        machine.platform.take_seat(0);
        machine.redirect(PIT_GSI, 1 << 11 | mode << 8 | 0x71);
        machine.write32(IOAPIC_BASE, 0x11 + 2 * u32::from(PIT_GSI));
        machine.write32(IOAPIC_BASE + 0x10, 3 << 24);
        machine.outb(PIT_PORT + 3, 0x34);
        machine.outb(PIT_PORT, 0x10);
        machine.outb(PIT_PORT, 0);
        machine.now_ns = 1_000_000;
        machine.platform.advance(machine.now_ns);
        assert_eq!([0, 1].map(|number| machine.platform.interrupt_pending_for(number)), expected);
    }
}

#[test]
fn a_board_of_two_processors_is_restored_with_both() {
    let mut machine = two_processors();
    machine.write32(LAPIC_BASE + 0x310, 1 << 24);
    machine.write32(LAPIC_BASE + 0x300, 0x61);
    let (state, others) = (machine.platform.state(), machine.platform.other_lapics());
    let mut other = Platform::new(START, NoExpansion).with_processors(2);
    other.restore(&state, &others, 1, machine.now_ns).unwrap();
    assert_eq!((other.state(), other.other_lapics()), (state.clone(), others.clone()));
    assert_eq!(other.acknowledge_interrupt(), Some(0x61));
    assert!(
        Platform::new(START, NoExpansion).restore(&state, &others, 0, 0).is_err(),
        "one processor too many"
    );
    assert!(other.restore(&state, &others, 2, 0).is_err(), "there is no third processor");
}

#[test]
fn requests_reach_the_owner() {
    let mut m = machine();
    m.outb(DEBUG_CONSOLE_PORT, b'!');
    assert_eq!(m.inb(DEBUG_CONSOLE_PORT), 0xE9);
    assert_eq!(m.platform.take_debug_output(), b"!");
    assert_eq!(m.inb(PVPANIC_PORT), 0x03);
    m.outb(PVPANIC_PORT, 0x01);
    m.platform.pio_write(m.memory.memory(), 0, DEBUG_EXIT_PORT, 2, 0x1234);
    m.outb(RESET_PORT, 0x06);
    m.outb(KEYBOARD_COMMAND_PORT, 0xFE);
    m.platform.pio_write(m.memory.memory(), 0, PM1_CONTROL_PORT, 2, 5 << 10 | 1 << 13);
    assert!(m.platform.has_requests());
    let expected = [
        Request::Panicked(PanicKind::Panicked),
        Request::DebugExit { code: 0x2469 },
        Request::Reset,
        Request::Reset,
        Request::PowerOff,
    ];
    assert_eq!(m.platform.take_requests(), expected);
    assert!(!m.platform.has_requests());
}

#[test]
fn wide_accesses_are_several_narrow_ones() {
    let mut m = machine();
    m.now_ns = 1_000_000_000;
    assert_eq!(m.platform.pio_read(m.memory.memory(), m.now_ns, PM_TIMER_PORT, 4), 3_579_545);
    m.platform.pio_write(m.memory.memory(), m.now_ns, PM1_EVENT_PORT, 4, 0x0100_0000);
    assert_eq!(m.platform.pio_read(m.memory.memory(), m.now_ns, PM1_EVENT_PORT, 4), 0x0100_0000);
    let mut data = [0; 8];
    m.platform.mmio_read(m.memory.memory(), m.now_ns, LAPIC_BASE + 0x30, &mut data);
    assert_eq!(data, [0x14, 0, 0x06, 0, 0, 0, 0, 0]);
    let mut byte = [0; 1];
    m.platform.mmio_read(m.memory.memory(), m.now_ns, LAPIC_BASE + 0x32, &mut byte);
    assert_eq!(byte, [0x06]);
}

/// A bus with one register, one line and messages.
#[derive(Default)]
struct FakeBus {
    register: u32,
    level: bool,
    messages: Vec<(u64, u32)>,
}

const FAKE_GPA: u64 = PCI_MMIO_START;

impl ExpansionBus for FakeBus {
    type State = (u32, bool);

    fn io_read(&mut self, port: u16, data: &mut [u8]) -> bool {
        data.fill(port as u8);
        true
    }

    fn io_write<M: GuestMemory>(&mut self, _mem: &M, _port: u16, data: &[u8]) -> bool {
        self.register = u32::from(data[0]);
        true
    }

    fn mmio_read<M: GuestMemory>(&mut self, _mem: &M, gpa: u64, data: &mut [u8]) -> bool {
        data.fill(self.register as u8);
        gpa == FAKE_GPA
    }

    /// A write of 0 lowers the line, and a write of 1 raises it. Any other value is the vector of a message.
    fn mmio_write<M: GuestMemory>(&mut self, _mem: &M, gpa: u64, data: &[u8]) -> bool {
        match data[0] {
            level @ (0 | 1) => self.level = level == 1,
            vector => self.messages.push((0xFEE0_0000, u32::from(vector))),
        }
        gpa == FAKE_GPA
    }

    fn take_msis(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.messages)
    }

    fn irq_levels(&self) -> u32 {
        u32::from(self.level) << 1
    }

    fn isa_levels(&self) -> u32 {
        u32::from(self.level) << 3
    }

    fn state(&self) -> (u32, bool) {
        (self.register, self.level)
    }

    fn restore(&mut self, &(register, level): &(u32, bool)) -> Result<(), RestoreError> {
        *self = FakeBus { register, level, messages: Vec::new() };
        Ok(())
    }
}

use crate::restore::RestoreError;

#[test]
fn the_bus_gets_its_ports_addresses_lines_and_messages() {
    let mut m = machine_with(FakeBus::default());
    assert_eq!(m.inb(0xCFC), 0xFC);
    assert_eq!(m.inb(RESET_PORT), 0, "the reset register is not the bus's");
    m.platform.pio_write(m.memory.memory(), 0, 0xCF8, 4, 0x77);
    assert_eq!(m.read32(FAKE_GPA), 0x7777_7777);
    assert_eq!(m.read32(FAKE_GPA + 4), u32::MAX);

    m.write32(FAKE_GPA, 0x41);
    assert_eq!(m.wait_for_interrupt(), Some(0x41), "MSI");
    m.eoi();

    m.redirect(PCI_FIRST_GSI + 1, 0x8051);
    m.write32(FAKE_GPA, 1);
    assert_eq!(m.wait_for_interrupt(), Some(0x51));
    m.eoi();
    assert!(m.platform.interrupt_pending(), "level triggered");
    m.write32(FAKE_GPA, 0);
    assert_eq!(m.wait_for_interrupt(), Some(0x51));
    m.eoi();
    assert!(!m.platform.interrupt_pending());

    m.init_pics(!(1 << PCI_PIC_IRQS[1] | 1 << 2));
    m.platform.with_bus(0, |bus| bus.level = true);
    assert_eq!(m.platform.acknowledge_interrupt(), Some(0x30 + PCI_PIC_IRQS[1]), "through the 8259");
}

#[test]
fn the_bus_has_isa_lines_that_interrupt_when_they_go_up() {
    let mut m = machine_with(FakeBus::default());
    m.init_pics(!(1 << 3));
    m.redirect(3, 0x53);
    for _ in 0..2 {
        m.platform.with_bus(0, |bus| bus.level = true);
        let acknowledged = [m.platform.acknowledge_interrupt(), m.platform.acknowledge_interrupt()];
        assert_eq!(acknowledged, [Some(0x33), Some(0x53)], "the 8259's, and the I/O APIC's");
        m.outb(PIC_MASTER_PORT, 0x20);
        m.eoi();
        assert!(!m.platform.interrupt_pending(), "edge triggered");
        m.platform.with_bus(0, |bus| bus.level = false);
    }
}

/// Chips of the board decode their addresses before the host bridge does, as on a PC.
#[test]
fn a_bar_on_top_of_a_chip_hides_nothing() {
    let mut bus = PciBus::new();
    let slot = bus.add(Rng::new([7; 32])) as u32;
    let mut m = machine_with(bus);
    let configure = |m: &mut Machine<PciBus>, register: u32, value: u32| {
        m.platform.pio_write(m.memory.memory(), 0, PCI_CONFIG_PORT, 4, 1 << 31 | slot << 11 | register);
        m.platform.pio_write(m.memory.memory(), 0, PCI_CONFIG_PORT + 4, 4, value);
    };
    for (base, register, version) in [(IOAPIC_BASE, 0x10, 0x0017_0020), (LAPIC_BASE, 0x30, 0x0105_0014)] {
        if base == IOAPIC_BASE {
            m.write32(IOAPIC_BASE, 1);
        }
        let before = m.read32(base + register);
        configure(&mut m, 0x10, base as u32);
        assert_eq!(m.read32(base + register), before, "{base:#x}");
        assert_eq!(before & 0xFF, version & 0xFF, "{base:#x} has a chip");
        assert!(m.platform.has_chip_at(base + register));
        // The BAR answers at addresses after the chip's page.
        assert_ne!(m.read32(base + 0x1000), u32::MAX);
        assert!(!m.platform.has_chip_at(base + 0x1000));
    }
}

#[test]
fn a_message_has_the_receivers_that_its_destination_names() {
    let platform = Platform::new(START, NoExpansion).with_processors(3);
    let to = |destination, logical| {
        let mode = crate::interrupt_message::DeliveryMode::Fixed;
        let message = InterruptMessage { destination, logical, mode, vector: 0x40, level: false };
        platform.receivers(&message).collect::<Vec<_>>()
    };
    assert_eq!((to(1, false), to(0xFF, false), to(7, false)), (vec![1], vec![0, 1, 2], vec![]));
    assert_eq!(to(1, true), [0_usize; 0], "no processor has a logical id yet");
}
