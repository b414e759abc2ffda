//! Inputs that record live inputs. The recorder passes each event on to the machine. The recorder also appends the
//! event to the log, with its position and a hash of the registers, and takes checks of the machine. The `checkpointer`
//! takes checkpoints.

use devices::passthrough::{AskV1, DeviceInputV1};

use crate::console_digest::ConsoleDigest;
use crate::cursor::{Cursor, Logged};
use crate::log::{EndRecord, EventRecord, LogRecord, LogWriter};
use machine::checks::{CheckParts, CheckRecord, Intervals, Schedule};
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, PowerOn, Sent, View};
use machine::position::Moment;
use machine::unit::Unit;
use machine::{Format, Machine};

/// Passes the events of live inputs on to the machine, and records them.
pub struct Recorder<C, I> {
    live: I,
    log: LogWriter,
    power_on: Option<PowerOn>,
    schedule: Schedule<C>,
    console: ConsoleDigest,
    /// The number of events so far. The next fields are the number of checks, and the point of the last event or check.
    events: usize,
    checks: usize,
    last: Moment<C>,
}

impl<C: Unit, I: Inputs<C>> Recorder<C, I> {
    /// Records into `log`, beginning with the machine's inputs at power-on.
    pub fn new(live: I, log: LogWriter, power_on: PowerOn) -> Recorder<C, I> {
        Recorder {
            live,
            log,
            power_on: Some(power_on),
            schedule: Schedule::new(C::CHECKS),
            console: ConsoleDigest::default(),
            events: 0,
            checks: 0,
            last: Moment::default(),
        }
    }

    /// Takes checks at these intervals instead of the usual intervals.
    pub fn check_every(&mut self, intervals: Intervals) {
        self.schedule = Schedule::new(intervals);
    }

    /// Writes the end record.
    pub fn finish(mut self, machine: &mut Machine<C>) -> Result<EndRecord<C>, Error> {
        let (console_bytes, console_hash) = self.console.finish();
        let end = EndRecord {
            at: machine.moment(),
            branches: machine.branches(),
            outcome: machine.outcome().cloned().expect("a run is finished once it has ended"),
            hashes: machine.known_hashes()?,
            console_bytes,
            console_hash,
        };
        self.log.append(&LogRecord::End(end.clone()))?;
        Ok(end)
    }
}

impl<C: Unit, I: Inputs<C>> Logged<C> for Recorder<C, I> {
    fn cursor(&self) -> Cursor<C> {
        Cursor::after(self.events, self.checks, self.last, self.log.check())
    }

    fn format(&self) -> Format {
        self.log.format()
    }
}

impl<C: Unit, I: Inputs<C>> Inputs<C> for Recorder<C, I> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        let event = match self.power_on.take() {
            Some(power_on) => Some(Event::PowerOn(power_on)),
            None => self.live.poll(view)?,
        };
        let Some(event) = event else { return Ok(None) };
        let record = EventRecord::of(view, event);
        self.log.append_event(&record)?;
        self.events += 1;
        self.last = view.moment;
        Ok(Some(record.event))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        self.live.next_poll(now).min(self.schedule.next())
    }

    fn leave(&self, now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        match self.live.leave(now, deadline_ns) {
            Leave::After { due, force, .. } => Leave::After { due, force, note: true },
            other => other,
        }
    }

    fn check_due(&self, now: Moment<C>) -> Option<CheckParts> {
        self.schedule.due(now)
    }

    fn checked(&mut self, check: CheckRecord<C>) -> Result<(), Error> {
        self.schedule.taken(check.at, check.parts());
        self.checks += 1;
        self.last = check.at;
        self.log.append(&LogRecord::Check(check))
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.live.idle(now, deadline_ns)
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        let input = self.live.ask_devices(at, ask)?;
        let record = EventRecord::of_answer(at.at, input.clone());
        self.log.append_event(&record)?;
        self.events += 1;
        self.last = at.at;
        Ok(input)
    }

    fn tell_devices(&mut self, at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        self.live.tell_devices(at, told)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.live.network_output(frames)
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.console.update(bytes);
        self.live.console_output(now, bytes)
    }
}
