//! The timeline owns the current position in a recording. The caller gives a place, and the timeline decides how to get
//! there.
//!
//! Going forward means running. Going backward means restoring the nearest earlier state, and running forward from
//! there. The earlier state is one of the recording's checkpoints, or a snapshot of this session. Snapshots are dense
//! around the present place, so that the next step back replays little.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use checkpoint::{Entry, Store};
use cpu::Watchpoint;
use guest_ram::PAGE_SIZE;

use crate::replay::last_place;
use crate::timeline::fork::Fork;
use crate::timeline::kernels::Known;
use crate::timeline::report::Report;
use crate::timeline::search::{
    ALONE, ALONE_STEPS, ALONE_STEPS_AT_FIRST, Direction, Interval, Keep, Look, Question, the_hit,
};
use crate::timeline::settler::Settler;
use crate::timeline::shared::{FastForward, Movement, Shared};
use crate::timeline::snapshot::Snapshots;
use crate::timeline::stops::{Armed, Breakpoint, Hit, Stops, TravelStop, Watch};
use crate::timeline::walker::{SNAPSHOT_SPACING, Walked, Walker, powered_on};
use crate::timeline::walkers::{Pool, Search};
use crate::workers::{self, Covered, HandOn, Poll, Scanned};
use machine::engine::EngineKind;
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::{Machine, Outcome};
use recording::Recording;
use recording::checkpoints::{Checkpoints, Snapshot, add_here, must_fit};
use recording::files::CHECKPOINTS;

/// The hits in a part of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hits<T = Hit> {
    /// The hits, in the order of the run.
    pub found: Vec<T>,
    /// The place where the search was interrupted. All hits before this place are in `found`. A search from this place
    /// finds the later hits. `None` if the search was not interrupted.
    pub interrupted_at: Option<Instructions>,
}

/// The progress of a movement, for a person who waits. The progress can be read while the timeline moves.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl Meter {
    /// Steps executed so far, and an upper bound for all steps of the movement. A movement may end well before this
    /// bound.
    pub fn progress(&self) -> (u64, u64) {
        self.0.progress()
    }

    /// Steps executed so far by [`Timeline::settle_meanwhile`]. No movement waited for these steps.
    pub fn settled(&self) -> u64 {
        self.0.settled.load(Ordering::Relaxed)
    }

    /// Number of requests of [`Timeline::settle_meanwhile`] that its thread has finished. Some requests need no work,
    /// and some end early because the timeline moves.
    pub fn settlings(&self) -> u64 {
        self.0.settlings.load(Ordering::Acquire)
    }
}

/// Single steps between two polls.
const STEPS_PER_POLL: u64 = 4096;

/// The number of this host's cores, for long searches. The number is read only once, because a process in its sandbox
/// cannot read it.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A recording with a current position, which can be anywhere in the recording.
pub struct Timeline {
    pub(super) walker: Walker,
    pub(super) shared: Arc<Shared>,
    pub(super) panic: Option<Instructions>,
    pub(super) stops: Stops,
    /// The reports of the guest's kernels, once a search has found them.
    pub(super) reports: Option<Arc<[Report]>>,
    /// The guest's kernels that searches have found so far.
    pub(super) kernels: Known,
    workers: Arc<Pool>,
    settler: Option<Settler>,
    /// The fork that the machine is in; `None` in the recorded history.
    pub(super) fork: Option<Fork>,
}

impl Timeline {
    /// Opens a recording at its first instruction.
    pub fn open(recording: &Recording<Instructions>) -> Result<Timeline, Error> {
        Timeline::open_with(recording, cores())
    }

