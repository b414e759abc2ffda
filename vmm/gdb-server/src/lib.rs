//! Answers gdb from a timeline, and serves several gdbs on one recording.
//!
//! ```no_run
//! use gdb::Listener;
//! use gdb_server::GdbTarget;
//! use history::timeline::Timeline;
//! use machine::position::Instructions;
//! use recording::Recording;
//!
//! /// Serves one gdb, which attaches with `target remote 127.0.0.1:1234`.
//! fn debug(recording: &Recording<Instructions>) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut timeline = Timeline::open(recording)?;
//!     let listener = Listener::bind("127.0.0.1:1234")?;
//!     gdb::serve(&listener, &mut GdbTarget::new(&mut timeline), |_end| false)?;
//!     Ok(())
//! }
//! ```
//!
//! [`GdbTarget`] implements [`DebugTarget`] with a timeline. [`serve`] gives each gdb its own timeline (`sessions.rs`).
//! Start reading with `serve`.
//!
//! - `monitor.rs` has the commands that gdb does not know. `processes.rs`, `threads.rs` and `kernel.rs` have the
//!   commands about the guest's kernel, and `symbol_files.rs` writes files for gdb.
//! - `bounds.rs` restricts breakpoints and watchpoints to one process.
//! - `steps.rs` and `steps_back.rs` let a step follow its thread. `temporary.rs` does the same for the breakpoints that
//!   gdb sets for a step.
//! - `leaving.rs` and `frames.rs` end a run if a program leaves a function without its return.
//!
//! This crate does not implement gdb's protocol, and never changes the recorded run. gdb's changes go to a fork
//! ([`history::timeline`]).

#![forbid(unsafe_code)]

mod bounds;
mod disk;
mod frames;
mod kernel;
mod known_tasks;
mod leaving;
mod level;
mod monitor;
mod processes;
mod progress;
mod questions;
mod registers;
mod sessions;
mod stepping;
mod steps;
mod steps_back;
mod symbol_files;
mod temporary;
mod threads;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use cpu::AddressKind;
use gdb::{DebugTarget, FIRST_CPU, NOT_A_CPU, Refusal, Registers, Stop};

use self::bounds::Bounds;
use self::known_tasks::KnownTasks;
use self::level::Level;
pub use self::sessions::{MAX_SESSIONS, Options, Report, serve, trouble};
use self::stepping::Stepping;
use self::symbol_files::SymbolFiles;
use self::temporary::Temporary;
use self::threads::ShownThreads;
use guest_symbols::GuestView;
use history::timeline::{Breakpoint, Cause, Direction, Filter, Hit, Stops, Timeline, TravelStop, Watch};
use machine::Machine;
use machine::error::Error;
use machine::position::Instructions;
use views::visible::visible;

/// A timeline as a debug target for gdb. gdb's changes never affect the recorded run.
pub struct GdbTarget<'a> {
    timeline: &'a mut Timeline,
    breakpoints: Vec<u64>,
    watchpoints: Vec<gdb::Watchpoint>,
    /// gdb's conditions of the breakpoints, by address.
    filters: BTreeMap<u64, Filter>,
    /// Restrictions of breakpoints and watchpoints to processes.
    bounds: Bounds,
    /// The breakpoints that gdb sets by itself, for example to step over a call.
    temporary: Temporary,
    stepping: Stepping,
    /// The number of the processor that gdb shows.
    shown_processor: usize,
    /// The processor to which the stop of the current movement belongs, if it is not the processor in the seat. The
    /// processor whose turn it is has the seat.
    stopped_on: Option<usize>,
    /// The direction of the current movement.
    direction: Direction,
    /// The location of the last seen kernel's processes.
    tasks: Option<KnownTasks>,
    symbol_files: SymbolFiles,
    /// The guest's threads, if gdb shows them.
    shown_threads: Option<ShownThreads>,
    /// The thread that gdb's user has selected since the last stop, if gdb has said so. gdb 18 does not name this
    /// thread when it reads memory.
    looked_at: Option<gdb::Thread>,
    /// The user's marks: positions with names.
    marks: BTreeMap<String, Instructions>,
    /// The hits of the last list, for the user to choose from.
    hits: Vec<Hit>,
    /// A message for gdb's user, which is shown when the guest next stops.
    message: Option<String>,
    /// A message for a user whose gdb has not loaded ttvm's commands. The message is shown when gdb connects.
    greeting: Option<String>,
    /// Whether the last command came from a script. No person sees the answer to a script, so `message` waits for the
    /// next command of a person.
    unseen: bool,
    progress: progress::Settings,
}

