//! The board: all chips, their ports and addresses, and the interrupt lines between them.
//!
//! After each access and each advance the wiring polls all interrupt lines. The wiring drives the levels into
//! the 8259 pair and the I/O APIC; no chip calls another. Ports without a chip read as all ones.
//!
//! Time: calls take the current virtual time, which must not go back. Everything due earlier happens first, in order of
//! time. So the number of calls of [`Platform::advance`] does not change the state. Two machines at the same point have
//! equal states, if both have been advanced to that point before [`Platform::state`] is called.
//!
//! Output, debug output and requests are collected for the owner and are not part of the state. So an owner must
//! collect them before it saves a state that another platform will restore.

mod access;
mod bus;
mod chips;
mod interrupts;
mod pci;
mod save;
mod state;

use crate::acpi_pm::AcpiPm;
use crate::ioapic::IoApic;
use crate::lapic::{GeneralProtection, LocalApic, StartupV1};
pub use crate::layout::PCI_PIC_IRQS;
use crate::layout::{DEBUG_EXIT_PORT, RTC_IRQ, SCI_IRQ};
use crate::misc_ports::MiscPorts;
pub use crate::misc_ports::{DebugPorts, PanicKind, Request};
use crate::pic::PicPair;
use crate::pit::Pit;
use crate::rtc::Rtc;
use crate::uart::Uart;
pub use bus::{ExpansionBus, NoExpansion};
pub use state::{OtherLapicV1, PlatformStateV1};

/// 8259 lines that firmware makes level triggered: the system control interrupt and PCI.
const LEVEL_LINES: u16 = 1 << SCI_IRQ | 1 << 10 | 1 << 11;
const _: () = assert!(RTC_IRQ == 8, "the RTC is wired to the first line of the slave 8259");

/// All chips of the board and their wiring.
pub struct Platform<B = NoExpansion> {
    uart: Uart,
    rtc: Rtc,
    pit: Pit,
    pic: PicPair,
    ioapic: IoApic,
    /// The local APIC of each processor.
    lapics: Vec<LocalApic>,
    /// The number of the processor in the *seat*. This processor makes the accesses, and the CPU samples interrupts
    /// for this processor.
    seat: usize,
    pm: AcpiPm,
    misc_ports: MiscPorts,
    /// The debug ports are a part of the machine's description, not of its state.
    debug_ports: DebugPorts,
    bus: B,
    /// Bit n says whether an interrupt waits for processor n. The bits are derived from the chips' states.
    interrupts_pending: u64,
    /// The time at which an interrupt line changes next, not counting the local APIC's timer. The time is derived from
    /// the chips' states.
    line_deadline_ns: Option<u64>,
}

impl<B: ExpansionBus> Platform<B> {
    /// Makes the machine at power-on, as firmware hands it to a kernel: local APIC in virtual wire mode, 8259 pair
    /// initialised and masked. The RTC shows `unix_seconds` at virtual time 0.
    pub fn new(unix_seconds: i64, bus: B) -> Platform<B> {
        let platform = Platform {
            uart: Uart::new(),
            rtc: Rtc::new(unix_seconds),
            pit: Pit::new(),
            pic: PicPair::new(LEVEL_LINES),
            ioapic: IoApic::new(),
            lapics: Vec::new(),
            seat: 0,
            pm: AcpiPm::new(),
            misc_ports: MiscPorts::new(),
            debug_ports: DebugPorts { console: true, exit: Some(DEBUG_EXIT_PORT) },
            bus,
            interrupts_pending: 0,
            line_deadline_ns: None,
        };
        platform.with_processors(1)
    }

    /// Makes `count` processors, 1 to 64, in the state of power-on. Without this call there is one processor. A
    /// processor's APIC id is its number.
    pub fn with_processors(self, count: u8) -> Platform<B> {
        self.with_apic_ids(0..count)
    }

    /// Does the same as [`Platform::with_processors`] for processors with these APIC ids, in ascending order. The
    /// first id is 0.
    pub fn with_apic_ids(mut self, ids: impl IntoIterator<Item = u8>) -> Platform<B> {
        self.lapics = ids.into_iter().map(LocalApic::with_id).collect();
        self.lapics.iter_mut().for_each(LocalApic::set_virtual_wire_mode);
        self.update_interrupts(0);
        self
    }

    /// Gives the seat to a processor. All later accesses are accesses by this processor.
    pub fn take_seat(&mut self, processor: usize) {
        self.seat = processor;
    }

    fn lapic(&mut self) -> &mut LocalApic {
        &mut self.lapics[self.seat]
    }

    /// Whether a processor waits for a start-up message.
    pub fn startup(&self, processor: usize) -> StartupV1 {
        self.lapics[processor].startup()
    }

    /// Takes the vector of the start-up message for the processor in the seat, if one is due.
    pub fn take_start(&mut self) -> Option<u8> {
        self.lapic().take_start()
    }

    /// Chooses the debug ports. Without this call all debug ports are present.
    pub fn with_debug_ports(mut self, ports: DebugPorts) -> Platform<B> {
        self.debug_ports = ports;
        self
    }

