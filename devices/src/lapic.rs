//! Local APIC of a processor (Intel SDM volume 3, chapter "Advanced Programmable Interrupt Controller").
//!
//! Modelled: xAPIC (memory mapped) and x2APIC (MSRs), the local vector table, the timer in its three modes, and
//! inter-processor interrupts. The timer's bus clock and the TSC run at 1 GHz: one tick per nanosecond of virtual time,
//! before the divider. INIT and start-up messages between processors set the APIC's [`StartupV1`]; from other sources
//! they are dropped. Not modelled: SMI messages (accepted and dropped), remote read, and the suppression of EOI
//! broadcasts. Level-triggered LINT pins in fixed mode are treated as edge triggered.

mod register_file;
mod registers;
mod state;
mod summary;
mod timer;
mod vectors;

use serde::{Deserialize, Serialize};

use crate::interrupt_message::{DeliveryMode, Destination, InterruptMessage, Ipi};
use crate::layout::LAPIC_BASE;
use crate::restore::RestoreError;
use register_file::RegisterFile;
pub use state::LapicStateV1;
pub use summary::{LapicSummary, LocalEntry};
use timer::Timer;
pub use timer::{TimerMode, TimerStateV1, TimerSummary};
use vectors::VectorSet;

/// IA32_APIC_BASE.
pub const MSR_APIC_BASE: u32 = 0x1B;
/// IA32_TSC_DEADLINE.
pub const MSR_TSC_DEADLINE: u32 = 0x6E0;
/// First x2APIC register.
pub const MSR_X2APIC_FIRST: u32 = 0x800;
/// Last x2APIC register.
pub const MSR_X2APIC_LAST: u32 = 0x8FF;

const BASE_BSP: u64 = 1 << 8;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;
/// Address bits of IA32_APIC_BASE. CPUID 8000_0008h shows 40 bits of physical address; higher bits are reserved (SDM
/// vol. 3, 11.4.4; APM vol. 2, 16.3.1).
const BASE_ADDRESS: u64 = 0x0000_00FF_FFFF_F000;

const FIRST_LEGAL_VECTOR: u8 = 16;

const SVR_ENABLE: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;

const ESR_SEND_ILLEGAL: u32 = 1 << 5;
const ESR_RECEIVED_ILLEGAL: u32 = 1 << 6;
const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;

const LVT_TIMER: usize = 1;
const LVT_LINT0: usize = 4;
const LVT_LINT1: usize = 5;
const LVT_ERROR: usize = 6;

/// The access must raise a general-protection fault with error code 0 in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the access raises #GP(0)")]
pub struct GeneralProtection;

/// Whether an MSR belongs to the local APIC.
pub fn is_apic_msr(index: u32) -> bool {
    matches!(index, MSR_APIC_BASE | MSR_TSC_DEADLINE | MSR_X2APIC_FIRST..=MSR_X2APIC_LAST)
}

/// The mode of a local APIC, by IA32_APIC_BASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The APIC is disabled.
    Disabled,
    /// The registers are in memory.
    XApic,
    /// The registers are MSRs.
    X2Apic,
}

/// Whether a processor waits for a start-up message (SIPI). A processor waits after INIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartupV1 {
    /// The processor has started.
    #[default]
    Done,
    /// The processor waits for a start-up message.
    Awaited,
    /// A start-up message has come, with this vector. The processor has not started yet.
    Due(u8),
}

/// The local APIC of one processor.
#[derive(Clone, Debug)]
pub struct LocalApic {
    s: RegisterFile,
    id: u8,
    startup: StartupV1,
    /// Messages to other processors. The board, which owns the APIC, takes these messages at once.
    sent: Vec<Ipi>,
    /// The vector of a finished level-triggered interrupt, for the I/O APIC. The board, which owns the APIC,
    /// takes the vector at once.
    eoi_broadcast: Option<u8>,
}

impl Default for LocalApic {
    fn default() -> LocalApic {
        LocalApic::new()
    }
}

