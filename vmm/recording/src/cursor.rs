//! Places in an event log.

use crate::log::Log;
use machine::Format;
use machine::error::Error;
use machine::inputs::Inputs;
use machine::position::{Count, Moment};

/// How far a player is: what a snapshot keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor<C> {
    pub(super) event: usize,
    pub(super) check: usize,
    /// The last point that was compared and found equal.
    pub(super) last_good: Moment<C>,
    /// The checksum of the log up to here, so that a place in another log is told from one in this.
    pub(super) log_check: u32,
}

impl<C: Count> Cursor<C> {
    /// After `events` events and `checks` checks, the last of which was equal at `last_good`; `log_check` is
    /// the checksum of the log up to there.
    pub fn after(events: usize, checks: usize, last_good: Moment<C>, log_check: u32) -> Cursor<C> {
        Cursor { event: events, check: checks, last_good, log_check }
    }

    /// Whether it is a place in this log. One that the log does not reach may be: the log may have been cut
    /// off.
    pub fn is_of(&self, log: &Log<C>) -> Result<bool, Error> {
        let is_reached = log.reaches(self.event, self.check);
        Ok(!is_reached || log.check_behind(self.event, self.check)? == Some(self.log_check))
    }

    /// The number of events before it.
    pub fn events(&self) -> usize {
        self.event
    }

    /// The number of checks before it.
    pub fn checks(&self) -> usize {
        self.check
    }

    /// The number of the entry in the log that comes next.
    pub fn entry(&self) -> usize {
        self.event.saturating_add(self.check)
    }
}

/// Inputs that write the log into which checkpoints point. Positions in that log need not be in what the
/// machine counts.
pub trait Logged<U: Count, C: Count = U>: Inputs<U> {
    /// How far a player of this log is that stands where the machine stands.
    fn cursor(&self) -> Cursor<C>;
    /// The log's format.
    fn format(&self) -> Format;
}
