//! Lets an observer watch a part of the recorded run.

use std::any::Any;
use std::ops::Range;

use cpu::{Observer, Places};
use machine::error::Error;
use machine::inputs::Event;
use machine::position::{Count, Instructions};
use recording::log::EventRecord;

use super::search::Interval;
use super::stops::TravelStop;
use super::travel::Timeline;
use super::walker::{SNAPSHOT_SPACING, Walked};
use crate::workers::Poll;

/// The largest number of steps between two polls. An observer of every step makes a step about ten times slower.
const POLL_STEPS: u64 = 250_000;

impl Timeline {
    /// The part of the recording between two positions, at most to the recording's end.
    pub fn part(&self, part: Range<Instructions>) -> Result<Interval, Error> {
        if part.end < part.start {
            let why = "the end of this part is before its start: swap the two positions";
            return Err(Error::Position(why.to_string()));
        }
        Ok(Interval { start: part.start, end: part.end.min(self.end()) })
    }

    /// Replays a part of the recording on one core while an observer watches. The timeline stays at the end of the
    /// part, or at an earlier place if the observer asks to stop there. Returns the observer, or `None` if the poll function returned true.
    pub fn observe<O: Observer>(
        &mut self,
        part: Interval,
        observer: O,
        poll: &mut Poll<'_>,
    ) -> Result<Option<O>, Error> {
        if self.position() != part.start && self.seek(part.start, poll)? == TravelStop::Interrupted {
            return Ok(None);
        }
        self.must_be_history()?;
        self.shared.begin(part.end.saturating_since(part.start));
        // Only the software CPU has observers.
        let runner = self.walker.runner.take();
        let is_slow = observer.wants().fetches == Places::All;
        let walked = self.observed(part.end, Box::new(observer), is_slow, poll);
        self.walker.runner = runner;
        let attached = self.walker.machine.set_observer(None)?;
        let attached = attached.and_then(|observer| (observer as Box<dyn Any>).downcast::<O>().ok());
        let is_whole = walked?;
        Ok(attached.filter(|_| is_whole).map(|observer| *observer))
    }

    /// Runs to a place with an observer. Returns false if the poll function returned true.
    fn observed(
        &mut self,
        end: Instructions,
        observer: Box<dyn Observer>,
        is_slow: bool,
        poll: &mut Poll<'_>,
    ) -> Result<bool, Error> {
        self.walker.machine.set_observer(Some(observer))?;
        while self.position() < end {
            let here = self.position();
            let target = if is_slow { end.min(here + POLL_STEPS) } else { end };
            let walked = self.walker.advance(target, SNAPSHOT_SPACING, poll)?;
            if walked == Walked::Interrupted || (is_slow && target < end && poll()) {
                return Ok(false);
            }
            if self.position() < target {
                break;
            }
        }
        Ok(true)
    }

    /// The last place at or before `place` to which the timeline can go without a replay.
    pub fn restorable_before(&self, place: Instructions) -> Instructions {
        self.walker.nearest(place).0
    }

    /// The recorded events that come in at one place, with their numbers in the whole run.
    pub fn events_at(&self, place: Instructions) -> Result<Vec<(u64, EventRecord<Instructions>)>, Error> {
        let first = self.shared.recording.log.counts_while(|at| at.count < place)?.0;
        let last = self.shared.recording.log.counts_while(|at| at.count <= place)?.0;
        (first..last).filter_map(|index| self.event_with_number(index).transpose()).collect()
    }

    /// The last recorded event at or before a place that fulfils a condition, with its number in the whole run.
    pub fn last_event(
        &self,
        place: Instructions,
        holds: impl Fn(&Event) -> bool,
    ) -> Result<Option<(u64, EventRecord<Instructions>)>, Error> {
        let behind = self.shared.recording.log.counts_while(|at| at.count <= place)?.0;
        for index in (0..behind).rev() {
            if let Some(found) = self.event_with_number(index)?.filter(|(_, record)| holds(&record.event)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn event_with_number(&self, index: usize) -> Result<Option<(u64, EventRecord<Instructions>)>, Error> {
        let recounted = self.shared.recording.recounted.as_deref();
        let number = recounted.map_or(index, |exits| exits.number_of(index));
        Ok(self.shared.recording.log.event(index)?.map(|record| (number as u64, record)))
    }
}
