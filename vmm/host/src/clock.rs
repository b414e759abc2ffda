//! Host time for machines whose engine does not count instructions. Time that passes becomes events for the guest. The
//! guest takes these events at its exits, or the engine stops the guest for them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use devices::passthrough::{AskV1, DeviceInputV1};

use machine::checks::{CheckParts, CheckRecord};
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use machine::position::{Exits, Moment};

/// The least time for which an event is made, unless a device waits for a shorter time.
const GRAIN: Duration = Duration::from_micros(50);
const SMALLEST_GRAIN: Duration = Duration::from_micros(5);
/// The largest time in one event. If more host time has passed since the last event, the rest is dropped. The host was
/// then suspended, or did not run this thread.
const LONGEST: Duration = Duration::from_millis(500);
/// The longest times until the inputs are polled again. These limits hold even if the guest has no deadline,
/// because a person may type. After `LOOK` the next exit leads to a poll. After `FORCED_LOOK` the guest is stopped.
const LOOK: Duration = Duration::from_millis(10);
const FORCED_LOOK: Duration = Duration::from_millis(100);

/// How host time becomes guest time.
#[derive(Clone, Copy, Debug)]
pub struct ClockOptions {
    /// The guest's clock runs this many times slower than the host's clock while the guest works (0 counts as 1). The
    /// slowdown is for hosts with slow exits. Without a slowdown, a guest on such a host would do nothing but serve its
    /// timer.
    pub slowdown: u32,
    /// How long a due event waits for an exit before the engine stops the guest.
    pub patience: Duration,
}

/// Other inputs, combined with the host's clock.
pub struct LiveClock<I> {
    inner: I,
    options: ClockOptions,
    /// The host time up to which the guest has received time events.
    told: Instant,
    /// Whether the last call of `poll` returned an event. A time event can only follow a call that returned no event.
    told_now: bool,
    /// The least guest time for which a time event is made: a grain, or less if a device waits for less.
    worth_telling: Cell<Duration>,
}

impl<I> LiveClock<I> {
    /// Starts the clock now.
    pub fn new(inner: I, options: ClockOptions) -> LiveClock<I> {
        let options = ClockOptions { slowdown: options.slowdown.max(1), ..options };
        LiveClock { inner, options, told: Instant::now(), told_now: false, worth_telling: Cell::new(GRAIN) }
    }

    /// Guest time that has passed since the last time event.
    fn untold(&self) -> Duration {
        self.told.elapsed() / self.options.slowdown
    }

    /// The inputs except the clock.
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
        // The machine itself adds the idle time to the guest's time. So time events count from the end of the idle
        // time, which is now.
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