impl LocalApic {
    /// The local APIC of the first processor after power-on: enabled in xAPIC mode, but disabled by software.
    pub fn new() -> LocalApic {
        LocalApic::with_id(0)
    }

    /// The local APIC with this id after power-on. All processors but the first wait for a start-up message.
    pub fn with_id(id: u8) -> LocalApic {
        let startup = if id == 0 { StartupV1::Done } else { StartupV1::Awaited };
        let s = RegisterFile {
            base: LAPIC_BASE | BASE_ENABLE | if id == 0 { BASE_BSP } else { 0 },
            tpr: 0,
            requested: VectorSet::default(),
            in_service: VectorSet::default(),
            trigger_mode: VectorSet::default(),
            ldr: 0,
            dfr: u32::MAX,
            svr: 0xFF,
            esr: 0,
            errors: 0,
            icr: 0,
            lvt: [LVT_MASKED; 7],
            timer: TimerStateV1::default(),
            lint: [false; 2],
            nmi_pending: false,
        };
        LocalApic { s, id, startup, sent: Vec::new(), eoi_broadcast: None }
    }

    /// Does what PC firmware does before it starts a kernel. The function enables the APIC, lets the 8259's
    /// interrupts through LINT0 ("virtual wire mode"), and makes LINT1 the NMI pin.
    pub fn set_virtual_wire_mode(&mut self) {
        self.s.svr |= SVR_ENABLE;
        self.s.lvt[LVT_LINT0] = 0x700;
        self.s.lvt[LVT_LINT1] = 0x400;
    }

    /// The address of the register page, or `None` if the registers are not memory mapped.
    pub fn mmio_base(&self) -> Option<u64> {
        (self.mode() == Mode::XApic).then_some(self.s.base & BASE_ADDRESS)
    }