    /// Does the same as [`Timeline::open`], but long searches use at most `threads` cores. Each core needs as much
    /// memory as the guest's RAM.
    pub fn open_with(recording: &Recording<Instructions>, threads: usize) -> Result<Timeline, Error> {
        let images = recording.read_images()?;
        let end = last_place(recording);
        let mut shared = Shared {
            recording: recording.clone(),
            images,
            end,
            begins_ns: recording.log.power_on()?.at.time_ns,
            checkpoints: None,
            damaged: Mutex::default(),
            snapshots: Snapshots::of_guest(recording.manifest.machine.memory_bytes / PAGE_SIZE),
            fast_forward: OnceLock::new(),
            threads: threads.max(1),
            replayed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            settlings: AtomicU64::new(0),
            fast_forwarded: AtomicU64::new(0),
            under_way: Movement::default(),
        };
        let (mut machine, player) = powered_on(recording, &shared.images)?;
        if let Some(store) = recording.checkpoints()? {
            must_fit(&store, &mut machine)?;
            shared.checkpoints = Some(Checkpoints::new(store, machine.maps()?.ram, &recording.log)?);
        }
        let shared = Arc::new(shared);
        let panicked = recording.log.end.as_ref().filter(|end| end.outcome == Outcome::Panic);
        Ok(Timeline {
            walker: Walker::with(machine, player, shared.clone())?,
            shared,
            panic: panicked.map(|end| end.at.count),
            stops: Stops::default(),
            reports: None,
            kernels: Known::default(),
            workers: Arc::default(),
            settler: None,
            fork: None,
        })
    }

    /// Lets the engine run long stretches from now on, as [`Timeline::fast_forward`] does. Does nothing for the
    /// software engine.
    pub fn use_engine(&mut self, engine: EngineKind) -> Result<(), Error> {
        if engine.counts_instructions { Ok(()) } else { self.fast_forward(FastForward::on(engine)) }
    }

    /// Lets another engine run long stretches from now on, as long as the timeline has no stops except a few
    /// breakpoints. The recording must have counted exits. Results are the same, and come from the software engine.
    pub fn fast_forward(&mut self, options: FastForward) -> Result<(), Error> {
        let options = *self.shared.fast_forward.get_or_init(|| options);
        log::debug!("long stretches are {:?}'s", options.engine);
        self.walker.get_runner()
    }

    /// Replayed steps that another engine executed.
    pub fn fast_forwarded_steps(&self) -> u64 {
        self.shared.fast_forwarded.load(Ordering::Relaxed)
    }

    /// The machine, which does not run now.
    pub fn machine(&self) -> &Machine<Instructions> {
        &self.walker.machine
    }

    /// The machine, for callers that need mutable access but do not run the machine.
    pub fn machine_mut(&mut self) -> &mut Machine<Instructions> {
        &mut self.walker.machine
    }

    /// Ends the time travel: the machine continues from here as a live machine ([`Machine::begin_here`]). The
    /// machine keeps its translated code. The rest of the timeline is freed.
    pub fn go_live(self) -> Result<Machine<Instructions>, Error> {
        self.must_be_history()?;
        let Timeline { walker, shared, .. } = self;
        let mut machine = walker.machine;
        machine.begin_here()?;
        drop(shared);
        guest_ram::return_freed_memory();
        Ok(machine)
    }

    /// Calls `look` with a machine that shows the processor that executed the last step
    /// ([`Machine::look_as_stepped`]).
    pub fn look_as_stepped<T>(&mut self, look: impl FnOnce(&Machine<Instructions>) -> T) -> T {
        self.walker.machine.look_as_stepped(look)
    }

    /// The machine's present place.
    pub fn position(&self) -> Instructions {
        self.walker.position()
    }

    /// The recording's end.
    pub fn end(&self) -> Instructions {
        self.shared.end
    }

    /// Steps executed so far by movements.
    pub fn replayed_steps(&self) -> u64 {
        self.shared.replayed.load(Ordering::Relaxed)
    }

    /// A handle that reads the progress of this timeline's movements.
    pub fn meter(&self) -> Meter {
        Meter(self.shared.clone())
    }

    /// The recording's checkpoints.
    pub fn checkpoints(&self) -> Option<&Checkpoints<Instructions>> {
        self.shared.checkpoints.as_ref()
    }

