//! Steps backward that follow their thread: the mirror image of `steps.rs`.
//!
//! Where a step that is undone leads out of a handler, or switches to the thread, the place is looked for where the thread was left.
//! If break- or watchpoints are set, the way from there is searched for them.

use cpu::{SystemCalls, Traps};
use gdb::{Poll, Refusal, Stop};

use super::level::{Level, SYSRET, is_at};
use super::steps::{deliveries, switch, switch_to, with};
use super::{GdbTarget, refused};
use history::timeline::{Cause, Filter, Stops, TravelStop};
use machine::Machine;
use machine::position::Instructions;

/// What a step is that has been undone.
enum Undone {
    /// An instruction of the thread's own, or something else that ends a step backward.
    Own(TravelStop),
    /// What led back to where the thread had been left, at this place.
    Return(Instructions),
    /// The person asked to stop.
    Interrupted,
}

impl GdbTarget<'_> {
    /// Undoes one instruction of the thread that runs.
    pub(super) fn step_back_of_thread(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        if self.stepping.follow_cpu || self.timeline.forked_at().is_some() {
            let stop = self.timeline.step_backward(poll).map_err(refused)?;
            return Ok(self.stopped(stop));
        }
        let points = self.points();
        let there = self.level();
        let begun = self.timeline.position();
        if points.watches.is_empty() {
            let stop = self.timeline.step_backward(poll).map_err(refused)?;
            if stop != TravelStop::Reached || there.came_from(self.timeline.machine()) {
                return Ok(self.stopped(stop));
            }
            self.timeline.seek(begun, &mut || false).map_err(refused)?;
        }
        let begun = self.timeline.snapshot().map_err(refused)?;
        let stop = self.follow_back(there, &points, poll);
        self.timeline.set_stops(points);
        if !matches!(stop, Ok(stop) if stop != Stop::Interrupted) {
            self.timeline.return_to(&begun).map_err(refused)?;
        }
        stop
    }

    fn follow_back(
        &mut self,
        mut there: Level,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        loop {
            let from = self.timeline.position();
            let left_at = match self.undo(&there, points, poll)? {
                Undone::Own(stop) => return Ok(self.stopped(stop)),
                Undone::Interrupted => return Ok(Stop::Interrupted),
                Undone::Return(left_at) => left_at,
            };
            if let Some(stop) = self.go_back(left_at, from, points, poll)? {
                return Ok(stop);
            }
            let here = self.level_with(&there);
            let is_same = here.is_same(&there);
            // What switched away was the thread's own instruction, as is a system call, and one whose fault led elsewhere.
            if !is_same {
                return Ok(self.stopped(TravelStop::Reached));
            }
            there = here;
        }
    }

    /// Undoes one step of the CPU.
    fn undo(&mut self, there: &Level, points: &Stops, poll: &mut Poll<'_>) -> Result<Undone, Refusal> {
        let events = Traps { returns: true, ..deliveries() };
        self.timeline.set_stops(Stops { traps: events, ..points.clone() });
        let stop = self.timeline.step_backward(poll).map_err(refused)?;
        if stop == TravelStop::Interrupted {
            return Ok(Undone::Interrupted);
        }
        let left = match stop {
            TravelStop::Hit(Cause::Return)
                if self.stepping.pass_calls || !is_at(self.timeline.machine(), &SYSRET) =>
            {
                self.left_for_handler(there, poll)?
            }
            TravelStop::Reached if !there.runs(self.timeline.machine()) => {
                self.left_for_others(there, poll)?
            }
            _ => return Ok(Undone::Own(stop)),
        };
        Ok(match left {
            TravelStop::Interrupted => Undone::Interrupted,
            TravelStop::Reached => Undone::Return(self.timeline.position()),
            _ => Undone::Own(TravelStop::Reached),
        })
    }

    /// Before a return from a handler to `there`: goes back to where the handler began. Stays, and says
    /// [`TravelStop::Start`], if it was no handler that was left.
    fn left_for_handler(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<TravelStop, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let level = there.clone();
        let system_calls =
            if there.is_program { SystemCalls::All } else { Stops::default().traps.system_calls };
        let entries = Stops {
            traps: Traps { system_calls, ..deliveries() },
            trap_filter: Some(Filter::new(move |machine| level.was_left(machine))),
            ..Stops::default()
        };
        self.timeline.set_stops(entries);
        let stop = self.timeline.run_backward(poll).map_err(refused)?;
        let begun = match stop {
            TravelStop::Interrupted => return Ok(stop),
            TravelStop::Hit(Cause::Vector(_)) => self.begins_handler(there, poll)?,
            TravelStop::Hit(Cause::SystemCall(_)) => self.stepping.pass_calls,
            _ => false,
        };
        if begun {
            return Ok(TravelStop::Reached);
        }
        self.timeline.return_to(&here).map_err(refused)?;
        Ok(TravelStop::Start)
    }

    /// Whether the next step delivers an event that no instruction asked for, whose handler leads to `there`.
    fn begins_handler(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<bool, Refusal> {
        let here = self.level_with(there);
        let begin = self.timeline.snapshot().map_err(refused)?;
        self.timeline.set_stops(Stops { traps: deliveries(), ..Stops::default() });
        let stop = self.timeline.step_forward().map_err(refused)?;
        let mut is_event =
            matches!(stop, TravelStop::Hit(_)) && here.was_interrupted(self.timeline.machine());
        // Kernels return to themselves without an event, too. An event of long ago may fit by chance.
        if is_event && !there.is_program {
            let level = here.clone();
            self.timeline.set_stops(Stops {
                traps: Traps { returns: true, ..Traps::default() },
                trap_filter: Some(Filter::new(move |machine| level.is_back(machine))),
                ..Stops::default()
            });
            self.timeline.run_forward(poll).map_err(refused)?;
            is_event = self.level_with(there).is_same(there);
        }
        self.timeline.return_to(&begin).map_err(refused)?;
        Ok(is_event)
    }

    /// Where another thread runs: goes back to where `there` ran last. Stays, and says [`TravelStop::Start`], if it never did.
    fn left_for_others(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<TravelStop, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let Some((place, task)) = there.switches(self.timeline.machine()) else {
            return Ok(TravelStop::Start);
        };
        self.timeline.set_stops(Stops { watches: vec![switch_to(place, task)], ..Stops::default() });
        let mut stop = self.timeline.run_backward(poll).map_err(refused)?;
        if matches!(stop, TravelStop::Hit(_)) {
            // From where it began to run last, up to the next switch.
            self.timeline.set_stops(Stops::default());
            self.timeline.step_forward().map_err(refused)?;
            self.timeline.set_stops(Stops { watches: vec![switch(place).into()], ..Stops::default() });
            stop = self.timeline.run_forward(poll).map_err(refused)?;
        }
        match stop {
            TravelStop::Hit(_) => {
                let before = Instructions(self.timeline.position().0 - 1);
                let stop = self.timeline.seek(before, poll).map_err(refused)?;
                Ok(stop)
            }
            TravelStop::Interrupted => Ok(stop),
            _ => {
                self.timeline.return_to(&here).map_err(refused)?;
                Ok(TravelStop::Start)
            }
        }
    }

    /// Goes from `from` back to `left_at`, where the machine stands, unless one of the points stops it between.
    fn go_back(
        &mut self,
        left_at: Instructions,
        from: Instructions,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Stop>, Refusal> {
        if points.breakpoints.is_empty() && points.watches.is_empty() {
            return Ok(None);
        }
        let left = self.timeline.snapshot().map_err(refused)?;
        self.timeline.set_stops(points.clone());
        self.timeline.seek(from, poll).map_err(refused)?;
        // The step that left the thread is a delivery, a system call, or the write that switches to another one.
        let level = self.level();
        let entries = Traps { system_calls: SystemCalls::All, ..deliveries() };
        let mut marks = Stops { traps: entries, ..Stops::default() };
        marks.trap_filter = Some(Filter::new(move |machine| machine.moment().count.0 == left_at.0 + 1));
        if let Some((place, _)) = level.switches(self.timeline.machine()) {
            let is_mark =
                Filter::new(move |machine: &Machine<Instructions>| machine.moment().count.0 == left_at.0 + 1);
            if !points.watches.iter().any(|watch| watch.point.address == place) {
                marks.watches.push(switch(place).into());
                marks.watch_filters.insert(place, is_mark);
            }
        }
        self.timeline.set_stops(with(points, marks));
        let stop = self.timeline.run_backward(poll).map_err(refused)?;
        if self.timeline.position() <= left_at && stop != TravelStop::Interrupted {
            self.timeline.return_to(&left).map_err(refused)?;
            return Ok(None);
        }
        Ok(Some(self.stopped(stop)))
    }
}