impl<'a> GdbTarget<'a> {
    /// A target at the timeline's position.
    pub fn new(timeline: &'a mut Timeline) -> GdbTarget<'a> {
        GdbTarget {
            breakpoints: Vec::new(),
            watchpoints: Vec::new(),
            filters: BTreeMap::new(),
            bounds: Bounds::default(),
            temporary: Temporary::default(),
            stepping: Stepping::default(),
            shown_processor: timeline.machine().cpu().seat(),
            stopped_on: None,
            direction: Direction::Forward,
            looked_at: None,
            tasks: None,
            symbol_files: SymbolFiles::default(),
            shown_threads: None,
            marks: BTreeMap::new(),
            hits: Vec::new(),
            message: None,
            greeting: None,
            unseen: false,
            progress: progress::Settings::default(),
            timeline,
        }
    }

    /// Reports the progress of movements to gdb and to `listener` in intervals of `every`. By default, only gdb
    /// gets reports, every two seconds.
    pub fn with_progress(self, every: Duration, listener: impl Fn(String) + 'static) -> GdbTarget<'a> {
        GdbTarget { progress: progress::Settings { every, listener: Some(Rc::new(listener)) }, ..self }
    }

    /// Chooses the folder of files for gdb. The default is the host's folder for temporary files.
    pub fn with_folder(mut self, folder: &Path) -> GdbTarget<'a> {
        self.symbol_files.make_in(folder);
        self
    }

    /// Shows the name of this file once to a gdb that has not loaded ttvm's commands. The file has these commands.
    pub fn with_commands(mut self, file: &Path) -> GdbTarget<'a> {
        self.greeting = Some(format!(
            "ttvm: this gdb lacks the tt commands; to load them, enter: source {}",
            file.display()
        ));
        self
    }

    /// Sets the breakpoints and watchpoints that are in force in the timeline.
    fn points_changed(&mut self) {
        self.timeline.set_stops(self.points());
    }

    /// The number of the processor that gdb shows as this thread. `None` if gdb shows a guest's thread that does not
    /// run.
    fn processor_of(&self, thread: gdb::Thread) -> Option<usize> {
        let processor = thread.checked_sub(FIRST_CPU)? as usize;
        (processor < self.timeline.machine().processors()).then_some(processor)
    }

    /// Returns an error unless the thread executes the next step. gdb can change the registers and memory of this
    /// thread only.
    fn must_have_seat(&self, thread: gdb::Thread) -> Result<(), Refusal> {
        let seat = self.timeline.machine().cpu().seat();
        match self.processor_of(thread) {
            Some(processor) if processor == seat => Ok(()),
            None if self.timeline.machine().processors() == 1 => Err(Refusal::new(NOT_A_CPU)),
            _ => Err(Refusal::new(format!(
                "only the processor that executes the next instruction can be changed: select thread {}",
                FIRST_CPU as usize + seat
            ))),
        }
    }

    /// Begins a movement of a thread.
    fn begin(&mut self, direction: Direction, thread: Option<gdb::Thread>) {
        // When gdb stops, it selects the thread of the stop.
        let selected = thread.or(self.looked_at.take());
        self.looked_at = None;
        (self.direction, self.stopped_on) = (direction, None);
        if let Some(processor) = selected.and_then(|thread| self.processor_of(thread)) {
            self.shown_processor = processor;
        }
        if !self.stepping.follow_cpu {
            let (tasks, processor) = (self.known_tasks(), self.shown_processor);
            let machine = self.timeline.machine();
            let here = || Level::on(processor, machine, tasks.as_ref());
            self.temporary.begin(&self.breakpoints, &here, direction, machine);
        }
        self.points_changed();
    }

