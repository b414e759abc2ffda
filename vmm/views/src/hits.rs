//! Where in a recording something happens, as `ttvm search` shows it.

use std::fmt::{Display, Formatter, Result as Written};

use guest_symbols::NoKernel;
use history::timeline::{Cause, Condition, Direction, Hit, Poll, Timeline, TravelStop};
use machine::Machine;
use machine::error::Error;
use machine::position::{Count, Instructions};
use serde::Serialize;

use crate::guest_kernel::{Backtrace, GuestKernel};

/// What to look for, and where.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// What: see [`history::timeline::CONDITIONS`]. It may name symbols of the guest's kernel.
    pub condition: &'a str,
    /// Which places are wanted.
    pub wanted: Wanted,
    /// Whether each place comes with the functions of the guest's kernel that have called one another.
    pub backtrace: bool,
}

/// Which places are wanted.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The next one in this direction.
    One {
        /// Where the search begins.
        from: Instructions,
        /// Where it goes.
        direction: Direction,
    },
    /// All in a part of the recording.
    All {
        /// Where it begins.
        from: Instructions,
        /// Where it ends.
        to: Instructions,
        /// The list ends after so many.
        limit: usize,
    },
}

/// What a search has found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The places, in the order of the run.
    pub hits: Vec<Place>,
    /// Steps that were executed to find them.
    pub replayed: u64,
    /// Whether the poll function ended the search.
    pub interrupted: bool,
    /// Where an interrupted search goes on: nothing before it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_at: Option<u64>,
}

/// A place where something happens.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// Instructions before it.
    pub instruction: u64,
    /// What happens.
    pub what: String,
    /// The guest's time.
    pub guest_seconds: f64,
    /// The instruction's address in hex, if this is the only place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rip: Option<String>,
    /// The thread that runs there, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// That thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who called whom, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<Backtrace>,
}

impl Wanted {
    fn from(self) -> Instructions {
        match self {
            Wanted::One { from, .. } | Wanted::All { from, .. } => from,
        }
    }
}

impl Search<'_> {
    /// Searches. The timeline's position and stops are others afterwards.
    pub fn run(&self, timeline: &mut Timeline, poll: &mut Poll<'_>) -> Result<Found, Error> {
        let from = self.wanted.from();
        let condition = self.condition.parse::<Condition>();
        let mut kernel = None;
        if matches!(self.wanted, Wanted::All { .. }) || self.backtrace || condition.is_err() {
            // What the guest's kernel says of itself. At the very start there is no kernel yet that could be asked.
            let place = if from == Instructions(0) { timeline.end() } else { from };
            if timeline.seek(place, poll)? == TravelStop::Interrupted {
                return Ok(Found::interrupted_before(from));
            }
            kernel = GuestKernel::of_guest(timeline.machine()).ok();
        }
        if self.backtrace {
            can_trace_back(timeline, kernel.as_ref())?;
        }
        let named = |kernel: &GuestKernel| Condition::parse(self.condition, &kernel.symbols);
        let condition = condition.or_else(|why| kernel.as_ref().map_or(Err(why), named));
        timeline.set_stops(condition.map_err(Error::Position)?.0);
        match self.wanted {
            Wanted::One { from, direction } => self.one(timeline, from, direction, kernel.as_ref(), poll),
            Wanted::All { from, to, limit } => self.all(timeline, (from, to), limit, kernel.as_ref(), poll),
        }
    }

    fn all(
        &self,
        timeline: &mut Timeline,
        (from, to): (Instructions, Instructions),
        limit: usize,
        kernel: Option<&GuestKernel>,
        poll: &mut Poll<'_>,
    ) -> Result<Found, Error> {
        let before = timeline.replayed_steps();
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            Place::of(machine, hit.before, hit.cause, kernel, self.backtrace)
        };
        let hits = timeline.hits_seen(from, to, limit, &look, poll)?;
        let edge = hits.interrupted_at.map(Count::number);
        let replayed = timeline.replayed_steps() - before;
        Ok(Found { hits: hits.found, replayed, interrupted: edge.is_some(), goes_on_at: edge })
    }

    fn one(
        &self,
        timeline: &mut Timeline,
        from: Instructions,
        direction: Direction,
        kernel: Option<&GuestKernel>,
        poll: &mut Poll<'_>,
    ) -> Result<Found, Error> {
        // A search backward restores states before `from` and need not stand there; a checkpoint at the end is
        // enough.
        if timeline.seek(from, poll)? == TravelStop::Interrupted {
            return Ok(Found::interrupted_before(from));
        }
        let before = timeline.replayed_steps();
        let stop = match direction {
            Direction::Forward => timeline.run_forward(poll)?,
            Direction::Backward => timeline.run_backward(poll)?,
        };
        let replayed = timeline.replayed_steps() - before;
        let hits = match stop {
            TravelStop::Hit(cause) => vec![self.place_here(timeline, cause, kernel)],
            _ => Vec::new(),
        };
        let interrupted = stop == TravelStop::Interrupted;
        let goes_on_at = interrupted.then(|| timeline.position().number());
        Ok(Found { hits, replayed, interrupted, goes_on_at })
    }

    fn place_here(&self, timeline: &Timeline, cause: Cause, kernel: Option<&GuestKernel>) -> Place {
        let machine = timeline.machine();
        let place = Place::of(machine, timeline.position(), cause, kernel, self.backtrace);
        Place { rip: Some(format!("{:#x}", machine.cpu().rip())), ..place }
    }
}

