//! I/O APIC with 24 inputs (Intel 82093AA datasheet, plus the EOI register of version 0x20).
//!
//! The chip turns line levels into interrupt messages; [`IoApic::service`] hands the messages to its caller,
//! which delivers them. Polarity bits are stored and ignored: a line that is "up" here is asserted, whatever
//! its voltage. The delivery-status bit always reads as idle, because delivery takes no time.

use serde::{Deserialize, Serialize};

use crate::interrupt_message::{DeliveryMode, InterruptMessage};
use crate::layout::IOAPIC_PINS;

const PINS: usize = IOAPIC_PINS as usize;
const ALL_PINS: u32 = (1 << PINS) - 1;
const VERSION: u32 = 0x20 | (IOAPIC_PINS as u32 - 1) << 16;

const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOI: u64 = 0x40;

const REG_ID: u8 = 0x00;
const REG_VERSION: u8 = 0x01;
const REG_ARBITRATION: u8 = 0x02;
const REG_REDIRECTION: u8 = 0x10;

const ENTRY_ACTIVE_LOW: u64 = 1 << 13;
const ENTRY_LOGICAL: u64 = 1 << 11;
const ENTRY_REMOTE_IRR: u64 = 1 << 14;
const ENTRY_LEVEL: u64 = 1 << 15;
const ENTRY_MASKED: u64 = 1 << 16;
/// Delivery status and remote IRR cannot be written; bits 55:17 are reserved.
const ENTRY_WRITABLE: u64 = 0xFF00_0000_0001_AFFF;

/// The saved registers of an [`IoApic`], version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicStateV1 {
    id: u8,
    selected: u8,
    /// Levels of the inputs, bit n is pin n.
    lines: u32,
    /// Edges that were seen and not yet sent as messages. Each call of the wiring (`platform`) sends all messages,
    /// so no edges are left between two calls.
    edges: u32,
    redirection: [u64; PINS],
}

/// The I/O APIC: its redirection entries, and the levels and edges of its inputs.
#[derive(Clone, Debug)]
pub struct IoApic {
    s: IoApicStateV1,
    /// The level-triggered pins, derived from the redirection entries.
    level_pins: u32,
}

/// A redirection entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectionEntry {
    /// The number of the input.
    pub pin: u8,
    /// The message that the input sends.
    pub message: InterruptMessage,
    /// Whether the input is masked.
    pub is_masked: bool,
    /// Whether the guest has set the polarity to active low.
    pub is_active_low: bool,
    /// Whether a message was accepted that no end of interrupt has followed (remote IRR).
    pub awaits_end: bool,
    /// Whether the input is up.
    pub is_up: bool,
}

impl RedirectionEntry {
    /// Whether the guest has programmed the entry, or its input is up.
    pub fn is_used(&self) -> bool {
        !self.is_masked || self.message.vector != 0 || self.is_up
    }
}

impl Default for IoApic {
    fn default() -> IoApic {
        IoApic::new()
    }
}

impl IoApic {
    /// The chip after reset: everything masked.
    pub fn new() -> IoApic {
        let redirection = [ENTRY_MASKED; PINS];
        IoApic::restore(&IoApicStateV1 { id: 0, selected: 0, lines: 0, edges: 0, redirection })
    }