    /// Ends a movement: gdb now shows the processor to which the stop belongs.
    fn end(&mut self, stop: Result<Stop, Refusal>) -> Result<Stop, Refusal> {
        let before = self.shown_processor;
        self.shown_processor = self.stopped_processor();
        let is_temporary = |address| self.temporary.filter(address).is_some();
        match stop {
            // gdb has moved one thread, and would ignore such a stop in another thread.
            Ok(Stop::Step) if before != self.shown_processor => Ok(self.goes_on_elsewhere()),
            Ok(Stop::Breakpoint(at)) if before != self.shown_processor && is_temporary(at) => {
                Ok(self.goes_on_elsewhere())
            }
            stop => stop,
        }
    }

    fn goes_on_elsewhere(&mut self) -> Stop {
        let level = self.shown_level();
        let name = level.name(self.timeline.machine()).unwrap_or_default();
        self.message = Some(format!("The thread {name} goes on here, on processor {}.", level.processor));
        Stop::Elsewhere
    }

    /// The processor to which the stop of a movement belongs.
    fn stopped_processor(&self) -> usize {
        self.stopped_on.unwrap_or_else(|| self.timeline.machine().cpu().seat())
    }

    /// The breakpoints and watchpoints in force, with their conditions.
    fn points(&self) -> Stops {
        let watch = |point: &gdb::Watchpoint| Watch {
            point: engine_watchpoint(point),
            // gdb ignores a write that does not change the watched value, so the target does not report such a write.
            changes_only: point.kind == gdb::WatchKind::Write,
            comparison: None,
        };
        let filter = |address: u64, condition| Some((address, self.bounds.filter(address, condition)?));
        let at_breakpoint = |&address: &u64| filter(address, self.condition(address));
        Stops {
            breakpoints: self.breakpoints.iter().map(|&address| Breakpoint::at(address)).collect(),
            filters: self.breakpoints.iter().filter_map(at_breakpoint).collect(),
            watches: self.watchpoints.iter().map(watch).collect(),
            watch_filters: self.watchpoints.iter().filter_map(|point| filter(point.address, None)).collect(),
            ..Stops::default()
        }
    }

    /// The breakpoints and watchpoints in force. Temporary breakpoints are left out, because gdb set them only for the
    /// stepped code.
    fn points_of_user(&self) -> Stops {
        let mut points = self.points();
        points.breakpoints.retain(|point| self.temporary.filter(point.address).is_none());
        points
    }

    /// The condition of a breakpoint: gdb's condition, and the restriction if the breakpoint is temporary.
    fn condition(&self, address: u64) -> Option<Filter> {
        let condition = self.filters.get(&address);
        let Some(temporary) = self.temporary.filter(address) else { return condition.cloned() };
        let (temporary, condition) = (temporary.clone(), condition.cloned());
        let holds = move |machine: &Machine<Instructions>| {
            temporary.holds(machine) && condition.as_ref().is_none_or(|condition| condition.holds(machine))
        };
        Some(Filter::new(holds))
    }

    /// To be called after gdb's changes. `forked_at` is the start of the fork that the machine was in before the
    /// change, if any.
    fn note_fork(&mut self, forked_at: Option<Instructions>) {
        if forked_at.is_none() {
            self.message = Some(format!(
                "This is now a scratch fork of the recording, begun at instruction {}: nothing comes in from outside, \
                 and it only goes forward. 'monitor back' returns to the recorded history here.",
                self.timeline.position()
            ));
        }
    }
}

fn refused(error: Error) -> Refusal {
    Refusal::new(visible(&error.to_string()))
}

fn engine_watchpoint(point: &gdb::Watchpoint) -> cpu::Watchpoint {
    let kind = match point.kind {
        gdb::WatchKind::Read => cpu::WatchKind::Read,
        gdb::WatchKind::Write => cpu::WatchKind::Write,
        gdb::WatchKind::Access => cpu::WatchKind::Access,
    };
    cpu::Watchpoint { space: AddressKind::Linear, address: point.address, length: point.length, kind }
}

