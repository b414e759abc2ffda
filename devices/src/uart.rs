//! 16550A serial port (National Semiconductor PC16550D datasheet).
//!
//! Transmission takes no time: a byte is sent when it is written, and the transmitter is always empty again. So the
//! port has no timing and no deadlines. For the same reason, received bytes below the FIFO trigger level cause a
//! character timeout at once. Not modelled: line errors other than overrun, break, auto flow control, DMA modes and the
//! baud rate (the divisor is stored and has no effect).

use serde::{Deserialize, Serialize};

use crate::restore::RestoreError;

const FIFO_BYTES: usize = 16;

const RBR_THR: u16 = 0;
const IER: u16 = 1;
const IIR_FCR: u16 = 2;
const LCR: u16 = 3;
const MCR: u16 = 4;
const LSR: u16 = 5;
const MSR: u16 = 6;
const SCR: u16 = 7;

const IER_RDI: u8 = 0x01;
const IER_THRI: u8 = 0x02;
const IER_RLSI: u8 = 0x04;
const IER_MSI: u8 = 0x08;
const IER_MASK: u8 = 0x0F;

const IIR_NONE: u8 = 0x01;
const IIR_MODEM_STATUS: u8 = 0x00;
const IIR_THR_EMPTY: u8 = 0x02;
const IIR_DATA: u8 = 0x04;
const IIR_LINE_STATUS: u8 = 0x06;
const IIR_TIMEOUT: u8 = 0x0C;
const IIR_FIFOS: u8 = 0xC0;

const FCR_ENABLE: u8 = 0x01;
const FCR_CLEAR_RX: u8 = 0x02;
const FCR_TRIGGER: u8 = 0xC0;

const LCR_DLAB: u8 = 0x80;

const MCR_DTR: u8 = 0x01;
const MCR_RTS: u8 = 0x02;
const MCR_OUT1: u8 = 0x04;
const MCR_OUT2: u8 = 0x08;
const MCR_LOOP: u8 = 0x10;
const MCR_MASK: u8 = 0x1F;

const LSR_DATA_READY: u8 = 0x01;
const LSR_OVERRUN: u8 = 0x02;
const LSR_TX_IDLE: u8 = 0x60;

const MSR_RI: u8 = 0x40;
/// Outside loopback a terminal is always attached and ready: DCD, DSR and CTS are on.
const MSR_ATTACHED: u8 = 0xB0;

/// The saved state of a [`Uart`], version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UartStateV1 {
    ier: u8,
    lcr: u8,
    mcr: u8,
    scr: u8,
    divisor: u16,
    fifo_enabled: bool,
    /// FCR bits 7:6 as written.
    trigger: u8,
    /// Received bytes not read yet, oldest first.
    received: Vec<u8>,
    overrun: bool,
    /// Whether the transmitter-empty interrupt waits to be reported.
    thr_empty_pending: bool,
    /// MSR bits 3:0: changes since MSR was last read.
    modem_changes: u8,
}

/// The port's state, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UartSummary {
    /// The interrupt enable register (IER).
    pub interrupt_enable: u8,
    /// The modem control register (MCR).
    pub modem_control: u8,
    /// The line control register (LCR).
    pub line_control: u8,
    /// The baud rate's divisor.
    pub divisor: u16,
    /// Whether the FIFOs are on.
    pub has_fifos: bool,
    /// Received bytes that the guest has not read, oldest first.
    pub received: Vec<u8>,
    /// The enabled interrupt of the highest priority that waits, by its name in the datasheet.
    pub pending: Option<&'static str>,
    /// Whether the interrupt line is up.
    pub is_up: bool,
}

/// The serial port with its registers, its received bytes, and the output that the owner has not taken.
#[derive(Clone, Debug)]
pub struct Uart {
    s: UartStateV1,
    output: Vec<u8>,
    line_dropped: bool,
    /// Number of reads of LSR since the last sent byte or the last read that found a received byte, whichever was
    /// later. The number tells the owner when input is welcome, so it is not part of the state.
    vain_polls: u32,
}

impl Default for Uart {
    fn default() -> Uart {
        Uart::new()
    }
}

impl Uart {
    /// The port after reset, with a terminal attached.
    pub fn new() -> Uart {
        let s = UartStateV1 {
            ier: 0,
            lcr: 0,
            mcr: 0,
            scr: 0,
            // 9600 baud, as firmware leaves it.
            divisor: 12,
            fifo_enabled: false,
            trigger: 0,
            received: Vec::new(),
            overrun: false,
            thr_empty_pending: false,
            modem_changes: 0,
        };
        Uart { s, output: Vec::new(), line_dropped: false, vain_polls: 0 }
    }

