//! The I/O APIC, the 8259 pair, the timers, the real-time clock and the serial port.

use std::fmt::{Display, Formatter, Result as Written};

use devices::acpi_pm::AcpiPmSummary;
use devices::ioapic::RedirectionEntry;
use devices::pic::PicSummary;
use devices::pit::ChannelSummary;
use devices::rtc::{Date, RtcSummary};
use devices::uart::UartSummary;
use schemars::JsonSchema;
use serde::Serialize;

use super::vectors::{Names, Target};
use super::words::{level, listed, seconds};

/// The sources of interrupts in the serial port's interrupt enable register.
const SERIAL_SOURCES: [&str; 4] = ["received data", "transmitter empty", "line status", "modem status"];

/// An input of the I/O APIC.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Redirection {
    /// The number of the input.
    pub pin: u8,
    /// Whether the input is masked.
    pub is_masked: bool,
    /// Whether the input is level triggered.
    pub is_level_triggered: bool,
    /// Whether the guest has set the polarity to active low. The polarity has no effect on this board.
    pub is_active_low: bool,
    /// Whether a level-triggered interrupt was sent, and the processor has not ended it (remote IRR).
    pub awaits_end: bool,
    /// Whether the input is up.
    pub is_up: bool,
    /// The processors and the vector.
    #[serde(flatten)]
    pub target: Target,
}

/// An interrupt controller of the 8259 pair. Each register has a bit for each input.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Pic {
    /// The inputs that request an interrupt (IRR).
    pub requested: u8,
    /// The inputs in service (ISR).
    pub in_service: u8,
    /// The masked inputs (IMR).
    pub masked: u8,
    /// The level-triggered inputs (ELCR).
    pub level_triggered: u8,
    /// The vector of input 0.
    pub first_vector: u8,
}

/// A channel of the timer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct PitChannel {
    /// The mode, 0 to 5.
    pub mode: u8,
    /// Whether the channel counts in BCD.
    pub is_bcd: bool,
    /// Whether the gate is up.
    pub gate: bool,
    /// Whether the output is up.
    pub output: bool,
    /// Whether the channel counts.
    pub counts: bool,
    /// The count that the guest wrote.
    pub reload: u32,
    /// The counter's value.
    pub value: u32,
    /// The guest time at which the output may change next.
    pub changes_seconds: Option<f64>,
}

/// The real-time clock.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Rtc {
    /// The date and the time that the clock shows.
    pub date: String,
    /// Whether the clock runs.
    pub runs: bool,
    /// The alarm.
    pub alarm: Alarm,
    /// Whether each second causes an interrupt.
    pub is_update_enabled: bool,
    /// Whether the periodic interrupt is enabled.
    pub is_periodic_enabled: bool,
    /// Whether the interrupt line is up.
    pub is_up: bool,
}

/// The alarm of the real-time clock.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Alarm {
    /// Whether the alarm causes an interrupt.
    pub is_enabled: bool,
    /// The time of the alarm. `**` stands for every value.
    pub at: String,
}

/// The ACPI timer and the registers of its interrupt.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Acpi {
    /// The timer's value.
    pub timer: u32,
    /// The PM1 status register: bit 0 is the timer, bit 8 the power button.
    pub status: u16,
    /// The PM1 enable register, with the same bits.
    pub enable: u16,
}

/// The serial port.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Serial {
    /// The sources that may cause an interrupt.
    pub enabled: Vec<&'static str>,
    /// The enabled interrupt of the highest priority that waits.
    pub pending: Option<&'static str>,
    /// Whether the interrupt line is up.
    pub is_up: bool,
    /// Received bytes that the guest has not read, with escapes. The port sends without delay, so no byte waits
    /// to be sent.
    pub received: String,
    /// Whether the FIFOs are on.
    pub has_fifos: bool,
    /// The divisor of the baud rate.
    pub divisor: u16,
    /// The modem control register (MCR).
    pub modem_control: u8,
    /// The line control register (LCR).
    pub line_control: u8,
}

impl Redirection {
    pub(super) fn all(names: &Names<'_>) -> Vec<Redirection> {
        let used = names.board().ioapic().entries().filter(RedirectionEntry::is_used);
        let row = |entry: RedirectionEntry| {
            let RedirectionEntry { pin, message, is_masked, is_active_low, awaits_end, is_up } = entry;
            let (is_level_triggered, target) = (message.level, names.target(&message));
            Redirection { pin, is_masked, is_level_triggered, is_active_low, awaits_end, is_up, target }
        };
        used.map(row).collect()
    }
}

