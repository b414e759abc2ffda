//! Time travel: owns the current position and the snapshots. Callers say where to go; the timeline decides how
//! (design rule D9).
//!
//! Going forward is running. Going backward is going to the nearest snapshot before, and running forward
//! from there. Snapshots are taken on the way: at growing distances over the whole recording, and closer and
//! closer together towards a target that was reached from far, so that the next step back is near.

use std::collections::BTreeMap;

use checkpoint::MemoryImage;
use cpu::{WatchKind, Watchpoint};

use crate::disk::DiskVersion;
use crate::error::Error;
use crate::machine::{Machine, MachineState, Outcome, RunStop};
use crate::player::Player;
use crate::position::PositionSpec;
use crate::recording::Recording;
use crate::replay;

/// Longest stretch between two questions whether to stop.
const POLL_STEPS: u64 = 5_000_000;
/// First distance between snapshots over the whole recording; it doubles as the recording gets longer.
const FIRST_INTERVAL: u64 = 50_000_000;
/// Snapshots over the whole recording before every second one is given up.
const MAX_SPACED: usize = 48;
/// Distances before a target at which snapshots are taken on the way to it.
const APPROACH: [u64; 6] = [10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100];
/// Snapshots taken on approaches that are kept.
const MAX_APPROACH: usize = 24;

/// Where and how a machine once was.
struct Snapshot {
    state: MachineState,
    memory: MemoryImage,
    disk: DiskVersion,
    cursor: usize,
    /// Taken on the way to some target, not as part of the even spacing.
    approach: bool,
    /// Larger is more recently useful.
    used: u64,
}

/// Asks whether to stop; see [`Timeline`].
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// Why a movement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TravelStop {
    /// Where it was asked to go.
    Reached,
    /// At a breakpoint.
    Breakpoint,
    /// At a watched access: after it when going forward, before it when going backward.
    Watchpoint {
        /// The kind that the watchpoint was set with.
        kind: WatchKind,
        /// The accessed address.
        address: u64,
    },
    /// The poll function asked to stop.
    Interrupted,
    /// At the first instruction of the recording.
    Start,
    /// At the end of the recording.
    End,
}

/// A recording with a current position that can be anywhere in it.
pub struct Timeline {
    machine: Machine,
    player: Player,
    snapshots: BTreeMap<u64, Snapshot>,
    interval: u64,
    end: u64,
    clock: u64,
    panic: Option<u64>,
    breakpoints: Vec<u64>,
    watchpoints: Vec<Watchpoint>,
}

impl Timeline {
    /// Opens a recording at its first instruction.
    pub fn open(recording: &Recording) -> Result<Timeline, Error> {
        let (machine, player) = replay::open(recording)?;
        let panicked = recording.log.end.as_ref().filter(|end| end.outcome == Outcome::Panic);
        let mut timeline = Timeline {
            machine,
            player,
            snapshots: BTreeMap::new(),
            interval: FIRST_INTERVAL,
            end: replay::last_step(recording),
            clock: 0,
            panic: panicked.map(|end| end.at.steps),
            breakpoints: Vec::new(),
            watchpoints: Vec::new(),
        };
        timeline.take_snapshot(false);
        Ok(timeline)
    }

    /// The machine, standing still.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The current step count.
    pub fn position(&self) -> u64 {
        self.machine.moment().steps
    }

    /// The step count at which the recording ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Replaces the breakpoints that runs stop at.
    pub fn set_breakpoints(&mut self, addresses: Vec<u64>) {
        self.breakpoints = addresses;
    }

    /// Replaces the watchpoints that runs and steps stop at.
    pub fn set_watchpoints(&mut self, points: Vec<Watchpoint>) {
        self.watchpoints = points;
    }

    /// The step count that a notation means. Notations that count something else run to find it.
    pub fn resolve(&mut self, spec: PositionSpec, poll: &mut Poll<'_>) -> Result<u64, Error> {
        let beyond = |what: String| Err(Error::Position(format!("the recording ends before {what}")));
        match spec {
            PositionSpec::Start => Ok(0),
            PositionSpec::End => Ok(self.end),
            PositionSpec::Panic => {
                self.panic.ok_or_else(|| Error::Position("the guest did not panic in this recording".into()))
            }
            PositionSpec::Event(number) => match self.player.events().get(number as usize) {
                Some(event) => Ok(event.at.steps),
                None => beyond(format!("event {number}: it has {}", self.player.events().len())),
            },
            PositionSpec::Instruction(steps) if steps <= self.end => Ok(steps),
            PositionSpec::Instruction(steps) => beyond(format!("instruction {steps}: it has {}", self.end)),
            PositionSpec::Percent(percent) => Ok((self.end as f64 * percent / 100.0) as u64),
            PositionSpec::Branch(count) => self
                .find(|machine| machine.cpu().branches(), count, poll)?
                .map_or_else(|| beyond(format!("branch {count}")), Ok),
            PositionSpec::Nanoseconds(ns) => self
                .find(|machine| machine.moment().time_ns, ns, poll)?
                .map_or_else(|| beyond(format!("{} s", ns as f64 / 1e9)), Ok),
        }
    }

