//! What the notations of positions mean in a recording.

use super::travel::Timeline;
use super::walker::{Poll, Walked, Walker};
use crate::error::Error;
use crate::machine::Machine;
use crate::notation::{Distance, PositionSpec};
use crate::position::{Count, Instructions, Moment};
use crate::recording::checkpoints::CheckpointHead;

/// Steps between two looks at a measure while it is far from what is wanted, and the factor to the next finer
/// ones. The first is a power of the second.
const SLICE_STEPS: u64 = 1 << 24;
const SLICE_FACTOR: u64 = 1 << 2;

/// A number that only grows along a run, as a machine and the head of a checkpoint have it.
struct Measure {
    of_machine: fn(&Machine<Instructions>) -> u64,
    of_head: fn(&CheckpointHead<Instructions>) -> u64,
}

const BRANCHES: Measure =
    Measure { of_machine: |machine| machine.cpu().branches(), of_head: |head| head.branches };
const SYSTEM_CALLS: Measure =
    Measure { of_machine: |machine| machine.cpu().system_calls(), of_head: |head| head.system_calls };
const TIME: Measure =
    Measure { of_machine: |machine| machine.moment().time_ns, of_head: |head| head.at.time_ns };

/// The place so far after a moment.
fn after(moment: Moment<Instructions>, distance: Distance) -> PositionSpec {
    match distance {
        Distance::Instructions(number) => {
            PositionSpec::Instruction(moment.count.number().saturating_add(number))
        }
        Distance::Nanoseconds(ns) => PositionSpec::Nanoseconds(moment.time_ns.saturating_add(ns)),
    }
}

impl Timeline {
    /// The place that a notation means to someone who has only just opened the recording: a distance is one from an end
    /// of it.
    pub fn resolve_outside(
        &mut self,
        spec: PositionSpec,
        poll: &mut Poll<'_>,
    ) -> Result<Instructions, Error> {
        let log = &self.shared.recording.log;
        let first = Moment { count: Instructions(0), time_ns: self.begins_ns() };
        let last = Moment { count: self.end(), time_ns: log.last_moment().time_ns };
        let spec = match spec {
            PositionSpec::Before(distance) => self.before(last, distance)?,
            PositionSpec::After(distance) => after(first, distance),
            spec => spec,
        };
        self.resolve(spec, poll)
    }

    /// The place that a notation means where the timeline stands. For notations that count anything but instructions the
    /// machine runs to find it.
    pub fn resolve(&mut self, spec: PositionSpec, poll: &mut Poll<'_>) -> Result<Instructions, Error> {
        let (here, end) = (self.machine().moment(), self.end());
        let beyond = |what: String| Err(Error::Position(format!("the recording ends before {what}")));
        let (measure, wanted, what) = match spec {
            PositionSpec::Start => return Ok(Instructions(0)),
            PositionSpec::End => return Ok(end),
            PositionSpec::Panic => {
                let none = || Error::Position("the guest did not panic in this recording".into());
                return self.panic.ok_or_else(none);
            }
            PositionSpec::Event(number) => return Ok(self.event(number)?.count),
            PositionSpec::Instruction(number) if Instructions(number) <= end => {
                return Ok(Instructions(number));
            }
            PositionSpec::Instruction(number) => {
                return beyond(format!("instruction {number}: it has {end}"));
            }
            PositionSpec::Percent(percent) => {
                return Ok(Instructions((end.number() as f64 * percent / 100.0) as u64));
            }
            PositionSpec::Branch(count) => (BRANCHES, count, format!("branch {count}")),
            PositionSpec::SystemCall(count) => (SYSTEM_CALLS, count, format!("system call {count}")),
            PositionSpec::Nanoseconds(ns) if ns < self.begins_ns() => {
                return Err(self.before_part(&format!("{} s", ns as f64 / 1e9)));
            }
            PositionSpec::Nanoseconds(ns) => (TIME, ns, format!("{} s", ns as f64 / 1e9)),
            PositionSpec::LastSystemCall => {
                let count = self.system_calls_in_all(poll)?;
                if count == 0 {
                    return Err(Error::Position("the recording has no system call".into()));
                }
                (SYSTEM_CALLS, count, format!("system call {count}"))
            }
            PositionSpec::Before(distance) => return self.resolve(self.before(here, distance)?, poll),
            PositionSpec::After(distance) => return self.resolve(after(here, distance), poll),
        };
        match self.find(&measure, wanted, poll)? {
            Some(at) => Ok(at),
            None => beyond(what),
        }
    }

    /// The place so far before a moment.
    fn before(&self, moment: Moment<Instructions>, distance: Distance) -> Result<PositionSpec, Error> {
        let place = match distance {
            Distance::Instructions(number) => {
                moment.count.number().checked_sub(number).map(PositionSpec::Instruction)
            }
            Distance::Nanoseconds(ns) => moment.time_ns.checked_sub(ns).map(PositionSpec::Nanoseconds),
        };
        let none = || Error::Position(format!("the recording begins less than {distance} before {moment}"));
        place.ok_or_else(none)
    }