impl GdbTarget<'_> {
    /// Converts the end of a processor's step for gdb.
    fn stopped_on(&mut self, processor: usize, stop: TravelStop) -> Stop {
        let stop = self.stopped(stop);
        self.stopped_on = Some(processor);
        stop
    }

    /// Converts the end of a movement for gdb. gdb now shows this place to its user.
    fn stopped(&mut self, stop: TravelStop) -> Stop {
        self.timeline.settle_meanwhile();
        // An access may be the last step of a turn.
        let is_behind =
            self.direction == Direction::Forward && matches!(stop, TravelStop::Hit(Cause::Watch { .. }));
        self.stopped_on = is_behind.then(|| self.timeline.machine().cpu().stepped_by());
        match stop {
            TravelStop::Reached => Stop::Step,
            TravelStop::Hit(Cause::Breakpoint(_)) => Stop::Breakpoint(self.timeline.machine().cpu().rip()),
            // In gdb's own movements only gdb's breakpoints and watchpoints are set, so these causes do not occur.
            TravelStop::Hit(
                Cause::SystemCall(_) | Cause::Vector(_) | Cause::Return | Cause::Turn | Cause::Console(_),
            ) => Stop::Step,
            TravelStop::Hit(Cause::Watch { kind, address }) => Stop::Watchpoint {
                kind: match kind {
                    cpu::WatchKind::Read => gdb::WatchKind::Read,
                    cpu::WatchKind::Write => gdb::WatchKind::Write,
                    cpu::WatchKind::Access => gdb::WatchKind::Access,
                },
                address,
            },
            TravelStop::Interrupted => Stop::Interrupted,
            TravelStop::Start => Stop::HistoryStart,
            TravelStop::End => Stop::HistoryEnd,
        }
    }
}

