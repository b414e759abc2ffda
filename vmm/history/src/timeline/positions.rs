//! Resolves notations of positions in a recording.

use super::stops::{Stops, TravelStop};
use super::travel::Timeline;
use super::walker::{Walked, Walker};
use crate::panicked::panic_on_console;
use crate::workers::Poll;
use guest_symbols::reports::Kind;
use machine::Machine;
use machine::console_tail::PANIC_BEGIN;
use machine::error::Error;
use machine::notation::{Distance, PositionSpec};
use machine::position::{Count, Instructions, Moment};
use recording::checkpoints::CheckpointHead;
use recording::log::{EndRecord, EventRecord};

/// The replay reads the measure after each slice. `SLICE_STEPS` is the length in steps of a slice in the coarsest
/// pass. A slice of the next finer pass is `SLICE_FACTOR` times shorter. `SLICE_STEPS` is a power of
/// `SLICE_FACTOR`.
const SLICE_STEPS: u64 = 1 << 24;
const SLICE_FACTOR: u64 = 1 << 2;

/// A number that never decreases during a run, such as the count of branches. The number can be read from a machine
/// and from a checkpoint's head.
struct Measure {
    of_machine: fn(&Machine<Instructions>) -> u64,
    of_head: fn(&CheckpointHead<Instructions>) -> u64,
}

static BRANCHES: Measure =
    Measure { of_machine: |machine| machine.cpu().branches(), of_head: |head| head.branches };
static SYSTEM_CALLS: Measure =
    Measure { of_machine: |machine| machine.cpu().system_calls(), of_head: |head| head.system_calls };
static TIME: Measure =
    Measure { of_machine: |machine| machine.moment().time_ns, of_head: |head| head.at.time_ns };

/// The meaning of a notation.
enum Meaning {
    /// The place at this count of instructions.
    Place(Instructions),
    /// The first place where a measure has reached a number. The text is the place's name in messages.
    Reached(&'static Measure, u64, String),
    /// The place after the entry of the last system call. The number of this system call is unknown.
    LastSystemCall,
    /// The kernel's panic, in a run that went on after the panic.
    Panic,
    /// A report of the guest's kernel.
    Report(Wanted),
    /// The instruction that led to the last oops or panic before a place.
    Fault(Instructions),
}

/// Which report of the guest's kernel a notation means.
enum Wanted {
    FirstOops,
    Numbered(u64),
}

fn beyond(what: &str) -> Error {
    Error::Position(format!("the recording ends before {what}"))
}

/// The position at this distance after a moment.
fn after(moment: Moment<Instructions>, distance: Distance) -> PositionSpec {
    match distance {
        Distance::Instructions(number) => {
            PositionSpec::Instruction(moment.count.number().saturating_add(number))
        }
        Distance::Nanoseconds(ns) => PositionSpec::Nanoseconds(moment.time_ns.saturating_add(ns)),
    }
}

impl Timeline {
    /// Resolves a notation on the command line, where distances are from the recording's start or end. If the machine
    /// must run to find the place, the machine stays at the place, so that a later seek takes no time.
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
        let meaning = match spec {
            PositionSpec::Fault => Meaning::Fault(last.count),
            spec => self.meaning(spec)?,
        };
        self.find(meaning, poll)
    }

    /// Resolves a notation in gdb, where distances are from the timeline's present place. If the machine must run to
    /// find the place, the machine then returns to the present place.
    pub fn resolve(&mut self, spec: PositionSpec, poll: &mut Poll<'_>) -> Result<Instructions, Error> {
        let meaning = self.meaning(spec)?;
        if let Meaning::Place(at) = meaning {
            return Ok(at);
        }
        self.must_be_history()?;
        let begun = self.snapshot()?;
        let found = self.find(meaning, poll);
        self.return_to(&begun)?;
        found
    }