    /// A snapshot of the present state.
    pub fn snapshot(&mut self) -> Result<Snapshot<Instructions>, Error> {
        Ok(Snapshot {
            state: self.walker.machine.state(),
            maps: self.walker.machine.maps()?,
            cursor: self.walker.player.cursor(),
        })
    }

    /// Whether the recording has a checkpoint of this place, including checkpoints added since it was opened.
    pub fn has_checkpoint_here(&self) -> Result<bool, Error> {
        let directory = self.shared.recording.path.join(CHECKPOINTS);
        if !directory.is_dir() {
            return Ok(false);
        }
        let here = self.position().number();
        Ok(Store::open(&directory)?.entries().iter().any(|entry| entry.position == here))
    }

    /// Adds a checkpoint of this place to the recording. Every session that opens the recording from now on has the
    /// checkpoint.
    pub fn add_checkpoint(&mut self) -> Result<Entry, Error> {
        self.must_be_history()?;
        if self.shared.fast_forward.get().is_some() {
            let why = "a state that KVM computed may differ from the software CPU; use `ttvm checkpoints add` \
                without --engine kvm";
            return Err(Error::Position(format!("cannot add a checkpoint: {why}")));
        }
        let here = self.position();
        let directory = self.shared.recording.path.join(CHECKPOINTS);
        let machine = &mut self.walker.machine;
        let (ram_pages, disk_blocks) = machine.page_counts();
        // Opens the store a second time. The open stores of this session's walkers and of other sessions do not change.
        let store = if directory.is_dir() {
            Store::open(&directory)?
        } else {
            Store::create(&directory, ram_pages, disk_blocks)?
        };
        if store.entries().iter().any(|entry| entry.position == here.number()) {
            return Err(Error::Position(format!("there is a checkpoint at instruction {here} already")));
        }
        let initial = match &self.shared.checkpoints {
            Some(checkpoints) => checkpoints.initial().clone(),
            None => self
                .shared
                .snapshots
                .nearest(Instructions(0))
                .expect("there is one at the start")
                .1
                .maps
                .ram
                .clone(),
        };
        add_here(&store, &initial, machine, self.walker.player.cursor(), self.walker.player.log().format)
    }

    /// Replaces all stops.
    pub fn set_stops(&mut self, stops: Stops) {
        self.stops = stops;
    }

    /// All stops.
    pub fn stops(&self) -> &Stops {
        &self.stops
    }

    /// Replaces the breakpoints that runs stop at.
    pub fn set_breakpoints(&mut self, addresses: Vec<u64>) {
        self.stops.breakpoints = addresses.into_iter().map(Breakpoint::at).collect();
    }

    /// Replaces the watchpoints that runs and steps stop at.
    pub fn set_watchpoints(&mut self, points: Vec<Watchpoint>) {
        self.stops.watches = points.into_iter().map(Watch::from).collect();
    }

    /// Goes to a place, forward or backward. Ignores all stops.
    pub fn seek(&mut self, target: Instructions, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        self.must_be_history()?;
        let target = target.min(self.shared.end);
        self.shared.begin(target - self.walker.nearest(target).0);
        let walked = self.walker.seek(target, poll)?;
        Ok(if walked == Walked::Interrupted {
            TravelStop::Interrupted
        } else if self.position() < target {
            TravelStop::End
        } else {
            TravelStop::Reached
        })
    }

    /// Returns at once to an earlier [`Timeline::snapshot`], taken in this session and in the recorded history.
    pub fn return_to(&mut self, here: &Snapshot<Instructions>) -> Result<(), Error> {
        self.must_be_history()?;
        Armed::disarm(&mut self.walker.machine);
        self.walker.restore(here)
    }

