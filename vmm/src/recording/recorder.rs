//! Inputs that write down what live inputs gave.

use crate::error::Error;
use crate::machine::Machine;
use crate::machine::checks::{CheckParts, CheckRecord, Intervals, Schedule};
use crate::machine::inputs::{Departure, Event, Idle, Inputs, PowerOn, View};
use crate::position::Moment;
use crate::recording::checkpointer::Logged;
use crate::recording::log::{EndRecord, LogRecord, LogWriter};
use crate::recording::player::{Cursor, record_of};

/// Records what passes through it.
pub struct Recorder<I> {
    live: I,
    log: LogWriter,
    power_on: Option<PowerOn>,
    schedule: Schedule,
    console: ConsoleDigest,
    /// Events and checks written so far, and where the last of them was.
    events: usize,
    checks: usize,
    last: Moment,
}

/// Length and hash of all console output.
#[derive(Clone, Default)]
pub struct ConsoleDigest {
    bytes: u64,
    hasher: blake3::Hasher,
}

impl ConsoleDigest {
    /// Takes more output.
    pub fn update(&mut self, output: &[u8]) {
        self.bytes += output.len() as u64;
        self.hasher.update(output);
    }

    /// (length, hash) so far.
    pub fn finish(&self) -> (u64, [u8; 32]) {
        (self.bytes, *self.hasher.finalize().as_bytes())
    }
}

impl<I: Inputs> Recorder<I> {
    /// Records into `log`, beginning with what the machine was given at power-on.
    pub fn new(live: I, log: LogWriter, power_on: PowerOn) -> Recorder<I> {
        Recorder {
            live,
            log,
            power_on: Some(power_on),
            schedule: Schedule::default(),
            console: ConsoleDigest::default(),
            events: 0,
            checks: 0,
            last: Moment::default(),
        }
    }

    /// Takes checks at other distances than the usual ones.
    pub fn check_every(&mut self, intervals: Intervals) {
        self.schedule = Schedule::new(intervals);
    }

    /// Writes the end of the run.
    pub fn finish(mut self, machine: &mut Machine) -> Result<EndRecord, Error> {
        let (console_bytes, console_hash) = self.console.finish();
        let end = EndRecord {
            at: machine.moment(),
            branches: machine.branches(),
            outcome: machine.outcome().cloned().expect("a run is finished once it has ended"),
            hashes: machine.known_hashes(),
            console_bytes,
            console_hash,
        };
        self.log.append(&LogRecord::End(end.clone()))?;
        Ok(end)
    }
}

impl<I: Inputs> Logged for Recorder<I> {
    fn cursor(&self) -> Cursor {
        Cursor::after(self.events, self.checks, self.last, self.log.check())
    }
}

impl<I: Inputs> Inputs for Recorder<I> {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        let event = match self.power_on.take() {
            Some(power_on) => Some(Event::PowerOn(power_on)),
            None => self.live.poll(view)?,
        };
        if let Some(event) = &event {
            self.log.append(&LogRecord::Event(record_of(view, event.clone())))?;
            self.events += 1;
            self.last = view.moment;
        }
        Ok(event)
    }

    fn next_poll(&self, now: Moment) -> u64 {
        self.live.next_poll(now).min(self.schedule.next_steps())
    }

    fn departure(&self, now: Moment, deadline_ns: Option<u64>) -> Departure {
        match self.live.departure(now, deadline_ns) {
            Departure::After { due, force, .. } => Departure::After { due, force, note: true },
            other => other,
        }
    }

    fn check_due(&self, now: Moment) -> Option<CheckParts> {
        self.schedule.due(now)
    }

    fn checked(&mut self, check: CheckRecord) -> Result<(), Error> {
        self.schedule.taken(check.at, check.parts());
        self.checks += 1;
        self.last = check.at;
        self.log.append(&LogRecord::Check(check))
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.live.idle(now, deadline_ns)
    }

    fn console_output(&mut self, now: Moment, bytes: &[u8]) -> Result<(), Error> {
        self.console.update(bytes);
        self.live.console_output(now, bytes)
    }
}
