//! Inputs from a log: gives each recorded event again at the point where it was recorded, and checks that the
//! machine is then in the state that was recorded.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::divergence::Divergence;
use crate::error::Error;
use crate::machine::checks::{CheckParts, CheckRecord};
use crate::machine::hex;
use crate::machine::inputs::{Departure, Event, Idle, Inputs, PowerOn, View};
use crate::position::{Counting, Moment};
use crate::recording::Recording;
use crate::recording::log::{EventRecord, Log};

/// How much of the machine is compared with the recording's checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scrutiny {
    /// Nothing at all: events are given wherever they belong, whatever the machine looks like there. For
    /// comparing one replay with another instead of with the recording.
    Nothing,
    /// The registers, at every event and every check.
    #[default]
    Registers,
    /// Devices and RAM as well, wherever the recording noted them.
    Everything,
}

/// What part of a machine a difference is in: it tells since when it may have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Registers and counts, which every record has.
    Registers,
    /// The devices.
    Devices,
    /// RAM.
    Ram,
    /// What is compared at the end only.
    Whole,
}

/// How far a player is: what a snapshot keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    event: usize,
    check: usize,
    /// The last point that was compared and found equal.
    last_good: Moment,
    /// The checksum of the log up to here, so that a place in another log is told from one in this.
    log_check: u32,
}

impl Cursor {
    /// After so many events and checks, the last of which was equal at `last_good`; `log_check` is the checksum of
    /// the log up to there.
    pub fn after(events: usize, checks: usize, last_good: Moment, log_check: u32) -> Cursor {
        Cursor { event: events, check: checks, last_good, log_check }
    }

    /// Whether it is a place in this log. One that the log does not reach may be: the log may have been cut off.
    pub fn is_of(&self, log: &Log) -> bool {
        log.check_behind(self.event, self.check).is_none_or(|check| check == self.log_check)
    }

    /// The number of events before it.
    pub fn events(&self) -> usize {
        self.event
    }

    /// The number of checks before it.
    pub fn checks(&self) -> usize {
        self.check
    }

    /// Whether it lies within a log of so many events and checks.
    pub fn is_within(&self, (events, checks): (usize, usize)) -> bool {
        self.event <= events && self.check <= checks
    }
}

/// Gives recorded events.
pub struct Player {
    counting: Counting,
    events: Arc<[EventRecord]>,
    /// Each with the number of events before it.
    checks: Arc<[(usize, CheckRecord)]>,
    /// As in the log.
    chain: Arc<[u32]>,
    next: Cursor,
    scrutiny: Scrutiny,
    /// The run ends where this event is due.
    end_before: Option<usize>,
    /// Receives console output; seeking in a recording has nobody to show it to.
    output: Option<Box<Output>>,
}

/// Takes console output.
type Output = dyn FnMut(&[u8]) -> Result<(), Error> + Send;