impl DebugTarget for GdbTarget<'_> {
    fn selected_cpu(&mut self) -> gdb::Thread {
        let selected = self.looked_at.and_then(|thread| self.processor_of(thread));
        FIRST_CPU + selected.unwrap_or(self.shown_processor) as gdb::Thread
    }

    fn read_registers(&mut self, thread: gdb::Thread) -> Result<Registers, Refusal> {
        let machine = self.timeline.machine();
        if let Some(processor) = self.processor_of(thread) {
            return Ok(registers::to_gdb(&machine.cpu().state_of(processor)));
        }
        let hidden = || Refusal::new("gdb sees only the CPU: 'monitor threads on' shows the guest's threads");
        self.shown_threads.as_ref().ok_or_else(hidden)?.registers(machine, thread)
    }

    fn write_registers(&mut self, thread: gdb::Thread, registers: &Registers) -> Result<(), Refusal> {
        self.must_have_seat(thread)?;
        let old = self.timeline.machine().cpu().state();
        let new = registers::from_gdb(&old, registers)?;
        if new != old {
            let forked_at = self.timeline.forked_at();
            self.timeline.change_registers(&new).map_err(refused)?;
            self.note_fork(forked_at);
        }
        Ok(())
    }

    fn read_memory(&mut self, thread: gdb::Thread, address: u64, buffer: &mut [u8]) -> usize {
        let is_shown = self.processor_of(thread) == Some(self.shown_processor);
        let thread = self.looked_at.filter(|_| is_shown).unwrap_or(thread);
        let machine = self.timeline.machine();
        match self.processor_of(thread) {
            Some(processor) if processor == machine.cpu().seat() => {
                machine.cpu().core().peek(address, buffer)
            }
            Some(processor) => machine.read(machine.cpu().state_of(processor).cr3, address, buffer),
            None => {
                let shown = self.shown_threads.as_ref();
                shown.map_or(0, |shown| shown.read(machine, thread, address, buffer))
            }
        }
    }

    fn write_memory(&mut self, thread: gdb::Thread, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.must_have_seat(self.looked_at.unwrap_or(thread))?;
        if !self.timeline.machine().can_change_memory(address, bytes.len()) {
            return Err(Refusal::new(format!(
                "no RAM is mapped at all of {} bytes at {address:#x}",
                bytes.len()
            )));
        }
        let forked_at = self.timeline.forked_at();
        self.timeline.change_memory(address, bytes).map_err(refused)?;
        self.note_fork(forked_at);
        Ok(())
    }

    fn shown(&mut self) {
        self.temporary.is_shown = true;
        self.stepping.pass_calls = false;
    }

    fn threads(&mut self) -> gdb::Threads {
        self.show_threads_of_kernel();
        let cpus = self.running_threads();
        let machine = self.timeline.machine();
        let sleeping = self.shown_threads.as_mut().map(|shown| shown.list(machine)).unwrap_or_default();
        gdb::Threads { cpus, sleeping }
    }

    fn set_breakpoint(&mut self, address: u64) -> Result<(), Refusal> {
        self.breakpoints.push(address);
        self.temporary.fresh.insert(address);
        self.points_changed();
        Ok(())
    }

    fn clear_breakpoint(&mut self, address: u64) {
        self.breakpoints.retain(|&b| b != address);
        self.temporary.forget(address);
        self.points_changed();
    }

    fn set_conditions(&mut self, address: u64, conditions: &[gdb::Condition]) {
        if conditions.is_empty() {
            self.filters.remove(&address);
        } else {
            let conditions = conditions.to_vec();
            let holds = move |machine: &Machine<Instructions>| {
                let mut registers = registers::to_gdb(&machine.cpu().state());
                let memory = |address: u64, bytes: &mut [u8]| machine.cpu().core().peek(address, bytes);
                conditions.iter().any(|condition| condition.holds(&mut registers, &memory))
            };
            self.filters.insert(address, Filter::new(holds));
        }
        self.points_changed();
    }

    fn set_watchpoint(&mut self, watchpoint: gdb::Watchpoint) -> Result<(), Refusal> {
        self.watchpoints.push(watchpoint);
        self.points_changed();
        Ok(())
    }

    fn clear_watchpoint(&mut self, watchpoint: gdb::Watchpoint) {
        self.watchpoints.retain(|&w| w != watchpoint);
        self.points_changed();
    }

    fn step_forward(&mut self, cpu: gdb::Thread, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        self.begin(Direction::Forward, Some(cpu));
        let stop = self.step_of_thread(poll);
        self.end(stop)
    }

    fn step_backward(&mut self, cpu: gdb::Thread, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        self.begin(Direction::Backward, Some(cpu));
        let stop = self.step_back_of_thread(poll);
        self.end(stop)
    }

    fn run_forward(&mut self, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        self.begin(Direction::Forward, None);
        let stop = match (self.temporary.frames().cloned(), self.temporary.thread()) {
            (Some(frames), _) => self.run_to_return(&frames, poll),
            (None, Some(thread)) => self.run_of_thread(&thread, poll),
            (None, None) => {
                let stop = self.timeline.run_forward(poll).map_err(refused);
                stop.map(|stop| self.stopped(stop))
            }
        };
        self.end(stop)
    }

    fn run_backward(&mut self, poll: &mut gdb::Poll<'_>) -> Result<Stop, Refusal> {
        self.begin(Direction::Backward, None);
        let stop = match self.temporary.thread().filter(|_| self.timeline.forked_at().is_none()) {
            Some(thread) => self.run_back_of_thread(&thread, poll),
            None => {
                let stop = self.timeline.run_backward(poll).map_err(refused);
                stop.map(|stop| self.stopped(stop))
            }
        };
        self.end(stop)
    }

    fn step_range(
        &mut self,
        cpu: gdb::Thread,
        range: Range<u64>,
        breakpoints: &std::collections::BTreeSet<u64>,
        poll: &mut gdb::Poll<'_>,
    ) -> Result<Stop, Refusal> {
        self.begin(Direction::Forward, Some(cpu));
        let stop = self.steps_in_range(&range, breakpoints, poll);
        self.end(stop)
    }

    fn monitor(&mut self, command: &str, poll: &mut gdb::Poll<'_>) -> Result<String, Refusal> {
        // Only scripts send the command `position`.
        self.unseen = command == "position";
        self.temporary.is_shown = true;
        let before = self.timeline.position();
        // An error is answered as text with this beginning, by which scripts recognise errors.
        let answer = self.obey(command, poll).unwrap_or_else(|refusal| format!("error: {refusal}\n"));
        if self.timeline.position() != before {
            (self.shown_processor, self.looked_at) = (self.timeline.machine().cpu().seat(), None);
        }
        self.timeline.settle_meanwhile();
        // Names, messages and console text come from the guest, and gdb prints the answer on a terminal.
        Ok(visible(&answer).into_owned())
    }

    fn progress(&mut self) -> Box<gdb::Progress> {
        progress::teller(self.timeline.meter(), &self.progress)
    }

    fn take_greeting(&mut self) -> Option<String> {
        self.greeting.take().map(|text| visible(&text).into_owned())
    }

    fn take_message(&mut self) -> Option<String> {
        let message = if std::mem::take(&mut self.unseen) { None } else { self.message.take() };
        message.map(|text| visible(&text).into_owned())
    }
}
