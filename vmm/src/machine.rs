//! The whole machine: engine, RAM, board and disk, run from event to event.

use std::sync::Arc;

use checkpoint::{BlobId, Maps, PAGE_BYTES, Page, PageMap, PageRef, Space, Store};
use cpu::{AddressKind, CpuState, SegReg, Segment, Stop, Trap, Traps, WatchHit, Watchpoint};
use devices::pci::{PciBus, PciBusState};
use devices::platform::{Platform, PlatformStateV1};
use devices::virtio::{Block, Console, Rng};
use devices::{PanicKind, Request};
use guest_ram::GuestRam;
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};

use crate::board::Board;
use crate::boot::{self, CpuEntry, SegmentState};
use crate::checks::{CheckParts, CheckRecord};
use crate::comparable::{self, cpu_hash};
use crate::config::{Images, MachineConfig};
use crate::console_tail::ConsoleTail;
use crate::disk::OverlayDisk;
use crate::engine::{End, Engine, EngineKind, Leave, Mark, Statistics, fold_registers};
use crate::error::Error;
use crate::inputs::{Departure, Event, Idle, Inputs, PowerOn, Stopped, View};
use crate::position::{Counting, MAX_TIME_NS, Moment, TimeBase};
use crate::ram_digest::{self, RamDigest};
use crate::written_pages::{Reader, WrittenPages};

mod overshoot;

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

/// Everything about a machine but the contents of RAM and disk: plain data, canonical.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineState {
    /// The CPU.
    pub cpu: CpuState,
    /// All devices.
    pub platform: PlatformStateV1<PciBusState>,
    /// Virtual time that passed idle.
    pub idle_ns: u64,
    /// What the console showed last.
    pub console: ConsoleTail,
    /// How the run ended, if it did.
    pub outcome: Option<Outcome>,
}

