//! Inputs from a log: gives each recorded event again at the point where it was recorded, and checks that the
//! machine is then in the state that was recorded.

use std::sync::Arc;

use crate::divergence::Divergence;
use crate::error::Error;
use crate::event_log::{EventRecord, Log};
use crate::inputs::{Event, Idle, Inputs, PowerOn, View};
use crate::machine::hash_of;
use crate::position::Moment;

/// Gives recorded events.
pub struct Player {
    events: Arc<[EventRecord]>,
    next: usize,
    /// Receives console output; seeking in a recording has nobody to show it to.
    output: Option<Box<dyn FnMut(&[u8]) -> Result<(), Error> + Send>>,
}

impl Player {
    /// A player at the start of a log.
    pub fn new(log: &Log) -> Player {
        Player { events: log.events.clone().into(), next: 0, output: None }
    }

    /// What the machine was given at power-on.
    pub fn power_on(&self) -> &PowerOn {
        match &self.events[0].event {
            Event::PowerOn(power_on) => power_on,
            _ => unreachable!("reading a log checks that it begins with power-on"),
        }
    }

    /// Sends console output somewhere.
    pub fn on_output(&mut self, sink: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static) {
        self.output = Some(Box::new(sink));
    }

    /// The number of events given so far: the cursor that a snapshot keeps.
    pub fn cursor(&self) -> usize {
        self.next
    }

    /// Goes to a cursor.
    pub fn set_cursor(&mut self, cursor: usize) {
        self.next = cursor;
    }

    /// All events.
    pub fn events(&self) -> &[EventRecord] {
        &self.events
    }

    fn check(&self, view: &View<'_>, expected: &EventRecord) -> Result<(), Error> {
        if view.moment != expected.at {
            let (then, now) = (format!("{:?}", expected.at), format!("{:?}", view.moment));
            return Err(self.divergence(view.moment, "the point of an event", then, now));
        }
        let actual = record_of(view, expected.event.clone());
        for (what, expected, actual) in [
            ("RIP", expected.rip, actual.rip),
            ("the count of conditional branches", expected.branches, actual.branches),
            ("the hash of the registers", expected.cpu_hash, actual.cpu_hash),
        ] {
            if expected != actual {
                let (then, now) = (format!("{expected:#x}"), format!("{actual:#x}"));
                return Err(self.divergence(view.moment, what, then, now));
            }
        }
        Ok(())
    }

    fn divergence(&self, at: Moment, what: &'static str, expected: String, actual: String) -> Error {
        let around = self.next.saturating_sub(2)..self.events.len().min(self.next + 3);
        let neighbours = self.events[around.clone()]
            .iter()
            .zip(around)
            .map(|(record, number)| format!("#{number} {} at {}", record.event.kind(), record.at.steps))
            .collect();
        Error::Divergence(Box::new(Divergence { at, what, expected, actual, neighbours }))
    }
}

/// What the log says of the machine where an event comes in.
pub fn record_of(view: &View<'_>, event: Event) -> EventRecord {
    let hash = hash_of(&view.cpu.state());
    let [a, b, c, d, e, f, g, h, ..] = hash;
    EventRecord {
        at: view.moment,
        branches: view.cpu.branches(),
        rip: view.cpu.rip(),
        cpu_hash: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        event,
    }
}

impl Inputs for Player {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        let Some(expected) = self.events.get(self.next) else { return Ok(None) };
        if view.moment < expected.at {
            return Ok(None);
        }
        self.check(view, expected)?;
        let event = expected.event.clone();
        self.next += 1;
        Ok(Some(event))
    }

    fn next_poll(&self, now: Moment) -> u64 {
        match self.events.get(self.next) {
            Some(event) if event.at.steps > now.steps => event.at.steps,
            _ => u64::MAX,
        }
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let event_ns = self.events.get(self.next).filter(|e| e.at.steps == now.steps).map(|e| e.at.time_ns);
        Ok(match (event_ns, deadline_ns) {
            (Some(event), Some(deadline)) => Idle::Until(event.min(deadline)),
            (Some(ns), None) | (None, Some(ns)) => Idle::Until(ns),
            (None, None) => Idle::Forever,
        })
    }

    fn console_output(&mut self, _now: Moment, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.output {
            Some(sink) => sink(bytes),
            None => Ok(()),
        }
    }
}
