//! Steps that follow their thread. Interrupts, faults and other threads during a step are not shown, except for
//! breakpoints and watchpoints that they hit. `steps_back.rs` does the same backward.
//!
//! Each step of the CPU is a delivery (of an interrupt or exception), a switch to another thread, or an instruction of
//! the stepped thread. After a delivery, the run continues until a handler returns to the same [`Level`]. After a
//! switch, the run continues until the kernel switches back. After the thread's own instruction, gdb's step is done.
//!
//! A fault or an interrupt may not return to the same place, but to a signal handler or to code that repairs
//! a fault. The thread continues in that code, so the step ends there.

use std::collections::BTreeSet;
use std::ops::Range;

use cpu::{AddressKind, Traps, WatchKind, Watchpoint};
use gdb::{Poll, Refusal, Stop};

use super::level::Level;
use super::{GdbTarget, refused};
use history::timeline::{Cause, Comparison, Filter, Relation, Stops, TravelStop, Watch};
use machine::Machine;
use machine::position::Instructions;

/// How many instructions of a thread to execute.
pub(super) enum Steps<'a> {
    One,
    /// Instructions as long as the function returns true after each instruction.
    While(&'a mut dyn FnMut(&Machine<Instructions>) -> bool),
}

impl Steps<'_> {
    fn go_on(&mut self, machine: &Machine<Instructions>) -> bool {
        match self {
            Steps::One => false,
            Steps::While(goes_on) => goes_on(machine),
        }
    }
}

/// How a run through handlers or other threads ended.
pub(super) enum Passed {
    /// The thread runs again.
    Back,
    /// Something else stopped the machine, such as a breakpoint.
    Stopped(Stop),
}

