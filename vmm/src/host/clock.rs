//! Host time for machines whose engine does not count instructions: what passed comes in as events, at exits where there are
//! some.

use std::time::{Duration, Instant};

use crate::checks::{CheckParts, CheckRecord};
use crate::error::Error;
use crate::inputs::{Departure, Event, Idle, Inputs, View};
use crate::position::Moment;

/// Less time than this is let pass together with what comes after it.
const GRAIN: Duration = Duration::from_micros(50);
/// A guest is looked at this often whatever its deadlines are, because somebody may type: at exits, and without one.
const LOOK: Duration = Duration::from_millis(10);
const FORCED_LOOK: Duration = Duration::from_millis(100);
/// An exit is waited for this long before the guest is stopped without one.
const PATIENCE: Duration = Duration::from_millis(1);

/// Inputs with a clock beside them.
pub struct LiveClock<I> {
    inner: I,
    /// So many times slower than the host's clock runs the guest's while it works.
    slowdown: u32,
    /// Up to here the guest knows of the time that passed.
    told: Instant,
    /// In this round of questions the guest was told already.
    told_now: bool,
}

impl<I> LiveClock<I> {
    /// The clock starts here. `slowdown` is for hosts where an exit takes so long that a guest would do nothing but serve
    /// its timer: so many times slower than the host's clock the guest's runs while the guest works (0 counts as 1).
    pub fn new(inner: I, slowdown: u32) -> LiveClock<I> {
        LiveClock { inner, slowdown: slowdown.max(1), told: Instant::now(), told_now: false }
    }

    /// Guest time that passed and was not told.
    fn untold(&self) -> Duration {
        self.told.elapsed() / self.slowdown
    }

    /// What is beside it.
    pub fn inner(&self) -> &I {
        &self.inner
    }
}

impl<I: Inputs> Inputs for LiveClock<I> {
    fn poll(&mut self, view: &View<'_>) -> Result<Option<Event>, Error> {
        if let Some(stopped) = view.stopped {
            return Ok(Some(Event::Stopped(stopped)));
        }
        let passed = self.untold();
        if passed >= GRAIN && !self.told_now {
            self.told += passed * self.slowdown;
            self.told_now = true;
            return Ok(Some(Event::TimePassed { ns: passed.as_nanos() as u64 }));
        }
        let event = self.inner.poll(view)?;
        self.told_now = event.is_some();
        Ok(event)
    }

    fn next_poll(&self, now: Moment) -> u64 {
        self.inner.next_poll(now)
    }

    fn idle(&mut self, now: Moment, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        let idle = self.inner.idle(now, deadline_ns);
        // Idle time passes as the machine says, and is over.
        self.told = Instant::now();
        idle
    }

    fn departure(&self, now: Moment, deadline_ns: Option<u64>) -> Departure {
        let wanted =
            deadline_ns.map_or(FORCED_LOOK, |ns| Duration::from_nanos(ns.saturating_sub(now.time_ns)));
        let wanted = wanted.saturating_sub(self.untold()).max(GRAIN) * self.slowdown;
        Departure::After { due: wanted.min(LOOK), force: wanted.min(FORCED_LOOK) + PATIENCE, note: false }
    }

    fn check_due(&self, now: Moment) -> Option<CheckParts> {
        self.inner.check_due(now)
    }

    fn checked(&mut self, check: CheckRecord) -> Result<(), Error> {
        self.inner.checked(check)
    }

    fn console_output(&mut self, now: Moment, bytes: &[u8]) -> Result<(), Error> {
        self.inner.console_output(now, bytes)
    }
}
