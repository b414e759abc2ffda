//! The order that the records of a log must have.

use crate::log::records::{EndRecord, LogRecord};
use machine::clock::MAX_TIME_NS;
use machine::inputs::Event;
use machine::position::{Count, Moment};

/// What has been read of a log, in short: what the next record must follow.
#[derive(Clone, Debug)]
pub(super) struct Order<C> {
    /// Hash of the machine's description.
    pub machine_hash: Option<[u8; 32]>,
    /// Events so far.
    pub events: usize,
    /// Checks so far.
    pub checks: usize,
    /// Counts of system calls so far.
    pub system_calls: usize,
    /// The last point that a record was at.
    pub last: Moment<C>,
    /// The longest stretch between two records.
    pub longest: u64,
    /// The end.
    pub end: Option<EndRecord<C>>,
}

impl<C: Count> Order<C> {
    /// Before the first record.
    pub fn new() -> Order<C> {
        Order {
            machine_hash: None,
            events: 0,
            checks: 0,
            system_calls: 0,
            last: Moment::default(),
            longest: 0,
            end: None,
        }
    }

    /// Takes the next record, if it may be the next one.
    pub fn take(&mut self, record: &LogRecord<C>) -> Result<(), &'static str> {
        if self.end.is_some() {
            return Err("follows the end");
        }
        if self.machine_hash.is_none() != matches!(record, LogRecord::Machine(_)) {
            return Err("is in the wrong place");
        }
        match record {
            LogRecord::Machine(hash) => self.machine_hash = Some(*hash),
            LogRecord::SystemCalls(_) => {
                if self.system_calls != self.events {
                    return Err("is in the wrong place");
                }
                self.system_calls += 1;
            }
            LogRecord::Event(event) => {
                if (self.events == 0) != matches!(event.event, Event::PowerOn(_)) {
                    return Err("is in the wrong place");
                }
                self.advance(event.at)?;
                self.events += 1;
            }
            LogRecord::Check(check) => {
                self.advance(check.at)?;
                self.checks += 1;
            }
            LogRecord::End(end) => {
                self.advance(end.at)?;
                self.end = Some(end.clone());
            }
        }
        Ok(())
    }

    /// Neither count may go back, nor be more than any run gets to.
    fn advance(&mut self, at: Moment<C>) -> Result<(), &'static str> {
        let forward = at.count >= self.last.count
            && at.time_ns >= self.last.time_ns
            && at.count.number() <= MAX_TIME_NS
            && at.time_ns <= MAX_TIME_NS;
        if !forward {
            return Err("is out of order");
        }
        self.longest = self.longest.max(at.count.saturating_since(self.last.count));
        self.last = at;
        Ok(())
    }
}
