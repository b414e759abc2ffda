//! Interrupt lines, interrupt messages and time.
//!
//! ```text
//! UART RTC ACPI PIT ──► 8259 pair ──► LINT0 ─┐
//!   │   │   │    └ GSI 2                     ├─► local APIC ──► CPU
//!   └───┴───┴────────► I/O APIC ── messages ─┤
//! PCI pins ──────────►    │      MSI ────────┘
//! ```
//!
//! Lines of passed-through ports are wired like the UART's line.

use super::bus::ExpansionBus;
use super::{PCI_PIC_IRQS, Platform};
use crate::interrupt_message::{DeliveryMode, InterruptMessage, Ipi};
use crate::lapic::LocalApic;
use crate::layout::{PCI_FIRST_GSI, PIT_GSI, PIT_IRQ, RTC_IRQ, SCI_IRQ, SERIAL_IRQ};
use crate::misc_ports::Request;

impl<B: ExpansionBus> Platform<B> {
    /// Processes everything that is due by `now_ns`, in order of time. If a local APIC's timer and an interrupt line
    /// are due at the same time, the timer comes first. All expiries of that timer between two line changes make only
    /// one interrupt.
    pub(super) fn catch_up(&mut self, now_ns: u64) {
        loop {
            let line_ns = self.line_deadline_ns.filter(|&deadline_ns| deadline_ns <= now_ns);
            self.lapics.iter_mut().for_each(|lapic| lapic.advance(line_ns.unwrap_or(now_ns)));
            match line_ns {
                Some(line_ns) => self.update_interrupts(line_ns),
                None => return self.route(),
            }
        }
    }

    /// Updates the interrupt controllers after a change at `now_ns`.
    pub(super) fn update_interrupts(&mut self, now_ns: u64) {
        let serial_dropped = self.uart.take_line_drop();
        let serial = self.uart.irq();
        if serial_dropped && serial {
            self.drive_lines(false, now_ns);
        }
        self.drive_lines(serial, now_ns);
        if self.pm.take_power_off() {
            self.misc_ports.request(Request::PowerOff);
        }
        self.line_deadline_ns = self.next_line_change_ns(now_ns);
        self.route();
    }

    /// Delivers messages, and computes for which processors an interrupt waits.
    pub(super) fn route(&mut self) {
        for (address, data) in self.bus.take_msis() {
            match InterruptMessage::from_msi(address, data) {
                Some(message) => _ = deliver(&mut self.lapics, &message),
                None => log::debug!("MSI to {address:#x} is no interrupt"),
            }
        }
        for vector in self.lapics.iter_mut().filter_map(LocalApic::take_eoi_broadcast) {
            self.ioapic.end_of_interrupt(vector);
        }
        for ipi in self.lapics[self.seat].take_sent() {
            self.send_on(&ipi);
        }
        self.ioapic.service(|message| deliver(&mut self.lapics, message));
        self.lapics[0].set_lint(0, self.pic.interrupt_pending());
        let external = u64::from(self.external_interrupt_pending());
        self.interrupts_pending = (0..).zip(&self.lapics).fold(external, |pending, (processor, lapic)| {
            pending | u64::from(lapic.pending_vector().is_some()) << processor
        });
    }

    /// Hands a message of the processor in the seat to the other processors.
    fn send_on(&mut self, ipi: &Ipi) {
        for (processor, lapic) in self.lapics.iter_mut().enumerate() {
            let is_received = processor != self.seat && lapic.receive(ipi);
            if is_received && ipi.mode == DeliveryMode::LowestPriority {
                return;
            }
        }
    }

    /// Whether the 8259 pair interrupts the first processor. The interrupt comes through LINT0, through pin 0 of
    /// the I/O APIC, or past a disabled local APIC.
    pub(super) fn external_interrupt_pending(&self) -> bool {
        self.pic.interrupt_pending()
            && (self.lapics[0].passes_external_interrupt() || self.ioapic.passes_external_interrupt(0))
    }

    pub(super) fn next_line_change_ns(&self, after_ns: u64) -> Option<u64> {
        let changes = [
            self.pit.next_deadline_ns(after_ns),
            self.rtc.next_deadline_ns(after_ns),
            self.pm.next_deadline_ns(after_ns),
        ];
        changes.into_iter().flatten().min()
    }

    fn drive_lines(&mut self, serial: bool, now_ns: u64) {
        let pit = self.pit.irq(now_ns);
        let isa = line(SERIAL_IRQ, serial)
            | line(RTC_IRQ, self.rtc.irq(now_ns))
            | line(SCI_IRQ, self.pm.sci(now_ns))
            | self.bus.isa_levels();
        let pci = self.bus.irq_levels() & 0xF;
        let pci_isa = PCI_PIC_IRQS
            .iter()
            .enumerate()
            .fold(0, |lines, (pin, &irq)| lines | line(irq, pci >> pin & 1 != 0));
        self.pic.set_lines((isa | line(PIT_IRQ, pit) | pci_isa) as u16);
        self.ioapic.set_lines(isa | line(PIT_GSI, pit) | pci << PCI_FIRST_GSI);
    }
}

/// Delivers a message of a device or of the I/O APIC. Returns whether a processor accepted it.
fn deliver(lapics: &mut [LocalApic], message: &InterruptMessage) -> bool {
    let mut is_accepted = false;
    for lapic in lapics {
        is_accepted |= lapic.deliver(message);
        if is_accepted && message.mode == DeliveryMode::LowestPriority {
            break;
        }
    }
    is_accepted
}

fn line(number: u8, level: bool) -> u32 {
    u32::from(level) << number
}