impl From<&PicSummary> for Pic {
    fn from(pic: &PicSummary) -> Pic {
        let &PicSummary { requested, in_service, masked, level_triggered, first_vector } = pic;
        Pic { requested, in_service, masked, level_triggered, first_vector }
    }
}

impl From<&ChannelSummary> for PitChannel {
    fn from(channel: &ChannelSummary) -> PitChannel {
        let &ChannelSummary { mode, is_bcd, gate, output, counts, reload, value, changes_ns } = channel;
        let changes_seconds = changes_ns.map(seconds);
        PitChannel { mode, is_bcd, gate, output, counts, reload, value, changes_seconds }
    }
}

impl From<RtcSummary> for Rtc {
    fn from(rtc: RtcSummary) -> Rtc {
        let Date { year, month, day, hour, minute, second } = rtc.date;
        let field = |value: &Option<u8>| value.map_or("**".to_string(), |value| format!("{value:02}"));
        let at = rtc.alarm.iter().map(field).collect::<Vec<_>>().join(":");
        Rtc {
            date: format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"),
            runs: rtc.runs,
            alarm: Alarm { is_enabled: rtc.is_alarm_enabled, at },
            is_update_enabled: rtc.is_update_enabled,
            is_periodic_enabled: rtc.is_periodic_enabled,
            is_up: rtc.is_up,
        }
    }
}

impl From<AcpiPmSummary> for Acpi {
    fn from(AcpiPmSummary { timer, status, enable }: AcpiPmSummary) -> Acpi {
        Acpi { timer, status, enable }
    }
}

impl From<UartSummary> for Serial {
    fn from(port: UartSummary) -> Serial {
        let sources = SERIAL_SOURCES.iter().enumerate();
        let enabled = sources.filter(|(bit, _)| port.interrupt_enable >> bit & 1 != 0);
        Serial {
            enabled: enabled.map(|(_, source)| *source).collect(),
            pending: port.pending,
            is_up: port.is_up,
            received: port.received.escape_ascii().to_string(),
            has_fifos: port.has_fifos,
            divisor: port.divisor,
            modem_control: port.modem_control,
            line_control: port.line_control,
        }
    }
}

impl Display for Redirection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let trigger = if self.is_level_triggered { "level" } else { "edge" };
        write!(f, "pin {:2}  {trigger:5}  {}", self.pin, self.target)?;
        let notes = [(self.is_masked, "masked"), (self.is_up, "up"), (self.awaits_end, "not ended yet")];
        notes.iter().filter(|(is_so, _)| *is_so).try_for_each(|(_, note)| write!(f, ", {note}"))
    }
}

impl Display for Pic {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let inputs = |bits: u8| listed((0..8).filter(|input| bits >> input & 1 != 0));
        write!(
            f,
            "vectors from {}; requested: {}; in service: {}; not masked: {}; level triggered: {}",
            self.first_vector,
            inputs(self.requested),
            inputs(self.in_service),
            inputs(!self.masked),
            inputs(self.level_triggered)
        )
    }
}

impl Display for PitChannel {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let counts = if self.counts { "counts" } else { "does not count" };
        write!(f, "mode {}, {counts}, value {}, output {}", self.mode, self.value, level(self.output))?;
        self.changes_seconds.map_or(Ok(()), |at| write!(f, ", which changes at {at:.9} s"))
    }
}

impl Display for Rtc {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let stopped = if self.runs { "" } else { ", stopped" };
        let alarm = self.alarm.is_enabled.then(|| format!("alarm at {}", self.alarm.at));
        let update = self.is_update_enabled.then(|| "each second".to_string());
        let periodic = self.is_periodic_enabled.then(|| "periodic".to_string());
        let interrupts = listed([alarm, update, periodic].into_iter().flatten());
        write!(f, "{}{stopped}; interrupts: {interrupts}; line {}", self.date, level(self.is_up))
    }
}

impl Display for Acpi {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let Acpi { timer, status, enable } = self;
        write!(f, "PM timer {timer:#x}, status {status:#x}, enable {enable:#x}")
    }
}

impl Display for Serial {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let pending = self.pending.unwrap_or("none");
        let (enabled, line) = (listed(&self.enabled), level(self.is_up));
        write!(f, "received: \"{}\"; interrupts: {enabled}; waiting: {pending}; line {line}", self.received)
    }
}