impl MachineState {
    /// The virtual time, if counts and console are such as a machine can have them; the devices look at theirs when
    /// they are restored. States may come from strangers.
    fn check(&self, time_base: TimeBase) -> Result<u64, &'static str> {
        let CpuState { steps, branches, system_calls, .. } = self.cpu;
        let (counted, most_branches) = match time_base {
            TimeBase::Instructions => (steps, steps),
            // KVM's states may count branches, and never steps.
            TimeBase::Exits => (0, MAX_TIME_NS),
        };
        let now_ns = counted.checked_add(self.idle_ns).filter(|&ns| ns.max(steps) <= MAX_TIME_NS);
        if branches > most_branches || system_calls > steps {
            return Err("it counts more branches or system calls than instructions");
        }
        if !self.console.is_possible() {
            return Err("its console kept more, or less, than the end of the output");
        }
        now_ns.ok_or("it lies behind the end of time")
    }
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

    /// Retired conditional branches; zero where exits are counted.
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

    fn disk_mut(&mut self) -> Option<&mut OverlayDisk> {
        self.board.platform.bus_mut().block_backend_mut::<OverlayDisk>(DISK_SLOT)
    }

    /// Everything but RAM and disk.
    pub fn state(&self) -> MachineState {
        MachineState {
            cpu: self.engine.state(),
            platform: self.board.platform.state(),
            idle_ns: self.board.idle_ns,
            console: self.board.console.clone(),
            outcome: self.outcome.clone(),
        }
    }

    /// Where stored pages are read from, by restores and by the disk.
    pub fn attach_store(&mut self, store: Arc<Store>) {
        if let Some(disk) = self.disk_mut() {
            disk.attach_store(store.clone());
        }
        self.store = Some(store);
    }

    /// Number of pages that RAM and disk have, each of them.
    pub fn page_counts(&mut self) -> (u64, u64) {
        (self.ram.flags().pages(), self.disk_mut().map_or(0, |disk| disk.block_count()))
    }

    /// The contents of RAM and disk. Costs as much as the pages written since the last call, or restore.
    pub fn maps(&mut self) -> Maps {
        self.capture().0
    }

    /// Brings the image of RAM up to date, and gives how many pages memory is held for that was not before.
    fn update_image(&mut self) -> usize {
        self.collect_written();
        let mut contents = [0; PAGE_BYTES];
        let mut held = 0;
        for page in self.written.take(Reader::Image) {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            if let Some(new) = changed_page(self.image.get(page), &contents) {
                held += usize::from(matches!(new, PageRef::Held(_)));
                self.image.set(page, new);
            }
        }
        held
    }

    /// The contents of RAM and disk, and how many pages memory is held for that was not before.
    pub fn capture(&mut self) -> (Maps, usize) {
        let mut held = self.update_image();
        held += self.disk_mut().map_or(0, |disk| disk.take_written().len());
        (Maps { ram: self.image.clone(), disk: self.disk_version() }, held)
    }

    /// Calls `each` with every page of RAM and disk that was written since the last call, [`Machine::maps`] or
    /// restore, and gives their number. For a recorder, which keeps no maps.
    pub fn take_written(
        &mut self,
        mut each: impl FnMut(Space, u64, &Page) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.collect_written();
        let mut contents = [0; PAGE_BYTES];
        let mut count = 0;
        for page in self.written.take(Reader::Image) {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            each(Space::Ram, page, &contents)?;
            count += 1;
        }
        if let Some(disk) = self.disk_mut() {
            for block in disk.take_written() {
                disk.read_whole_block(block, &mut contents)?;
                each(Space::Disk, block, &contents)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Calls `each` with every page of RAM that was written since the last call.
    pub fn take_trail(&mut self, mut each: impl FnMut(u64, &Page)) {
        self.collect_written();
        let mut contents = [0; PAGE_BYTES];
        for page in self.written.take(Reader::Trail) {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            each(page, &contents);
        }
    }

    /// Number of disk blocks written since they were last taken.
    pub fn written_blocks(&mut self) -> usize {
        self.disk_mut().map_or(0, |disk| disk.written_count())
    }

    /// The contents of a disk block, whose end may lie behind the end of the disk.
    pub fn read_block(&mut self, block: u64, to: &mut Page) -> Result<(), Error> {
        let Some(disk) = self.disk_mut() else {
            return Err(Error::State("the machine has no disk".to_string()));
        };
        disk.read_whole_block(block, to)
    }

    /// Lets disk blocks that were taken lie where they have been stored, unless they were written again.
    pub fn adopt_blocks(&mut self, blocks: impl IntoIterator<Item = (u64, PageRef)>) {
        if let Some(disk) = self.disk_mut() {
            blocks.into_iter().for_each(|(block, stored)| disk.adopt(block, stored));
        }
    }

    /// The contents of the disk.
    pub fn disk_version(&mut self) -> PageMap {
        self.disk_mut().map_or_else(|| PageMap::new(0), |disk| disk.version())
    }

    /// The state here in short. Changes nothing that the guest can see.
    pub fn check(&mut self, parts: CheckParts) -> CheckRecord {
        let at = self.moment();
        CheckRecord {
            at,
            branches: self.branches(),
            rip: self.engine.cpu().rip(),
            cpu_hash: self.view().cpu_hash(),
            devices_hash: parts.devices.then(|| {
                // Devices too must stand at this point, so that equal machines have equal states.
                self.board.platform.advance(at.time_ns);
                short(&self.devices_hash())
            }),
            ram_digest: parts.ram.then(|| self.ram_digest()),
        }
    }

    fn ram_digest(&mut self) -> [u8; 16] {
        self.collect_written();
        self.digest.update(&self.ram, self.written.take(Reader::Digest))
    }

    fn collect_written(&mut self) {
        self.engine.note_written();
        self.written.collect(self.ram.flags());
        self.engine.track_writes_anew();
    }

    /// Changes one bit of RAM, as failing memory does: for tests of what notices it.
    pub fn flip_ram_bit(&mut self, offset: u64, bit: u8) {
        let offset = offset % self.ram.size_bytes();
        let gpa = GuestAddress(self.ram.layout().gpa_of(offset));
        let byte = self.ram.load_u8(offset) ^ (1 << (bit % 8));
        self.ram.memory().write_obj(byte, gpa).expect("the offset lies inside RAM");
    }

    /// Replaces the CPU's registers, for a debugger: from here on the run is another one.
    pub fn change_registers(&mut self, state: &CpuState) {
        self.engine.set_state(state);
    }

    /// Whether all bytes of a range of linear addresses are mapped to RAM.
    pub fn can_change_memory(&self, address: u64, length: usize) -> bool {
        linear_pieces(address, length).all(|(at, _)| self.ram_offset(at).is_some())
    }

    /// Writes memory at a linear address, for a debugger: with no regard for rights, and what is not mapped to RAM
    /// stays as it is. From here on the run is another one.
    pub fn change_memory(&mut self, address: u64, bytes: &[u8]) {
        for (at, piece) in linear_pieces(address, bytes.len()) {
            if let Some(offset) = self.ram_offset(at) {
                self.ram.replace_bytes(offset, &bytes[piece]);
            }
        }
        // The engine looks at what it derived from RAM when its state is replaced.
        let state = self.engine.state();
        self.engine.set_state(&state);
    }

    fn ram_offset(&self, linear: u64) -> Option<u64> {
        self.engine.cpu().core().peek_address(linear).and_then(|gpa| self.ram.layout().offset_of(gpa))
    }

    /// Lets a machine go on whose run was ended by whoever watched it, not by itself: after a panic the kernel still
    /// runs.
    pub fn go_on_after_end(&mut self) {
        if matches!(self.outcome, Some(Outcome::Ended | Outcome::Panic | Outcome::DebugExit { .. })) {
            self.outcome = None;
        }
    }

    /// Goes to another state of the same machine.
    pub fn restore(&mut self, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        let now_ns = state.check(self.time_base).map_err(|why| Error::State(why.to_string()))?;
        self.restore_memory(&maps.ram)?;
        self.board
            .platform
            .restore(&state.platform, now_ns)
            .map_err(|error| Error::State(error.to_string()))?;
        self.board.idle_ns = state.idle_ns;
        self.board.console = state.console.clone();
        self.board.output.clear();
        self.board.panicked = false;
        self.outcome = state.outcome.clone();
        self.engine.set_state(&state.cpu);
        self.engine.track_writes_anew();
        if let Some(overlay) = self.disk_mut() {
            overlay.set_version(&maps.disk);
        }
        Ok(())
    }

    /// As [`Machine::restore`], of a machine that counts exits: the state is the one after so many.
    pub fn restore_at_exit(&mut self, exits: u64, state: &MachineState, maps: &Maps) -> Result<(), Error> {
        self.restore(state, maps)?;
        self.board.exits = exits;
        (self.stopped, self.not_here) = (None, false);
        Ok(())
    }

    /// Lets the CPU count instructions, branches and system calls from here on. Exits go on being counted, and what a log
    /// says of branches is not looked at any more.
    pub fn count_anew(&mut self) {
        let counts = CpuState { steps: 0, branches: 0, system_calls: 0, ..self.engine.state() };
        self.engine.set_state(&counts);
        self.counts_anew = true;
    }

    /// Takes it that RAM and disk are, at this point, what `maps` says, without looking: of a recording's
    /// checkpoint exactly here. What the machine held in memory of its own is given up for it.
    pub fn rebase(&mut self, maps: &Maps) {
        self.collect_written();
        self.written.take(Reader::Image);
        self.image = maps.ram.clone();
        if let Some(disk) = self.disk_mut() {
            disk.set_version(&maps.disk);
        }
    }

    fn restore_memory(&mut self, to: &PageMap) -> Result<(), Error> {
        self.collect_written();
        let written = self.written.take(Reader::Image);
        let differing: Vec<u64> = to.changed_since(&self.image).map(|(page, _)| page).collect();
        let ram = self.ram.clone();
        let put = |page: u64, contents: &Page| ram.replace_bytes(page * guest_ram::PAGE_SIZE, contents);
        let mut stored: Vec<(u64, BlobId)> = Vec::new();
        for page in merged(&written, &differing) {
            match to.get(page) {
                PageRef::Zero => put(page, &[0; PAGE_BYTES]),
                PageRef::Held(contents) => put(page, contents),
                PageRef::Stored(blob) => stored.push((page, *blob)),
                PageRef::Base => return Err(Error::State("RAM has no base image".to_string())),
            }
        }
        if !stored.is_empty() {
            let Some(store) = &self.store else {
                return Err(Error::State("its pages lie in checkpoints that are not open".to_string()));
            };
            store.read_many(&stored, put)?;
        }
        // What was replaced is news to the digest, but not to the image.
        self.collect_written();
        self.written.take(Reader::Image);
        self.image = to.clone();
        Ok(())
    }

    /// Hashes of everything that can influence the future.
    pub fn hashes(&mut self) -> Hashes {
        Hashes {
            cpu: cpu_hash(&self.engine.state(), self.time_base),
            devices: self.devices_hash(),
            ram: ram_digest::hash(&self.ram, self.time_base),
            disk: self.disk_hash(),
        }
    }

    /// Hash of what the guest wrote to its disk.
    pub fn disk_hash(&mut self) -> [u8; 32] {
        self.disk_mut().map(|disk| disk.hash()).unwrap_or_default()
    }

    fn devices_hash(&self) -> [u8; 32] {
        hash_of(&(&self.board.platform.state(), self.board.idle_ns, &self.board.console))
    }
}

/// A range of linear addresses cut at page boundaries: the address of each piece, and which bytes of the range it is.
fn linear_pieces(address: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = address.wrapping_add(from as u64);
        let to = length.min(from + (guest_ram::PAGE_SIZE - at % guest_ram::PAGE_SIZE) as usize);
        let piece = from..to;
        from = to;
        (!piece.is_empty()).then_some((at, piece))
    })
}

