//! A walker is a machine that replays parts of a recording. A walker restores snapshots, runs, and takes snapshots
//! during its run. A timeline has one walker, which is at the timeline's position. Long searches have a walker for each
//! core.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::runner::{Ahead, Gone, Runner};
use super::shared::Shared;
use super::stops::{Armed, Hit, Stops};
use crate::replay::begin::{begin_part, no_beginning};
use crate::workers::Poll;
use cpu::Met;
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::start::Images;
use machine::{Machine, RunStop};
use recording::Recording;
use recording::checkpoints::{CheckpointHead, Snapshot};
use recording::player::Player;

/// The largest number of steps between two polls. This number of steps takes some tens of milliseconds.
pub(super) const POLL_STEPS: u64 = 4_000_000;
/// The time to stop the machine and evaluate a condition, in steps that the machine could execute in this time. If the
/// condition is false, the run continues.
const STOP_STEPS: u64 = 4_000;
/// The default distance in steps between the snapshots of a walk. A single step back replays at most this number of
/// steps, except from places far before the end of a long walk.
pub(super) const SNAPSHOT_SPACING: u64 = 8_000_000;
/// The length in steps of the last part of a walk, where snapshots are [`SNAPSHOT_SPACING`] apart.
const NEAR_STEPS: u64 = 64_000_000;
/// The distance in steps between snapshots before the last part of a walk. While a guest boots, copying the pages
/// written since the last snapshot costs a tenth of the walk.
pub(super) const FAR_SPACING: u64 = 3 * SNAPSHOT_SPACING;
/// The distance in steps of a walk's last snapshot from the goal. The distance of each earlier snapshot from the goal
/// is `APPROACH_FACTOR` times as long.
const APPROACH_STEPS: u64 = 128;
const APPROACH_FACTOR: u64 = 8;

/// How a part of a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walked {
    /// The walker is at its goal, at the end of the run, or where an observer has ended the walk.
    There,
    /// The poll function returned true.
    Interrupted,
    /// The walker reached a stop.
    Hit(Hit),
}

/// A machine that replays parts of a recording.
pub(super) struct Walker {
    pub machine: Machine<Instructions>,
    pub player: Player<Instructions>,
    pub(super) runner: Option<Runner>,
    shared: Arc<Shared>,
    /// Steps since the last poll. Each stop counts as [`STOP_STEPS`].
    unpolled_steps: u64,
    /// Whether the walker belongs to the settler and not to a movement. The walker's steps are then counted separately,
    /// and its place is not the focus of the snapshots.
    in_background: bool,
}

/// A machine at power-on, and the player of its recording.
pub(super) fn powered_on(
    recording: &Recording<Instructions>,
    images: &Images,
) -> Result<(Machine<Instructions>, Player<Instructions>), Error> {
    let player = Player::new(recording.log.clone())?;
    let machine = Machine::new(&recording.manifest.machine, images, player.power_on())?;
    Ok((machine, player))
}

impl Walker {
    /// A walker at the first instruction.
    pub fn new(shared: Arc<Shared>) -> Result<Walker, Error> {
        let (machine, player) = powered_on(&shared.recording, &shared.images)?;
        Walker::with(machine, player, shared)
    }

    /// Does the same as [`Walker::new`], but for the settler's walks, for which the user does not wait.
    pub fn in_background(shared: Arc<Shared>) -> Result<Walker, Error> {
        Ok(Walker { in_background: true, ..Walker::new(shared)? })
    }

    /// Makes a walker from a machine at power-on and its player.
    pub fn with(
        mut machine: Machine<Instructions>,
        mut player: Player<Instructions>,
        shared: Arc<Shared>,
    ) -> Result<Walker, Error> {
        match &shared.checkpoints {
            Some(checkpoints) if shared.recording.is_part() => {
                begin_part(&shared.recording, checkpoints, &mut machine, &mut player)?;
            }
            Some(checkpoints) => machine.attach_store(checkpoints.store().clone()),
            None if shared.recording.is_part() => return Err(no_beginning(&shared.recording)),
            None => {}
        }
        let mut walker =
            Walker { machine, player, runner: None, shared, unpolled_steps: 0, in_background: false };
        walker.leave_snapshot()?;
        if let Err(error) = walker.get_runner() {
            log::warn!("this thread uses the software engine only: {error}");
        }
        Ok(walker)
    }

    /// Builds the second machine ([`Runner`]), if the timeline has another engine for long stretches.
    pub fn get_runner(&mut self) -> Result<(), Error> {
        if let Some(&options) = self.shared.fast_forward.get() {
            self.runner = Some(Runner::new(&self.shared, options)?);
        }
        Ok(())
    }

    /// The walker's place.
    pub fn position(&self) -> Instructions {
        self.machine.moment().count
    }

    /// The last restorable place at or before `target`, and whether it is a checkpoint.
    pub fn nearest(&self, target: Instructions) -> (Instructions, bool) {
        self.shared.nearest(target)
    }

