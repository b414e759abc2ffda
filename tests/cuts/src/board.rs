//! The board around the CPU: ports, device memory, time and interrupt lines. The board's answers depend only on the
//! step count. So the devices behave in the same way in a cut run and in an uncut run.

use cpu::{Bus, BusSignals, ProcessorSignals, Startup};
use guest_ram::RamView;

use crate::layout::{CODE, CODE_END, PAGE, RAM_BYTES};
use seeded::mix;

/// The board's state between two accesses. The state is compared and restored together with the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The requests to each processor.
    pub processors: Vec<Requests>,
    /// The number of the processor *in the seat*, which is the processor whose turn it is.
    pub seat: usize,
    /// Whether the board asks the CPU to end the run.
    pub stop: bool,
    /// The task priority (CR8).
    pub cr8: u64,
    /// The value of the board's only MSR.
    pub apic_base: u64,
    /// How often a halted CPU was woken.
    pub wakes: u32,
    /// A digest of every access with its step count and its value.
    pub seen: u64,
}

/// The interrupts and messages that are pending for one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The vector of the interrupt that the interrupt controller requests.
    pub interrupt: Option<u8>,
    /// Whether an NMI is pending.
    pub nmi: bool,
    /// Whether the processor waits for a start-up message, has got one, or has started.
    pub startup: Startup,
    /// The page number in the start-up message: the processor starts at this page.
    pub page: u8,
}

/// The board.
pub struct Board {
    /// The state of the board.
    pub lines: Lines,
    ram: RamView,
}

/// The number of the board's only MSR, IA32_APIC_BASE.
pub const APIC_BASE: u32 = 0x1b;

/// The effects of a write to a port. The low bits of the port's number choose the effect. Every write also changes the
/// digest `Lines::seen`.
const RAISES_INTERRUPT: u16 = 1;
const RAISES_NMI: u16 = 2;
const STOPS: u16 = 3;
const WRITES_RAM: u16 = 4;
const INITIALIZES: u16 = 5;
const STARTS: u16 = 6;

impl Board {
    /// Creates a board in the state `lines`.
    pub fn new(ram: RamView, lines: Lines) -> Board {
        Board { lines, ram }
    }

    /// Returns the pending requests of one processor. The processor's number is `number` modulo the number of
    /// processors.
    pub fn requests(&mut self, number: u64) -> &mut Requests {
        let count = self.lines.processors.len() as u64;
        &mut self.lines.processors[(number % count) as usize]
    }

    /// Returns the pending requests of a processor that is not in the seat, if there are several processors.
    /// `number` chooses the processor.
    fn requests_to_another(&mut self, number: u64) -> Option<&mut Requests> {
        let (count, seat) = (self.lines.processors.len() as u64, self.lines.seat as u64);
        (count > 1).then(|| self.requests(seat + 1 + number % (count - 1)))
    }

    /// Writes 8 or 64 bytes of RAM as a device does. The value determines the address and the bytes.
    pub fn write_ram(&self, value: u64) {
        let offset = mix(value) % (RAM_BYTES / 8) * 8;
        // Random bytes in page tables and descriptors end most programs. So half of the writes copy bytes from
        // another page, from the same offset in this page.
        if value & 1 == 0 {
            self.ram.write_bytes(offset, &mix(!value).to_le_bytes());
        } else {
            let mut bytes = [0; 64];
            let from = mix(value ^ 7) % (RAM_BYTES / PAGE) * PAGE + offset % PAGE;
            self.ram.read_bytes(from.min(RAM_BYTES - 64), &mut bytes);
            self.ram.write_bytes(offset.min(RAM_BYTES - 64), &bytes);
        }
    }

    fn note(&mut self, steps: u64, what: u64, value: u64) {
        self.lines.seen = mix(self.lines.seen ^ mix(steps ^ mix(what ^ mix(value))));
    }
}

impl Bus for Board {
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32 {
        self.note(steps, u64::from(port), size_bytes.into());
        mix(steps ^ u64::from(port) << 32) as u32
    }

    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32) {
        self.note(steps, 1 << 16 | u64::from(port) | u64::from(size_bytes) << 20, value.into());
        match port & 7 {
            RAISES_INTERRUPT => {
                let to = u64::from(value >> 4) + self.lines.seat as u64;
                self.requests(to).interrupt = Some(0x20 | (value & 15) as u8);
            }
            RAISES_NMI => self.requests(u64::from(value) + self.lines.seat as u64).nmi = true,
            STOPS => self.lines.stop = true,
            WRITES_RAM => self.write_ram(value.into()),
            INITIALIZES => {
                if let Some(requests) = self.requests_to_another(value.into()) {
                    *requests = Requests { startup: Startup::Awaited, ..Requests::default() };
                }
            }
            STARTS => {
                let page = CODE / PAGE + u64::from(value >> 4) % ((CODE_END - CODE) / PAGE);
                let another = self.requests_to_another(value.into());
                if let Some(requests) = another.filter(|requests| requests.startup != Startup::Done) {
                    (requests.startup, requests.page) = (Startup::Due, page as u8);
                }
            }
            _ => {}
        }
    }

    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]) {
        self.note(steps, gpa, data.len() as u64);
        let value = mix(steps ^ gpa).to_le_bytes();
        data.iter_mut().enumerate().for_each(|(n, byte)| *byte = value[n % 8]);
    }

    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]) {
        let value = data.iter().fold(0, |all, &byte| mix(all ^ u64::from(byte)));
        self.note(steps, !gpa, value);
    }

    fn signals(&mut self) -> BusSignals {
        let own = self.lines.processors[self.lines.seat];
        BusSignals { interrupt: own.interrupt.is_some(), nmi: own.nmi, stop: self.lines.stop }
    }

    fn processor_signals(&mut self, processor: usize) -> ProcessorSignals {
        let Requests { interrupt, nmi, startup, .. } = self.lines.processors[processor];
        ProcessorSignals { interrupt: interrupt.is_some(), nmi, startup }
    }

    fn take_seat(&mut self, processor: usize) {
        self.lines.seat = processor;
    }

    fn take_start(&mut self) -> Option<u8> {
        let own = &mut self.lines.processors[self.lines.seat];
        if own.startup != Startup::Due {
            return None;
        }
        own.startup = Startup::Done;
        Some(own.page)
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.lines.processors[self.lines.seat].interrupt.take()
    }

    fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.lines.processors[self.lines.seat].nmi)
    }

    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64> {
        self.note(steps, 1 << 33 | u64::from(index), 0);
        (index == APIC_BASE).then_some(self.lines.apic_base)
    }

    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()> {
        self.note(steps, 1 << 34 | u64::from(index), value);
        (index == APIC_BASE).then(|| self.lines.apic_base = value)
    }

    fn cr8(&mut self) -> u64 {
        self.lines.cr8
    }

    fn set_cr8(&mut self, steps: u64, value: u64) {
        self.note(steps, 1 << 35, value);
        self.lines.cr8 = value;
    }

    fn tsc(&mut self, steps: u64) -> u64 {
        mix(steps) >> 20
    }
}