impl Found {
    /// The search was interrupted before anything was looked at.
    pub fn interrupted_before(from: Instructions) -> Found {
        Found { hits: Vec::new(), replayed: 0, interrupted: true, goes_on_at: Some(from.number()) }
    }
}

impl Place {
    /// Where a machine stands, which is at what is named by `instruction`.
    fn of(
        machine: &Machine<Instructions>,
        instruction: Instructions,
        cause: Cause,
        kernel: Option<&GuestKernel>,
        with_backtrace: bool,
    ) -> Place {
        let thread = kernel.and_then(|kernel| kernel.thread(machine));
        Place {
            instruction: instruction.number(),
            what: cause.told(kernel.map(|kernel| &kernel.symbols)),
            guest_seconds: machine.moment().time_ns as f64 / 1e9,
            rip: None,
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            backtrace: kernel.filter(|_| with_backtrace).and_then(|kernel| kernel.backtrace(machine).ok()),
        }
    }

    fn lines(&self) -> Vec<String> {
        let rip = self.rip.as_ref().map(|rip| format!("rip {rip}, ")).unwrap_or_default();
        let mut line = format!("insn:{}  {}  {rip}{:.9} s", self.instruction, self.what, self.guest_seconds);
        if let (Some(pid), Some(name)) = (self.pid, &self.name) {
            line += &format!("  {pid} ({name})");
        }
        let calls = self.backtrace.iter().flat_map(Backtrace::lines).map(|call| format!("    {call}"));
        [line].into_iter().chain(calls).collect()
    }
}

/// Refuses what no place could show.
fn can_trace_back(timeline: &Timeline, kernel: Option<&GuestKernel>) -> Result<(), Error> {
    let none = |why: &dyn Display| Error::Position(format!("there are no backtraces to show: {why}"));
    let kernel = kernel.ok_or_else(|| none(&NoKernel))?;
    kernel.backtrace(timeline.machine()).map(drop).map_err(|missing| none(&missing))
}

/// For people.
impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut lines: Vec<String> = self.hits.iter().flat_map(Place::lines).collect();
        if let Some(at) = self.goes_on_at {
            lines.push(format!("interrupted: --from insn:{at} goes on"));
        } else if lines.is_empty() {
            lines.push("nowhere in that part of the recording".to_string());
        }
        f.write_str(&lines.join("\n"))
    }
}