    /// The meaning of a notation at the timeline's present place.
    fn meaning(&self, spec: PositionSpec) -> Result<Meaning, Error> {
        let (here, end) = (self.machine().moment(), self.end());
        Ok(match spec {
            PositionSpec::Start => Meaning::Place(Instructions(0)),
            PositionSpec::End => Meaning::Place(end),
            PositionSpec::Panic => self.panic.map_or(Meaning::Panic, Meaning::Place),
            PositionSpec::Oops => Meaning::Report(Wanted::FirstOops),
            PositionSpec::Report(number) => Meaning::Report(Wanted::Numbered(number)),
            PositionSpec::Fault => Meaning::Fault(here.count),
            PositionSpec::Event(number) => Meaning::Place(self.event(number)?.count),
            PositionSpec::Instruction(number) if Instructions(number) <= end => {
                Meaning::Place(Instructions(number))
            }
            PositionSpec::Instruction(number) => {
                return Err(beyond(&format!("instruction {number}: it has {end}")));
            }
            PositionSpec::Percent(percent) => {
                Meaning::Place(Instructions((end.number() as f64 * percent / 100.0) as u64))
            }
            PositionSpec::Branch(count) => Meaning::Reached(&BRANCHES, count, format!("branch {count}")),
            PositionSpec::SystemCall(count) => {
                Meaning::Reached(&SYSTEM_CALLS, count, format!("system call {count}"))
            }
            PositionSpec::Nanoseconds(ns) => {
                let what = format!("{} s", ns as f64 / 1e9);
                if ns < self.begins_ns() {
                    return Err(self.before_part(&what));
                }
                Meaning::Reached(&TIME, ns, what)
            }
            PositionSpec::LastSystemCall => Meaning::LastSystemCall,
            PositionSpec::Before(distance) => self.meaning(self.before(here, distance)?)?,
            PositionSpec::After(distance) => self.meaning(after(here, distance))?,
        })
    }

    /// Finds the place. If the machine must run to find the place, the machine stays where the search ended.
    fn find(&mut self, meaning: Meaning, poll: &mut Poll<'_>) -> Result<Instructions, Error> {
        let (measure, wanted, what) = match meaning {
            Meaning::Place(at) => return Ok(at),
            Meaning::Reached(measure, wanted, what) => (measure, wanted, what),
            Meaning::Panic => return self.panic_after_which_it_went_on(poll),
            Meaning::Report(wanted) => return self.report(wanted, poll),
            Meaning::Fault(before) => return self.fault_before(before, poll),
            Meaning::LastSystemCall => {
                self.seek(self.end(), poll)?.unless_interrupted()?;
                let count = self.machine().cpu().system_calls();
                if count == 0 {
                    return Err(Error::Position("the recording has no system call".into()));
                }
                (&SYSTEM_CALLS, count, format!("system call {count}"))
            }
        };
        if let Some(place) = self.first_reached(measure, wanted, poll)? {
            return Ok(place);
        }
        // The replay has reached the last count. The guest may be idle there until the log ends, so the wanted time may
        // be reached at this count.
        let end_ns = self.shared.recording.log.last_moment().time_ns;
        if std::ptr::eq(measure, &TIME) && wanted <= end_ns {
            return Ok(self.end());
        }
        Err(beyond(&if std::ptr::eq(measure, &TIME) {
            format!("{what}: it ends at {} s", end_ns as f64 / 1e9)
        } else {
            format!("{what}: it has {}", (measure.of_machine)(self.machine()))
        }))
    }

    /// The position at this distance before a moment.
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

    /// The guest time of a notation's event, or of the recording's end. The guest may be idle at the event's place, so
    /// the guest may reach this place long before the time.
    pub fn time_at(&self, spec: PositionSpec) -> Result<Option<u64>, Error> {
        Ok(match spec {
            PositionSpec::Event(number) => Some(self.event(number)?.time_ns),
            PositionSpec::End => Some(self.shared.recording.log.last_moment().time_ns),
            _ => None,
        })
    }

    /// Lets the guest idle at its present place until the time of a notation's event ([`Timeline::time_at`]). Callers
    /// can then read the machine in this state. No position identifies this state. So the only possible movement of the
    /// timeline is a seek to another position.
    pub fn idle_at(&mut self, spec: PositionSpec) -> Result<(), Error> {
        let Some(time_ns) = self.time_at(spec)? else { return Ok(()) };
        let Walker { machine, player, .. } = &mut self.walker;
        machine.idle_to(time_ns, player)?;
        if spec == PositionSpec::End && self.shared.recording.log.end.is_some() {
            machine.take_due(player)?;
        }
        Ok(())
    }

    /// The next recorded event that the machine takes, if the machine replays the recording from here. `None` in a
    /// scratch fork, and after the last event.
    pub fn next_event(&self) -> Result<Option<EventRecord<Instructions>>, Error> {
        if self.fork.is_some() {
            return Ok(None);
        }
        let (now, log) = (self.machine().moment(), &self.shared.recording.log);
        // The machine takes the first event, power-on, when it is built.
        let (taken, _) = log.counts_while(|at| at < now)?;
        log.event(taken.max(1))
    }

    /// The end of the recording with its outcome, if the recording has an end, and the timeline is not in a scratch fork.
    pub fn recorded_end(&self) -> Option<&EndRecord<Instructions>> {
        self.shared.recording.log.end.as_ref().filter(|_| self.fork.is_none())
    }

    /// The moment of an event, by its number in the whole run.
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