    /// The first restorable place at or after `target`.
    pub fn first_from(&self, target: Instructions) -> Option<Instructions> {
        let checkpoint = match target {
            Instructions(0) => None,
            target => self.shared.checkpoint_after(target - 1),
        };
        self.shared.snapshots.first_from(target).into_iter().chain(checkpoint).min()
    }

    /// Goes to the last restorable place at or before `target`.
    pub fn restore_nearest(&mut self, target: Instructions) -> Result<(), Error> {
        let shared = self.shared.clone();
        while let ((at, true), Some(checkpoints)) = (self.nearest(target), &shared.checkpoints) {
            match checkpoints.load(at).and_then(|snapshot| self.restore(&snapshot)) {
                Err(Error::Checkpoints(error)) if error.is_damage() => {
                    log::warn!("{error}; the checkpoint at instruction {at} is not used");
                    shared.damaged().insert(at);
                }
                restored => return restored,
            }
        }
        let (_, snapshot) = shared.snapshots.nearest(target).expect("there is one at the start");
        self.restore(&snapshot)
    }

    /// Goes to a snapshot.
    pub fn restore(&mut self, snapshot: &Snapshot<Instructions>) -> Result<(), Error> {
        self.machine.restore(&snapshot.state, &snapshot.maps)?;
        self.player.set_cursor(snapshot.cursor)
    }

    /// Goes to a place, forward or backward.
    pub fn seek(&mut self, target: Instructions, poll: &mut Poll<'_>) -> Result<Walked, Error> {
        Armed::disarm(&mut self.machine);
        let here = self.position();
        let nearest = self.nearest(target).0;
        // If the goal is near, the walker runs, because a run takes snapshots and restoring a checkpoint does not.
        if target < here || (nearest > here && target - here > SNAPSHOT_SPACING) {
            self.restore_nearest(target)?;
        }
        self.approach(target, poll)
    }

    /// Runs to a place. Takes snapshots that get closer together towards the place, so that the next steps back are
    /// fast.
    pub fn approach(&mut self, target: Instructions, poll: &mut Poll<'_>) -> Result<Walked, Error> {
        self.shared.snapshots.focus(target);
        let mut distance = APPROACH_STEPS;
        let mut stages = Vec::new();
        while distance < (target - self.position()).min(2 * SNAPSHOT_SPACING) {
            stages.push(target - distance);
            distance *= APPROACH_FACTOR;
        }
        // With another engine, the whole walk counts as the last part, because this engine takes no snapshots during a
        // run.
        let near = if self.runner.is_some() { self.position() } else { target.saturating_back(NEAR_STEPS) };
        if self.advance(near, FAR_SPACING, poll)? == Walked::Interrupted {
            return Ok(Walked::Interrupted);
        }
        for stage in stages.into_iter().rev() {
            if self.advance(stage, SNAPSHOT_SPACING, poll)? == Walked::Interrupted {
                return Ok(Walked::Interrupted);
            }
            self.leave_snapshot()?;
        }
        self.advance(target, SNAPSHOT_SPACING, poll)
    }

