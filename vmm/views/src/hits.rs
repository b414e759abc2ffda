//! Searches a recording for events, as `ttvm search` shows them.

use std::fmt::{Display, Formatter, Result as Written};
use std::sync::Arc;

use cpu::{AddressKind, SystemCalls, WatchKind};
use guest_symbols::NoKernel;
use history::timeline::{
    Breakpoint, Cause, Condition, Direction, Filter, Hit, Names, Poll, Stops, Timeline, TravelStop,
};
use machine::error::Error;
use machine::notation::PositionSpec;
use machine::position::{Count, Instructions};
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::filters::Filters;
use crate::guest_kernel::GuestKernels;
pub use crate::place::Place;
use crate::returns::{Joined, Met, Return};
use crate::system_calls::SystemCall;

/// The kernel function to which SYSCALL leads.
const ENTRY: &str = "entry_SYSCALL_64";
/// The largest number of system calls in progress at the start of a search.
const RETURNS_BEFORE: usize = 64;
/// The largest number of candidates that a search collects if its filter (`longer:`) needs all candidates.
const MOST_CANDIDATES: usize = 1_000_000;
/// A search for a system call's return goes over the first of these distances in steps. If the return is not found, the
/// search goes over the next distance, and so on.
const RETURN_STEPS: [u64; 5] = [100_000, 2_000_000, 30_000_000, 500_000_000, 4_000_000_000];

/// A search: the wanted events, and the part of the recording to search.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The condition, in a notation of [`history::timeline::CONDITIONS`]. The condition may name symbols of the guest's
    /// kernel.
    pub condition: &'a str,
    /// The filters of the events.
    pub filters: &'a Filters,
    /// Which places are wanted.
    pub wanted: Wanted,
    /// Whether each place in the result has the guest kernel's backtrace.
    pub backtrace: bool,
}

/// Which places of events a search lists.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The first hit from `from` on, in one direction.
    One {
        /// Where the search begins.
        from: Instructions,
        /// The direction of the search.
        direction: Direction,
    },
    /// All places in a part of the recording.
    All {
        /// The start of the part.
        from: Instructions,
        /// The end of the part.
        to: Instructions,
        /// The largest number of places in the list.
        limit: usize,
    },
}

/// The result of a search.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Found {
    /// The places, in the order of the run.
    pub hits: Vec<Place>,
    /// Steps executed to find the places.
    pub replayed: u64,
    /// Whether the poll function ended the search.
    pub interrupted: bool,
    /// The position where an interrupted search can continue. The search has found all hits before this position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_at: Option<u64>,
}

impl Wanted {
    fn from(self) -> Instructions {
        match self {
            Wanted::One { from, .. } | Wanted::All { from, .. } => from,
        }
    }

    /// The position at which the search ends.
    fn to(self, timeline: &Timeline) -> Instructions {
        match self {
            Wanted::One { from, direction: Direction::Backward } => from,
            Wanted::One { direction: Direction::Forward, .. } => timeline.end(),
            Wanted::All { to, .. } => to,
        }
    }
}