    /// Reads register `offset` (0 to 7). Higher offsets read as all ones.
    pub fn read(&mut self, offset: u16) -> u8 {
        match offset {
            RBR_THR if self.dlab() => self.s.divisor as u8,
            IER if self.dlab() => (self.s.divisor >> 8) as u8,
            RBR_THR => self.read_received(),
            IER => self.s.ier,
            IIR_FCR => self.read_interrupt_identification(),
            LCR => self.s.lcr,
            MCR => self.s.mcr,
            LSR => {
                self.vain_polls =
                    if self.s.received.is_empty() { self.vain_polls.saturating_add(1) } else { 0 };
                self.read_line_status()
            }
            MSR => {
                let changes = std::mem::take(&mut self.s.modem_changes);
                self.modem_lines() | changes
            }
            SCR => self.s.scr,
            _ => 0xFF,
        }
    }

    /// Writes register `offset`; writes to read-only registers do nothing.
    pub fn write(&mut self, offset: u16, value: u8) {
        match offset {
            RBR_THR if self.dlab() => self.s.divisor = self.s.divisor & 0xFF00 | u16::from(value),
            IER if self.dlab() => self.s.divisor = self.s.divisor & 0x00FF | u16::from(value) << 8,
            RBR_THR => {
                self.vain_polls = 0;
                self.transmit(value)
            }
            IER => self.write_interrupt_enable(value & IER_MASK),
            IIR_FCR => self.write_fifo_control(value),
            LCR => self.s.lcr = value,
            MCR => self.write_modem_control(value & MCR_MASK),
            SCR => self.s.scr = value,
            _ => {}
        }
    }

    /// Level of the interrupt line. On a PC the OUT2 pin gates the line, and loopback turns the OUT2 pin off.
    pub fn irq(&self) -> bool {
        let gate_open = self.s.mcr & (MCR_OUT2 | MCR_LOOP) == MCR_OUT2;
        gate_open && self.interrupt_source() != IIR_NONE
    }

    /// Whether the interrupt line went down for a moment during the last access. An edge-triggered controller takes
    /// such a moment for a new interrupt.
    pub fn take_line_drop(&mut self) -> bool {
        std::mem::take(&mut self.line_dropped)
    }

    /// Whether a driver in the guest listens for input. A driver that listens either enables the receive interrupt, or
    /// polls for input.
    pub fn is_listened_to(&self) -> bool {
        // If a driver only sends, it reads LSR once or twice before each byte.
        const POLLS_OF_A_LISTENER: u32 = 32;
        self.s.ier & IER_RDI != 0 || self.vain_polls >= POLLS_OF_A_LISTENER
    }

    /// How many bytes [`Uart::push_input`] would take now. In loopback the line is disconnected, so the port
    /// takes no bytes.
    pub fn input_capacity(&self) -> usize {
        if self.s.mcr & MCR_LOOP != 0 { 0 } else { self.capacity() - self.s.received.len() }
    }

    /// Receives a byte. Returns false, and drops the byte, if there is no room.
    pub fn push_input(&mut self, byte: u8) -> bool {
        let accepted = self.input_capacity() > 0;
        if accepted {
            self.s.received.push(byte);
        }
        accepted
    }

    /// Takes the bytes sent since the last call. These bytes are not part of the saved state: the guest
    /// cannot see whether the owner has taken them.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The port's state, decoded.
    pub fn summary(&self) -> UartSummary {
        let pending = match self.interrupt_source() {
            IIR_LINE_STATUS => Some("receiver line status"),
            IIR_DATA => Some("received data available"),
            IIR_TIMEOUT => Some("character timeout"),
            IIR_THR_EMPTY => Some("transmitter holding register empty"),
            IIR_MODEM_STATUS => Some("modem status"),
            _ => None,
        };
        UartSummary {
            interrupt_enable: self.s.ier,
            modem_control: self.s.mcr,
            line_control: self.s.lcr,
            divisor: self.s.divisor,
            has_fifos: self.s.fifo_enabled,
            received: self.s.received.clone(),
            pending,
            is_up: self.irq(),
        }
    }

    /// The chip's state.
    pub fn save(&self) -> UartStateV1 {
        self.s.clone()
    }