/// What the log has next.
enum Next<'a> {
    Event(&'a EventRecord),
    Check(&'a CheckRecord),
    Nothing,
}

impl Player {
    /// A player at the start of a recording.
    pub fn new(recording: &Recording) -> Player {
        let log = &recording.log;
        Player {
            counting: recording.counting,
            events: log.events.clone().into(),
            checks: log.checks.clone().into(),
            chain: log.chain.clone().into(),
            next: Cursor::default(),
            scrutiny: Scrutiny::default(),
            end_before: None,
            output: None,
        }
    }

    /// Ends the run where an event is due, in place of giving it.
    pub fn end_before(&mut self, event: usize) {
        self.end_before = Some(event);
    }

    /// Says how much to compare.
    pub fn set_scrutiny(&mut self, scrutiny: Scrutiny) {
        self.scrutiny = scrutiny;
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

    /// Sends console output nowhere any more.
    pub fn without_output(&mut self) {
        self.output = None;
    }

    /// Whether console output goes anywhere.
    pub fn shows_output(&self) -> bool {
        self.output.is_some()
    }

    /// How far this player is.
    pub fn cursor(&self) -> Cursor {
        let log_check = self.chain.get(self.next.event + self.next.check).copied().unwrap_or_default();
        Cursor { log_check, ..self.next }
    }

    /// Goes to a cursor.
    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.next = cursor;
    }

    /// All events.
    pub fn events(&self) -> &[EventRecord] {
        &self.events
    }

    /// Whether everything in the log has been given and compared.
    pub fn finished(&self) -> bool {
        matches!(self.next(), Next::Nothing)
    }

    /// A difference at `at`, with the recorded events around the next one.
    pub fn divergence(
        &self,
        at: Moment,
        part: Part,
        what: &'static str,
        expected: String,
        actual: String,
    ) -> Error {
        let around = self.next.event.saturating_sub(2)..self.events.len().min(self.next.event + 3);
        let neighbours = self.events[around.clone()]
            .iter()
            .zip(around)
            .map(|(record, number)| format!("#{number} {} at {}", record.event.kind(), record.at.steps))
            .collect();
        let last_good = self.last_good_of(part);
        Error::Divergence(Box::new(Divergence {
            counting: self.counting,
            at,
            last_good,
            what,
            expected,
            actual,
            neighbours,
        }))
    }

    /// The last point where a part was compared and found equal.
    fn last_good_of(&self, part: Part) -> Moment {
        let noted = |check: &CheckRecord| match part {
            Part::Devices => check.devices_hash.is_some(),
            Part::Ram => check.ram_digest.is_some(),
            Part::Registers | Part::Whole => false,
        };
        let mut passed = self.checks[..self.next.check].iter().map(|(_, check)| check).rev();
        match (part, self.scrutiny) {
            (Part::Registers, _) => self.next.last_good,
            (_, Scrutiny::Everything) => {
                passed.find(|check| noted(check)).map_or(Moment::default(), |c| c.at)
            }
            _ => Moment::default(),
        }
    }

    fn next(&self) -> Next<'_> {
        match self.checks.get(self.next.check) {
            Some((events, check)) if *events <= self.next.event => Next::Check(check),
            _ => self.events.get(self.next.event).map_or(Next::Nothing, Next::Event),
        }
    }

    /// What the next thing in the log is a check of, if it is one.
    pub fn next_check_parts(&self) -> Option<CheckParts> {
        match self.next() {
            Next::Check(check) => Some(check.parts()),
            _ => None,
        }
    }

    fn next_moment(&self) -> Option<Moment> {
        match self.next() {
            Next::Event(event) => Some(event.at),
            Next::Check(check) => Some(check.at),
            Next::Nothing => None,
        }
    }

    /// The event that comes in exactly here, if it is the next thing in the log.
    fn due(&self, view: &View<'_>) -> Result<Option<&EventRecord>, Error> {
        let Some(at) = self.next_moment() else { return Ok(None) };
        if view.moment < at {
            return Ok(None);
        }
        if view.moment > at && self.scrutiny != Scrutiny::Nothing {
            let (then, now) = (format!("{at:?}"), format!("{:?}", view.moment));
            return Err(self.divergence(view.moment, Part::Registers, "the point of a record", then, now));
        }
        let Next::Event(next) = self.next() else { return Ok(None) };
        // Where the guest was stopped, exits alone may lead this far and not there yet.
        let on_the_way = view.counting == Counting::Exits && is_stop(next) && view.stopped.is_none();
        Ok((!on_the_way).then_some(next))
    }

    fn compare_event(&self, view: &View<'_>, expected: &EventRecord) -> Result<(), Error> {
        let mut actual = record_of(view, expected.event.clone());
        if view.counting == Counting::Exits {
            // How many branches there were helps to find a place, but is no part of it: not every engine counts them.
            if expected.branches != 0 && actual.branches != 0 && expected.branches != actual.branches {
                let (then, now) = (expected.branches, actual.branches);
                log::warn!("a branch counter is not exact: {then} when it was recorded, {now} now");
            }
            actual.branches = expected.branches;
        }
        self.compare_registers(view.moment, Registers::of_event(expected), Registers::of_event(&actual))
    }

    fn compare_check(&self, expected: &CheckRecord, actual: &CheckRecord) -> Result<(), Error> {
        let at = actual.at;
        self.compare_registers(at, Registers::of_check(expected), Registers::of_check(actual))?;
        let hex = |bytes: Option<&[u8]>| bytes.map_or("nothing".to_string(), hex);
        for (part, what, expected, actual) in [
            (
                Part::Devices,
                "the hash of the devices",
                hex(expected.devices_hash.as_ref().map(|h| h.as_slice())),
                hex(actual.devices_hash.as_ref().map(|h| h.as_slice())),
            ),
            (
                Part::Ram,
                "the digest of RAM",
                hex(expected.ram_digest.as_ref().map(|d| d.as_slice())),
                hex(actual.ram_digest.as_ref().map(|d| d.as_slice())),
            ),
        ] {
            // A replay that was not asked to look at devices and RAM has nothing to compare.
            if self.scrutiny == Scrutiny::Everything && expected != actual {
                return Err(self.divergence(at, part, what, expected, actual));
            }
        }
        Ok(())
    }

    fn compare_registers(&self, at: Moment, expected: Registers, actual: Registers) -> Result<(), Error> {
        if expected.at != actual.at {
            let (then, now) = (format!("{:?}", expected.at), format!("{:?}", actual.at));
            return Err(self.divergence(at, Part::Registers, "the point of a record", then, now));
        }
        for (what, expected, actual) in [
            ("RIP", format!("{:#x}", expected.rip), format!("{:#x}", actual.rip)),
            ("the count of conditional branches", expected.branches.to_string(), actual.branches.to_string()),
            ("the hash of the registers", hex(&expected.hash), hex(&actual.hash)),
        ] {
            if expected != actual {
                return Err(self.divergence(at, Part::Registers, what, expected, actual));
            }
        }
        Ok(())
    }
}

