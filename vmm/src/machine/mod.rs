//! The whole machine: engine, RAM, board and disk, run from event to event.

pub mod bus;
pub mod checks;
pub mod comparable;
pub mod config;
pub mod console_tail;
pub mod disk;
pub mod inputs;
pub mod ram_digest;
pub mod written_pages;

use std::sync::Arc;

use checkpoint::{PageMap, Store};
use cpu::{AddressKind, Stop, Trap, Traps, WatchHit, Watchpoint, fold_registers};
use devices::pci::PciBus;
use devices::platform::Platform;
use devices::virtio::{Block, Console, Rng};
use devices::{PanicKind, Request};
use guest_ram::GuestRam;
use serde::{Deserialize, Serialize};

use crate::machine::bus::Board;

use crate::engine::{End, Engine, EngineKind, Leave, Mark, Statistics};
use crate::error::Error;
use crate::machine::config::{Images, MachineConfig};
use crate::machine::console_tail::ConsoleTail;
use crate::machine::disk::OverlayDisk;
use crate::machine::inputs::{Departure, Event, Idle, Inputs, PowerOn, Stopped, View};
use crate::machine::ram_digest::RamDigest;
use crate::machine::written_pages::WrittenPages;
use crate::position::{Counting, MAX_TIME_NS, Moment, TimeBase};

mod changes;
mod contents;
mod guest_view;
mod overshoot;
mod power_on;
mod states;

pub use states::{Hashes, MachineState, hash_of, hex, short};

use power_on::{entropy_seed, entry_state, kernel_seed, start_pit};

/// What ended a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The guest switched itself off.
    PowerOff,
    /// The guest reset itself.
    Reset,
    /// The guest's kernel panicked.
    Panic,
    /// Triple fault, at this RIP.
    TripleFault {
        /// Where the CPU shut down.
        rip: u64,
    },
    /// The guest wrote the debug-exit port.
    DebugExit {
        /// Exit code for the host.
        code: u32,
    },
    /// The guest is idle and nothing can ever wake it.
    IdleForever,
    /// Whoever ran the machine ended the run.
    Ended,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::PowerOff => f.write_str("the guest powered off"),
            Outcome::Reset => f.write_str("the guest reset itself"),
            Outcome::Panic => f.write_str("the guest's kernel panicked"),
            Outcome::TripleFault { rip } => write!(f, "triple fault at {rip:#x}"),
            Outcome::DebugExit { code } => write!(f, "the guest ended the run with code {code}"),
            Outcome::IdleForever => f.write_str("the guest is halted for good"),
            Outcome::Ended => f.write_str("ended by the user"),
        }
    }
}

/// Why [`Machine::run`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStop {
    /// At the step count asked for.
    Reached,
    /// The run is over.
    Ended(Outcome),
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// The step that just completed hit a watchpoint.
    Watchpoint(WatchHit),
    /// The step that just completed was an event that a trap waits for.
    Trap(Trap),
    /// The guest printed this on its console ([`Machine::stop_on_output`]).
    Output(Vec<u8>),
}

/// One machine.
pub struct Machine {
    engine: Box<dyn Engine>,
    ram: Arc<GuestRam>,
    board: Board,
    outcome: Option<Outcome>,
    has_disk: bool,
    stop_on_output: bool,
    written: WrittenPages,
    /// What RAM held when it was last asked for.
    image: PageMap,
    /// Where pages are read from that lie in a recording's checkpoints.
    store: Option<Arc<Store>>,
    /// The digest of what RAM held when it was last asked for.
    digest: RamDigest,
    time_base: TimeBase,
    counting: Counting,
    /// The guest was stopped here without an exit, and no event has said so yet.
    stopped: Option<Stopped>,
    /// The guest might have been where it was once stopped, and is not.
    not_here: bool,
    /// The CPU's counts did not begin at power-on ([`Machine::count_anew`]).
    counts_anew: bool,
}

impl Machine {
    /// Builds a machine and loads its kernel: the state at the first instruction. The software engine executes it, and
    /// instructions are counted.
    pub fn new(config: &MachineConfig, images: &Images, power_on: &PowerOn) -> Result<Machine, Error> {
        Machine::build(config, images, power_on, EngineKind::Soft, Counting::Instructions)
    }

