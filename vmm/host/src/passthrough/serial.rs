//! The interrupt of a serial port of the host, found by polling (8250 class, National Semiconductor PC16550D
//! datasheet).
//!
//! The host does not pass an ISA port's interrupt to programs. The port's interrupt identification register (IIR) shows
//! whether the port interrupts, including FIFO levels and time-outs. Reading IIR has one side effect: if IIR names the
//! transmitter as the cause, the read clears this cause. So the recorder keeps a cause that its poll has cleared, for
//! the guest's next read. Polling reads no other register.
//!
//! ```text
//!         it wants to interrupt: event        the guest touches it, and it still wants
//!   Low ─────────────────────────────────► Up ─────────────────────────────────────────► Served
//!    ▲                                     │ ▲                                            │ │
//!    ├── the guest touches it, and it ─────┘ └── a while later it still wants: event ─────┘ │
//!    │   wants nothing any more                                                             │
//!    └───────────────────────────────────────── it wants nothing any more ──────────────────┘
//! ```

use std::time::{Duration, Instant};

const DATA: u8 = 0;
const IER: u8 = 1;
const IIR: u8 = 2;
const LCR: u8 = 3;
const MCR: u8 = 4;

const IER_TRANSMITTER: u8 = 0x02;
const IER_ALL: u8 = 0x0F;
const IIR_CAUSE: u8 = 0x0F;
const IIR_NONE: u8 = 0x01;
const IIR_TRANSMITTER: u8 = 0x02;
const IIR_MODEM: u8 = 0x00;
const LCR_DIVISOR: u8 = 0x80;
/// If LCR has this value, enhanced ports have another register at the address of IIR.
const LCR_ENHANCED: u8 = 0xBF;
const MCR_OUT2: u8 = 0x08;
const MCR_LOOP: u8 = 0x10;

/// If the port still has a cause for an interrupt this time after the guest accessed the port, the guest is interrupted
/// again. A handler that loops until no cause is left never needs this second interrupt.
const PATIENCE: Duration = Duration::from_millis(1);

/// The registers of a port.
pub(super) trait Registers {
    /// Reads a register.
    fn read(&mut self, register: u8) -> u8;
    /// Writes a register.
    fn write(&mut self, register: u8, value: u8);
}

/// A serial port of the host, with the state of its interrupt in the guest.
pub(super) struct Serial {
    /// The values that were last written to the registers IER, LCR and MCR.
    ier: u8,
    lcr: u8,
    mcr: u8,
    /// Whether a poll has cleared the transmitter's interrupt cause. A later read of IIR by the guest must still show
    /// the cause.
    transmitter: bool,
    line: Line,
}

/// The state of the interrupt in the guest.
enum Line {
    /// No interrupt, or the guest has handled it.
    Low,
    /// The guest was interrupted, and has not accessed the port yet.
    Up,
    /// The guest accessed the port, last at this time, and a cause for an interrupt is left.
    Served(Instant),
}

impl Serial {
    /// Begins with the current values of the port's registers.
    pub fn new(port: &mut impl Registers) -> Serial {
        let (lcr, mcr) = (port.read(LCR), port.read(MCR));
        let ier = if lcr & LCR_DIVISOR == 0 { port.read(IER) } else { 0 };
        Serial { ier, lcr, mcr, transmitter: false, line: Line::Low }
    }

    /// Whether the guest has set up the port to interrupt. On a PC the line works only while the OUT2 pin is on, and
    /// loopback turns this pin off.
    pub fn is_watched(&self) -> bool {
        self.ier & IER_ALL != 0 && self.lcr != LCR_ENHANCED && self.mcr & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2
    }

    /// Reads a register for the guest.
    pub fn read(&mut self, port: &mut impl Registers, register: u8) -> u8 {
        let value = match register {
            IIR if self.lcr != LCR_ENHANCED => {
                let value = self.identify(port);
                self.transmitter &= value & IIR_CAUSE != IIR_TRANSMITTER;
                value
            }
            _ => port.read(register),
        };
        self.was_touched(port);
        value
    }

    /// Writes a register for the guest.
    pub fn write(&mut self, port: &mut impl Registers, register: u8, value: u8) {
        port.write(register, value);
        match register {
            DATA | IER if self.lcr & LCR_DIVISOR != 0 => {}
            DATA => self.transmitter = false,
            IER => {
                self.ier = value;
                self.transmitter &= value & IER_TRANSMITTER != 0;
            }
            LCR => self.lcr = value,
            MCR => self.mcr = value,
            _ => {}
        }
        self.was_touched(port);
    }

    /// Whether the guest must be interrupted now.
    pub fn take_interrupt(&mut self, port: &mut impl Registers) -> bool {
        let is_due = match self.line {
            Line::Low => true,
            Line::Up => false,
            Line::Served(since) => since.elapsed() >= PATIENCE,
        };
        if !is_due {
            return false;
        }
        let wants = self.wants(port);
        self.line = if wants { Line::Up } else { Line::Low };
        wants
    }

    fn was_touched(&mut self, port: &mut impl Registers) {
        if !matches!(self.line, Line::Low) {
            self.line = if self.wants(port) { Line::Served(Instant::now()) } else { Line::Low };
        }
    }

    fn wants(&mut self, port: &mut impl Registers) -> bool {
        self.is_watched() && self.identify(port) & IIR_NONE == 0
    }