impl GdbTarget<'_> {
    /// Executes one instruction of the running thread.
    pub(super) fn step_of_thread(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        if self.stepping.follow_cpu {
            return self.step_of_processor(poll);
        }
        let here = self.shown_level();
        let stop = self.steps_of_thread(&here, Steps::One, poll)?;
        let goes_on = stop == Stop::Step && self.stepping.pass_calls;
        if !goes_on || !self.is_parked() && self.points().stops_at(self.timeline.machine()) {
            return Ok(stop);
        }
        Ok(self.pass_what_program_asked(&here, poll)?.unwrap_or(stop))
    }

    /// Executes one instruction of the processor that gdb shows. If other processors have turns before this
    /// instruction, these turns are executed too.
    fn step_of_processor(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        let processor = self.shown_processor;
        if self.is_parked() {
            let gets_seat = move |machine: &Machine<Instructions>| machine.cpu().seat() == processor;
            let points = self.points();
            self.timeline.set_stops(with(&points, turns(Filter::new(gets_seat))));
            let stop = self.timeline.run_forward(poll);
            self.timeline.set_stops(points);
            match stop.map_err(refused)? {
                TravelStop::Hit(Cause::Turn) => {}
                stop => return Ok(self.stopped(stop)),
            }
        }
        let stop = self.timeline.step_forward().map_err(refused)?;
        Ok(self.stopped_on(processor, stop))
    }

    /// Executes instructions of a thread. Other threads may run first.
    pub(super) fn steps_of_thread(
        &mut self,
        begin: &Level,
        steps: Steps<'_>,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let points = self.points_of_user();
        let stop = self.follow(begin, steps, &points, poll);
        self.points_changed();
        stop
    }

    fn follow(
        &mut self,
        begin: &Level,
        mut steps: Steps<'_>,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let mut here = begin.clone();
        if here.processor != self.timeline.machine().cpu().seat() {
            if let Passed::Stopped(stop) = self.pass_others(&here, points, poll)? {
                return Ok(stop);
            }
            here = self.level_with(&here);
        }
        loop {
            self.timeline.set_stops(Stops { traps: deliveries(), ..points.clone() });
            let processor = self.timeline.machine().cpu().seat();
            let (mut left, mut turned) = (false, false);
            let mut own = |machine: &Machine<Instructions>| {
                turned = machine.cpu().seat() != processor;
                left = turned || !here.is_program && !here.runs(machine);
                let goes_on = !left && steps.go_on(machine);
                if goes_on {
                    here.move_to(machine);
                }
                goes_on
            };
            let stop = self.timeline.steps_forward(&mut own, poll).map_err(refused)?;
            let passed = match stop {
                TravelStop::Reached if !left || turned && matches!(steps, Steps::One) => {
                    return Ok(self.stopped_on(processor, stop));
                }
                TravelStop::Reached => self.pass_others(&here, points, poll)?,
                TravelStop::Hit(Cause::Vector(_))
                    if self.timeline.look_as_stepped(|machine| here.was_interrupted(machine)) =>
                {
                    self.pass_handler(&here, points, poll)?
                }
                _ => return Ok(self.stopped_on(processor, stop)),
            };
            if let Passed::Stopped(stop) = passed {
                return Ok(stop);
            }
            let there = self.level_with(&here);
            if !there.is_same(&here) {
                here = there;
                if !steps.go_on(self.timeline.machine()) {
                    return Ok(self.stopped(TravelStop::Reached));
                }
            }
        }
    }

    /// Executes instructions of the running thread while RIP is in a range. A program's system call counts as one
    /// instruction, and a signal handler counts as one instruction too.
    pub(super) fn steps_in_range(
        &mut self,
        range: &Range<u64>,
        breakpoints: &BTreeSet<u64>,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        if self.stepping.follow_cpu {
            return self.step_of_processor(poll);
        }
        let mut here = self.shown_level();
        let self_has = self.breakpoints.clone();
        loop {
            let mut before = here.clone();
            let points = self.points();
            let is_at_point = |machine: &Machine<Instructions>| {
                let rip = machine.cpu().rip();
                points.stops_at(machine) || breakpoints.contains(&rip) && !self_has.contains(&rip)
            };
            let mut goes_on = |machine: &Machine<Instructions>| {
                let core = machine.cpu().core();
                let goes_on = range.contains(&core.rip) && !is_at_point(machine);
                if goes_on {
                    before.move_to(machine);
                }
                goes_on
            };
            let stop = self.steps_of_thread(&here, Steps::While(&mut goes_on), poll)?;
            if stop != Stop::Step {
                return Ok(stop);
            }
            if is_at_point(self.timeline.machine()) {
                return Ok(Stop::Breakpoint(self.timeline.machine().cpu().rip()));
            }
            if let Some(stop) = self.pass_what_program_asked(&before, poll)? {
                return Ok(stop);
            }
            let machine = self.timeline.machine();
            let rip = machine.cpu().rip();
            if is_at_point(machine) {
                return Ok(Stop::Breakpoint(rip));
            }
            if !range.contains(&rip) {
                return Ok(Stop::Step);
            }
            here = self.level_with(&here);
        }
    }

    /// Runs forward until one of gdb's breakpoints or watchpoints stops the machine, or until the thread ends.
    pub(super) fn run_of_thread(&mut self, thread: &Level, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        let points = self.points();
        let stop = self.pass_run(thread, Stops::default(), &points, None, poll)?;
        self.end_of_pass(thread, stop)
    }

    /// If a program's step from `before` led into the kernel or to a signal handler, continues until the program runs
    /// on.
    fn pass_what_program_asked(
        &mut self,
        before: &Level,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Stop>, Refusal> {
        let points = self.points_of_user();
        let tables = before.tables(self.timeline.machine());
        let after = Level::on(self.stopped_processor(), self.timeline.machine(), before.tasks());
        let is_in_kernel = before.is_program && !after.is_program;
        if is_in_kernel && let Passed::Stopped(stop) = self.pass_handler(before, &points, poll)? {
            return Ok(Some(stop));
        }
        if before.executes_another(tables, self.timeline.machine()) {
            return Ok(Some(self.another_program(before)));
        }
        if before.is_signalled(self.timeline.machine()) {
            let level = before.clone();
            let behind = Filter::new(move |machine| level.is_behind_signal(machine));
            if let Passed::Stopped(stop) = self.pass(before, returns(behind), &points, poll)? {
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    /// Runs until a handler has returned to the place that it interrupted.
    fn pass_handler(&mut self, here: &Level, points: &Stops, poll: &mut Poll<'_>) -> Result<Passed, Refusal> {
        let level = here.clone();
        let back = Filter::new(move |machine| level.is_back(machine));
        self.pass(here, returns(back), points, poll)
    }

    /// Runs until the kernel has switched back to the thread, and it is the turn of the thread's processor.
    fn pass_others(&mut self, here: &Level, points: &Stops, poll: &mut Poll<'_>) -> Result<Passed, Refusal> {
        let machine = self.timeline.machine();
        if here.has_ended(machine) {
            return Ok(Passed::Stopped(self.ended(here)));
        }
        let switches = here.switches(machine);
        if switches.is_none() && machine.processors() == 1 {
            return Ok(Passed::Stopped(self.stopped(TravelStop::Reached)));
        }
        let (places, task) = switches.unwrap_or_default();
        let level = here.clone();
        let back = Stops {
            watches: places.into_iter().map(|place| switch_to(place, task)).collect(),
            ..turns(Filter::new(move |machine| level.runs(machine)))
        };
        self.pass(here, back, points, poll)
    }

    /// Runs until the stops `back` stop the machine and the thread runs. Ends earlier if one of `points` stops the
    /// machine or the thread ends.
    fn pass(
        &mut self,
        here: &Level,
        back: Stops,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Passed, Refusal> {
        let begun = self.timeline.snapshot().map_err(refused)?;
        let stop = self.pass_run(here, back, points, None, poll)?;
        let machine = self.timeline.machine();
        let is_back = match stop {
            TravelStop::Hit(Cause::Return | Cause::Turn) => true,
            TravelStop::Hit(Cause::Watch { address, .. }) => {
                self.is_switch(here, address) && !here.has_ended(machine)
            }
            _ => false,
        };
        if is_back {
            // The step may have ended the turn of the thread's processor.
            let runs = here.runs(machine);
            return if runs { Ok(Passed::Back) } else { self.pass_others(here, points, poll) };
        }
        match stop {
            TravelStop::Interrupted => {
                if self.timeline.forked_at().is_none() {
                    self.timeline.return_to(&begun).map_err(refused)?;
                }
                Ok(Passed::Stopped(Stop::Interrupted))
            }
            _ => self.end_of_pass(here, stop).map(Passed::Stopped),
        }
    }

    /// Runs until `back` or one of `points` stops the machine, or until the thread ends, but at most `at_most` steps.
    pub(super) fn pass_run(
        &mut self,
        here: &Level,
        back: Stops,
        points: &Stops,
        at_most: Option<u64>,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Refusal> {
        let places = here.switches(self.timeline.machine()).map(|(places, _)| places);
        let mut stops = with(points, back);
        let is_free = |place: &u64| !stops.watches.iter().any(|watch| watch.point.address == *place);
        let free: Vec<u64> = places.into_iter().flatten().filter(is_free).collect();
        for place in free {
            let level = here.clone();
            stops.watches.push(switch(place).into());
            stops.watch_filters.insert(place, Filter::new(move |machine| level.has_ended(machine)));
        }
        self.timeline.set_stops(stops);
        let stop = match at_most {
            Some(steps) => self.timeline.run_forward_at_most(steps, poll),
            None => self.timeline.run_forward(poll),
        };
        self.timeline.set_stops(points.clone());
        stop.map_err(refused)
    }

    /// Converts the stop of a thread's run for gdb, and explains an end of the thread or the recording.
    pub(super) fn end_of_pass(&mut self, here: &Level, stop: TravelStop) -> Result<Stop, Refusal> {
        let machine = self.timeline.machine();
        match stop {
            TravelStop::Hit(Cause::Watch { address, .. })
                if self.is_switch(here, address) && here.has_ended(machine) =>
            {
                return Ok(self.ended(here));
            }
            TravelStop::End => {
                let name = here.name(machine).unwrap_or_default();
                self.message = Some(format!("The recording ends before the thread {name} gets there."));
            }
            _ => {}
        }
        Ok(self.stopped(stop))
    }

    /// Whether an address is one of the kernel's pointers to the running tasks.
    fn is_switch(&self, here: &Level, address: u64) -> bool {
        here.switches(self.timeline.machine()).is_some_and(|(places, _)| places.contains(&address))
    }

    /// Stops because the thread has ended. The machine is at the place where the kernel has chosen the next thread.
    fn ended(&mut self, thread: &Level) -> Stop {
        let name = thread.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!("The thread {name} has ended: it ran here last."));
        self.timeline.settle_meanwhile();
        Stop::Elsewhere
    }

    /// The place of the thread that executes the next step.
    pub(super) fn level(&mut self) -> Level {
        let tasks = self.known_tasks();
        Level::of(self.timeline.machine(), tasks.as_ref())
    }

    /// The place of the thread that executed the last step.
    pub(super) fn level_as_stepped(&mut self) -> Level {
        let tasks = self.known_tasks();
        let machine = self.timeline.machine();
        Level::on(machine.cpu().stepped_by(), machine, tasks.as_ref())
    }

    /// The place of the thread that gdb shows.
    pub(super) fn shown_level(&mut self) -> Level {
        let tasks = self.known_tasks();
        Level::on(self.shown_processor, self.timeline.machine(), tasks.as_ref())
    }

    /// Whether the processor that gdb shows does not execute the next step.
    pub(super) fn is_parked(&self) -> bool {
        self.shown_processor != self.timeline.machine().cpu().seat()
    }

    /// Does the same as [`Self::level`], but identifies the thread by the kernel's tasks in `other`.
    pub(super) fn level_with(&self, other: &Level) -> Level {
        Level::of(self.timeline.machine(), other.tasks())
    }
}

/// The traps that stop the machine at every delivery of an interrupt or exception.
pub(super) fn deliveries() -> Traps {
    Traps { vectors: (0..=u8::MAX).collect(), ..Traps::default() }
}

/// The stops at the ends of turns for which the filter is true.
pub(super) fn turns(filter: Filter) -> Stops {
    let traps = Traps { turns: true, ..Traps::default() };
    Stops { traps, trap_filter: Some(filter), ..Stops::default() }
}

/// The stops at the returns from handlers for which the filter is true.
fn returns(filter: Filter) -> Stops {
    let traps = Traps { returns: true, ..Traps::default() };
    Stops { traps, trap_filter: Some(filter), ..Stops::default() }
}

/// A watchpoint for writes to the kernel's pointer to the running task.
pub(super) fn switch(place: u64) -> Watchpoint {
    Watchpoint { space: AddressKind::Linear, address: place, length: 8, kind: WatchKind::Write }
}

/// A watch for writes to this pointer that make `task` the running task.
pub(super) fn switch_to(place: u64, task: u64) -> Watch {
    let comparison = Some(Comparison { relation: Relation::Equal, value: task });
    Watch { point: switch(place), changes_only: false, comparison }
}

/// The user's breakpoints and watchpoints, together with the stops that a movement needs.
pub(super) fn with(points: &Stops, mut more: Stops) -> Stops {
    more.breakpoints.clone_from(&points.breakpoints);
    more.filters.clone_from(&points.filters);
    more.watches.extend(points.watches.iter().copied());
    more.watch_filters.extend(points.watch_filters.iter().map(|(&at, filter)| (at, filter.clone())));
    more
}