    /// Reads the 32-bit register at byte `offset` of the page.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            IOREGSEL => u32::from(self.s.selected),
            IOWIN => self.read_selected(),
            _ => 0,
        }
    }

    /// Writes the 32-bit register at byte `offset` of the page.
    pub fn write(&mut self, offset: u64, value: u32) {
        match offset {
            IOREGSEL => self.s.selected = value as u8,
            IOWIN => self.write_selected(value),
            EOI => self.end_of_interrupt(value as u8),
            _ => log::trace!("I/O APIC: write of {value:#x} to unknown offset {offset:#x}"),
        }
    }

    /// Drives all inputs (bit n is pin n). An edge on a masked pin is lost, as the datasheet says.
    pub fn set_lines(&mut self, lines: u32) {
        let lines = lines & ALL_PINS;
        let rising = lines & !self.s.lines;
        self.s.lines = lines;
        for pin in pins(rising & !self.level_pins) {
            if self.s.redirection[pin] & ENTRY_MASKED == 0 {
                self.s.edges |= 1 << pin;
            }
        }
    }

    /// Must be called when the CPU has finished a level-triggered interrupt of `vector`.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        for entry in &mut self.s.redirection {
            if *entry as u8 == vector {
                *entry &= !ENTRY_REMOTE_IRR;
            }
        }
    }

    /// Sends every due message, lowest pin first. `deliver` returns whether the message was accepted. A level-triggered
    /// message that was refused is sent again at the next call.
    pub fn service(&mut self, mut deliver: impl FnMut(&InterruptMessage) -> bool) {
        for pin in pins(self.s.edges | self.s.lines & self.level_pins) {
            let entry = self.s.redirection[pin];
            if entry & (ENTRY_MASKED | ENTRY_REMOTE_IRR) != 0 {
                continue;
            }
            let accepted = deliver(&message(entry));
            self.s.edges &= !(1 << pin);
            if accepted && is_level(entry) {
                self.s.redirection[pin] |= ENTRY_REMOTE_IRR;
            }
        }
    }

    /// Whether `pin`, when raised, passes the 8259's external interrupt to the CPU ("virtual wire").
    pub fn passes_external_interrupt(&self, pin: usize) -> bool {
        self.s.redirection.get(pin).is_some_and(|&entry| {
            entry & ENTRY_MASKED == 0 && DeliveryMode::from_bits(entry >> 8) == DeliveryMode::ExtInt
        })
    }

    /// The redirection entries of all inputs.
    pub fn entries(&self) -> impl Iterator<Item = RedirectionEntry> {
        self.s.redirection.iter().zip(0..).map(|(&entry, pin)| RedirectionEntry {
            pin,
            message: message(entry),
            is_masked: entry & ENTRY_MASKED != 0,
            is_active_low: entry & ENTRY_ACTIVE_LOW != 0,
            awaits_end: entry & ENTRY_REMOTE_IRR != 0,
            is_up: self.s.lines >> pin & 1 != 0,
        })
    }

    /// The chip's state.
    pub fn save(&self) -> IoApicStateV1 {
        self.s.clone()
    }

    /// Builds the chip from a saved state. Every state is possible.
    pub fn restore(state: &IoApicStateV1) -> IoApic {
        let mut s = state.clone();
        s.lines &= ALL_PINS;
        let level_pins =
            (0..PINS).filter(|&pin| is_level(s.redirection[pin])).fold(0, |pins, pin| pins | 1 << pin);
        s.edges &= ALL_PINS & !level_pins;
        IoApic { s, level_pins }
    }

    fn read_selected(&self) -> u32 {
        match self.s.selected {
            REG_ID | REG_ARBITRATION => u32::from(self.s.id) << 24,
            REG_VERSION => VERSION,
            selected => match redirection_half(selected) {
                Some((pin, high)) => (self.s.redirection[pin] >> if high { 32 } else { 0 }) as u32,
                None => 0,
            },
        }
    }

    fn write_selected(&mut self, value: u32) {
        match self.s.selected {
            REG_ID => self.s.id = (value >> 24) as u8 & 0x0F,
            selected => {
                if let Some((pin, high)) = redirection_half(selected) {
                    self.write_redirection(pin, high, value);
                }
            }
        }
    }

    fn write_redirection(&mut self, pin: usize, high: bool, value: u32) {
        let before = self.s.redirection[pin];
        let half = if high { 0xFFFF_FFFF_0000_0000 } else { 0x0000_0000_FFFF_FFFF };
        let writable = ENTRY_WRITABLE & half;
        let mut entry = before & !writable | u64::from(value) << if high { 32 } else { 0 } & writable;
        if !is_level(entry) {
            // Edge-triggered inputs have no remote IRR; drivers switch to edge and back to clear it.
            entry &= !ENTRY_REMOTE_IRR;
            self.level_pins &= !(1 << pin);
        } else {
            self.level_pins |= 1 << pin;
            self.s.edges &= !(1 << pin);
        }
        self.s.redirection[pin] = entry;
    }
}

/// The numbers of the bits that are set, in ascending order.
fn pins(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let pin = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(pin)
    })
}

/// Whether an entry is level triggered. SMI, NMI, INIT and ExtINT are edge triggered whatever the entry says, because
/// no EOI follows them.
fn is_level(entry: u64) -> bool {
    let mode = DeliveryMode::from_bits(entry >> 8);
    entry & ENTRY_LEVEL != 0 && matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority)
}

fn redirection_half(selected: u8) -> Option<(usize, bool)> {
    let index = usize::from(selected.checked_sub(REG_REDIRECTION)?);
    (index < 2 * PINS).then_some((index / 2, index % 2 == 1))
}

fn message(entry: u64) -> InterruptMessage {
    InterruptMessage {
        destination: (entry >> 56) as u8,
        logical: entry & ENTRY_LOGICAL != 0,
        mode: DeliveryMode::from_bits(entry >> 8),
        vector: entry as u8,
        level: is_level(entry),
    }
}

#[cfg(test)]
mod tests;