impl Search<'_> {
    /// Runs the search. The search changes the timeline's position, and the stops that are set in the timeline.
    pub fn run(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Found, Error> {
        let from = self.wanted.from();
        self.filters.check(timeline.machine())?;
        let condition = self.condition.parse::<Condition>();
        let of_calls = condition.as_ref().is_ok_and(|Condition(stops)| waits_for_calls(stops));
        if self.filters.longer_ns.is_some() && !of_calls {
            return Err(Error::Position("longer: is a filter for system calls only".to_string()));
        }
        let needs_kernel = self.backtrace || condition.is_err() || of_calls || self.filters.choose_threads();
        let mut kernels = GuestKernels::default();
        if matches!(self.wanted, Wanted::All { .. }) || needs_kernel {
            // Finds the guest's kernel. At the recording's start there is no kernel yet, so the search for the kernel
            // is at the end.
            let place = if from == Instructions(0) { timeline.end() } else { from };
            if timeline.seek(place, poll)? == TravelStop::Interrupted {
                return Ok(Found::interrupted_before(from));
            }
            match GuestKernels::of(timeline, place.max(self.wanted.to(timeline)), poll) {
                Err(Error::Interrupted) => return Ok(Found::interrupted_before(from)),
                found => kernels = found?,
            }
        }
        if self.backtrace {
            can_trace_back(timeline, &kernels)?;
        }
        let kernels = Arc::new(kernels);
        let read = |names: &dyn Names| Condition::parse(self.condition, names).map(|Condition(stops)| stops);
        let stops = condition.map(|Condition(stops)| stops).or_else(|_| kernels.stops(read));
        let mut stops = stops.map_err(Error::Position)?;
        let returns = of_calls && kernels.all().iter().any(|kernel| kernel.call_return.is_some());
        if self.filters.choose_threads() || self.filters.choose_processors() {
            stops.only = Some(self.only(kernels.clone(), returns)?);
        }
        if self.filters.longer_ns.is_some() && !returns {
            let why = "ttvm cannot find where this kernel's system calls return, so leave longer: out";
            return Err(Error::Position(why.to_string()));
        }
        let asked = Asked { search: self, kernels, returns, stops };
        match self.wanted {
            Wanted::One { from, direction } if self.filters.longer_ns.is_none() => {
                asked.one(timeline, from, direction, poll)
            }
            Wanted::One { from, direction } => asked.one_of_all(timeline, from, direction, poll),
            Wanted::All { from, to, limit } => asked.all(timeline, (from, to), limit, poll),
        }
    }

    /// The filter for threads and processors, from `pid:`, `comm:` and `cpu:`. `returns` is true if the search also
    /// stops where system calls return.
    fn only(&self, kernels: Arc<GuestKernels>, returns: bool) -> Result<Filter, Error> {
        let filters = self.filters.clone();
        if filters.choose_threads() && kernels.all().is_empty() {
            return Err(Error::Position(format!("there are no processes to choose from: {NoKernel}")));
        }
        Ok(Filter::new(move |machine: &Machine<Instructions>| {
            // A system call may return on another processor.
            let is_return = || returns && Return::is_at(machine, &kernels);
            (filters.admit_processor(machine.cpu().seat()) || is_return())
                && (!filters.choose_threads() || filters.admit(kernels.thread(machine).as_ref()))
        }))
    }
}

/// A search, with the data that it needs to describe its results.
struct Asked<'a> {
    search: &'a Search<'a>,
    kernels: Arc<GuestKernels>,
    /// Whether to look for the returns of system calls, too.
    returns: bool,
    stops: Stops,
}

