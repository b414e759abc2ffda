//! Host time for machines whose engine does not count instructions. Time that passed comes in as events: at
//! exits where the guest makes some, else where it is stopped.

use std::cell::Cell;
use std::time::{Duration, Instant};

use devices::passthrough::{AskV1, DeviceInputV1};

use machine::checks::{CheckParts, CheckRecord};
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use machine::position::{Exits, Moment};

/// Time shorter than this comes in together with what passes after it, unless a device waits for less.
const GRAIN: Duration = Duration::from_micros(50);
const SMALLEST_GRAIN: Duration = Duration::from_micros(5);
/// More time than this at once is not the guest's: the host was suspended, or kept this thread off its
/// processors.
const LONGEST: Duration = Duration::from_millis(500);
/// A guest is looked at this often whatever its deadlines are, because a person may type: at exits, and
/// without one.
const LOOK: Duration = Duration::from_millis(10);
const FORCED_LOOK: Duration = Duration::from_millis(100);

/// How a guest gets to know of host time.
#[derive(Clone, Copy, Debug)]
pub struct ClockOptions {
    /// How many times slower than the host's clock the guest's clock runs while the guest works (0 counts as
    /// 1): for hosts where an exit takes so long that a guest would do nothing but serve its timer.
    pub slowdown: u32,
    /// How long to wait for an exit when something is due, before the guest is stopped without one.
    pub patience: Duration,
}

/// Other inputs, and the host's clock beside them.
pub struct LiveClock<I> {
    inner: I,
    options: ClockOptions,
    /// The host's time up to which the guest was told that time passed.
    told: Instant,
    /// An event was given already in this series of calls of `poll`, which ends with one that gives none.
    told_now: bool,
    /// The least guest time that is worth an event: a grain, or less when a device waits for less.
    worth_telling: Cell<Duration>,
}

impl<I> LiveClock<I> {
    /// The clock starts here.
    pub fn new(inner: I, options: ClockOptions) -> LiveClock<I> {
        let options = ClockOptions { slowdown: options.slowdown.max(1), ..options };
        LiveClock { inner, options, told: Instant::now(), told_now: false, worth_telling: Cell::new(GRAIN) }
    }

    /// Guest time that passed and that no event has told the guest yet.
    fn untold(&self) -> Duration {
        self.told.elapsed() / self.options.slowdown
    }

    /// The other inputs.
    pub fn inner(&self) -> &I {
        &self.inner
    }
}

impl<I: Inputs<Exits>> Inputs<Exits> for LiveClock<I> {
    fn poll(&mut self, view: &View<'_, Exits>) -> Result<Option<Event>, Error> {
        if let Some(stopped) = view.stopped {
            return Ok(Some(Event::Stopped(stopped)));
        }
        let passed = self.untold();
        if passed >= self.worth_telling.get() && !self.told_now {
            self.told += passed * self.options.slowdown;
            self.told_now = true;
            let passed = passed.min(LONGEST);
            return Ok(Some(Event::TimePassed { ns: passed.as_nanos() as u64 }));
        }
        let event = self.inner.poll(view)?;
        self.told_now = event.is_some();
        Ok(event)
    }

    fn next_poll(&self, now: Moment<Exits>) -> Exits {
        self.inner.next_poll(now)
    }

    fn idle(&mut self, now: Moment<Exits>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let idle = self.inner.idle(now, deadline_ns);
        // Idle time passes as the machine says, and is over.
        self.told = Instant::now();
        idle
    }

    fn leave(&self, now: Moment<Exits>, deadline_ns: Option<u64>) -> Leave {
        let wanted =
            deadline_ns.map_or(FORCED_LOOK, |ns| Duration::from_nanos(ns.saturating_sub(now.time_ns)));
        self.worth_telling.set(wanted.clamp(SMALLEST_GRAIN, GRAIN));
        let wanted = wanted.saturating_sub(self.untold()).max(SMALLEST_GRAIN) * self.options.slowdown;
        let force = wanted.min(FORCED_LOOK) + self.options.patience;
        Leave::After { due: wanted.min(LOOK), force, note: false }
    }

    fn check_due(&self, now: Moment<Exits>) -> Option<CheckParts> {
        self.inner.check_due(now)
    }

    fn checked(&mut self, check: CheckRecord<Exits>) -> Result<(), Error> {
        self.inner.checked(check)
    }

    fn ask_devices(&mut self, at: AskedAt<Exits>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.inner.ask_devices(at, ask)
    }

    fn tell_devices(&mut self, at: AskedAt<Exits>, told: &AskV1) -> Result<(), Error> {
        self.inner.tell_devices(at, told)
    }

    fn network_output(&mut self, frames: Vec<Sent<Exits>>) -> Result<(), Error> {
        self.inner.network_output(frames)
    }

    fn console_output(&mut self, now: Moment<Exits>, bytes: &[u8]) -> Result<(), Error> {
        self.inner.console_output(now, bytes)
    }
}