    /// As [`Machine::new`], on an engine of `kind`. KVM can count exits only.
    pub fn build(
        config: &MachineConfig,
        images: &Images,
        power_on: &PowerOn,
        kind: EngineKind,
        counting: Counting,
    ) -> Result<Machine, Error> {
        let time_base = config.time_base();
        if kind == EngineKind::Kvm && (counting, time_base) != (Counting::Exits, TimeBase::Exits) {
            let why = "KVM cannot run a machine whose time is counted in instructions; use --engine soft";
            return Err(Error::Unsupported(why.to_string()));
        }
        let ram = Arc::new(GuestRam::new(config.memory_bytes)?);
        let entry = boot::load(&ram, &images.for_boot(config, &kernel_seed(&power_on.seed)))?;
        let mut bus = PciBus::new();
        if let Some(disk) = &config.disk {
            bus.add(Block::new(OverlayDisk::open(&disk.path)?));
        }
        bus.add(Console::new(power_on.columns, power_on.rows));
        bus.add(Rng::new(entropy_seed(&power_on.seed)));
        let mut platform = Platform::new(power_on.unix_seconds, bus).with_debug_ports(config.debug_ports);
        if time_base == TimeBase::Exits {
            start_pit(&mut platform, &ram);
        }
        let board = Board::new(platform, ram.clone(), time_base, counting);
        let mut engine = kind.build(ram.clone(), config.model())?;
        engine.set_state(&entry_state(&entry));
        let pages = ram.flags().pages();
        Ok(Machine {
            engine,
            board,
            outcome: None,
            has_disk: config.disk.is_some(),
            stop_on_output: false,
            written: WrittenPages::none(pages),
            image: PageMap::zeroed(pages),
            store: None,
            digest: RamDigest::zeroed(pages, time_base),
            time_base,
            counting,
            stopped: None,
            not_here: false,
            counts_anew: false,
            ram,
        })
    }

    /// Where the machine is.
    pub fn moment(&self) -> Moment {
        let cpu_steps = self.engine.cpu().steps();
        let time_ns = self.board.time_ns(cpu_steps);
        let steps = match self.counting {
            Counting::Instructions => cpu_steps,
            Counting::Exits => self.board.exits,
        };
        Moment { steps, time_ns }
    }

    /// Where it is by one count or the other, whatever the machine counts. Of KVM's instructions that says nothing.
    pub fn moment_in(&self, counting: Counting) -> Moment {
        let steps = match counting {
            Counting::Instructions => self.engine.cpu().steps(),
            Counting::Exits => self.board.exits,
        };
        Moment { steps, ..self.moment() }
    }

    /// What the steps of its moments are.
    pub fn counting(&self) -> Counting {
        self.counting
    }

    /// Retired conditional branches, as [`View::branches`] says.
    pub fn branches(&self) -> u64 {
        self.view().branches()
    }