impl Asked<'_> {
    fn all(
        &self,
        timeline: &mut Timeline,
        (from, to): (Instructions, Instructions),
        limit: usize,
        poll: &mut Poll<'_>,
    ) -> Result<Found, Error> {
        let before = timeline.replayed_steps();
        let (mut stops, longer_ns) = (self.stops.clone(), self.search.filters.longer_ns);
        if self.returns {
            Return::join(&self.kernels, &mut stops);
        }
        timeline.set_stops(stops);
        let look = |machine: &Machine<Instructions>, hit: Hit| self.met(machine, hit);
        let mut joined = Joined::new(longer_ns, limit);
        let mut hand_on = |rows: Vec<Met>| {
            rows.into_iter().for_each(|row| joined.take(row));
            Ok(())
        };
        // Each call has one return. Calls may be in progress at the beginning of the search, and their returns are
        // found too.
        let rows = match (self.returns, longer_ns) {
            (_, Some(_)) => usize::MAX,
            (true, None) => limit.saturating_mul(2).saturating_add(RETURNS_BEFORE),
            (false, None) => limit,
        };
        let edge = timeline.each_hit(from..to, rows, &look, &mut hand_on, poll)?.map(Count::number);
        let replayed = timeline.replayed_steps() - before;
        let at_end =
            (to >= timeline.end()).then(|| timeline.time_at(PositionSpec::End)).transpose()?.flatten();
        let hits = joined.finish(at_end.unwrap_or(0));
        Ok(Found { hits, replayed, interrupted: edge.is_some(), goes_on_at: edge })
    }

    /// Finds one place under the filter `longer:`, which needs the complete list of calls and returns.
    fn one_of_all(
        &self,
        timeline: &mut Timeline,
        from: Instructions,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<Found, Error> {
        let part = match direction {
            Direction::Forward => (from, timeline.end()),
            Direction::Backward => (Instructions(0), from),
        };
        let mut found = self.all(timeline, part, MOST_CANDIDATES, poll)?;
        let chosen = match direction {
            Direction::Forward => found.hits.drain(..).next(),
            Direction::Backward => found.hits.pop(),
        };
        Ok(Found { hits: chosen.into_iter().collect(), ..found })
    }

    fn one(
        &self,
        timeline: &mut Timeline,
        from: Instructions,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<Found, Error> {
        // The search begins at `from`. The steps of the way to `from` are not counted in `replayed`.
        if timeline.seek(from, poll)? == TravelStop::Interrupted {
            return Ok(Found::interrupted_before(from));
        }
        timeline.set_stops(self.stops.clone());
        let before = timeline.replayed_steps();
        let stop = match direction {
            Direction::Forward => timeline.run_forward(poll)?,
            Direction::Backward => timeline.run_backward(poll)?,
        };
        let interrupted = stop == TravelStop::Interrupted;
        let goes_on_at = interrupted.then(|| timeline.position().number());
        let hits = match stop {
            TravelStop::Hit(cause) => vec![self.place_here(timeline, cause, direction, poll)?],
            _ => Vec::new(),
        };
        let replayed = timeline.replayed_steps() - before;
        Ok(Found { hits, replayed, interrupted, goes_on_at })
    }

    /// Describes the event at the timeline's position. Replays the event's step again for details that are visible only
    /// in this step, and looks for the return of a system call.
    fn place_here(
        &self,
        timeline: &mut Timeline,
        cause: Cause,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<Place, Error> {
        let here = timeline.position();
        let begin = if direction == Direction::Forward { here.saturating_back(1) } else { here };
        let mut seen = None;
        // With several processors, only a replay of the event's step shows which processor executes the step.
        let are_several = timeline.machine().processors() > 1 && !matches!(cause, Cause::Breakpoint(_));
        if are_several || matches!(cause, Cause::SystemCall(_) | Cause::Watch { .. }) {
            let look = |machine: &Machine<Instructions>, hit: Hit| (hit.processor, self.met(machine, hit));
            seen = timeline.hits_seen(begin, begin + 1, 1, &look, poll)?.found.into_iter().next();
        }
        let machine = timeline.machine();
        let processor = seen.as_ref().and_then(|(number, _)| machine.processor_at(*number));
        let processor = processor.unwrap_or_else(|| machine.running_processor());
        let mut place = Place::of(&processor, here, cause, &self.kernels, self.search.backtrace);
        place.rip = Some(format!("{:#x}", processor.state().rip));
        if let Some((_, Met::Place(seen, time_ns))) = seen {
            (place.call, place.old, place.new) = (seen.call, seen.old, seen.new);
            self.find_return(timeline, begin + 1, time_ns, &mut place, poll)?;
        }
        Ok(place)
    }

    /// Looks for the return of a system call that was entered before `from`.
    fn find_return(
        &self,
        timeline: &mut Timeline,
        mut from: Instructions,
        entered_ns: u64,
        place: &mut Place,
        poll: &mut Poll<'_>,
    ) -> Result<(), Error> {
        let kernel = self.kernels.at(timeline.machine()).filter(|_| self.returns && place.call.is_some());
        let (Some(kernel), Some(thread)) = (kernel, place.pid) else { return Ok(()) };
        let Some(at) = kernel.call_return else { return Ok(()) };
        timeline.set_stops(Stops { breakpoints: vec![Breakpoint::at(at)], ..Stops::default() });
        let look = |machine: &Machine<Instructions>, _: Hit| Return::seen(machine, kernel);
        for steps in RETURN_STEPS {
            let to = timeline.end().min(from.saturating_add(steps));
            let seen = timeline.hits_seen(from, to, usize::MAX, &look, poll)?;
            if let Some(found) = seen.found.into_iter().flatten().find(|found| found.thread == thread) {
                let seconds = found.time_ns.saturating_sub(entered_ns) as f64 / 1e9;
                let (result, arguments) = (found.result, &found.arguments);
                place.call = place.call.take().map(|call| call.returned(result, seconds, arguments));
                break;
            }
            if seen.interrupted_at.is_some() || to == timeline.end() {
                break;
            }
            from = to;
        }
        timeline.set_stops(self.stops.clone());
        Ok(())
    }

    fn met(&self, machine: &Machine<Instructions>, hit: Hit) -> Met {
        if let (Cause::Breakpoint(at), true) = (hit.cause, self.returns)
            && let Some(kernel) = self.kernels.at(machine).filter(|kernel| kernel.call_return == Some(at))
        {
            return Return::seen(machine, kernel).map_or(Met::Nothing, Met::Return);
        }
        let processor = machine.processor_at(hit.processor);
        let processor = processor.unwrap_or_else(|| machine.running_processor());
        let mut place = Place::of(&processor, hit.before, hit.cause, &self.kernels, self.search.backtrace);
        match hit.cause {
            Cause::SystemCall(number) if self.is_64_bit_call(&processor) => {
                place.call = Some(SystemCall::entered(&processor, number));
            }
            Cause::Watch { address, .. } => (place.old, place.new) = values(&processor, address),
            _ => {}
        }
        Met::Place(Box::new(place), machine.moment().time_ns)
    }

    /// Whether the guest entered the system call by SYSCALL. Other instructions for system calls have other call
    /// numbers and arguments.
    fn is_64_bit_call(&self, processor: &Processor<'_, Instructions>) -> bool {
        let kernel = self.kernels.at(processor.machine());
        let entry = kernel.and_then(|kernel| kernel.symbols.address_of(ENTRY));
        entry == Some(processor.state().rip)
    }
}

/// The values before and after the write that was just made to an address.
fn values(processor: &Processor<'_, Instructions>, address: u64) -> (Option<String>, Option<String>) {
    let machine = processor.machine();
    let written = machine.cpu().hits().iter().find_map(|hit| match hit {
        cpu::Hit::Watch(hit) if hit.address == address && hit.kind == WatchKind::Write => Some(*hit),
        _ => None,
    });
    let Some(hit) = written else { return (None, None) };
    let mut bytes = [0; 8];
    let to = &mut bytes[..usize::from(hit.length).min(8)];
    let wanted = to.len();
    let count = match hit.watchpoint.space {
        AddressKind::Linear => processor.peek(address, to),
        AddressKind::Physical => machine.read_physical(address, to),
    };
    let hex = |value: u64| format!("{value:#x}");
    (hit.old.map(hex), (count == wanted).then(|| hex(u64::from_le_bytes(bytes))))
}

/// Whether the stops include entries of system calls.
fn waits_for_calls(stops: &Stops) -> bool {
    stops.traps.system_calls != SystemCalls::default()
}

impl Found {
    /// The result of a search that was interrupted at its beginning.
    pub fn interrupted_before(from: Instructions) -> Found {
        Found { hits: Vec::new(), replayed: 0, interrupted: true, goes_on_at: Some(from.number()) }
    }
}

/// Refuses a request for backtraces at places that can have no backtrace.
fn can_trace_back(timeline: &Timeline, kernels: &GuestKernels) -> Result<(), Error> {
    let none = |why: &dyn Display| Error::Position(format!("there are no backtraces to show: {why}"));
    let kernel = kernels.at(timeline.machine()).or(kernels.all().last()).ok_or_else(|| none(&NoKernel))?;
    kernel.backtrace(timeline.machine()).map(drop).map_err(|missing| none(&missing))
}

/// The text for people.
impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut lines: Vec<String> = self.hits.iter().flat_map(Place::lines).collect();
        if let Some(at) = self.goes_on_at {
            lines.push(format!("interrupted: go on with --from insn:{at}"));
        } else if lines.is_empty() {
            lines.push("nowhere in that part of the recording".to_string());
        }
        f.write_str(&lines.join("\n"))
    }
}
