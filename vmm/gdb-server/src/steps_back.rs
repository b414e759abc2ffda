//! Steps backward that follow their thread: the mirror image of `steps.rs`.
//!
//! If the step to undo returns from a handler or switches to the thread, a search finds the place where the thread
//! stopped running before. If breakpoints or watchpoints are set, a search looks for hits between that place and the
//! present place.

use cpu::{AddressKind, CodeSize, SystemCalls, Traps, WatchKind, Watchpoint};
use gdb::{Poll, Refusal, Stop};

use super::level::{LONGEST_BYTES, Level, SYSRET, is_at};
use super::steps::{deliveries, switch, switch_to, turns, with};
use super::{GdbTarget, refused};
use history::timeline::{Breakpoint, Cause, Filter, Stops, TravelStop};
use machine::Machine;
use machine::position::Instructions;

/// The number of the system call at the end of a signal handler.
const RT_SIGRETURN: u64 = 15;
/// The number of instructions before a jump that are searched for a write to the stack pointer.
const STEPS_TO_JUMP: u64 = 40;
const RSP: u8 = 4;

/// The kind of the undone step.
enum Undone {
    /// An instruction of the thread, or another end of a backward step.
    Own(TravelStop),
    /// A step that resumed the thread. The machine is now at the earlier place where the thread stopped running.
    Return {
        /// The thread's processor at the place where the thread stopped running. This processor may have executed
        /// the last step before the place.
        processor: usize,
    },
    /// No step was undone, because the thread began here.
    Begin,
    /// The user interrupted the step.
    Interrupted,
}