    fn view(&self) -> View<'_> {
        View {
            moment: self.moment(),
            console_room: self.board.platform.console_room(),
            cpu: self.engine.cpu(),
            counting: self.counting,
            time_base: self.time_base,
            stopped: self.stopped,
            counts_branches: self.engine.counts_branches() && !self.counts_anew,
        }
    }

    /// The engine, for a debugger's reads.
    pub fn cpu(&self) -> &cpu::Cpu {
        self.engine.cpu()
    }

    /// What the engine did so far, if it counts that.
    pub fn engine_statistics(&self) -> Option<Statistics> {
        self.engine.statistics()
    }

    /// Puts something around the engine, for tests of what engines may do.
    #[doc(hidden)]
    pub fn wrap_engine(self, wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine>) -> Machine {
        Machine { engine: wrap(self.engine), ..self }
    }

    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Reads physical memory as a debugger: gives how many bytes, counted from `gpa`, lie in RAM.
    pub fn read_physical(&self, gpa: u64, to: &mut [u8]) -> usize {
        let ranges = self.ram.layout().ranges();
        let found = ranges.into_iter().find(|(start, _, length)| gpa >= *start && gpa - start < *length);
        let Some((start, offset, length)) = found else { return 0 };
        let count = to.len().min((length - (gpa - start)) as usize);
        self.ram.read_bytes(offset + (gpa - start), &mut to[..count]);
        count
    }

    /// How the run ended, if it did.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Replaces all breakpoints.
    pub fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.engine.set_breakpoints(points);
    }

    /// Replaces all watchpoints.
    pub fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.engine.set_watchpoints(points);
    }

    /// Replaces all traps.
    pub fn set_traps(&mut self, traps: Traps) {
        self.engine.set_traps(traps);
    }

    /// Whether runs stop when the guest has printed something on its console.
    pub fn stop_on_output(&mut self, stop: bool) {
        self.stop_on_output = stop;
        self.board.stop_on_output = stop;
    }

    /// What the console showed last.
    pub fn console(&self) -> &ConsoleTail {
        &self.board.console
    }

    /// Runs to the step count `until`, or to the end, or to a break- or watchpoint.
    ///
    /// Events due at `until` are not taken yet, and no time passes idle there: the state at a step count is
    /// the state in which it is first reached.
    pub fn run(&mut self, until: u64, inputs: &mut dyn Inputs) -> Result<RunStop, Error> {
        self.run_from(until, self.moment().steps, inputs)
    }

    /// As [`Machine::run`]; the breakpoint that is passed over is the one at step count `origin`.
    pub fn run_from(&mut self, until: u64, origin: u64, inputs: &mut dyn Inputs) -> Result<RunStop, Error> {
        self.run_on(until, u64::MAX, origin, inputs)
    }

    /// Runs to the first step after `time_ns`, or to the end. Somewhat later, where the engine does not look at the time so
    /// often.
    pub fn run_past(&mut self, time_ns: u64, inputs: &mut dyn Inputs) -> Result<RunStop, Error> {
        self.run_on(u64::MAX, time_ns, self.moment().steps, inputs)
    }

    fn run_on(
        &mut self,
        mut until: u64,
        past_ns: u64,
        origin: u64,
        inputs: &mut dyn Inputs,
    ) -> Result<RunStop, Error> {
        let mut overshot = 0;
        loop {
            let now = self.moment();
            if self.outcome.is_some() || now.steps >= until {
                // Devices too stand at this point, so that equal machines have equal states.
                self.board.platform.advance(now.time_ns);
                return Ok(self.outcome.clone().map_or(RunStop::Reached, RunStop::Ended));
            }
            self.take_events(until, inputs)?;
            // Events may have let time pass, and the one of a guest that was stopped is an exit.
            let now = self.moment();
            if self.outcome.is_some() || now.steps >= until {
                continue;
            }
            if now.time_ns > past_ns {
                until = until.min(now.steps + 1);
            }
            let limit = until.min(inputs.next_poll(now).max(now.steps + 1));
            let limit = self.board.prepare_run(self.engine.cpu().steps(), limit);
            let departure = inputs.departure(now, self.board.platform.next_deadline_ns());
            self.board.await_deadline(matches!(departure, Departure::After { .. }));
            let leave = self.leave(departure, overshot);
            let before = self.before(leave);
            let end = self.engine.run(&mut self.board, limit, origin, leave)?;
            let output = self.after_run(inputs)?;
            if self.stop_on_output && !output.is_empty() {
                return Ok(RunStop::Output(output));
            }
            let stop = match end {
                End::Stop(stop) => stop,
                End::Forced => {
                    let noted = matches!(departure, Departure::After { note: true, .. });
                    self.stopped = Some(if noted { self.here() } else { Stopped::default() });
                    continue;
                }
                End::Mark => {
                    self.arrive(departure);
                    if !self.not_here {
                        overshot = 0;
                    }
                    continue;
                }
                End::Overshot => {
                    overshot += 1;
                    let before = before.expect("only engines that were asked can overshoot");
                    self.go_back(before)?;
                    continue;
                }
            };
            match stop {
                Stop::Budget | Stop::Bus => {}
                // No time passes where this run ends: the next one goes on from here.
                Stop::Halted if self.moment().steps >= until => {}
                Stop::Halted => self.idle(inputs)?,
                Stop::Shutdown => self.outcome = Some(Outcome::TripleFault { rip: self.engine.cpu().rip() }),
                Stop::Breakpoint => return Ok(RunStop::Breakpoint),
                Stop::Watchpoint(hit) => return Ok(RunStop::Watchpoint(hit)),
                Stop::Trap(trap) => return Ok(RunStop::Trap(trap)),
            }
        }
    }

    /// What identifies this place besides its registers' hash.
    fn here(&mut self) -> Stopped {
        let state = self.engine.state();
        log::trace!("stopped after exit {}: {}", self.moment().steps, comparable::shown(&state));
        let registers = fold_registers(&state.gpr);
        Stopped { registers, ram_digest: self.ram_digest() }
    }

    fn leave(&mut self, departure: Departure, overshot: u32) -> Leave {
        let not_here = std::mem::take(&mut self.not_here);
        match departure {
            Departure::Exits => Leave::Never,
            Departure::After { due, force, .. } => Leave::After { due, force },
            Departure::At { rip, branches, stopped, .. } => {
                if overshot == overshoot::MOST {
                    log::warn!("a count of branches is never come to: the place is looked for without it");
                }
                let branches = branches.filter(|_| overshot < overshoot::MOST && !self.counts_anew);
                Leave::At(Mark { rip, registers: stopped.registers, branches, not_here })
            }
        }
    }

    /// The guest may be where it was once stopped: the rest of the machine says whether it is.
    fn arrive(&mut self, departure: Departure) {
        let Departure::At { cpu_hash, stopped, .. } = departure else { return };
        let registers = self.view().cpu_hash() == cpu_hash;
        self.not_here = !registers || self.here() != stopped;
        if self.not_here {
            let (at, rip) = (self.moment().steps, self.engine.cpu().rip());
            log::trace!("stopped after exit {at}: {}", comparable::shown(&self.engine.state()));
            log::debug!(
                "not where it was stopped after exit {at}: at {rip:#x}, registers equal: {registers}"
            );
        }
        if !self.not_here {
            self.stopped = Some(stopped);
        }
    }

    /// Takes the events due here and does not run on: behind the last of them, a guest that is counted in exits may not make
    /// another one.
    pub fn take_due(&mut self, inputs: &mut dyn Inputs) -> Result<(), Error> {
        self.take_events(u64::MAX, inputs)
    }

    /// Takes the events due here; those at the step count `until` are left for later.
    fn take_events(&mut self, until: u64, inputs: &mut dyn Inputs) -> Result<(), Error> {
        while self.outcome.is_none() && self.moment().steps < until {
            let view = self.view();
            let now = view.moment;
            if let Some(event) = inputs.poll(&view)? {
                self.apply(&event);
            } else if let Some(parts) = inputs.check_due(now) {
                let check = self.check(parts);
                inputs.checked(check)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: &Event) {
        let now_ns = self.moment().time_ns;
        let platform = &mut self.board.platform;
        match event {
            Event::PowerOn(_) => {}
            Event::ConsoleInput(bytes) => {
                platform.push_input(now_ns, bytes);
            }
            Event::ConsoleResize { columns, rows } => {
                platform.with_bus(now_ns, |bus| {
                    if let Some(mut console) = bus.console_mut() {
                        console.resize(*columns, *rows);
                    }
                });
            }
            Event::PowerButton => platform.press_power_button(now_ns),
            Event::Ended => self.outcome = Some(Outcome::Ended),
            Event::Stopped(_) => {
                self.stopped = None;
                self.board.note_exit();
            }
            // No run gets to the end of time, but a log may claim it.
            Event::TimePassed { ns } => {
                self.board.idle_ns = self.board.idle_ns.saturating_add(*ns).min(MAX_TIME_NS);
            }
        }
    }

    /// Looks at what the guest did: console output (which it gives), requests, a failing disk.
    fn after_run(&mut self, inputs: &mut dyn Inputs) -> Result<Vec<u8>, Error> {
        let output = std::mem::take(&mut self.board.output);
        if !output.is_empty() {
            inputs.console_output(self.moment(), &output)?;
        }
        if std::mem::take(&mut self.board.panicked) {
            self.outcome = Some(Outcome::Panic);
        }
        if self.board.platform.has_requests() {
            for request in self.board.platform.take_requests() {
                self.obey(request);
            }
        }
        if self.has_disk
            && let Some(error) = self.disk_mut().and_then(OverlayDisk::take_failure)
        {
            return Err(error);
        }
        Ok(output)
    }

    fn obey(&mut self, request: Request) {
        let outcome = match request {
            Request::PowerOff => Outcome::PowerOff,
            Request::Reset => Outcome::Reset,
            // Linux calls the driver once its report is on the console.
            Request::Panicked(PanicKind::Panicked) => Outcome::Panic,
            Request::Panicked(PanicKind::CrashLoaded) => return,
            Request::DebugExit { code } => Outcome::DebugExit { code },
        };
        self.outcome.get_or_insert(outcome);
    }

    /// The CPU is halted: time passes to the next deadline or the next event.
    fn idle(&mut self, inputs: &mut dyn Inputs) -> Result<(), Error> {
        if self.outcome.is_some() {
            return Ok(());
        }
        if self.engine.cpu().core().rflags & INTERRUPT_FLAG == 0 && !self.board.platform.nmi_pending() {
            // Halted with interrupts off: only an NMI would wake it, and nothing here sends one.
            self.outcome = Some(Outcome::IdleForever);
            return Ok(());
        }
        let now = self.moment();
        // A guest may set a timer for the end of time, which is as good as none.
        let deadline = self.board.platform.next_deadline_ns().filter(|&ns| ns < MAX_TIME_NS);
        match inputs.idle(now, deadline)? {
            Idle::Forever => self.outcome = Some(Outcome::IdleForever),
            Idle::Until(ns) => {
                let target = deadline.map_or(ns, |d| ns.min(d)).max(now.time_ns);
                self.board.idle_ns += target - now.time_ns;
            }
        }
        Ok(())
    }
}

/// The disk, if there is one, is the first device on the bus.
const DISK_SLOT: usize = 1;

/// RFLAGS.IF.
const INTERRUPT_FLAG: u64 = 1 << 9;