    /// The first step count at which a growing measure of the machine has reached `wanted`, by bisection.
    fn find(
        &mut self,
        measure: fn(&Machine) -> u64,
        wanted: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Option<u64>, Error> {
        let back_to = self.position();
        self.seek(self.end, poll)?;
        let exists = measure(&self.machine) >= wanted;
        let (mut low, mut high) = (0, self.end);
        while exists && low < high {
            let middle = low + (high - low) / 2;
            self.seek(middle, poll)?;
            if measure(&self.machine) >= wanted {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.seek(back_to, poll)?;
        Ok(exists.then_some(high))
    }

    /// Goes to a step count, forward or backward. Break- and watchpoints do not count.
    pub fn seek(&mut self, target: u64, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let target = target.min(self.end);
        self.disarm();
        let here = self.position();
        let nearest = self.snapshots.range(..=target).next_back().map_or(0, |(&steps, _)| steps);
        if target < here || nearest > here {
            self.restore(nearest)?;
        }
        let far = target - self.position() > APPROACH[1];
        for distance in APPROACH {
            let stage = target.saturating_sub(distance);
            if far && stage > self.position() {
                if let Some(stop) = self.advance(stage, poll)? {
                    return Ok(stop);
                }
                self.take_snapshot(true);
            }
        }
        Ok(self.advance(target, poll)?.unwrap_or(TravelStop::Reached))
    }

    /// Runs to a step count without stopping at points. `Some` when it did not get there.
    fn advance(&mut self, target: u64, poll: &mut Poll<'_>) -> Result<Option<TravelStop>, Error> {
        while self.position() < target {
            let until = target.min(self.next_stage());
            match self.machine.run(until, &mut self.player)? {
                RunStop::Ended(_) => return Ok(Some(TravelStop::End)),
                _ => self.keep_spacing(),
            }
            if self.position() < target && poll() {
                return Ok(Some(TravelStop::Interrupted));
            }
        }
        Ok(None)
    }

    /// Runs forward to a break- or watchpoint, the end, or until told to stop.
    pub fn run_forward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        self.arm();
        let mut origin = self.position();
        loop {
            if self.position() >= self.end {
                return Ok(TravelStop::End);
            }
            let until = self.end.min(self.next_stage());
            match self.machine.run_from(until, origin, &mut self.player)? {
                RunStop::Ended(_) => return Ok(TravelStop::End),
                RunStop::Breakpoint => return Ok(TravelStop::Breakpoint),
                RunStop::Watchpoint(hit) => {
                    return Ok(TravelStop::Watchpoint { kind: hit.watchpoint.kind, address: hit.address });
                }
                RunStop::Reached => self.keep_spacing(),
            }
            origin = u64::MAX;
            if poll() {
                return Ok(TravelStop::Interrupted);
            }
        }
    }

    /// Executes one instruction, ignoring breakpoints.
    pub fn step_forward(&mut self) -> Result<TravelStop, Error> {
        if self.position() >= self.end {
            return Ok(TravelStop::End);
        }
        self.machine.set_breakpoints(&[]);
        self.machine.set_watchpoints(&self.watchpoints);
        match self.machine.run(self.position() + 1, &mut self.player)? {
            RunStop::Watchpoint(hit) => {
                Ok(TravelStop::Watchpoint { kind: hit.watchpoint.kind, address: hit.address })
            }
            RunStop::Ended(_) if self.position() >= self.end => Ok(TravelStop::Reached),
            RunStop::Ended(_) => Ok(TravelStop::End),
            _ => Ok(TravelStop::Reached),
        }
    }

    /// Undoes one instruction. A watched access that is undone is reported.
    pub fn step_backward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let here = self.position();
        if here == 0 {
            return Ok(TravelStop::Start);
        }
        let stop = self.seek(here - 1, poll)?;
        if stop != TravelStop::Reached || self.watchpoints.is_empty() {
            return Ok(stop);
        }
        let undone = self.step_forward()?;
        self.seek(here - 1, poll)?;
        Ok(if matches!(undone, TravelStop::Watchpoint { .. }) { undone } else { TravelStop::Reached })
    }

    /// Runs backward to a break- or watchpoint, the start, or until told to stop.
    ///
    /// Window by window from the nearest snapshot back, each run forward: the last hit of a window is the
    /// first one going backward.
    pub fn run_backward(&mut self, poll: &mut Poll<'_>) -> Result<TravelStop, Error> {
        let origin = self.position();
        let mut window_end = origin;
        loop {
            let Some((&window_start, _)) = self.snapshots.range(..window_end).next_back() else {
                self.seek(0, poll)?;
                return Ok(TravelStop::Start);
            };
            self.restore(window_start)?;
            match self.last_hit(window_end, poll)? {
                Search::Hit(at, stop) => {
                    let reached = self.seek(at, poll)?;
                    return Ok(if reached == TravelStop::Reached { stop } else { reached });
                }
                Search::Nothing => window_end = window_start,
                Search::Interrupted => {
                    self.seek(window_end, &mut || false)?;
                    return Ok(TravelStop::Interrupted);
                }
            }
        }
    }

    /// Runs from here to `window_end` and remembers the last hit before it.
    fn last_hit(&mut self, window_end: u64, poll: &mut Poll<'_>) -> Result<Search, Error> {
        self.arm();
        let mut found = Search::Nothing;
        // A breakpoint at the window's very first instruction counts.
        let mut origin = u64::MAX;
        while self.position() < window_end {
            let until = window_end.min(self.next_stage());
            match self.machine.run_from(until, origin, &mut self.player)? {
                RunStop::Breakpoint => {
                    origin = self.position();
                    found = Search::Hit(origin, TravelStop::Breakpoint);
                    continue;
                }
                RunStop::Watchpoint(hit) => {
                    let stop = TravelStop::Watchpoint { kind: hit.watchpoint.kind, address: hit.address };
                    found = Search::Hit(self.position() - 1, stop);
                }
                RunStop::Reached => self.keep_spacing(),
                RunStop::Ended(_) => break,
            }
            origin = u64::MAX;
            if poll() {
                return Ok(Search::Interrupted);
            }
        }
        Ok(found)
    }

    fn arm(&mut self) {
        self.machine.set_breakpoints(&self.breakpoints);
        self.machine.set_watchpoints(&self.watchpoints);
    }

    fn disarm(&mut self) {
        self.machine.set_breakpoints(&[]);
        self.machine.set_watchpoints(&[]);
    }

    /// Where a run should pause to poll, or for the next evenly spaced snapshot.
    fn next_stage(&self) -> u64 {
        let here = self.position();
        (here + POLL_STEPS).min((here / self.interval + 1) * self.interval)
    }

    /// Takes a snapshot where the even spacing wants one.
    fn keep_spacing(&mut self) {
        if !self.position().is_multiple_of(self.interval) {
            return;
        }
        self.take_snapshot(false);
        let spaced = self.snapshots.values().filter(|snapshot| !snapshot.approach).count();
        if spaced > MAX_SPACED {
            self.interval *= 2;
            let interval = self.interval;
            self.snapshots.retain(|steps, snapshot| snapshot.approach || steps.is_multiple_of(interval));
        }
    }

    fn take_snapshot(&mut self, approach: bool) {
        self.clock += 1;
        let steps = self.position();
        if self.snapshots.contains_key(&steps) {
            return;
        }
        let snapshot = Snapshot {
            state: self.machine.state(),
            memory: self.machine.memory_image(),
            disk: self.machine.disk_version(),
            cursor: self.player.cursor(),
            approach,
            used: self.clock,
        };
        self.snapshots.insert(steps, snapshot);
        let approaches = self.snapshots.iter().filter(|(_, snapshot)| snapshot.approach);
        if approaches.clone().count() > MAX_APPROACH {
            let oldest = approaches.min_by_key(|(_, snapshot)| snapshot.used).map(|(&steps, _)| steps);
            oldest.map(|steps| self.snapshots.remove(&steps));
        }
    }

    fn restore(&mut self, steps: u64) -> Result<(), Error> {
        self.clock += 1;
        let snapshot = self.snapshots.get_mut(&steps).expect("callers take the number from the map");
        snapshot.used = self.clock;
        self.machine.restore(&snapshot.state, &snapshot.memory, &snapshot.disk)?;
        self.player.set_cursor(snapshot.cursor);
        Ok(())
    }
}

enum Search {
    Hit(u64, TravelStop),
    Nothing,
    Interrupted,
}