/// What every record says of the registers.
struct Registers {
    at: Moment,
    rip: u64,
    branches: u64,
    hash: [u8; 8],
}

impl Registers {
    fn of_event(record: &EventRecord) -> Registers {
        let EventRecord { at, branches, rip, cpu_hash, .. } = *record;
        Registers { at, rip, branches, hash: cpu_hash }
    }

    fn of_check(record: &CheckRecord) -> Registers {
        let CheckRecord { at, branches, rip, cpu_hash, .. } = *record;
        Registers { at, rip, branches, hash: cpu_hash }
    }
}

fn is_stop(record: &EventRecord) -> bool {
    matches!(record.event, Event::Stopped(_))
}

/// What the log says of the machine where an event comes in.
pub fn record_of(view: &View<'_>, event: Event) -> EventRecord {
    EventRecord {
        at: view.moment,
        branches: view.branches(),
        rip: view.cpu.rip(),
        cpu_hash: view.cpu_hash(),
        event,
    }
}

impl Inputs for Player {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        let Some(expected) = self.due(view)? else { return Ok(None) };
        if self.end_before == Some(self.next.event) {
            return Ok(Some(Event::Ended));
        }
        if self.scrutiny != Scrutiny::Nothing {
            self.compare_event(view, expected)?;
            self.next.last_good = view.moment;
        }
        let event = self.events[self.next.event].event.clone();
        self.next.event += 1;
        Ok(Some(event))
    }

    fn next_poll(&self, now: Moment) -> u64 {
        match self.next_moment() {
            Some(at) if at.steps > now.steps => at.steps,
            // An exit that comes before the place where the guest was stopped is a difference.
            Some(_) if matches!(self.next(), Next::Event(event) if is_stop(event)) => now.steps + 1,
            _ => u64::MAX,
        }
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let record_ns = self.next_moment().filter(|at| at.steps == now.steps).map(|at| at.time_ns);
        Ok(match (record_ns, deadline_ns) {
            (Some(record), Some(deadline)) => Idle::Until(record.min(deadline)),
            (Some(ns), None) | (None, Some(ns)) => Idle::Until(ns),
            (None, None) => Idle::Forever,
        })
    }

    fn departure(&self, now: Moment, _deadline_ns: Option<u64>) -> Departure {
        match self.next() {
            Next::Event(EventRecord { at, rip, cpu_hash, event: Event::Stopped(stopped), branches })
                if *at == now =>
            {
                let branches = (*branches != 0).then_some(*branches);
                Departure::At { rip: *rip, branches, cpu_hash: *cpu_hash, stopped: *stopped }
            }
            _ => Departure::Exits,
        }
    }

    fn check_due(&self, now: Moment) -> Option<CheckParts> {
        match self.next() {
            Next::Check(check) if now >= check.at => Some(match self.scrutiny {
                Scrutiny::Everything => check.parts(),
                Scrutiny::Nothing | Scrutiny::Registers => CheckParts::default(),
            }),
            _ => None,
        }
    }

    fn checked(&mut self, actual: CheckRecord) -> Result<(), Error> {
        let Next::Check(expected) = self.next() else { return Ok(()) };
        if self.scrutiny != Scrutiny::Nothing {
            self.compare_check(expected, &actual)?;
            self.next.last_good = actual.at;
        }
        self.next.check += 1;
        Ok(())
    }

    fn console_output(&mut self, _now: Moment, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.output {
            Some(sink) => sink(bytes),
            None => Ok(()),
        }
    }
}