    /// The value of IIR that the guest would read if the recorder did not poll.
    fn identify(&mut self, port: &mut impl Registers) -> u8 {
        let seen = port.read(IIR);
        self.transmitter |= seen & IIR_CAUSE == IIR_TRANSMITTER;
        match seen & IIR_CAUSE {
            // The transmitter has priority over the modem lines, but not over received bytes.
            IIR_NONE | IIR_MODEM if self.transmitter => seen & !IIR_CAUSE | IIR_TRANSMITTER,
            _ => seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use devices::uart::Uart;

    use super::*;

    const LSR: u8 = 5;
    const FCR: u8 = 2;
    const IER_RECEIVED: u8 = 1;

    impl Registers for Uart {
        fn read(&mut self, register: u8) -> u8 {
            Uart::read(self, register.into())
        }

        fn write(&mut self, register: u8, value: u8) {
            Uart::write(self, register.into(), value);
        }
    }

    fn opened() -> (Uart, Serial) {
        let mut port = Uart::new();
        let mut serial = Serial::new(&mut port);
        serial.write(&mut port, MCR, MCR_OUT2);
        (port, serial)
    }

    fn random(state: &mut u64) -> u8 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 56) as u8
    }

    #[test]
    fn looks_change_nothing_that_the_guest_reads() {
        for seed in 0..200_u64 {
            let mut state = seed;
            let (mut port, mut serial) = opened();
            let mut alone = Uart::new();
            alone.write(MCR.into(), MCR_OUT2);
            for step in 0..500 {
                let (register, value) = (random(&mut state) % 8, random(&mut state));
                match random(&mut state) % 8 {
                    0..3 => {
                        let seen = serial.read(&mut port, register);
                        assert_eq!(seen, alone.read(register.into()), "seed {seed} step {step}: {register}");
                    }
                    // In most cases the written value of LCR does not turn on the divisor latch.
                    3 => {
                        let value = if register == LCR && value < 200 { 3 } else { value };
                        let value = if value == LCR_ENHANCED { LCR_DIVISOR } else { value };
                        serial.write(&mut port, register, value);
                        alone.write(register.into(), value);
                    }
                    4 => assert_eq!(port.push_input(value), alone.push_input(value)),
                    _ => {
                        serial.take_interrupt(&mut port);
                        let line = serial.is_watched() && serial.identify(&mut port) & IIR_NONE == 0;
                        assert_eq!(line, alone.irq(), "seed {seed} step {step}");
                    }
                }
            }
        }
    }

    /// A handler that loops until no cause is left, like Linux's.
    fn handle(port: &mut Uart, serial: &mut Serial) -> Vec<u8> {
        let mut received = Vec::new();
        while serial.read(port, IIR) & IIR_NONE == 0 {
            while serial.read(port, LSR) & 1 != 0 {
                received.push(serial.read(port, DATA));
            }
        }
        received
    }

    #[test]
    fn each_interrupt_is_told_once() {
        let (mut port, mut serial) = opened();
        serial.write(&mut port, IER, IER_RECEIVED | IER_TRANSMITTER);
        assert!(serial.take_interrupt(&mut port), "the transmitter is empty");
        assert!(!serial.take_interrupt(&mut port));
        assert_eq!(serial.read(&mut port, IIR), IIR_TRANSMITTER);
        assert_eq!(serial.read(&mut port, IIR), IIR_NONE);
        assert!(!serial.take_interrupt(&mut port));
        for byte in 0..10 {
            port.push_input(byte);
            assert!(serial.take_interrupt(&mut port), "{byte}");
            assert_eq!(handle(&mut port, &mut serial), [byte]);
            assert!(!serial.take_interrupt(&mut port), "{byte}");
        }
        serial.write(&mut port, DATA, b'x');
        assert!(serial.take_interrupt(&mut port), "it was sent");
        assert!(handle(&mut port, &mut serial).is_empty());
        assert!(!serial.take_interrupt(&mut port));
        assert_eq!(port.take_output(), b"x");
    }

    #[test]
    fn a_handler_that_leaves_something_is_told_again() {
        let (mut port, mut serial) = opened();
        serial.write(&mut port, FCR, 1);
        serial.write(&mut port, IER, IER_RECEIVED);
        for byte in 0..3 {
            port.push_input(byte);
        }
        for byte in 0..3 {
            assert!(serial.take_interrupt(&mut port));
            assert_eq!(serial.read(&mut port, DATA), byte);
            std::thread::sleep(PATIENCE);
        }
        assert!(!serial.take_interrupt(&mut port));
    }

    #[test]
    fn a_port_that_may_not_interrupt_is_not_looked_at() {
        struct Untouched;
        impl Registers for Untouched {
            fn read(&mut self, _register: u8) -> u8 {
                panic!("it was read");
            }
            fn write(&mut self, _register: u8, _value: u8) {}
        }
        let (mut port, mut serial) = opened();
        for (register, closed, open) in [
            (IER, 0, IER_RECEIVED),
            (MCR, 0, MCR_OUT2),
            (MCR, MCR_OUT2 | MCR_LOOP, MCR_OUT2),
            (LCR, LCR_ENHANCED, 3),
        ] {
            serial.write(&mut port, IER, IER_RECEIVED);
            serial.write(&mut port, register, closed);
            assert!(!serial.take_interrupt(&mut Untouched), "{register} {closed:#x}");
            serial.write(&mut port, register, open);
            port.push_input(1);
            assert!(serial.take_interrupt(&mut port), "{register} {open:#x}");
            serial.read(&mut port, DATA);
        }
    }

    #[test]
    fn a_port_is_taken_over_as_it_was_left() {
        let mut port = Uart::new();
        for (register, value) in [(MCR, MCR_OUT2), (IER, IER_RECEIVED), (LCR, 0x83)] {
            Registers::write(&mut port, register, value);
        }
        assert!(!Serial::new(&mut port).is_watched());
        Registers::write(&mut port, LCR, 3);
        assert!(Serial::new(&mut port).is_watched());
    }
}