    /// The place where the last panic's report begins, on the console or in the kernel's log. The function is
    /// for a guest that reset itself after the panic, or went on with a crash kernel. The machine stays where
    /// the search ended.
    fn panic_after_which_it_went_on(&mut self, poll: &mut Poll<'_>) -> Result<Instructions, Error> {
        self.seek(self.end(), poll)?.unless_interrupted()?;
        if panic_on_console(self.machine()).is_some() {
            let panic = Stops { console: Some(PANIC_BEGIN.to_vec()), ..Stops::default() };
            let stops = std::mem::replace(&mut self.stops, panic);
            let stop = self.run_backward(poll);
            self.stops = stops;
            match stop? {
                TravelStop::Hit(_) => return Ok(self.position()),
                TravelStop::Interrupted => return Err(Error::Interrupted),
                _ => {}
            }
        }
        let reports = self.reports(poll)?;
        let last = reports.iter().rfind(|report| report.kind == Kind::Panic);
        let none = || Error::Position("the guest did not panic in this recording".into());
        last.map(|report| report.at).ok_or_else(none)
    }

    fn report(&mut self, wanted: Wanted, poll: &mut Poll<'_>) -> Result<Instructions, Error> {
        let reports = self.reports(poll)?;
        let found = match wanted {
            Wanted::FirstOops => reports.iter().find(|report| report.kind == Kind::Oops),
            Wanted::Numbered(number) => {
                let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
                reports.get(index)
            }
        };
        let none = || match wanted {
            Wanted::FirstOops => "the guest's kernel has no oops in this recording".to_string(),
            Wanted::Numbered(number) => {
                format!(
                    "the recording has no report {number} of the guest's kernel: it has {}",
                    reports.len()
                )
            }
        };
        found.map(|report| report.at).ok_or_else(|| Error::Position(none()))
    }

    /// The guest time at which the opened part begins.
    fn begins_ns(&self) -> u64 {
        self.shared.begins_ns
    }

    fn before_part(&self, what: &str) -> Error {
        let seconds = self.begins_ns() as f64 / 1e9;
        Error::Position(format!(
            "{what} is before the part that is open, which begins at {seconds:.6} s; use a \
            longer --last"
        ))
    }

    /// The last restorable place where a condition is true (or the run's beginning), and the first restorable place
    /// where it is false. A restorable place has a checkpoint or a snapshot. The second result is `None` if the
    /// condition is true at all these places.
    fn around(
        &self,
        holds: impl Fn(&CheckpointHead<Instructions>) -> bool,
    ) -> (Instructions, Option<Instructions>) {
        let heads = || self.checkpoints().into_iter().flat_map(|checkpoints| checkpoints.heads());
        let before = heads().take_while(|(_, head)| holds(head)).last();
        let behind = heads().find(|(_, head)| !holds(head));
        let near = self.shared.snapshots.around(&holds);
        let low = before.map(|(&at, _)| at).into_iter().chain(near.0).max();
        let high = behind.map(|(&at, _)| at).into_iter().chain(near.1).min();
        (low.unwrap_or(Instructions(0)), high)
    }

    /// The first place where a measure has reached `wanted`. The machine is then at this place. Checkpoints and
    /// snapshots narrow down the range. The range is replayed from its beginning in slices, with a snapshot at each
    /// slice's beginning. The slice that contains the place is replayed again in finer slices.
    fn first_reached(
        &mut self,
        measure: &Measure,
        wanted: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        if wanted == 0 {
            return Ok(Some(Instructions(0)));
        }
        let (mut low, known) = self.around(|head| (measure.of_head)(head) < wanted);
        let high = known.unwrap_or(self.end());
        self.seek(low, poll)?.unless_interrupted()?;
        self.shared.begin(high - low);
        let mut slice = SLICE_STEPS;
        while (measure.of_machine)(self.machine()) < wanted {
            low = self.position();
            if low >= high {
                return Ok(None);
            }
            self.walker.leave_snapshot()?;
            // A slice that ends at or beyond `known` need not be replayed, because the measure has reached `wanted`
            // at `known`.
            while slice > 1 && known.is_some_and(|known| known <= low + slice) {
                slice /= SLICE_FACTOR;
            }
            loop {
                let walked = self.walker.advance(high.min(low + slice), u64::MAX, poll)?;
                if walked == Walked::Interrupted || poll() {
                    return Err(Error::Interrupted);
                }
                if slice == 1 || (measure.of_machine)(self.machine()) < wanted {
                    break;
                }
                slice /= SLICE_FACTOR;
                self.seek(low, poll)?.unless_interrupted()?;
            }
        }
        Ok(Some(self.position()))
    }
}
