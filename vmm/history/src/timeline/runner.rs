//! Runs long stretches of a recording on an engine that counts no instructions: KVM, which is as fast as the
//! processor.
//!
//! A walker's own machine runs on the software CPU, because only the software CPU counts instructions between two
//! exits. A second machine can run the stretch between two events. The second machine counts exits and plays the
//! original log. The recounted log has the counts of instructions at the stretch's end.
//!
//! If the second machine reaches a breakpoint, only the number of the last event before the breakpoint is known.
//! The second machine runs to that event once more, and the software CPU finds the breakpoint from there. So every
//! state that a person sees comes from the software CPU. If the second machine fails, the walker continues without
//! it.

use std::ops::Range;
use std::sync::Arc;

use cpu::{AddressKind, Counts, Met};

use crate::timeline::shared::{FastForward, Shared};
use crate::workers::Poll;
use machine::error::Error;
use machine::position::{Count, Exits, Instructions};
use machine::{Machine, Outcome, RunStop};
use recording::Recounted;
use recording::checkpoints::Snapshot;
use recording::cursor::Cursor;
use recording::log::{CountedEvent, Log};
use recording::player::Player;

/// Exits between two polls.
const POLL_EXITS: u64 = 200;
/// After the second machine reaches a breakpoint, only the software CPU runs for `Runner::rest` steps. If the
/// second machine reaches another breakpoint soon, `rest` grows by this factor.
const REST_FACTOR: u64 = 2;
/// The largest value of `Runner::rest`.
const MOST_REST: u64 = 1 << 32;

/// A part of the run from the place of one event to the place of another. Both events are given by their numbers in the
/// recounted log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub first: usize,
    last: usize,
    pub begin: Instructions,
    end: Instructions,
}

impl Stretch {
    pub fn length(&self) -> u64 {
        self.end - self.begin
    }
}

/// Event `number` of the log. The caller knows that the log has this event.
fn known<C: Count>(log: &Log<C>, number: usize) -> Result<CountedEvent<C>, Error> {
    let missing = || Error::State(format!("event {number} is missing"));
    log.event_with_system_calls(number)?.ok_or_else(missing)
}

/// How a stretch ended.
pub(super) enum Gone {
    /// The machine reached the stretch's end, and has this state.
    There(Box<Snapshot<Instructions>>),
    /// The machine reached the address of a breakpoint, after this number of events.
    Met(usize),
    Interrupted,
}

/// The result of the second machine's attempt to run the next stretch.
pub(super) enum Ahead {
    /// The second machine did not run. The walker must run on the software CPU up to this place.
    NotBefore(Instructions),
    /// The second machine ran, and the walker is at another place now.
    Gone,
    Interrupted,
}

/// The second machine.
pub(super) struct Runner {
    options: FastForward,
    machine: Machine<Exits>,
    player: Player<Exits>,
    exits: Arc<Recounted>,
    /// The numbers of checks and of conditional branches before the recounted part.
    checks_before: usize,
    branches_before: u64,
    /// The recorded events by instructions, with the number of system calls before each event.
    log: Arc<Log<Instructions>>,
    /// The part of the run that only the software CPU runs, because the second machine reached a breakpoint there.
    pub resting: Range<Instructions>,
    /// The number of steps that only the software CPU runs after the next breakpoint.
    rest: u64,
}

impl Runner {
    /// Makes a second machine for a recounted recording. Recordings that the software CPU made cannot have one, because
    /// only the software CPU can run them.
    pub fn new(shared: &Shared, options: FastForward) -> Result<Runner, Error> {
        let recording = &shared.recording;
        let Some(exits) = &recording.recounted else {
            let why = "this recording counts instructions, which only the software engine does";
            return Err(Error::Unsupported(why.to_string()));
        };
        let player = Player::new(exits.log.clone())?;
        let config = &recording.manifest.machine;
        let mut machine = Machine::build(config, &shared.images, player.power_on(), options.engine)?;
        if let Some(checkpoints) = &shared.checkpoints {
            machine.attach_store(checkpoints.store().clone());
        }
        let events = recording.log.event_count();
        if events == 0 || exits.number_of(events - 1) + 1 != exits.log.event_count() {
            let why = "its log by instructions has other events than the log by exits";
            return Err(Error::recording(&recording.path, why));
        }
        // Events at which the guest was stopped have a count of branches, if the recording engine counted branches.
        let mut branches_before = 0;
        for number in 0..events {
            let then = exits.log.event(exits.number_of(number))?.map_or(0, |event| event.branches);
            if then != 0 {
                let now = recording.log.event(number)?.map_or(0, |event| event.branches);
                branches_before = then.saturating_sub(now);
                break;
            }
        }
        Ok(Runner {
            options,
            machine,
            player,
            checks_before: exits.log.counts_while(|at| at.count < exits.from)?.1,
            branches_before,
            exits: exits.clone(),
            log: recording.log.clone(),
            resting: Instructions(0)..Instructions(0),
            rest: options.least_steps,
        })
    }

    /// Largest number of breakpoints that this machine's engine accepts.
    pub fn most_breakpoints(&self) -> usize {
        self.options.engine.most_breakpoints
    }