    /// Builds the chip from a saved state, with no output waiting.
    pub fn restore(state: &UartStateV1) -> Result<Uart, RestoreError> {
        let uart = Uart { s: state.clone(), output: Vec::new(), line_dropped: false, vain_polls: 0 };
        RestoreError::unless(
            state.received.len() <= uart.capacity(),
            "UART",
            "more bytes than the FIFO holds",
        )?;
        Ok(uart)
    }

    fn dlab(&self) -> bool {
        self.s.lcr & LCR_DLAB != 0
    }

    fn capacity(&self) -> usize {
        if self.s.fifo_enabled { FIFO_BYTES } else { 1 }
    }

    fn trigger_level(&self) -> usize {
        match (self.s.fifo_enabled, self.s.trigger >> 6) {
            (false, _) | (_, 0) => 1,
            (_, 1) => 4,
            (_, 2) => 8,
            _ => 14,
        }
    }

    /// The highest-priority interrupt that is enabled and waiting (PC16550D table IV).
    fn interrupt_source(&self) -> u8 {
        let s = &self.s;
        if s.ier & IER_RLSI != 0 && s.overrun {
            IIR_LINE_STATUS
        } else if s.ier & IER_RDI != 0 && !s.received.is_empty() {
            if s.received.len() >= self.trigger_level() { IIR_DATA } else { IIR_TIMEOUT }
        } else if s.ier & IER_THRI != 0 && s.thr_empty_pending {
            IIR_THR_EMPTY
        } else if s.ier & IER_MSI != 0 && s.modem_changes != 0 {
            IIR_MODEM_STATUS
        } else {
            IIR_NONE
        }
    }

    fn read_interrupt_identification(&mut self) -> u8 {
        let source = self.interrupt_source();
        if source == IIR_THR_EMPTY {
            // Reading IIR acknowledges the transmitter-empty interrupt, but only if IIR reports this interrupt.
            self.s.thr_empty_pending = false;
        }
        source | if self.s.fifo_enabled { IIR_FIFOS } else { 0 }
    }

    fn read_received(&mut self) -> u8 {
        if self.s.received.is_empty() { 0 } else { self.s.received.remove(0) }
    }

    fn read_line_status(&mut self) -> u8 {
        let overrun = std::mem::take(&mut self.s.overrun);
        let ready = if self.s.received.is_empty() { 0 } else { LSR_DATA_READY };
        LSR_TX_IDLE | ready | if overrun { LSR_OVERRUN } else { 0 }
    }

    fn transmit(&mut self, byte: u8) {
        if self.s.mcr & MCR_LOOP == 0 {
            self.output.push(byte);
        } else if self.s.received.len() < self.capacity() {
            self.s.received.push(byte);
        } else {
            self.overrun_with(byte);
        }
        // The byte was sent: the transmitter was full for a moment and is now empty again.
        self.s.thr_empty_pending = false;
        self.line_dropped = !self.irq();
        self.s.thr_empty_pending = true;
    }

    /// Records an overrun. With FIFOs the new byte is lost. Without FIFOs the new byte replaces the byte in the
    /// buffer register.
    fn overrun_with(&mut self, byte: u8) {
        self.s.overrun = true;
        if !self.s.fifo_enabled {
            self.s.received[0] = byte;
        }
    }

    fn write_interrupt_enable(&mut self, value: u8) {
        // Enabling the transmitter-empty interrupt while the transmitter is empty raises an interrupt.
        // Drivers rely on this interrupt to start sending.
        if value & !self.s.ier & IER_THRI != 0 {
            self.s.thr_empty_pending = true;
        }
        self.s.ier = value;
    }

    fn write_fifo_control(&mut self, value: u8) {
        let enable = value & FCR_ENABLE != 0;
        if enable != self.s.fifo_enabled || value & FCR_CLEAR_RX != 0 && enable {
            self.s.received.clear();
        }
        self.s.fifo_enabled = enable;
        // The other bits of FCR take effect only if the same write sets the enable bit.
        if enable {
            self.s.trigger = value & FCR_TRIGGER;
        }
    }

    /// MSR bits 7:4. Loopback wires the four outputs to the four inputs.
    fn modem_lines(&self) -> u8 {
        if self.s.mcr & MCR_LOOP == 0 {
            return MSR_ATTACHED;
        }
        [(MCR_RTS, 0x10), (MCR_DTR, 0x20), (MCR_OUT1, MSR_RI), (MCR_OUT2, 0x80)]
            .into_iter()
            .filter(|(output, _)| self.s.mcr & output != 0)
            .fold(0, |lines, (_, input)| lines | input)
    }