    /// Delivers a message. Returns whether this APIC accepted the message.
    pub fn deliver(&mut self, message: &InterruptMessage) -> bool {
        if self.mode() == Mode::Disabled || !self.is_message_for_us(message) {
            return false;
        }
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => self.accept(message.vector, message.level),
            DeliveryMode::Nmi => {
                self.s.nmi_pending = true;
                true
            }
            // ExtINT stands for the level of the 8259's output. The board watches this level, so the message has no
            // effect.
            mode => {
                log::debug!("local APIC: {mode:?} message dropped");
                true
            }
        }
    }

    /// Drives LINT0 (`pin` 0, wired to the 8259) or LINT1 (1, the NMI pin).
    pub fn set_lint(&mut self, pin: usize, level: bool) {
        let rising = level && !self.s.lint[pin];
        self.s.lint[pin] = level;
        if !rising {
            return;
        }
        if self.mode() == Mode::Disabled {
            // While the APIC is disabled, its two pins are the CPU's INTR and NMI pins.
            self.s.nmi_pending |= pin == 1;
        } else {
            self.fire_lvt(LVT_LINT0 + pin);
        }
    }

    /// Whether the 8259's interrupts reach the CPU through LINT0 (or past a disabled APIC).
    pub fn passes_external_interrupt(&self) -> bool {
        let lint0 = self.s.lvt[LVT_LINT0];
        let open =
            lint0 & LVT_MASKED == 0 && DeliveryMode::from_bits(u64::from(lint0 >> 8)) == DeliveryMode::ExtInt;
        open || self.mode() == Mode::Disabled
    }

    /// The vector that would interrupt the CPU now; `None` if no vector has enough priority.
    #[inline]
    pub fn pending_vector(&self) -> Option<u8> {
        let vector = self.s.requested.highest()?;
        (self.mode() != Mode::Disabled && vector >> 4 > self.ppr() >> 4).then_some(vector)
    }

    /// Takes the pending vector into service and returns it.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.pending_vector()?;
        self.s.requested.remove(vector);
        self.s.in_service.insert(vector);
        Some(vector)
    }

    /// Takes a pending NMI. Returns whether an NMI was pending.
    pub fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.s.nmi_pending)
    }

    /// Whether an NMI is pending.
    pub fn nmi_pending(&self) -> bool {
        self.s.nmi_pending
    }

    /// Takes the vector of a level-triggered interrupt that has just ended, if one has.
    pub fn take_eoi_broadcast(&mut self) -> Option<u8> {
        self.eoi_broadcast.take()
    }

    /// CR8: bits 7:4 of the task priority.
    pub fn cr8(&self) -> u8 {
        self.s.tpr >> 4
    }

    /// Sets CR8; only the low four bits are used.
    pub fn set_cr8(&mut self, value: u8) {
        self.s.tpr = value << 4;
    }

    /// The time at which the timer expires next; `None` if the timer does not run.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.s.timer.expiry_ns
    }

    /// Lets the timer expire if it is due. If a periodic timer expired several times since the last call, it causes
    /// only one interrupt. Hardware does the same if the CPU cannot take interrupts in the meantime.
    pub fn advance(&mut self, now_ns: u64) {
        if Timer::new(&mut self.s.timer, self.s.lvt[LVT_TIMER]).expire(now_ns) {
            self.fire_lvt(LVT_TIMER);
        }
    }

    /// Reads one of the MSRs for which [`is_apic_msr`] is true. Any other register raises a general-protection
    /// fault, as on hardware.
    pub fn read_msr(&mut self, index: u32, now_ns: u64) -> Result<u64, GeneralProtection> {
        match index {
            MSR_APIC_BASE => Ok(self.s.base),
            MSR_TSC_DEADLINE => Ok(self.timer().tsc_deadline()),
            MSR_X2APIC_FIRST..=MSR_X2APIC_LAST if self.mode() == Mode::X2Apic => {
                self.read_x2apic(index - MSR_X2APIC_FIRST, now_ns)
            }
            _ => Err(GeneralProtection),
        }
    }

    /// Writes one of the MSRs for which [`is_apic_msr`] is true. A TSC deadline is given in nanoseconds of virtual
    /// time; 0 disarms the timer.
    pub fn write_msr(&mut self, index: u32, value: u64, now_ns: u64) -> Result<(), GeneralProtection> {
        match index {
            MSR_APIC_BASE => self.write_base(value),
            MSR_TSC_DEADLINE => {
                self.timer().set_tsc_deadline(value);
                self.advance(now_ns);
                Ok(())
            }
            MSR_X2APIC_FIRST..=MSR_X2APIC_LAST if self.mode() == Mode::X2Apic => {
                self.write_x2apic(index - MSR_X2APIC_FIRST, value, now_ns)
            }
            _ => Err(GeneralProtection),
        }
    }

    /// The chip's state.
    pub fn save(&self) -> LapicStateV1 {
        LapicStateV1::from(&self.s)
    }

    /// Builds the chip with this id from a saved state.
    pub fn restore(id: u8, state: &LapicStateV1, startup: StartupV1) -> Result<LocalApic, RestoreError> {
        let modes = state.base & (BASE_ENABLE | BASE_X2APIC);
        RestoreError::unless(modes != BASE_X2APIC, "local APIC", "x2APIC mode without being enabled")?;
        Ok(LocalApic { s: state.into(), id, startup, sent: Vec::new(), eoi_broadcast: None })
    }

    /// The APIC's id.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Whether the processor waits for a start-up message, has got one, or has started.
    pub fn startup(&self) -> StartupV1 {
        self.startup
    }

    /// Takes the vector of a start-up message that is due. The vector is the number of the page where the processor
    /// starts.
    pub fn take_start(&mut self) -> Option<u8> {
        let StartupV1::Due(vector) = self.startup else { return None };
        self.startup = StartupV1::Done;
        Some(vector)
    }

    /// Takes the messages that this APIC has sent to other processors.
    pub fn take_sent(&mut self) -> Vec<Ipi> {
        std::mem::take(&mut self.sent)
    }

    /// Receives a message of another processor, if the message is for this processor. Returns whether the message was
    /// for this processor.
    pub fn receive(&mut self, ipi: &Ipi) -> bool {
        if self.mode() == Mode::Disabled || !self.is_addressed(ipi.to) {
            return false;
        }
        match ipi.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => _ = self.accept(ipi.vector, false),
            DeliveryMode::Nmi => self.s.nmi_pending = true,
            DeliveryMode::Init => self.reset(),
            DeliveryMode::StartUp if self.startup != StartupV1::Done => {
                self.startup = StartupV1::Due(ipi.vector)
            }
            mode => log::debug!("local APIC {}: {mode:?} message dropped", self.id),
        }
        true
    }

    /// INIT: all registers but the base are as after power-on, and the processor waits for a start-up message (SDM
    /// vol. 3, 11.4.7.3).
    fn reset(&mut self) {
        let (base, lint) = (self.s.base, self.s.lint);
        self.s = RegisterFile { base, lint, ..LocalApic::with_id(self.id).s };
        self.startup = StartupV1::Awaited;
    }

    fn mode(&self) -> Mode {
        match (self.s.base & BASE_ENABLE != 0, self.s.base & BASE_X2APIC != 0) {
            (false, _) => Mode::Disabled,
            (true, false) => Mode::XApic,
            (true, true) => Mode::X2Apic,
        }
    }

    fn timer(&mut self) -> Timer<'_> {
        Timer::new(&mut self.s.timer, self.s.lvt[LVT_TIMER])
    }

    /// Writes IA32_APIC_BASE. The mode can go from disabled to xAPIC to x2APIC, and from either back to disabled.
    /// Disabling resets all other registers.
    fn write_base(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & !(BASE_BSP | BASE_X2APIC | BASE_ENABLE | BASE_ADDRESS) != 0 {
            return Err(GeneralProtection);
        }
        let (enable, x2apic) = (value & BASE_ENABLE != 0, value & BASE_X2APIC != 0);
        let allowed = match self.mode() {
            Mode::Disabled => !x2apic,
            Mode::XApic => enable || !x2apic,
            Mode::X2Apic => enable == x2apic,
        };
        if !allowed {
            return Err(GeneralProtection);
        }
        if !enable {
            let (lint, nmi_pending) = (self.s.lint, self.s.nmi_pending);
            self.s = RegisterFile { lint, nmi_pending, ..LocalApic::with_id(self.id).s };
        }
        self.s.base = value;
        Ok(())
    }

    /// Whether IA32_APIC_BASE enables the local APIC.
    pub fn is_enabled(&self) -> bool {
        self.mode() != Mode::Disabled
    }

    fn is_software_enabled(&self) -> bool {
        self.s.svr & SVR_ENABLE != 0
    }

    /// Accepts a fixed interrupt. An APIC that software has disabled accepts none.
    fn accept(&mut self, vector: u8, level: bool) -> bool {
        if vector < FIRST_LEGAL_VECTOR {
            self.report_error(ESR_RECEIVED_ILLEGAL);
            return false;
        }
        if !self.is_software_enabled() {
            return false;
        }
        self.s.requested.insert(vector);
        self.s.trigger_mode.set(vector, level);
        true
    }

    /// Fires a local interrupt source.
    fn fire_lvt(&mut self, index: usize) {
        let entry = self.s.lvt[index];
        if entry & LVT_MASKED != 0 {
            return;
        }
        // The timer and error entries have no delivery mode field. The field reads as zero: fixed.
        match DeliveryMode::from_bits(u64::from(entry >> 8)) {
            DeliveryMode::Fixed => {
                self.accept(entry as u8, false);
            }
            DeliveryMode::Nmi => self.s.nmi_pending = true,
            _ => {}
        }
    }

    fn report_error(&mut self, error: u32) {
        let is_new = self.s.errors & error == 0;
        self.s.errors |= error;
        // If the vector of the LVT error entry is illegal, firing the entry reports a further error, but only once.
        if is_new {
            self.fire_lvt(LVT_ERROR);
        }
    }

    fn end_of_interrupt(&mut self) {
        let Some(vector) = self.s.in_service.highest() else { return };
        self.s.in_service.remove(vector);
        if self.s.trigger_mode.contains(vector) {
            self.eoi_broadcast = Some(vector);
        }
    }

    /// Processor priority: the higher of the task priority and the highest vector in service.
    fn ppr(&self) -> u8 {
        let in_service = self.s.in_service.highest().unwrap_or(0);
        if self.s.tpr >> 4 >= in_service >> 4 { self.s.tpr } else { in_service & 0xF0 }
    }

    /// Whether a message is for this APIC. Sources outside the CPU send 8-bit destinations, in either mode.
    pub(crate) fn is_message_for_us(&self, message: &InterruptMessage) -> bool {
        let destination = u32::from(message.destination);
        match (destination, message.logical) {
            (0xFF, _) => true,
            (_, true) => self.is_logically_us(destination),
            (_, false) => destination == u32::from(self.id),
        }
    }

    fn is_addressed(&self, to: Destination) -> bool {
        match to {
            Destination::All => true,
            Destination::Physical(id) => id == u32::from(self.id),
            Destination::Logical(destination) => self.is_logically_us(destination),
        }
    }

    fn is_logically_us(&self, destination: u32) -> bool {
        if self.mode() == Mode::X2Apic {
            let ours = self.x2apic_ldr();
            return destination >> 16 == ours >> 16 && destination & ours & 0xFFFF != 0;
        }
        let ours = self.s.ldr >> 24;
        match self.s.dfr >> 28 {
            0xF => destination & ours & 0xFF != 0,
            // Cluster model: bits 7:4 name a cluster (15: all of them), bits 3:0 its members.
            0x0 => {
                let cluster = destination >> 4 & 0xF;
                (cluster == 0xF || cluster == ours >> 4) && destination & ours & 0xF != 0
            }
            _ => false,
        }
    }

    fn x2apic_ldr(&self) -> u32 {
        let id = u32::from(self.id);
        id >> 4 << 16 | 1 << (id & 0xF)
    }

    /// Sends an inter-processor interrupt: to this processor at once, to others through the board.
    fn send_ipi(&mut self, command: u32, destination: u32) {
        let broadcast = if self.mode() == Mode::X2Apic { u32::MAX } else { 0xFF };
        let named = match command >> 11 & 1 != 0 {
            _ if destination == broadcast => Destination::All,
            true => Destination::Logical(destination),
            false => Destination::Physical(destination),
        };
        let (to_us, to_others) = match command >> 18 & 3 {
            0 => (self.is_addressed(named), Some(named)),
            1 => (true, None),
            2 => (true, Some(Destination::All)),
            _ => (false, Some(Destination::All)),
        };
        let (mode, vector) = (DeliveryMode::from_bits(u64::from(command >> 8)), command as u8);
        let has_vector = matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority);
        if has_vector && vector < FIRST_LEGAL_VECTOR {
            return self.report_error(ESR_SEND_ILLEGAL);
        }
        match mode {
            _ if !to_us => {}
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => _ = self.accept(vector, false),
            DeliveryMode::Nmi => self.s.nmi_pending = true,
            mode => log::trace!("local APIC: {mode:?} to {destination:#x} does not reach its sender"),
        }
        let is_deassert = mode == DeliveryMode::Init && command & 0xC000 == 0x8000;
        let is_taken = mode == DeliveryMode::LowestPriority && to_us;
        if let Some(to) = to_others.filter(|_| !is_deassert && !is_taken) {
            self.sent.push(Ipi { to, mode, vector });
        }
    }
}

#[cfg(test)]
mod tests;
