//! The board: all chips, the ports and addresses they answer at, and the interrupt lines between them.
//!
//! After each access and each advance the wiring polls the levels of all interrupt lines and drives them into
//! the 8259 pair and the I/O APIC; no chip calls another. Ports that no chip answers read as all ones.
//!
//! Time: calls take the current virtual time, which must not go back. Whatever was due earlier happens first,
//! in the order of its time, so that it makes no difference to the state how often [`Platform::advance`] is
//! called. It follows that two machines at the same point have equal states, provided that both have been
//! advanced to that point before [`Platform::state`] is asked.
//!
//! Output, debug output and requests are collected for the owner and are no part of the state: take them
//! before saving a state that is to be restored elsewhere.

mod access;
mod bus;
mod interrupts;
mod pci;
mod save;
mod state;

use crate::acpi_pm::AcpiPm;
use crate::ioapic::IoApic;
use crate::lapic::{GeneralProtection, LocalApic};
pub use crate::layout::PCI_PIC_IRQS;
use crate::layout::{DEBUG_EXIT_PORT, RTC_IRQ, SCI_IRQ};
use crate::misc_ports::MiscPorts;
pub use crate::misc_ports::{DebugPorts, PanicKind, Request};
use crate::pic::PicPair;
use crate::pit::Pit;
use crate::rtc::Rtc;
use crate::uart::Uart;
pub use bus::{ExpansionBus, NoExpansion};
pub use state::PlatformStateV1;

/// 8259 lines that firmware makes level triggered: the system control interrupt and PCI.
const LEVEL_LINES: u16 = 1 << SCI_IRQ | 1 << 10 | 1 << 11;
const _: () = assert!(RTC_IRQ == 8, "the RTC is wired to the first line of the slave 8259");

/// All platform chips and their wiring. See the module documentation.
pub struct Platform<B = NoExpansion> {
    uart: Uart,
    rtc: Rtc,
    pit: Pit,
    pic: PicPair,
    ioapic: IoApic,
    lapic: LocalApic,
    pm: AcpiPm,
    misc_ports: MiscPorts,
    /// Part of the machine's description, not of its state.
    debug_ports: DebugPorts,
    bus: B,
    /// Follows from the chips: whether the CPU is being interrupted.
    interrupt_pending: bool,
    /// Follows from the chips: when a line changes next, apart from the local APIC's timer.
    line_deadline_ns: Option<u64>,
}

impl<B: ExpansionBus> Platform<B> {
    /// The machine at power-on, as firmware hands it to a kernel: local APIC in virtual wire mode, 8259 pair
    /// initialised and masked. `unix_seconds` is what the RTC shows at virtual time 0.
    pub fn new(unix_seconds: i64, bus: B) -> Platform<B> {
        let mut lapic = LocalApic::new();
        lapic.set_virtual_wire_mode();
        let mut platform = Platform {
            uart: Uart::new(),
            rtc: Rtc::new(unix_seconds),
            pit: Pit::new(),
            pic: PicPair::new(LEVEL_LINES),
            ioapic: IoApic::new(),
            lapic,
            pm: AcpiPm::new(),
            misc_ports: MiscPorts::new(),
            debug_ports: DebugPorts { console: true, exit: Some(DEBUG_EXIT_PORT) },
            bus,
            interrupt_pending: false,
            line_deadline_ns: None,
        };
        platform.update_interrupts(0);
        platform
    }

    /// Chooses the debug ports; all are there if this is not called.
    pub fn with_debug_ports(mut self, ports: DebugPorts) -> Platform<B> {
        self.debug_ports = ports;
        self
    }