    fn write_modem_control(&mut self, value: u8) {
        let before = self.modem_lines();
        self.s.mcr = value;
        let after = self.modem_lines();
        // TERI reports the trailing edge of the ring indicator only; the other change bits report both edges.
        let changed = (before ^ after) & !MSR_RI | before & !after & MSR_RI;
        self.s.modem_changes |= changed >> 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IIR: u16 = IIR_FCR;
    const FCR: u16 = IIR_FCR;

    fn ready() -> Uart {
        let mut uart = Uart::new();
        uart.write(MCR, MCR_OUT2);
        uart
    }

    /// The probing sequence of Linux's `autoconfig()` for a 16550A.
    #[test]
    fn linux_autoconfig_finds_a_16550a() {
        let mut uart = Uart::new();
        uart.write(IER, 0);
        assert_eq!(uart.read(IER) & 0x0F, 0);
        uart.write(IER, 0x0F);
        assert_eq!(uart.read(IER) & 0x0F, 0x0F);
        uart.write(IER, 0);

        uart.write(MCR, MCR_LOOP | 0x0A);
        assert_eq!(uart.read(MSR) & 0xF0, 0x90, "loopback test");
        uart.write(MCR, 0);

        // Enhanced registers would show zero here; a plain 16550A shows IIR.
        uart.write(LCR, 0xBF);
        assert_ne!(uart.read(IIR), 0);
        uart.write(LCR, 0);
        uart.write(FCR, FCR_ENABLE);
        assert_eq!(uart.read(IIR) >> 6, 3, "FIFOs work");

        // A 16750 has a 64-byte FIFO bit that can be set only while DLAB is set.
        uart.write(LCR, LCR_DLAB);
        uart.write(FCR, FCR_ENABLE | 0x20);
        assert_eq!(uart.read(IIR) & 0xE0, 0xC0);
        uart.write(LCR, 0);

        // An XScale port has a writable UART-unit-enable bit in IER.
        uart.write(IER, 0x40);
        assert_eq!(uart.read(IER), 0);
    }

    /// Neither of the two bug probes of Linux's `serial8250_do_startup()` may find a bug.
    #[test]
    fn linux_startup_sees_no_thre_or_txen_bug() {
        let mut uart = Uart::new();
        uart.write(IER, IER_THRI);
        let first = uart.read(IIR);
        uart.write(IER, 0);
        uart.write(IER, IER_THRI);
        let second = uart.read(IIR);
        assert_eq!((first & 1, second & 1), (0, 0), "THRE is raised each time the source is enabled");

        uart.write(IER, 0);
        uart.write(IER, IER_THRI);
        let lsr = uart.read(LSR);
        let iir = uart.read(IIR);
        assert!(lsr & 0x40 != 0 && iir & 1 == 0);
    }

    #[test]
    fn interrupt_driven_transmission_gets_one_interrupt_for_each_empty() {
        let mut uart = ready();
        uart.write(IER, IER_THRI);
        for byte in *b"hello" {
            assert!(uart.irq());
            assert_eq!(uart.read(IIR), IIR_THR_EMPTY);
            assert!(!uart.irq(), "reading IIR acknowledged it");
            assert_eq!(uart.read(IIR), IIR_NONE);
            uart.write(RBR_THR, byte);
        }
        assert!(uart.irq());
        uart.write(IER, 0);
        assert!(!uart.irq());
        assert_eq!(uart.take_output(), b"hello");
        assert_eq!(uart.take_output(), b"");
    }

    #[test]
    fn sending_without_reading_iir_drops_the_line_for_a_moment() {
        let mut uart = ready();
        uart.write(IER, IER_THRI);
        uart.write(RBR_THR, b'a');
        assert!(uart.irq() && uart.take_line_drop());
        assert!(!uart.take_line_drop());
        uart.push_input(0);
        uart.write(IER, IER_THRI | IER_RDI);
        uart.write(RBR_THR, b'b');
        assert!(!uart.take_line_drop(), "received data keeps the line up");
    }

    #[test]
    fn a_summary_names_the_interrupt_that_iir_reports() {
        let mut uart = ready();
        uart.write(IER, IER_THRI | IER_RDI);
        assert_eq!(uart.summary().pending, Some("transmitter holding register empty"));
        uart.push_input(b'x');
        let seen = uart.summary();
        assert_eq!((seen.pending, seen.is_up), (Some("received data available"), true));
        assert_eq!((&seen.received[..], seen.interrupt_enable), (&b"x"[..], IER_THRI | IER_RDI));
        assert_eq!(uart.read(IIR), IIR_DATA);
    }

    #[test]
    fn rewriting_an_enabled_source_does_not_raise_it_again() {
        let mut uart = ready();
        uart.write(IER, IER_THRI);
        uart.read(IIR);
        uart.write(IER, IER_THRI | IER_RDI);
        assert!(!uart.irq());
    }

    #[test]
    fn interrupts_are_reported_in_priority_order() {
        let mut uart = ready();
        uart.write(MCR, MCR_LOOP | MCR_DTR);
        uart.write(IER, IER_MASK);
        uart.write(RBR_THR, b'a');
        uart.write(RBR_THR, b'b');
        let mut seen = Vec::new();
        seen.push(uart.read(IIR));
        uart.read(LSR);
        seen.push(uart.read(IIR));
        assert_eq!(uart.read(RBR_THR), b'b', "without FIFO an overrun replaces the byte");
        seen.push(uart.read(IIR));
        seen.push(uart.read(IIR));
        uart.read(MSR);
        seen.push(uart.read(IIR));
        assert_eq!(seen, [IIR_LINE_STATUS, IIR_DATA, IIR_THR_EMPTY, IIR_MODEM_STATUS, IIR_NONE]);
    }

    #[test]
    fn trigger_levels_decide_between_data_and_timeout() {
        for (trigger, level) in [(0x00, 1), (0x40, 4), (0x80, 8), (0xC0, 14)] {
            let mut uart = ready();
            uart.write(FCR, FCR_ENABLE | trigger);
            uart.write(IER, IER_RDI);
            for count in 1..=FIFO_BYTES {
                assert!(uart.push_input(count as u8));
                let expected = if count >= level { IIR_DATA } else { IIR_TIMEOUT };
                assert_eq!(uart.read(IIR) & 0x0F, expected, "{count} bytes at level {level}");
                assert!(uart.irq());
            }
            assert!(!uart.push_input(0), "the FIFO is full");
            assert!((1..=16).all(|byte| uart.read(RBR_THR) == byte));
            assert!(!uart.irq());
        }
    }

    #[test]
    fn input_capacity_follows_the_fifo_and_loopback() {
        let mut uart = Uart::new();
        assert_eq!(uart.input_capacity(), 1);
        assert!(uart.push_input(7));
        assert_eq!(uart.input_capacity(), 0);
        uart.write(FCR, FCR_ENABLE);
        assert_eq!(uart.input_capacity(), 16, "enabling the FIFO empties it");
        uart.push_input(1);
        uart.write(FCR, FCR_ENABLE | FCR_CLEAR_RX);
        assert_eq!(uart.read(LSR) & LSR_DATA_READY, 0);
        uart.write(FCR, 0);
        assert_eq!((uart.input_capacity(), uart.read(IIR)), (1, IIR_NONE), "FIFOs off");
        uart.write(MCR, MCR_LOOP);
        assert_eq!(uart.input_capacity(), 0);
    }

    #[test]
    fn loopback_wires_outputs_to_inputs_and_reports_changes() {
        for (mcr, lines) in [(MCR_RTS, 0x10), (MCR_DTR, 0x20), (MCR_OUT1, 0x40), (MCR_OUT2, 0x80)] {
            let mut uart = Uart::new();
            uart.write(MCR, MCR_LOOP);
            uart.read(MSR);
            uart.write(MCR, MCR_LOOP | mcr);
            let rising = if mcr == MCR_OUT1 { 0 } else { lines >> 4 };
            assert_eq!(uart.read(MSR), lines | rising);
            assert_eq!(uart.read(MSR), lines);
            uart.write(MCR, MCR_LOOP);
            assert_eq!(uart.read(MSR), lines >> 4, "every input reports its falling edge");
        }
    }

    #[test]
    fn the_line_needs_out2() {
        let mut uart = Uart::new();
        uart.write(IER, IER_THRI);
        assert!(!uart.irq());
        uart.write(MCR, MCR_OUT2);
        assert!(uart.irq());
    }

    #[test]
    fn dlab_switches_the_first_two_registers() {
        let mut uart = Uart::new();
        uart.write(LCR, LCR_DLAB);
        uart.write(0, 0x34);
        uart.write(1, 0x12);
        assert_eq!((uart.read(0), uart.read(1)), (0x34, 0x12));
        uart.write(LCR, 0x03);
        assert_eq!((uart.read(0), uart.read(1)), (0, 0));
        assert_eq!(uart.take_output(), b"");
    }

    #[test]
    fn an_overfull_state_is_refused() {
        let mut state = Uart::new().save();
        state.received = vec![0; 2];
        assert!(Uart::restore(&state).is_err());
    }
}