    /// Runs from here to a place without skipping a part, and passes the console's output to a function.
    pub fn play(
        &mut self,
        until: Instructions,
        output: impl FnMut(&[u8]) -> Result<(), Error> + Send + 'static,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        self.walker.player.on_output(output);
        let walked = self.walker.advance(until.min(self.shared.end), SNAPSHOT_SPACING, poll);
        self.walker.player.without_output();
        Ok(if walked? == Walked::Interrupted { TravelStop::Interrupted } else { TravelStop::Reached })
    }

    /// Takes snapshots before the present place, so that the next steps back are fast. The function is for a timeline
    /// that has just gone to a checkpoint and has no snapshots near it. Takes at most as long as replaying from the
    /// previous checkpoint.
    pub fn settle(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        self.must_be_history()?;
        let here = self.position();
        let before = here.saturating_back(1);
        if here - self.walker.nearest(before).0 <= SNAPSHOT_SPACING {
            return Ok(TravelStop::Reached);
        }
        Armed::disarm(&mut self.walker.machine);
        self.walker.restore_nearest(before)?;
        let walked = self.walker.approach(here, poll)?;
        Ok(if walked == Walked::Interrupted { TravelStop::Interrupted } else { TravelStop::Reached })
    }

    /// Does the same as [`Timeline::settle`], but ends once `is_wanted` returns true. The position does not change.
    /// The first step back does the remaining work.
    pub fn settle_until(&mut self, is_wanted: &mut Poll<'_>) -> Result<(), Error> {
        let here = self.snapshot()?;
        if self.settle(is_wanted)? == TravelStop::Interrupted {
            self.return_to(&here)?;
        }
        Ok(())
    }

    /// Takes snapshots for a search back, on a separate thread, while the timeline does not move. The thread needs as
    /// much memory as the guest's RAM.
    pub fn settle_meanwhile(&mut self) {
        // If another engine runs long stretches, it does not stop where snapshots are due. So there is no settler
        // then.
        if self.fork.is_none() && self.shared.fast_forward.get().is_none() {
            let here = self.position();
            let new = || Settler::new(self.shared.clone(), self.workers.clone());
            self.settler.get_or_insert_with(new).look_at(here, &self.shared);
        }
    }