    /// When [`Platform::advance`] next has something to do, if ever.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        match (self.line_deadline_ns, self.lapic.next_deadline_ns()) {
            (Some(line), Some(timer)) => Some(line.min(timer)),
            (line, timer) => line.or(timer),
        }
    }

    /// Lets everything happen that is due by `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        if self.next_deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.catch_up(now_ns);
        }
    }

    /// Whether an interrupt (not an NMI) waits for the CPU.
    #[inline]
    pub fn interrupt_pending(&self) -> bool {
        self.interrupt_pending
    }

    /// The CPU takes the interrupt: its vector, or `None` when none waits.
    pub fn acknowledge_interrupt(&mut self) -> Option<u8> {
        // External interrupts do not take part in the local APIC's priorities; they go first.
        let vector = if self.external_interrupt_pending() {
            Some(self.pic.acknowledge())
        } else {
            self.lapic.acknowledge()
        };
        self.route();
        vector
    }

    /// Whether an NMI waits for the CPU.
    #[inline]
    pub fn nmi_pending(&self) -> bool {
        self.lapic.nmi_pending()
    }

    /// The CPU takes a waiting NMI. Returns whether there was one.
    pub fn take_nmi(&mut self) -> bool {
        self.lapic.take_nmi()
    }

    /// Whether IA32_APIC_BASE switches the local APIC on.
    pub fn apic_enabled(&self) -> bool {
        self.lapic.is_enabled()
    }

    /// The guest reads CR8.
    pub fn cr8(&self) -> u8 {
        self.lapic.cr8()
    }

    /// The guest writes CR8; only the low four bits count.
    pub fn set_cr8(&mut self, value: u8) {
        self.lapic.set_cr8(value);
        self.route();
    }

    /// The guest reads one of the MSRs of [`crate::lapic::is_apic_msr`].
    pub fn apic_read_msr(&mut self, now_ns: u64, index: u32) -> Result<u64, GeneralProtection> {
        self.advance(now_ns);
        let result = self.lapic.read_msr(index, now_ns);
        self.route();
        result
    }

    /// The guest writes one of those MSRs. A TSC deadline comes converted to virtual time in nanoseconds.
    pub fn apic_write_msr(&mut self, now_ns: u64, index: u32, value: u64) -> Result<(), GeneralProtection> {
        self.advance(now_ns);
        let result = self.lapic.write_msr(index, value, now_ns);
        self.route();
        result
    }

    /// Sends bytes to the serial port, as many as fit. Returns how many that were; the owner keeps the rest.
    pub fn push_input(&mut self, now_ns: u64, bytes: &[u8]) -> usize {
        self.advance(now_ns);
        let accepted = bytes.iter().take_while(|&&byte| self.uart.push_input(byte)).count();
        self.update_interrupts(now_ns);
        accepted
    }

    /// How many bytes [`Platform::push_input`] would take now.
    pub fn input_capacity(&self) -> usize {
        self.uart.input_capacity()
    }

    /// Takes what the guest has sent through the serial port since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.uart.take_output()
    }

    /// Takes what the guest has written to the debug console since the last call.
    pub fn take_debug_output(&mut self) -> Vec<u8> {
        self.misc_ports.take_debug_output()
    }

    /// Whether the guest asks for something.
    #[inline]
    pub fn has_requests(&self) -> bool {
        self.misc_ports.has_requests()
    }

    /// Takes what the guest has asked for since the last call, oldest first.
    pub fn take_requests(&mut self) -> Vec<Request> {
        self.misc_ports.take_requests()
    }

    /// The user presses the power button.
    pub fn press_power_button(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.pm.press_power_button();
        self.update_interrupts(now_ns);
    }

    /// Pulses LINT1, which firmware makes the NMI pin. No machine here has anything on it.
    #[cfg(test)]
    pub fn press_nmi_button(&mut self) {
        self.lapic.set_lint(1, true);
        self.lapic.set_lint(1, false);
        self.route();
    }

    /// Sets a byte of CMOS RAM, as firmware does before the machine starts.
    pub fn set_nvram(&mut self, address: u8, value: u8) {
        self.rtc.set_nvram(address, value);
    }

    /// The expansion bus, to look at.
    pub fn bus(&self) -> &B {
        &self.bus
    }

    /// The expansion bus, for what concerns neither guest nor interrupts: collected output, disks.
    pub fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Bytes of input that the guest would notice at once: none while its driver does not listen.
    pub fn console_room(&self) -> usize {
        if self.uart.is_listened_to() { self.uart.input_capacity() } else { 0 }
    }

    /// Lets `change` act on the expansion bus (input for its devices), then delivers the interrupts that came
    /// of it.
    pub fn with_bus<R>(&mut self, now_ns: u64, change: impl FnOnce(&mut B) -> R) -> R {
        self.advance(now_ns);
        let result = change(&mut self.bus);
        self.update_interrupts(now_ns);
        result
    }
}

#[cfg(test)]
mod tests;