/// What a page has become that was `old`; `None` where it is still the same.
fn changed_page(old: &PageRef, contents: &Page) -> Option<PageRef> {
    match old {
        PageRef::Held(page) if **page == *contents => None,
        _ if *contents == [0; PAGE_BYTES] => (!matches!(old, PageRef::Zero)).then_some(PageRef::Zero),
        _ => Some(PageRef::Held(Arc::new(*contents))),
    }
}

/// Two ascending lists as one, without doubles.
fn merged(left: &[u64], right: &[u64]) -> impl Iterator<Item = u64> {
    let (mut left, mut right) = (left.iter().copied().peekable(), right.iter().copied().peekable());
    std::iter::from_fn(move || {
        let next = match (left.peek(), right.peek()) {
            (Some(&l), Some(&r)) => l.min(r),
            (Some(&n), None) | (None, Some(&n)) => n,
            (None, None) => return None,
        };
        left.next_if_eq(&next);
        right.next_if_eq(&next);
        Some(next)
    })
}

/// RFLAGS.IF.
const INTERRUPT_FLAG: u64 = 1 << 9;

/// The disk, if there is one, is the first device on the bus.
const DISK_SLOT: usize = 1;

/// Hashes of the parts of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashes {
    /// The CPU's state.
    pub cpu: [u8; 32],
    /// All devices and the clock.
    pub devices: [u8; 32],
    /// RAM.
    pub ram: [u8; 32],
    /// What the guest wrote to its disk.
    pub disk: [u8; 32],
}