    /// Runs to a place without stopping, with a snapshot every `spacing` steps.
    pub fn advance(
        &mut self,
        target: Instructions,
        spacing: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Walked, Error> {
        let nothing = Stops::default();
        let armed = Armed::new(&nothing, &mut self.machine);
        let mut origin = Instructions::MAX;
        self.run(target, &armed, &mut origin, spacing, poll)
    }

    /// Runs to a place or to a stop, with a snapshot every `spacing` steps. Ignores a breakpoint at `origin`. To
    /// continue after a hit, the caller calls this function again with the hit's place as `origin`.
    pub fn run(
        &mut self,
        target: Instructions,
        armed: &Armed<'_>,
        origin: &mut Instructions,
        spacing: u64,
        poll: &mut Poll<'_>,
    ) -> Result<Walked, Error> {
        while self.position() < target {
            let limit = match self.fast_forward(target, armed, poll)? {
                Ahead::NotBefore(place) => target.min(place),
                Ahead::Gone => continue,
                Ahead::Interrupted => return Ok(Walked::Interrupted),
            };
            let here = self.position();
            let until_poll = POLL_STEPS.saturating_sub(self.unpolled_steps).max(1);
            let until = limit.min(here + until_poll).min(self.next_stage(here, spacing));
            let stop = self.machine.run_from(until, *origin, &mut self.player);
            self.count_replayed(self.position() - here);
            self.unpolled_steps += self.position() - here + STOP_STEPS;
            let stop = stop?;
            if stop == RunStop::Met(Met::Breakpoint) {
                *origin = self.position();
            }
            if let Some(hit) = armed.hit(&stop, &mut self.machine) {
                return Ok(Walked::Hit(hit));
            }
            match stop {
                RunStop::Reached => self.at_stage(spacing)?,
                RunStop::Ended(_) | RunStop::Met(Met::Observer) => return Ok(Walked::There),
                _ if self.unpolled_steps < POLL_STEPS => continue,
                _ => {}
            }
            if self.position() < target && self.is_to_stop(poll) {
                return Ok(Walked::Interrupted);
            }
        }
        Ok(Walked::There)
    }

    /// Calls the poll function. Returns whether to stop.
    fn is_to_stop(&mut self, poll: &mut Poll<'_>) -> bool {
        self.unpolled_steps = 0;
        poll()
    }

    /// Notes that `steps` more steps have been executed.
    fn count_replayed(&self, steps: u64) {
        let replayed = if self.in_background { &self.shared.settled } else { &self.shared.replayed };
        replayed.fetch_add(steps, Ordering::Relaxed);
    }

    /// Notes that another engine executed `steps` more steps.
    pub fn count_fast_forwarded(&self, steps: u64) {
        self.count_replayed(steps);
        self.shared.fast_forwarded.fetch_add(steps, Ordering::Relaxed);
    }

    /// The next place after `here` where the walker takes a snapshot or passes a checkpoint.
    fn next_stage(&self, here: Instructions, spacing: u64) -> Instructions {
        let checkpoint = self.shared.checkpoint_after(here).unwrap_or(Instructions::MAX);
        checkpoint.min(Instructions((here.number() / spacing + 1).saturating_mul(spacing)))
    }

    fn at_stage(&mut self, spacing: u64) -> Result<(), Error> {
        let here = self.position();
        if let Some(checkpoints) =
            self.shared.checkpoints.as_ref().filter(|_| self.shared.is_checkpoint(here))
        {
            // The machine's maps now refer to the checkpoint's pages, so copies in memory are freed.
            self.machine.rebase(&checkpoints.maps(here)?)?;
        } else if here.number().is_multiple_of(spacing) {
            if !self.in_background {
                self.shared.snapshots.focus(here);
            }
            self.leave_snapshot()?;
        }
        Ok(())
    }

    /// Takes a snapshot of this place, unless there is one.
    pub fn leave_snapshot(&mut self) -> Result<(), Error> {
        let here = self.position();
        if self.shared.snapshots.contains(here) {
            return Ok(());
        }
        let (maps, pages) = self.machine.capture()?;
        let cursor = self.player.cursor();
        let head = CheckpointHead::of(&self.machine, cursor);
        let snapshot = Snapshot { state: self.machine.state(), maps, cursor };
        self.shared.snapshots.keep(head, snapshot, pages);
        Ok(())
    }

    /// Lets the other engine, if there is one, run the next stretch.
    pub fn fast_forward(
        &mut self,
        target: Instructions,
        armed: &Armed<'_>,
        poll: &mut Poll<'_>,
    ) -> Result<Ahead, Error> {
        let nothing = Ok(Ahead::NotBefore(Instructions::MAX));
        // Console output must come from the software engine. So the other engine does not run if output is wanted.
        let Some(runner) = self.runner.as_mut().filter(|_| !self.player.shows_output()) else {
            return nothing;
        };
        let taken = self.player.cursor().events();
        let here = self.machine.moment().count;
        let Some(stretch) = runner.stretch(here, taken, target)? else { return nothing };
        let Some(breakpoints) = armed.addresses(runner.most_breakpoints()) else { return nothing };
        if stretch.begin > here {
            return Ok(Ahead::NotBefore(stretch.begin));
        }
        if stretch.first != taken || breakpoints.contains(&self.machine.cpu().rip()) {
            return Ok(Ahead::NotBefore(here + 1));
        }
        let from = Snapshot {
            state: self.machine.state(),
            maps: self.machine.maps()?,
            cursor: self.player.cursor(),
        };
        let mut gone = runner.go(stretch, &from, &breakpoints, poll);
        let mut length = stretch.length();
        if let Ok(Gone::Met(event)) = gone {
            let before = runner.place_of(event.saturating_sub(1))?.unwrap_or_default();
            runner.met(here, before, event)?;
            log::debug!("a breakpoint is met between {before} and {:?}", runner.place_of(event)?);
            let Some(stretch) = runner.worth_it(stretch.first, before)? else {
                return Ok(Ahead::NotBefore(runner.resting.end));
            };
            length = stretch.length();
            gone = runner.go(stretch, &from, &[], poll);
        }
        match gone {
            Ok(Gone::There(there)) => {
                log::debug!("the other engine went ahead from {here}, {length} steps");
                self.restore(&there)?;
                self.count_fast_forwarded(length);
                // If the CPU is halted, idle time may have passed. Then this is not the first state with this count,
                // and no snapshot is taken.
                if !there.state.cpu.halted {
                    self.leave_snapshot()?;
                }
                Ok(Ahead::Gone)
            }
            Ok(Gone::Interrupted) => Ok(Ahead::Interrupted),
            Ok(Gone::Met(_)) => unreachable!("without breakpoints none is met"),
            Err(error) => {
                log::warn!("going on with the software engine only: {error}");
                self.runner = None;
                nothing
            }
        }
    }
}