impl GdbTarget<'_> {
    /// Undoes one instruction of the running thread.
    pub(super) fn step_back_of_thread(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        if self.timeline.forked_at().is_some() {
            let stop = self.timeline.step_backward(poll).map_err(refused)?;
            return Ok(self.stopped(stop));
        }
        if self.stepping.follow_cpu {
            return self.step_back_of_processor(poll);
        }
        let points = self.points_of_user();
        let there = self.shown_level();
        let begun = self.timeline.position();
        let may_jump = self.stepping.pass_calls && there.is_program;
        if points.watches.is_empty() {
            let stop = self.timeline.step_backward(poll).map_err(refused)?;
            let is_own = there.came_from(self.timeline.machine());
            if stop != TravelStop::Reached || is_own && !(may_jump && is_jump(self.timeline.machine())) {
                return Ok(self.stopped(stop));
            }
            self.timeline.seek(begun, &mut || false).map_err(refused)?;
        }
        let begun = self.timeline.snapshot().map_err(refused)?;
        let level = there.clone();
        let mut stop = self.follow_back(there, &points, poll);
        if may_jump && stop == Ok(Stop::Step) {
            stop = self.back_over_jump(&level, &points, poll);
        }
        self.points_changed();
        if !matches!(stop, Ok(stop) if stop != Stop::Interrupted) {
            self.timeline.return_to(&begun).map_err(refused)?;
        }
        stop
    }

    /// Undoes one instruction of the processor that gdb shows. The steps of other processors after this instruction are
    /// undone too.
    fn step_back_of_processor(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal> {
        let processor = self.shown_processor;
        let begun = self.timeline.snapshot().map_err(refused)?;
        let mut stop = self.timeline.step_backward(poll).map_err(refused)?;
        if self.timeline.machine().cpu().seat() != processor && stop == TravelStop::Reached {
            self.timeline.return_to(&begun).map_err(refused)?;
            let had_seat = move |machine: &Machine<Instructions>| machine.cpu().stepped_by() == processor;
            let points = self.points();
            self.timeline.set_stops(with(&points, turns(Filter::new(had_seat))));
            stop = self.timeline.run_backward(poll).map_err(refused)?;
            self.timeline.set_stops(points);
            stop = if stop == TravelStop::Hit(Cause::Turn) { TravelStop::Reached } else { stop };
        }
        Ok(self.stopped(stop))
    }

    /// Runs backward until one of gdb's breakpoints or watchpoints stops the machine, at most to the thread's
    /// beginning.
    pub(super) fn run_back_of_thread(
        &mut self,
        thread: &Level,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let points = self.points();
        let mut stops = points.clone();
        let begin = self.stop_at_begin(thread, &mut stops);
        self.timeline.set_stops(stops);
        let stop = self.timeline.run_backward(poll).map_err(refused)?;
        self.timeline.set_stops(points.clone());
        let machine = self.timeline.machine();
        let is_begin = begin == Some(machine.cpu().rip()) && thread.runs(machine);
        if !matches!(stop, TravelStop::Hit(Cause::Breakpoint(_))) || !is_begin || points.stops_at(machine) {
            return Ok(self.stopped(stop));
        }
        if thread.is_program {
            let thread = thread.clone();
            let in_program = Filter::new(move |machine| thread.is_program_of_thread(machine));
            let traps = Traps { returns: true, ..Traps::default() };
            self.timeline.set_stops(Stops { traps, trap_filter: Some(in_program), ..Stops::default() });
            self.timeline.run_forward(&mut || false).map_err(refused)?;
            self.timeline.set_stops(points);
        }
        self.begin_of_thread(self.timeline.position(), thread)
    }

    fn follow_back(
        &mut self,
        mut there: Level,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        loop {
            let from = self.timeline.position();
            let processor = match self.undo(&there, points, poll)? {
                Undone::Own(stop) => return Ok(self.stopped(stop)),
                Undone::Interrupted => return Ok(Stop::Interrupted),
                Undone::Begin => return self.begin_of_thread(from, &there),
                Undone::Return { processor } => processor,
            };
            let left_at = self.timeline.position();
            if let Some(stop) = self.go_back(left_at, from, None, points, poll)? {
                return Ok(stop);
            }
            let here = Level::on(processor, self.timeline.machine(), there.tasks());
            let is_same = here.is_same(&there);
            // If the places differ, the step at the earlier place was the thread's own instruction. Such an
            // instruction switched threads, made a system call, or had a fault that led elsewhere.
            if !is_same {
                return Ok(self.stopped(TravelStop::Reached));
            }
            there = here;
        }
    }

    /// Undoes one step of the machine.
    fn undo(&mut self, there: &Level, points: &Stops, poll: &mut Poll<'_>) -> Result<Undone, Refusal> {
        let events = Traps { returns: true, ..deliveries() };
        self.timeline.set_stops(Stops { traps: events, ..points.clone() });
        let stop = self.timeline.step_backward(poll).map_err(refused)?;
        if stop == TravelStop::Interrupted {
            return Ok(Undone::Interrupted);
        }
        if self.timeline.machine().cpu().seat() != there.processor && stop != TravelStop::Start {
            return self.undo_turns(there, poll);
        }
        let left = match stop {
            TravelStop::Hit(Cause::Return)
                if self.stepping.pass_calls || !is_at(self.timeline.machine(), &SYSRET) =>
            {
                self.left_for_handler(there, poll)?
            }
            TravelStop::Reached if !there.runs(self.timeline.machine()) => {
                if self.timeline.machine().processors() > 1 {
                    return self.undo_turns(there, poll);
                }
                self.left_for_others(there, poll)?
            }
            _ => return Ok(Undone::Own(stop)),
        };
        Ok(match left {
            TravelStop::Interrupted => Undone::Interrupted,
            TravelStop::Reached => self.left_here(),
            TravelStop::Hit(Cause::Breakpoint(_)) => Undone::Begin,
            _ => Undone::Own(TravelStop::Reached),
        })
    }

    /// The result for a machine that is right before the step after which the thread no longer ran.
    fn left_here(&self) -> Undone {
        Undone::Return { processor: self.timeline.machine().cpu().seat() }
    }

    /// Goes back to the place where the thread ran last. Between that place and the present place, other processors
    /// had their turns.
    fn undo_turns(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<Undone, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let level = there.clone();
        let ran_until_here = Filter::new(move |machine| level.ran_until_here(machine));
        let mut stops = turns(ran_until_here);
        if let Some((places, task)) = there.switches(self.timeline.machine()) {
            for place in places {
                stops.watches.push(switch(place).into());
                stops.watch_filters.insert(place, switches_from(task));
            }
        }
        self.timeline.set_stops(stops);
        match self.timeline.run_backward(poll).map_err(refused)? {
            TravelStop::Interrupted => Ok(Undone::Interrupted),
            TravelStop::Hit(Cause::Turn) => {
                // The turn's last step may have entered the kernel or left a handler. So the caller undoes this
                // step separately.
                self.timeline.set_stops(Stops::default());
                self.timeline.step_forward().map_err(refused)?;
                Ok(Undone::Return { processor: self.timeline.machine().cpu().stepped_by() })
            }
            TravelStop::Hit(_) => Ok(self.left_here()),
            _ => {
                self.timeline.return_to(&here).map_err(refused)?;
                Ok(Undone::Own(TravelStop::Reached))
            }
        }
    }

    /// Stops because the thread begins here: it has run no program code before `there`.
    fn begin_of_thread(&mut self, at: Instructions, there: &Level) -> Result<Stop, Refusal> {
        self.timeline.seek(at, &mut || false).map_err(refused)?;
        let name = there.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!("The thread {name} begins here."));
        Ok(Stop::HistoryStart)
    }

    /// The machine must be right before a handler returns to `there`. Goes back to the entry into the handler. If
    /// the code was no handler, does not move and returns [`TravelStop::Start`]. If the thread began after such an
    /// entry, returns a hit of a breakpoint.
    fn left_for_handler(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<TravelStop, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let level = there.clone();
        let system_calls =
            if there.is_program { SystemCalls::All } else { Stops::default().traps.system_calls };
        let mut entries = Stops {
            traps: Traps { system_calls, ..deliveries() },
            trap_filter: Some(Filter::new(move |machine| level.was_left(machine))),
            ..Stops::default()
        };
        if there.is_program {
            self.stop_at_begin(there, &mut entries);
        }
        self.timeline.set_stops(entries);
        let stop = self.timeline.run_backward(poll).map_err(refused)?;
        let begun = match stop {
            TravelStop::Interrupted => return Ok(stop),
            TravelStop::Hit(Cause::Breakpoint(_)) if self.stepping.pass_calls => return Ok(stop),
            TravelStop::Hit(Cause::Vector(_)) => self.begins_handler(there, poll)?,
            TravelStop::Hit(Cause::SystemCall(number)) if self.stepping.pass_calls => {
                match self.frame_of_signal(number) {
                    Some(frame) => match self.left_for_signal(there, frame, poll)? {
                        TravelStop::Interrupted => return Ok(TravelStop::Interrupted),
                        stop => stop == TravelStop::Reached,
                    },
                    None => true,
                }
            }
            _ => false,
        };
        if begun {
            return Ok(TravelStop::Reached);
        }
        self.timeline.return_to(&here).map_err(refused)?;
        Ok(TravelStop::Start)
    }

    /// Adds a stop at the thread's beginning to a backward search, if the kernel has a symbol for it. Returns
    /// the beginning's address.
    fn stop_at_begin(&mut self, thread: &Level, stops: &mut Stops) -> Option<u64> {
        thread.thread.task?;
        let begin = self.begin_of_threads()?;
        if !stops.breakpoints.contains(&Breakpoint::at(begin)) {
            let thread = thread.clone();
            stops.breakpoints.push(Breakpoint::at(begin));
            stops.filters.insert(begin, Filter::new(move |machine| thread.runs(machine)));
        }
        Some(begin)
    }

    /// The address of the signal frame, if this system call is the return from a signal handler.
    fn frame_of_signal(&self, system_call: u64) -> Option<u64> {
        let core = self.timeline.machine().cpu().core();
        (system_call == RT_SIGRETURN && core.code_size == CodeSize::Bits64).then(|| core.reg64(RSP))
    }

    /// The machine must be right before the return from a signal handler. Goes back to the entry into the kernel
    /// that led to the handler.
    fn left_for_signal(
        &mut self,
        there: &Level,
        frame: u64,
        poll: &mut Poll<'_>,
    ) -> Result<TravelStop, Refusal> {
        let thread = there.clone();
        let traps = Traps { returns: true, ..Traps::default() };
        // The handler's return address is directly below the frame.
        let begins = Filter::new(move |machine: &Machine<Instructions>| {
            is_below(machine, frame) && thread.is_program_of_thread(machine)
        });
        let begins = Stops { traps, trap_filter: Some(begins), ..Stops::default() };
        let level = there.clone();
        let entries = Stops {
            traps: Traps { system_calls: SystemCalls::All, ..deliveries() },
            trap_filter: Some(Filter::new(move |machine| level.was_left(machine))),
            ..Stops::default()
        };
        loop {
            for stops in [&begins, &entries] {
                self.timeline.set_stops(stops.clone());
                let stop = self.timeline.run_backward(poll).map_err(refused)?;
                if !matches!(stop, TravelStop::Hit(_)) {
                    return Ok(stop);
                }
            }
            // The handler itself may have entered the kernel with the same stack pointer.
            if !is_below(self.timeline.machine(), frame) {
                return Ok(TravelStop::Reached);
            }
        }
    }

    /// The machine must be right before a program's jump to `there`. If the jump switched stacks, goes back to the last
    /// call that was made with the stack pointer of `there`. So undoing a `longjmp` leads to the call of the function
    /// that `longjmp` left. For any other jump the machine stays.
    fn back_over_jump(
        &mut self,
        there: &Level,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        let machine = self.timeline.machine();
        if !is_jump(machine) || !there.is_program_of_thread(machine) || !self.has_switched_stacks()? {
            return Ok(Stop::Step);
        }
        let jump = self.timeline.snapshot().map_err(refused)?;
        let from = self.timeline.position();
        let place = there.stack.wrapping_sub(8);
        let call =
            Watchpoint { space: AddressKind::Linear, address: place, length: 8, kind: WatchKind::Write };
        let thread = there.clone();
        let is_call = Filter::new(move |machine: &Machine<Instructions>| {
            machine.cpu().core().reg64(RSP) == place && thread.is_program_of_thread(machine)
        });
        let mut stops = Stops { watches: vec![call.into()], ..Stops::default() };
        stops.watch_filters.insert(place, is_call);
        self.stop_at_begin(there, &mut stops);
        self.timeline.set_stops(stops);
        match self.timeline.run_backward(poll).map_err(refused)? {
            TravelStop::Interrupted => Ok(Stop::Interrupted),
            TravelStop::Hit(Cause::Watch { .. }) => {
                let called_at = self.timeline.position();
                let stop = self.go_back(called_at, from, Some(call), points, poll)?;
                Ok(stop.unwrap_or_else(|| self.stopped(TravelStop::Reached)))
            }
            _ => {
                self.timeline.return_to(&jump).map_err(refused)?;
                Ok(Stop::Step)
            }
        }
    }

    /// Whether one of the instructions directly before this jump has set the stack pointer.
    fn has_switched_stacks(&mut self) -> Result<bool, Refusal> {
        let jump = self.timeline.position();
        let begin = Instructions(jump.0.saturating_sub(STEPS_TO_JUMP));
        self.timeline.seek(begin, &mut || false).map_err(refused)?;
        self.timeline.set_stops(Stops::default());
        let mut has_switched = sets_stack(self.timeline.machine());
        let mut rip = self.timeline.machine().cpu().rip();
        let mut goes_on = |machine: &Machine<Instructions>| {
            let from = std::mem::replace(&mut rip, machine.cpu().rip());
            let is_next = rip.wrapping_sub(from) <= LONGEST_BYTES;
            has_switched = has_switched && is_next || sets_stack(machine);
            machine.moment().count < jump
        };
        if begin < jump {
            self.timeline.steps_forward(&mut goes_on, &mut || false).map_err(refused)?;
        }
        Ok(has_switched)
    }

    /// Whether the next step delivers an interrupt or exception whose handler returns to `there`. Ignores software
    /// interrupts (INT n).
    fn begins_handler(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<bool, Refusal> {
        let here = self.level_with(there);
        let begin = self.timeline.snapshot().map_err(refused)?;
        self.timeline.set_stops(Stops { traps: deliveries(), ..Stops::default() });
        let stop = self.timeline.step_forward().map_err(refused)?;
        let mut is_event = matches!(stop, TravelStop::Hit(_))
            && self.timeline.look_as_stepped(|machine| here.was_interrupted(machine));
        // The kernel also returns to itself without an interrupt or exception. So an earlier interrupt or exception
        // may match by chance.
        if is_event && !there.is_program {
            let level = here.clone();
            self.timeline.set_stops(Stops {
                traps: Traps { returns: true, ..Traps::default() },
                trap_filter: Some(Filter::new(move |machine| level.is_back(machine))),
                ..Stops::default()
            });
            self.timeline.run_forward(poll).map_err(refused)?;
            is_event = self.level_as_stepped().is_same(there);
        }
        self.timeline.return_to(&begin).map_err(refused)?;
        Ok(is_event)
    }

    /// While another thread runs, goes back to the place where the thread of `there` ran last. If the thread never ran,
    /// does not move and returns [`TravelStop::Start`].
    fn left_for_others(&mut self, there: &Level, poll: &mut Poll<'_>) -> Result<TravelStop, Refusal> {
        let here = self.timeline.snapshot().map_err(refused)?;
        let Some((places, task)) = there.switches(self.timeline.machine()) else {
            return Ok(TravelStop::Start);
        };
        let place = places[0];
        self.timeline.set_stops(Stops { watches: vec![switch_to(place, task)], ..Stops::default() });
        let mut stop = self.timeline.run_backward(poll).map_err(refused)?;
        if matches!(stop, TravelStop::Hit(_)) {
            // Goes from the start of the thread's last run forward to the next switch.
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

    /// Goes to the last hit of a breakpoint or watchpoint between `left_at` and `from`. Without a hit, returns
    /// `None`, and the machine stays at `left_at`. The step at `left_at` enters the kernel, switches to another
    /// thread, or makes an access.
    fn go_back(
        &mut self,
        left_at: Instructions,
        from: Instructions,
        access: Option<Watchpoint>,
        points: &Stops,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Stop>, Refusal> {
        if points.breakpoints.is_empty() && points.watches.is_empty() {
            return Ok(None);
        }
        let left = self.timeline.snapshot().map_err(refused)?;
        self.timeline.set_stops(points.clone());
        self.timeline.seek(from, poll).map_err(refused)?;
        // The step at `left_at` is a delivery, a system call, or the write that switches to another thread.
        let level = self.level();
        let entries = Traps { system_calls: SystemCalls::All, turns: true, ..deliveries() };
        let mut marks = Stops { traps: entries, ..Stops::default() };
        // The thread stopped running at the end of a turn at `left_at`, or in the step after `left_at`.
        let is_here = move |machine: &Machine<Instructions>| {
            (left_at.0..=left_at.0 + 1).contains(&machine.moment().count.0)
        };
        marks.trap_filter = Some(Filter::new(is_here));
        let switches = level.switches(self.timeline.machine()).map(|(places, _)| places);
        let switches = switches.into_iter().flatten().map(switch);
        for mark in access.into_iter().chain(switches) {
            let is_mark =
                Filter::new(move |machine: &Machine<Instructions>| machine.moment().count.0 == left_at.0 + 1);
            if !points.watches.iter().any(|watch| watch.point.address == mark.address) {
                marks.watches.push(mark.into());
                marks.watch_filters.insert(mark.address, is_mark);
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

/// A filter for writes to the kernel's pointer to the running task. The filter is true if `task` ran before the write.
fn switches_from(task: u64) -> Filter {
    Filter::new(move |machine: &Machine<Instructions>| {
        let is_from = |hit: &cpu::Hit| matches!(hit, cpu::Hit::Watch(hit) if hit.old == Some(task));
        machine.cpu().hits().iter().any(is_from)
    })
}

/// Whether the stack pointer is directly below a signal frame, as at the beginning of the handler.
fn is_below(machine: &Machine<Instructions>, frame: u64) -> bool {
    machine.cpu().core().reg64(RSP).wrapping_add(8) == frame
}

/// Whether the next instruction is a jump through a register or memory, or a return.
fn is_jump(machine: &Machine<Instructions>) -> bool {
    const JUMP: u8 = 0xff;
    const RETURN: u8 = 0xc3;
    let code = code(machine);
    // Prefixes: NOTRACK or BND, and REX.B for registers from R8 on.
    let code = if [0x3e, 0xf2].contains(&code[0]) { &code[1..] } else { &code[..] };
    let code = if code[0] == 0x41 { &code[1..] } else { code };
    code[0] == RETURN || code[0] == JUMP && code[1] >> 3 & 7 == 4
}

/// Whether the next instruction copies to RSP from a register or memory other than a frame pointer.
fn sets_stack(machine: &Machine<Instructions>) -> bool {
    let [prefix, opcode, operand, _] = code(machine);
    // The prefix is REX.W. The prefix's lower bits are the high bits of the operand's register numbers.
    let (is_wide, reg_high, rm_high) = (prefix & 0xf8 == 0x48, prefix >> 2 & 1, prefix & 1);
    let (reg, rm) = (operand >> 3 & 7 | reg_high << 3, operand & 7 | rm_high << 3);
    const RBP: u8 = 5;
    match opcode {
        0x89 => is_wide && operand >> 6 == 3 && rm == RSP && reg != RBP,
        0x8b => is_wide && reg == RSP && !(operand >> 6 == 3 && rm == RBP),
        _ => false,
    }
}

/// The first four bytes of the next instruction.
fn code(machine: &Machine<Instructions>) -> [u8; 4] {
    let mut code = [0; 4];
    machine.cpu().core().peek(machine.cpu().rip(), &mut code);
    code
}
