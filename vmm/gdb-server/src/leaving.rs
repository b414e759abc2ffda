//! Functions that a program leaves without a return: by `longjmp`, by an exception, or from a signal handler. A run to
//! a return address ends at the landing, which is the place to which the program jumps. A successful `exec` ends such a
//! run, too.
//!
//! The jump itself cannot be detected. But the next call or return after the landing can be detected, because it
//! accesses one of the watched return addresses on the stack. Watching the stack makes a run slow, so a long run stops
//! watching after [`WATCHED_STEPS`]. From then on, the run checks the stack pointer whenever the kernel returns to the
//! program. Afterwards, single steps from the last place that was certainly before the landing find the landing.

use std::ops::Range;

use cpu::Traps;
use gdb::{Poll, Refusal, Stop};

use super::frames::Frames;
use super::level::{LONGEST_BYTES, Level};
use super::steps::Steps;
use super::{GdbTarget, refused};
use history::timeline::{Cause, Filter, Stops, TravelStop};
use machine::Machine;
use machine::position::Instructions;

/// The number of instructions at the beginning of a run during which return addresses are watched.
const WATCHED_STEPS: u64 = 500_000;
/// The largest number of instructions between setting the stack pointer and the jump.
const STEPS_TO_JUMP: u32 = 64;

impl GdbTarget<'_> {
    /// Runs to the return address of a function, or to the place where the program lands if it leaves the function
    /// otherwise.
    pub(super) fn run_to_return(&mut self, frames: &Frames, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        let thread = frames.thread();
        if self.timeline.forked_at().is_some() {
            return self.run_of_thread(thread, poll);
        }
        let points = self.points();
        let begun = self.timeline.position();
        let mut stop = self.pass_run(thread, frames.at_once(&points), &points, Some(WATCHED_STEPS), poll)?;
        if stop == TravelStop::Reached {
            stop = self.pass_run(thread, frames.seldom(), &points, None, poll)?;
        }
        let is_landing = match stop {
            TravelStop::Hit(Cause::Return) => {
                if frames.executes_another(self.timeline.machine()) {
                    return Ok(self.another_program(thread));
                }
                true
            }
            TravelStop::Hit(Cause::Watch { address, .. }) => frames.are_watched_at(address, &points),
            _ => false,
        };
        if !is_landing {
            return self.end_of_pass(thread, stop);
        }
        let landed = self.go_back_to_landing(frames, begun, poll);
        self.timeline.set_stops(points);
        // If there was no landing, the accessed word was no return address, and the run continues.
        landed?.map_or_else(|| self.run_of_thread(thread, poll), Ok)
    }

    /// Stops because the thread now runs another program.
    pub(super) fn another_program(&mut self, thread: &Level) -> Stop {
        let name = thread.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!("The thread {name} executes another program, which begins here."));
        self.timeline.settle_meanwhile();
        Stop::Elsewhere
    }

    /// Goes back to the landing, which is after `begun`. When this function is called, the timeline is at the first
    /// stop after the program may have left the functions. Does not move and returns `None` if there was no
    /// landing.
    fn go_back_to_landing(
        &mut self,
        frames: &Frames,
        begun: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Stop>, Refusal> {
        let left = self.timeline.snapshot().map_err(refused)?;
        let end = self.timeline.position();
        let stop = self.find_landing(frames, begun..end, poll)?;
        if stop != Stop::Step || self.timeline.position() >= end {
            self.timeline.return_to(&left).map_err(refused)?;
            return Ok((stop != Stop::Step).then_some(stop));
        }
        let name = frames.thread().name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!(
            "The thread {name} left the function without its return: by longjmp, an exception or the like. It landed here."
        ));
        self.timeline.settle_meanwhile();
        Ok(Some(Stop::Elsewhere))
    }

    /// Goes to the landing in this part of the run, or to the end of the part if it contains no landing.
    fn find_landing(
        &mut self,
        frames: &Frames,
        part: Range<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let begun = part.start;
        let of_run = frames.clone();
        let is_inside = Filter::new(move |machine: &Machine<Instructions>| {
            machine.moment().count <= begun || of_run.is_inside(machine)
        });
        let traps = Traps { returns: true, ..Traps::default() };
        self.timeline.set_stops(Stops { traps, trap_filter: Some(is_inside), ..Stops::default() });
        match self.timeline.run_backward(poll).map_err(refused)? {
            TravelStop::Interrupted => return Ok(Stop::Interrupted),
            TravelStop::Hit(Cause::Return) if self.timeline.position() >= begun => {
                self.timeline.set_stops(Stops::default());
                self.timeline.step_forward().map_err(refused)?;
            }
            _ => {
                self.timeline.seek(begun, poll).map_err(refused)?;
            }
        }
        let here = self.level_as_stepped();
        let mut from = here.rip;
        let mut jumped = false;
        let mut is_inside = |machine: &Machine<Instructions>| {
            let core = machine.cpu().core();
            jumped = core.rip.wrapping_sub(from).wrapping_sub(1) >= LONGEST_BYTES;
            from = core.rip;
            machine.moment().count < part.end && !(frames.runs(machine) && frames.is_above(machine))
        };
        let stop = self.steps_of_thread(&here, Steps::While(&mut is_inside), poll)?;
        if stop != Stop::Step || jumped || self.timeline.position() >= part.end {
            return Ok(stop);
        }
        // A `longjmp` sets the stack pointer some instructions before its jump. So this code steps on to the jump's
        // target.
        let here = self.level();
        let (mut from, mut steps) = (here.rip, 0);
        let mut is_before = |machine: &Machine<Instructions>| {
            let rip = machine.cpu().rip();
            let jumped = rip.wrapping_sub(from).wrapping_sub(1) >= LONGEST_BYTES;
            (from, steps) = (rip, steps + 1);
            !jumped && steps < STEPS_TO_JUMP
        };
        self.steps_of_thread(&here, Steps::While(&mut is_before), poll)
    }
}