    /// The next time at which [`Platform::advance`] has something to do, if any.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.lapics.iter().map(LocalApic::next_deadline_ns).chain([self.line_deadline_ns]).flatten().min()
    }

    /// Processes everything that is due by `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        if self.next_deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.catch_up(now_ns);
        }
    }

    /// Whether an interrupt (not an NMI) waits for the processor in the seat.
    #[inline]
    pub fn interrupt_pending(&self) -> bool {
        self.interrupt_pending_for(self.seat)
    }

    /// Whether an interrupt (not an NMI) waits for a processor.
    #[inline]
    pub fn interrupt_pending_for(&self, processor: usize) -> bool {
        self.interrupts_pending >> processor & 1 != 0
    }

    /// Acknowledges a waiting interrupt for the CPU. Returns the interrupt's vector, or `None` if no
    /// interrupt waits.
    pub fn acknowledge_interrupt(&mut self) -> Option<u8> {
        // External interrupts do not take part in the local APIC's priorities; they come first.
        let vector = if self.seat == 0 && self.external_interrupt_pending() {
            Some(self.pic.acknowledge())
        } else {
            self.lapic().acknowledge()
        };
        self.route();
        vector
    }

    /// Whether an NMI waits for the processor in the seat.
    #[inline]
    pub fn nmi_pending(&self) -> bool {
        self.nmi_pending_for(self.seat)
    }

    /// Whether an NMI waits for a processor.
    pub fn nmi_pending_for(&self, processor: usize) -> bool {
        self.lapics[processor].nmi_pending()
    }

    /// Takes a waiting NMI for the CPU. Returns whether an NMI was waiting.
    pub fn take_nmi(&mut self) -> bool {
        self.lapic().take_nmi()
    }

    /// Whether IA32_APIC_BASE enables the local APIC.
    pub fn apic_enabled(&self) -> bool {
        self.lapics[self.seat].is_enabled()
    }

    /// Reads CR8 for the guest.
    pub fn cr8(&self) -> u8 {
        self.lapics[self.seat].cr8()
    }

    /// Writes CR8 for the guest; only the low four bits are used.
    pub fn set_cr8(&mut self, value: u8) {
        self.lapic().set_cr8(value);
        self.route();
    }

    /// Reads for the guest one of the MSRs for which [`crate::lapic::is_apic_msr`] is true.
    pub fn apic_read_msr(&mut self, now_ns: u64, index: u32) -> Result<u64, GeneralProtection> {
        self.advance(now_ns);
        let result = self.lapic().read_msr(index, now_ns);
        self.route();
        result
    }

    /// Writes for the guest one of the MSRs for which [`crate::lapic::is_apic_msr`] is true. The caller converts a
    /// TSC deadline to nanoseconds of virtual time.
    pub fn apic_write_msr(&mut self, now_ns: u64, index: u32, value: u64) -> Result<(), GeneralProtection> {
        self.advance(now_ns);
        let result = self.lapic().write_msr(index, value, now_ns);
        self.route();
        result
    }

    /// Sends bytes to the serial port, as many as fit. Returns the number of bytes sent; the owner keeps the rest.
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

    /// Takes the bytes that the guest has sent through the serial port since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.uart.take_output()
    }

    /// Takes the bytes that the guest has written to the debug console since the last call.
    pub fn take_debug_output(&mut self) -> Vec<u8> {
        self.misc_ports.take_debug_output()
    }

    /// Whether a request of the guest waits to be taken.
    #[inline]
    pub fn has_requests(&self) -> bool {
        self.misc_ports.has_requests()
    }

    /// Takes the guest's requests since the last call, oldest first.
    pub fn take_requests(&mut self) -> Vec<Request> {
        self.misc_ports.take_requests()
    }

    /// Presses the power button.
    pub fn press_power_button(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.pm.press_power_button();
        self.update_interrupts(now_ns);
    }

    /// Pulses LINT1, which firmware makes the NMI pin. No device of this board drives LINT1.
    #[cfg(test)]
    pub fn press_nmi_button(&mut self) {
        self.lapic().set_lint(1, true);
        self.lapic().set_lint(1, false);
        self.route();
    }

    /// Sets a byte of CMOS RAM, as firmware does before the machine starts.
    pub fn set_nvram(&mut self, address: u8, value: u8) {
        self.rtc.set_nvram(address, value);
    }

    /// The expansion bus, for reading.
    pub fn bus(&self) -> &B {
        &self.bus
    }

    /// The expansion bus, for calls that affect neither guest nor interrupts. Such calls take collected output, or
    /// change how disks are stored.
    pub fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    /// Number of bytes that fit into the serial port, if the guest's driver listens; 0 if the driver does not listen.
    pub fn console_room(&self) -> usize {
        if self.uart.is_listened_to() { self.uart.input_capacity() } else { 0 }
    }

    /// Calls `change` with the expansion bus, so that the owner can give its devices input. Then delivers the resulting
    /// interrupts.
    pub fn with_bus<R>(&mut self, now_ns: u64, change: impl FnOnce(&mut B) -> R) -> R {
        self.advance(now_ns);
        let result = change(&mut self.bus);
        self.update_interrupts(now_ns);
        result
    }
}

#[cfg(test)]
mod tests;