/// Hash of plain data.
pub fn hash_of(value: &impl Serialize) -> [u8; 32] {
    let bytes = postcard::to_stdvec(value).expect("plain data in memory always serializes");
    *blake3::hash(&bytes).as_bytes()
}

/// The first bytes of a hash, for records that are many.
pub fn short(hash: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    [a, b, c, d, e, f, g, h]
}

/// Without a TSC, Linux takes early randomness from the PIT's first channel, and waits for ever if nobody has started
/// it. Firmware does: mode 2, the longest period.
fn start_pit(platform: &mut Platform<PciBus>, ram: &GuestRam) {
    for (port, value) in [(0x43, 0x34), (0x40, 0), (0x40, 0)] {
        platform.pio_write(ram.memory(), 0, port, 1, value);
    }
}

/// The kernel's seed and the entropy device's must not be related for the guest.
fn kernel_seed(seed: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("ttvm kernel seed", seed)
}

fn entropy_seed(seed: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("ttvm entropy device", seed)
}

/// The CPU at the guest's first instruction.
fn entry_state(entry: &CpuEntry) -> CpuState {
    let mut state = CpuState::reset();
    let segment = |s: &SegmentState| Segment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attributes: s.attributes,
    };
    state.gpr = [0; 16];
    (state.gpr[0], state.gpr[3], state.gpr[4], state.gpr[6]) = (entry.rax, entry.rbx, entry.rsp, entry.rsi);
    state.rip = entry.rip;
    state.rflags = entry.rflags;
    state.segments = [segment(&entry.data); 6];
    state.segments[SegReg::Cs as usize] = segment(&entry.cs);
    state.tr = segment(&entry.tr);
    state.gdtr = cpu::TableRegister { base: entry.gdt.base, limit: entry.gdt.limit };
    state.idtr = cpu::TableRegister { base: entry.idt.base, limit: entry.idt.limit };
    state.cr0 = entry.cr0;
    state.cr3 = entry.cr3;
    state.cr4 = entry.cr4;
    state.msrs.efer = entry.efer;
    // As firmware leaves it: MTRRs on, everything write-back. Linux does not set up PAT otherwise.
    state.msrs.mtrr_def_type = 0xc06;
    state
}