    /// The stretch that this machine can run on the way to a place. The walker is at `here`, and `taken` is the
    /// number of events that have come in before this place.
    pub fn stretch(
        &self,
        here: Instructions,
        taken: usize,
        target: Instructions,
    ) -> Result<Option<Stretch>, Error> {
        let Some(limit) = target.number().checked_sub(self.options.near_steps) else { return Ok(None) };
        let earliest = if self.resting.contains(&here) { self.resting.end } else { here };
        // The stretch cannot begin at the power-on event. A recounted part of a recording also has a power-on event,
        // although power-on was long before.
        let first = taken.max(1).max(self.log.counts_while(|at| at.count < earliest)?.0);
        let Some(begin) = self.place_of(first)? else { return Ok(None) };
        self.worth_it(first, Instructions(limit).min(begin.saturating_add(self.options.most_steps)))
    }

    /// The stretch from event `first` to the last event at or before `limit`. `None` if the stretch is so short
    /// that the software CPU is as fast.
    pub fn worth_it(&self, first: usize, limit: Instructions) -> Result<Option<Stretch>, Error> {
        let last = self.log.counts_while(|at| at.count <= limit)?.0.checked_sub(1);
        let last = last.map_or(Ok(None), |last| self.place_of(last))?;
        let (Some(begin), Some(end)) = (self.place_of(first)?, last) else { return Ok(None) };
        // Several events can have the same position. The stretch ends at the first of these events.
        let last = self.log.counts_while(|at| at.count < end)?.0;
        let stretch = Stretch { first, last, begin, end };
        Ok((last > first && stretch.length() >= self.options.least_steps).then_some(stretch))
    }

    pub fn place_of(&self, event: usize) -> Result<Option<Instructions>, Error> {
        Ok(self.log.event(event)?.map(|event| event.at.count))
    }

    /// Runs the second machine along a stretch. The walker is at the stretch's beginning.
    pub fn go(
        &mut self,
        stretch: Stretch,
        from: &Snapshot<Instructions>,
        breakpoints: &[u64],
        poll: &mut Poll<'_>,
    ) -> Result<Gone, Error> {
        let (first, last) = (self.exits.number_of(stretch.first), self.exits.number_of(stretch.last));
        let begin = known(self.player.log(), first)?.0.at;
        let mut state = from.state.clone();
        state.counts.branches = state.counts.branches.saturating_add(self.branches_before);
        self.machine.restore_at_exit(begin.count, &state, &from.maps)?;
        let checks = from.cursor.checks() + self.checks_before;
        self.player.set_cursor(Cursor::after(first, checks, begin, 0))?;
        self.player.end_before(last);
        let points: Vec<_> = breakpoints.iter().map(|&address| (AddressKind::Linear, address)).collect();
        self.machine.set_breakpoints(&points);
        loop {
            let until = self.machine.moment().count + POLL_EXITS;
            match self.machine.run_from(until, Instructions::MAX, &mut self.player)? {
                RunStop::Reached if poll() => return Ok(Gone::Interrupted),
                RunStop::Reached => {}
                RunStop::Ended(Outcome::Ended) if self.player.cursor().events() == last => break,
                RunStop::Met(Met::Breakpoint) => {
                    let taken = self.player.cursor().events();
                    return Ok(Gone::Met(stretch.first + (taken - first)));
                }
                other => return Err(Error::State(format!("it came to something else: {other:?}"))),
            }
        }
        self.machine.go_on_after_end();
        Ok(Gone::There(Box::new(self.arrived(stretch)?)))
    }

    /// The machine's state at the end of a stretch, as the software CPU would have it.
    fn arrived(&mut self, stretch: Stretch) -> Result<Snapshot<Instructions>, Error> {
        let (record, system_calls) = known(&self.log, stretch.last)?;
        let mut state = self.machine.state();
        state.counts = Counts {
            steps: record.at.count.number(),
            branches: record.branches,
            system_calls: system_calls.unwrap_or_default(),
        };
        let checks = self.player.cursor().checks() - self.checks_before;
        let before = known(&self.log, stretch.last - 1)?.0.at;
        let cursor = Cursor::after(stretch.last, checks, before, 0);
        Ok(Snapshot { state, maps: self.machine.maps()?, cursor })
    }

    /// Notes that the second machine reached a breakpoint on a stretch from `here`. The breakpoint lies between
    /// `before`, the place of the last event that came in, and the place of event number `event`. From `here`, only
    /// the software CPU runs, up to the event or to `rest` steps after `before`, whichever is later.
    pub fn met(&mut self, here: Instructions, before: Instructions, event: usize) -> Result<(), Error> {
        let soon = before.saturating_since(here) < self.rest.saturating_mul(REST_FACTOR);
        self.rest = if soon { (self.rest * REST_FACTOR).min(MOST_REST) } else { self.options.least_steps };
        let behind = self.place_of(event)?.unwrap_or(Instructions::MAX);
        self.resting = here..behind.max(before.saturating_add(self.rest));
        Ok(())
    }
}