    /// Runs forward to a stop or to the end, or until `poll` says to stop.
    pub fn run_forward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let stops = self.stops.clone();
        if self.fork.is_some() {
            return Fork::run(&mut self.walker.machine, Instructions::MAX, &stops, poll);
        }
        let here = self.position();
        self.shared.begin(self.shared.end - here);
        let checkpoints: Vec<Instructions> = self.checkpoints_in(here + 1, self.shared.end);
        let alone = checkpoints.get(ALONE).copied().unwrap_or(self.shared.end);
        let armed = Armed::new(&stops, &mut self.walker.machine);
        let mut origin = here;
        match self.walker.run(alone, &armed, &mut origin, SNAPSHOT_SPACING, poll)? {
            Walked::Hit(hit) => return Ok(TravelStop::Hit(hit.cause)),
            Walked::There if alone == self.shared.end => return Ok(TravelStop::End),
            walked => {
                // The next run forward ignores a breakpoint at its first instruction, so this run must report it.
                let hit = armed.breakpoint_hit(&self.walker.machine);
                if let Some(hit) = hit.filter(|_| self.position() > here) {
                    return Ok(TravelStop::Hit(hit.cause));
                }
                if walked == Walked::Interrupted {
                    return Ok(TravelStop::Interrupted);
                }
            }
        }
        let begun = self.snapshot()?;
        let intervals = self.intervals(checkpoints[ALONE], self.shared.end);
        self.finish_on_all_cores(&begun, &intervals, Direction::Forward, poll)
    }

    /// Does the same as [`Timeline::run_forward`], but for at most this many steps.
    pub fn run_forward_at_most(&mut self, steps: u64, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let stops = self.stops.clone();
        let here = self.position();
        let target = here + steps;
        if self.fork.is_some() {
            return Fork::run(&mut self.walker.machine, target, &stops, poll);
        }
        if target >= self.shared.end {
            return self.run_forward(poll);
        }
        self.shared.begin(steps);
        let armed = Armed::new(&stops, &mut self.walker.machine);
        let mut origin = here;
        let walked = self.walker.run(target, &armed, &mut origin, SNAPSHOT_SPACING, poll)?;
        let hit = match walked {
            Walked::Hit(hit) => Some(hit),
            // The next run forward ignores a breakpoint at its first instruction, so this run must report it.
            _ => armed.breakpoint_hit(&self.walker.machine).filter(|_| self.position() > here),
        };
        Ok(match (hit, walked) {
            (Some(hit), _) => TravelStop::Hit(hit.cause),
            (None, Walked::Interrupted) => TravelStop::Interrupted,
            _ => TravelStop::Reached,
        })
    }

    /// Runs backward to a stop or to the start, or until `poll` says to stop.
    pub fn run_backward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        self.must_be_history()?;
        let begun = self.snapshot()?;
        let stop = self.search_backward(&begun, poll);
        if stop.is_err() {
            // The search has failed before its end. So the timeline returns to the place where the search began. A
            // new search from there misses no hit.
            self.return_to(&begun)?;
        }
        stop
    }

    /// Runs backward from here. `begun` is a snapshot of this place.
    fn search_backward(
        &mut self,
        begun: &Snapshot<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let origin = self.position();
        self.shared.begin(origin.number());
        let stops = self.stops.clone();
        let alone_steps = if self.workers.is_empty() { ALONE_STEPS_AT_FIRST } else { ALONE_STEPS };
        let mut end = origin;
        while end > Instructions(0) {
            let interval = self.walker.interval_before(end, origin);
            let is_long =
                origin - interval.start > alone_steps || self.checkpoints_in(end, origin).len() >= ALONE;
            if self.shared.threads > 1 && is_long {
                let mut intervals = self.intervals(Instructions(0), end);
                if intervals.len() > 1 {
                    intervals.reverse();
                    return self.finish_on_all_cores(begun, &intervals, Direction::Backward, poll);
                }
            }
            let mut last = None;
            let mut row = |hit| {
                last = Some(hit);
                true
            };
            let question = Question { stops: &stops, keep: Keep::Last, look: &the_hit };
            if let Scanned::Interrupted(edge) = self.walker.scan(interval, &question, &mut row, poll)? {
                return self.interrupted(begun, edge, Direction::Backward);
            }
            match last {
                Some(hit) => return self.arrive(begun, hit, Direction::Backward, poll),
                None if interval.start > Instructions(0) && poll() => {
                    return self.interrupted(begun, interval.start, Direction::Backward);
                }
                None => end = interval.start,
            }
        }
        self.seek(Instructions(0), &mut || false)?;
        Ok(TravelStop::Start)
    }

    /// The intervals between two places, cut at checkpoints: the units that workers replay.
    pub fn intervals(&self, from: Instructions, to: Instructions) -> Vec<Interval> {
        let starts = || [from].into_iter().chain(self.checkpoints_in(from + 1, to.saturating_back(1)));
        let ends = starts().skip(1).chain([to]);
        starts().zip(ends).map(|(start, end)| Interval { start, end }).collect()
    }

    fn finish_on_all_cores(
        &mut self,
        begun: &Snapshot<Instructions>,
        intervals: &[Interval],
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let keep = if direction == Direction::Forward { Keep::First } else { Keep::Last };
        let stops = self.stops.clone();
        let question = Question { stops: &stops, keep, look: &the_hit };
        let mut found = None;
        let mut hand_on = |hits: Vec<Hit>| {
            found = hits.last().copied();
            Ok(())
        };
        let covered = self.ask(&question, intervals, &mut hand_on, poll)?;
        match (found, covered, direction) {
            (Some(hit), ..) => self.arrive(begun, hit, direction, poll),
            (None, Covered::UpTo(edge), _) => self.interrupted(begun, edge, direction),
            (None, Covered::Enough, Direction::Backward) => {
                self.seek(Instructions(0), &mut || false)?;
                Ok(TravelStop::Start)
            }
            (None, Covered::Enough, Direction::Forward) => match self.seek(self.shared.end, poll)? {
                TravelStop::Interrupted => self.interrupted(begun, self.shared.end, direction),
                _ => Ok(TravelStop::End),
            },
        }
    }

    /// Searches intervals. Uses all cores if there are several intervals.
    fn ask<T: Send>(
        &mut self,
        question: &Question<'_, T>,
        intervals: &[Interval],
        hand_on: &mut HandOn<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Covered<Instructions>, Error> {
        let search = Search { question, intervals, pool: &self.workers, shared: &self.shared };
        workers::ask(&search, &mut self.walker, self.shared.threads, hand_on, poll)
    }

    /// Goes to a hit found by a search from `begun`.
    fn arrive(
        &mut self,
        begun: &Snapshot<Instructions>,
        hit: Hit,
        direction: Direction,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let (target, edge) = match direction {
            Direction::Forward => (hit.after, hit.after),
            Direction::Backward => (hit.before, hit.before + 1),
        };
        match self.seek(target, poll)? {
            TravelStop::Reached => Ok(TravelStop::Hit(hit.cause)),
            TravelStop::Interrupted => self.interrupted(begun, edge, direction),
            other => Ok(other),
        }
    }

    /// Ends an interrupted search that began at `begun` and has searched the whole part up to `edge`. Restores the
    /// place closest to `edge` that needs no replay, because a person who interrupts does not want to wait. The same
    /// search from that place must find all remaining hits.
    fn interrupted(
        &mut self,
        begun: &Snapshot<Instructions>,
        edge: Instructions,
        direction: Direction,
    ) -> Result<TravelStop, Error> {
        Armed::disarm(&mut self.walker.machine);
        let origin = Instructions(begun.state.counts.steps);
        let place = match direction {
            Direction::Backward => self.walker.first_from(edge).filter(|&place| place < origin),
            // A breakpoint at the edge must still be found, but a search ignores a breakpoint at its first instruction.
            // So the place must be before the edge.
            Direction::Forward => {
                Some(self.walker.nearest(edge.saturating_back(1)).0).filter(|&place| place > origin)
            }
        };
        match place {
            Some(place) => self.walker.restore_nearest(place)?,
            None => self.walker.restore(begun)?,
        }
        Ok(TravelStop::Interrupted)
    }

    fn checkpoints_in(&self, first: Instructions, last: Instructions) -> Vec<Instructions> {
        let heads = self.shared.checkpoints.as_ref().map(|checkpoints| checkpoints.heads());
        let in_range = heads.filter(|_| first <= last).map(|heads| heads.range(first..=last));
        in_range.into_iter().flatten().map(|(&steps, _)| steps).collect()
    }

    /// All hits between two places, at most `limit`, in the order of the run. The position does not change.
    pub fn hits(
        &mut self,
        from: Instructions,
        to: Instructions,
        limit: usize,
        poll: &mut Poll<'_>,
    ) -> Result<Hits, Error> {
        self.hits_seen(from, to, limit, &the_hit, poll)
    }

    /// Does the same as [`Timeline::hits`], but returns the result of `look` at each hit.
    pub fn hits_seen<T: Send>(
        &mut self,
        from: Instructions,
        to: Instructions,
        limit: usize,
        look: &Look<'_, T>,
        poll: &mut Poll<'_>,
    ) -> Result<Hits<T>, Error> {
        let mut found = Vec::new();
        let mut hand_on = |mut hits: Vec<T>| {
            found.append(&mut hits);
            Ok(())
        };
        let interrupted_at = self.each_hit(from..to, limit, look, &mut hand_on, poll)?;
        Ok(Hits { found, interrupted_at })
    }

    /// Does the same as [`Timeline::hits_seen`], but passes the results to a function in batches, in the order of
    /// the run, while workers continue. So there may be more hits than fit into memory. Returns the place where the
    /// search was interrupted, if it was.
    pub fn each_hit<T: Send>(
        &mut self,
        part: Range<Instructions>,
        limit: usize,
        look: &Look<'_, T>,
        hand_on: &mut dyn FnMut(Vec<T>) -> Result<(), Error>,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        self.must_be_history()?;
        let Interval { end: to, .. } = self.part(part.clone())?;
        let begun = self.snapshot()?;
        self.shared.begin(to.saturating_since(part.start));
        let intervals = self.intervals(part.start, to);
        let stops = self.stops.clone();
        let question = Question { stops: &stops, keep: Keep::All(limit), look };
        let covered = self.ask(&question, &intervals, hand_on, poll);
        self.return_to(&begun)?;
        Ok(match covered? {
            Covered::Enough => None,
            Covered::UpTo(edge) => Some(edge),
        })
    }

    /// Executes one instruction, ignoring breakpoints.
    pub fn step_forward(&mut self) -> Result<TravelStop, Error> {
        self.steps_forward(&mut |_| false, &mut || false)
    }

    /// Executes instructions one by one, ignoring breakpoints. Ends when `goes_on` returns false after an instruction,
    /// or at a stop that is not a breakpoint.
    pub fn steps_forward(
        &mut self,
        goes_on: &mut dyn FnMut(&Machine<Instructions>) -> bool,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Error> {
        let stops = Stops { breakpoints: Vec::new(), ..self.stops.clone() };
        for step in 1_u64.. {
            let stop = match self.fork {
                Some(_) => self.step_in_fork(&stops)?,
                None => self.step_in_history(&stops, step == 1)?,
            };
            if stop != TravelStop::Reached || !goes_on(&self.walker.machine) {
                return Ok(stop);
            }
            if step.is_multiple_of(STEPS_PER_POLL) && poll() {
                return Ok(TravelStop::Interrupted);
            }
        }
        unreachable!("2^64 steps take longer than any session")
    }

    fn step_in_fork(&mut self, stops: &Stops) -> Result<TravelStop, Error> {
        let next = self.position() + 1;
        Fork::run(&mut self.walker.machine, next, stops, &mut || false)
    }

    fn step_in_history(&mut self, stops: &Stops, is_first: bool) -> Result<TravelStop, Error> {
        let here = self.position();
        if here >= self.shared.end {
            return Ok(TravelStop::End);
        }
        let machine = &mut self.walker.machine;
        let armed = if is_first { Armed::new(stops, machine) } else { Armed::again(stops) };
        let mut origin = here;
        let walked = self.walker.run(here + 1, &armed, &mut origin, u64::MAX, &mut || false)?;
        Ok(match walked {
            Walked::Hit(hit) => TravelStop::Hit(hit.cause),
            _ if self.position() > here => TravelStop::Reached,
            _ => TravelStop::End,
        })
    }

    /// Goes back by one instruction. If this instruction caused a hit, returns the hit.
    pub fn step_backward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        self.must_be_history()?;
        let here = self.position();
        if here == Instructions(0) {
            return Ok(TravelStop::Start);
        }
        let far = here - self.walker.nearest(here - 1).0 > SNAPSHOT_SPACING;
        let stop = if far {
            let begun = self.snapshot()?;
            let stop = self.seek(here - 1, poll)?;
            if stop == TravelStop::Interrupted {
                self.return_to(&begun)?;
            }
            stop
        } else {
            // The replay is too short to be interrupted.
            self.seek(here - 1, &mut || false)?
        };
        let Stops { breakpoints, filters, .. } = self.stops.clone();
        let only_breakpoints = Stops { breakpoints, filters, ..Stops::default() };
        if stop != TravelStop::Reached || self.stops == only_breakpoints {
            return Ok(stop);
        }
        let undone = self.step_forward()?;
        self.seek(here - 1, &mut || false)?;
        Ok(if matches!(undone, TravelStop::Hit(_)) { undone } else { TravelStop::Reached })
    }
}
