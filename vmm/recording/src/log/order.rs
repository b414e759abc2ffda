//! The order of a log's records.

use crate::log::records::{EndRecord, LogRecord};
use machine::clock::MAX_TIME_NS;
use machine::inputs::Event;
use machine::position::{Count, Moment};

/// A summary of the records so far. The summary determines which kinds of record may come next.
#[derive(Clone, Debug)]
pub(super) struct Order<C> {
    /// Hash of the machine's description.
    pub machine_hash: Option<[u8; 32]>,
    /// The number of events so far.
    pub events: usize,
    /// The number of checks so far.
    pub checks: usize,
    /// The number of records with a count of system calls so far.
    pub system_calls: usize,
    /// The point of the last record.
    pub last: Moment<C>,
    /// The longest distance between two records.
    pub longest: u64,
    /// The end record.
    pub end: Option<EndRecord<C>>,
}

impl<C: Count> Order<C> {
    /// The state before the first record.
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

    /// Accepts the next record, if the order allows it.
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

    /// Notes a record's point. Returns an error if its count or time is less than that of the last record, or more than
    /// a run can reach.
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
