//! The board's chips and devices at one place, as `ttvm board` shows them: interrupt controllers, timers, the serial
//! port, and PCI functions with their virtio queues. The view also lists the next events.

mod chips;
mod events;
mod functions;
mod processors;
mod vectors;
mod words;

use std::fmt::{Display, Formatter, Result as Written};

use history::timeline::Timeline;
use machine::error::Error;
use machine::position::Count;
use schemars::JsonSchema;
use serde::Serialize;

pub use chips::{Acpi, Alarm, Pic, PitChannel, Redirection, Rtc, Serial};
pub use events::NextEvent;
pub use functions::{Bar, Function, Message, Messages, Queue, Ring, Virtio, VirtioDevice};
pub use processors::{LocalApic, LocalSource, LocalTimer};
pub use vectors::{Handler, Target, VectorUse};

use crate::state::part;
use vectors::Names;
use words::seconds;

/// The board at one place.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Board {
    /// The number of instructions executed so far.
    pub instruction: u64,
    /// The guest's time.
    pub guest_seconds: f64,
    /// The local APIC of each processor.
    pub local_apics: Vec<LocalApic>,
    /// The inputs of the I/O APIC that are programmed or up.
    pub io_apic: Vec<Redirection>,
    /// The 8259 pair: master and slave.
    pub pics: Vec<Pic>,
    /// The channels of the timer (PIT).
    pub pit: Vec<PitChannel>,
    /// The real-time clock.
    pub rtc: Rtc,
    /// The ACPI timer and its interrupt.
    pub acpi: Acpi,
    /// The serial port.
    pub serial: Serial,
    /// The functions on the PCI bus.
    pub functions: Vec<Function>,
    /// What happens next by itself, in order of time.
    pub next_events: Vec<NextEvent>,
}

impl Board {
    /// The board at a timeline's present place.
    pub fn of(timeline: &Timeline) -> Result<Board, Error> {
        let machine = timeline.machine();
        let (now, board, names) = (machine.moment(), machine.board(), Names::of(machine));
        let local_apics = LocalApic::all(&names);
        let next_events = events::after(timeline, &local_apics)?;
        Ok(Board {
            instruction: now.count.number(),
            guest_seconds: seconds(now.time_ns),
            io_apic: Redirection::all(&names),
            pics: board.pic().summary().iter().map(Pic::from).collect(),
            pit: board.pit().summary(now.time_ns).iter().map(PitChannel::from).collect(),
            rtc: board.rtc().summary(now.time_ns).into(),
            acpi: board.pm().summary(now.time_ns).into(),
            serial: board.uart().summary().into(),
            functions: Function::all(&names),
            local_apics,
            next_events,
        })
    }
}

/// The text for people.
impl Display for Board {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "instruction {}, {:.9} s guest time", self.instruction, self.guest_seconds)?;
        self.local_apics.iter().try_for_each(|apic| write!(f, "\n\n{apic}"))?;
        part(f, "I/O APIC", "  ", &self.io_apic)?;
        write!(f, "\n\n8259 pair")?;
        for (pic, name) in self.pics.iter().zip(["master", "slave"]) {
            write!(f, "\n  {name:7} {pic}")?;
        }
        write!(f, "\n\ntimer (PIT)")?;
        for (number, channel) in self.pit.iter().enumerate() {
            write!(f, "\n  channel {number}  {channel}")?;
        }
        part(f, "real-time clock", "  ", [&self.rtc])?;
        part(f, "ACPI", "  ", [&self.acpi])?;
        part(f, "serial port", "  ", [&self.serial])?;
        write!(f, "\n\nPCI")?;
        self.functions.iter().try_for_each(|function| write!(f, "\n  {function}"))?;
        part(f, "next events", "  ", &self.next_events)
    }
}
