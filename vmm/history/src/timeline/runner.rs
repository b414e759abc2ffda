//! Going along long stretches of a recording on an engine that counts no instructions: KVM, which executes as
//! fast as the processor does.
//!
//! A walker's own machine is on the software CPU, which alone knows where between two exits it is. The
//! stretch between the places of two events can be left to a second machine, which counts exits and plays the
//! log that was recorded: the recounted log says what the counts of instructions are at the end of the
//! stretch.
//!
//! Where the second machine comes to a breakpoint, it says only behind which event that was. It goes to that
//! event once more, and the software CPU finds the breakpoint from there. So everything that a person sees
//! comes from the software CPU, and if the second machine fails, the walker goes on without it.

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

/// Exits between two questions whether to stop.
const POLL_EXITS: u64 = 200;
/// After a breakpoint that was near, the software CPU goes on alone for this many times as long as after the
/// one before.
const REST_FACTOR: u64 = 2;
const MOST_REST: u64 = 1 << 32;

/// From the place of one event to that of another, both by their numbers in the recounted log.
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

/// An event of a log that was there when the log was opened.
fn known<C: Count>(log: &Log<C>, number: usize) -> Result<CountedEvent<C>, Error> {
    let missing = || Error::State(format!("event {number} is missing"));
    log.event_with_system_calls(number)?.ok_or_else(missing)
}

/// How a stretch ended.
pub(super) enum Gone {
    /// To its end, and this is the machine there.
    There(Box<Snapshot<Instructions>>),
    /// A breakpoint was met, or almost, when this number of events had come in.
    Met(usize),
    Interrupted,
}

/// What a walker is to do.
pub(super) enum Ahead {
    /// Nothing can be left to another engine before this place.
    NotBefore(Instructions),
    /// The walker is at another place now.
    Gone,
    Interrupted,
}

/// The second machine.
pub(super) struct Runner {
    options: FastForward,
    machine: Machine<Exits>,
    player: Player<Exits>,
    exits: Arc<Recounted>,
    /// Checks and conditional branches before the part that was recounted.
    checks_before: usize,
    branches_before: u64,
    /// The same events by instructions, and the number of system calls until each.
    log: Arc<Log<Instructions>>,
    /// Where the software CPU goes alone, and for how long after the next breakpoint.
    pub resting: Range<Instructions>,
    rest: u64,
}

impl Runner {
    /// A second machine for a recounted recording. Others count instructions from the beginning, and no
    /// engine but the software CPU can run them.
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
        // The count is in events at which the guest was stopped, if the processor could count.
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

    /// The most breakpoints that this machine's engine takes.
    pub fn most_breakpoints(&self) -> usize {
        self.options.engine.most_breakpoints
    }

    /// What can be left to this machine on the way to a place by a walker that is here and has taken so many
    /// events.
    pub fn stretch(
        &self,
        here: Instructions,
        taken: usize,
        target: Instructions,
    ) -> Result<Option<Stretch>, Error> {
        let Some(limit) = target.number().checked_sub(self.options.near_steps) else { return Ok(None) };
        let earliest = if self.resting.contains(&here) { self.resting.end } else { here };
        // Power-on is no place to begin at: a part of a recording has it too, and it happened long before.
        let first = taken.max(1).max(self.log.counts_while(|at| at.count < earliest)?.0);
        let Some(begin) = self.place_of(first)? else { return Ok(None) };
        self.worth_it(first, Instructions(limit).min(begin.saturating_add(self.options.most_steps)))
    }

    /// From an event to the last place of one at or before a place, if that is long enough.
    pub fn worth_it(&self, first: usize, limit: Instructions) -> Result<Option<Stretch>, Error> {
        let last = self.log.counts_while(|at| at.count <= limit)?.0.checked_sub(1);
        let last = last.map_or(Ok(None), |last| self.place_of(last))?;
        let (Some(begin), Some(end)) = (self.place_of(first)?, last) else { return Ok(None) };
        // Several can come in at one place: the first of them.
        let last = self.log.counts_while(|at| at.count < end)?.0;
        let stretch = Stretch { first, last, begin, end };
        Ok((last > first && stretch.length() >= self.options.least_steps).then_some(stretch))
    }

    pub fn place_of(&self, event: usize) -> Result<Option<Instructions>, Error> {
        Ok(self.log.event(event)?.map(|event| event.at.count))
    }

    /// Goes along a stretch at whose beginning a walker stands.
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

    /// The machine at the end of a stretch, as the software CPU would have it there.
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

    /// On the way from `here` a breakpoint was met behind `before`, the place of the event before this one.
    /// Where they are dense, each way to the other engine is for nothing.
    pub fn met(&mut self, here: Instructions, before: Instructions, event: usize) -> Result<(), Error> {
        let soon = before.saturating_since(here) < self.rest.saturating_mul(REST_FACTOR);
        self.rest = if soon { (self.rest * REST_FACTOR).min(MOST_REST) } else { self.options.least_steps };
        let behind = self.place_of(event)?.unwrap_or(Instructions::MAX);
        self.resting = here..behind.max(before.saturating_add(self.rest));
        Ok(())
    }
}