    /// How many system calls are entered in the whole recording.
    fn system_calls_in_all(&mut self, poll: &mut Poll<'_>) -> Result<u64, Error> {
        self.must_be_history()?;
        let begun = self.snapshot()?;
        let stop = self.seek(self.end(), poll)?;
        let count = self.machine().cpu().system_calls();
        self.return_to(&begun)?;
        stop.unless_interrupted()?;
        Ok(count)
    }

    /// When it is that something is at a notation's place, in guest time: an event that comes in, or the
    /// recording's end. The guest may idle there, and the place has been reached before.
    pub fn time_at(&self, spec: PositionSpec) -> Result<Option<u64>, Error> {
        Ok(match spec {
            PositionSpec::Event(number) => Some(self.event(number)?.time_ns),
            PositionSpec::End => Some(self.shared.recording.log.last_moment().time_ns),
            _ => None,
        })
    }

    /// Lets the time pass that the guest idles at a notation's place where it stands, up to what the notation
    /// names: see [`Timeline::time_at`]. For a look at the machine as it is then: no position names that
    /// state, and the timeline can only go elsewhere.
    pub fn idle_at(&mut self, spec: PositionSpec) -> Result<(), Error> {
        let Some(time_ns) = self.time_at(spec)? else { return Ok(()) };
        let Walker { machine, player, .. } = &mut self.walker;
        machine.idle_to(time_ns, player)?;
        if spec == PositionSpec::End && self.shared.recording.log.end.is_some() {
            machine.take_due(player)?;
        }
        Ok(())
    }

    /// When an event comes in, by its number in the whole run.
    fn event(&self, number: u64) -> Result<Moment<Instructions>, Error> {
        let recording = &self.shared.recording;
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let exits = recording.recounted.as_deref();
        let Some(index) = exits.map_or(Some(number), |exits| exits.index_of(number)) else {
            return Err(self.before_part(&format!("event {number}")));
        };
        let skipped = exits.map_or(0, |exits| exits.skipped);
        recording.log.event(index)?.map(|event| event.at).ok_or_else(|| {
            let count = recording.log.event_count() + skipped;
            Error::Position(format!("the recording ends before event {number}: it has {count}"))
        })
    }

    /// The guest time at which what is opened begins.
    fn begins_ns(&self) -> u64 {
        self.shared.begins_ns
    }

    fn before_part(&self, what: &str) -> Error {
        let seconds = self.begins_ns() as f64 / 1e9;
        Error::Position(format!("{what} lies before the part that is opened, which begins at {seconds:.6} s"))
    }

    /// The first place at which a measure has reached `wanted`. Checkpoints and the session's snapshots say between which of
    /// them that is; from there the run is replayed once, in slices, of which each begins with a snapshot, and the slice that
    /// has it again in finer ones.
    fn find(
        &mut self,
        measure: &Measure,
        wanted: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        if wanted == 0 {
            return Ok(Some(Instructions(0)));
        }
        self.must_be_history()?;
        let begun = self.snapshot()?;
        let found = self.run_to(measure, wanted, poll);
        self.return_to(&begun)?;
        found
    }

    /// Two places to which one can go at once, or the ends of the run: something holds up to some place between them.
    fn around(&self, holds: impl Fn(&CheckpointHead<Instructions>) -> bool) -> (Instructions, Instructions) {
        let heads = || self.checkpoints().into_iter().flat_map(|checkpoints| checkpoints.heads());
        let before = heads().take_while(|(_, head)| holds(head)).last();
        let behind = heads().find(|(_, head)| !holds(head));
        let near = self.shared.snapshots.around(&holds);
        let low = before.map(|(&at, _)| at).into_iter().chain(near.0).max();
        let high = behind.map(|(&at, _)| at).into_iter().chain(near.1).min();
        (low.unwrap_or(Instructions(0)), high.unwrap_or(self.end()))
    }

    /// As [`Timeline::find`], and stays wherever it looked last.
    fn run_to(
        &mut self,
        measure: &Measure,
        wanted: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        let (mut low, high) = self.around(|head| (measure.of_head)(head) < wanted);
        self.seek(low, poll)?.unless_interrupted()?;
        self.shared.begin(high - low);
        let mut slice = SLICE_STEPS;
        loop {
            if (measure.of_machine)(self.machine()) < wanted {
                low = self.position();
                if low >= high {
                    return Ok(None);
                }
                self.walker.leave_snapshot()?;
                let walked = self.walker.advance(high.min(low + slice), u64::MAX, poll)?;
                if walked == Walked::Interrupted || poll() {
                    return Err(Error::Interrupted);
                }
            } else if slice > 1 {
                slice /= SLICE_FACTOR;
                self.seek(low, poll)?.unless_interrupted()?;
            } else {
                return Ok(Some(self.position()));
            }
        }
    }
}
