//! Places in an event log.

use crate::log::Log;
use machine::Format;
use machine::error::Error;
use machine::inputs::Inputs;
use machine::position::{Count, Moment};

/// A player's place in the log. A snapshot of a machine stores the player's cursor too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor<C> {
    pub(super) event: usize,
    pub(super) check: usize,
    /// The last point where a comparison found no difference.
    pub(super) last_good: Moment<C>,
    /// The checksum of the log up to this place. By the checksum, [`Cursor::is_of`] decides whether the cursor belongs
    /// to a log.
    pub(super) log_check: u32,
}

impl<C: Count> Cursor<C> {
    /// The place after `events` events and `checks` checks. The last comparison without a difference was at
    /// `last_good`; `log_check` is the checksum of the log up to the place.
    pub fn after(events: usize, checks: usize, last_good: Moment<C>, log_check: u32) -> Cursor<C> {
        Cursor { event: events, check: checks, last_good, log_check }
    }

    /// Whether the cursor may be a place in this log. Also true for places beyond the log's end, because the log may
    /// have been cut off.
    pub fn is_of(&self, log: &Log<C>) -> Result<bool, Error> {
        let is_reached = log.reaches(self.event, self.check);
        Ok(!is_reached || log.check_behind(self.event, self.check)? == Some(self.log_check))
    }

    /// The number of events before the cursor.
    pub fn events(&self) -> usize {
        self.event
    }

    /// The number of checks before the cursor.
    pub fn checks(&self) -> usize {
        self.check
    }

    /// The number of the next entry in the log.
    pub fn entry(&self) -> usize {
        self.event.saturating_add(self.check)
    }
}

/// Inputs that write a log. Checkpoints refer to places in this log. The log may count in another unit than the
/// machine.
pub trait Logged<U: Count, C: Count = U>: Inputs<U> {
    /// The cursor that a player of this log has when it reaches the machine's present position.
    fn cursor(&self) -> Cursor<C>;
    /// The log's format.
    fn format(&self) -> Format;
}
