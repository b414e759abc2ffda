//! The whole machine (engine, RAM, board and disk), and its run loop from event to event.

use std::marker::PhantomData;
use std::sync::Arc;

use checkpoint::{PageMap, Store};
use cpu::{AddressKind, Bus, Counts, CpuState, Met, Observer, Stop, Tier, Traps, Watchpoint};
use devices::pci::PciBus;
use devices::platform::Platform;
use devices::virtio::{Block, Console, Net, Rng, VirtioFunctionStateV1};
use devices::{PanicKind, Request};
use guest_ram::{GuestRam, RamView};

use crate::asking_bus::AskingBus;
use crate::between_exits::Stopping;
use crate::bus::MachineBus;
use crate::clock::MAX_TIME_NS;
use crate::comparable::Likeness;
use crate::config::{MachineConfig, PassedDevice};
use crate::console_tail::ConsoleTail;
use crate::disk::OverlayDisk;
use crate::engine::{Engine, EngineKind, Statistics};
use crate::error::Error;
use crate::inputs::{Event, Idle, Inputs, PowerOn, Sent, View};
use crate::outcome::Outcome;
use crate::position::{Count, Exits, Instructions, Moment};
use crate::power_on::{entropy_seed, entry_state, kernel_seed, start_pit};
use crate::ram_digest::RamDigest;
use crate::start::Images;
use crate::unit::Unit;
use crate::written_pages::WrittenPages;

/// Why [`Machine::run`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStop {
    /// The run reached its limit.
    Reached,
    /// The run has ended.
    Ended(Outcome),
    /// The inputs asked for a pause ([`Inputs::pauses`]).
    Paused,
    /// The CPU reached a breakpoint, a watchpoint or a trap.
    Met(Met),
    /// The guest printed these bytes on its console ([`Machine::stop_on_output`]).
    Output(Vec<u8>),
}

/// One machine.
pub struct Machine<U> {
    pub(super) engine: Box<dyn Engine>,
    pub(super) bus: MachineBus,
    pub(super) outcome: Option<Outcome>,
    has_disk: bool,
    stop_on_output: bool,
    pub(super) asked_to_be_kept: bool,
    pub(super) written: WrittenPages,
    /// A map with the contents of RAM at the last update of this map.
    pub(super) image: PageMap,
    /// The store with a recording's checkpoints, from which pages are read.
    pub(super) store: Option<Arc<Store>>,
    /// The digest of RAM at its last update.
    pub(super) digest: RamDigest,
    pub(super) likeness: Likeness,
    pub(super) stopping: Stopping,
    unit: PhantomData<U>,
}

impl Machine<Instructions> {
    /// Builds a machine at its first instruction. Loads the machine's kernel, or its starting state. The software
    /// engine executes the machine, and instructions are counted.
    pub fn new(config: &MachineConfig, images: &Images, power_on: &PowerOn) -> Result<Self, Error> {
        Machine::build(config, images, power_on, EngineKind::SOFT)
    }
}

impl<U: Unit> Machine<U> {
    /// Does the same as [`Machine::new`], but with an engine of `kind`. The engine must be able to count in this
    /// machine's unit.
    pub fn build(
        config: &MachineConfig,
        images: &Images,
        power_on: &PowerOn,
        kind: EngineKind,
    ) -> Result<Self, Error> {
        let profile = config.profile();
        if !U::is_counted_by(kind) || (!kind.counts_instructions && !profile.runs_on_kvm) {
            let why = "KVM cannot run a machine whose time is counted in instructions; use --engine soft";
            return Err(Error::Unsupported(why.to_string()));
        }
        let processors = config.processors;
        if processors.count() > 1 && !kind.counts_instructions {
            let why = "KVM cannot run a machine with several processors; use --engine soft";
            return Err(Error::Unsupported(why.to_string()));
        }
        let ram = GuestRam::new(config.memory_bytes)?;
        let pages = ram.flags().pages();
        let entry = match images {
            Images::Kernel(images) => {
                let mut images = images.for_boot(config.start.booted());
                images.rng_seed = Some(kernel_seed(&power_on.seed));
                images.translated_slots = config.passed_slots();
                images.apic_ids = processors.apic_ids();
                images.pci = profile.pci;
                entry_state(&boot::load(&ram, &images)?)
            }
            Images::State(_) => CpuState::reset(),
        };
        let mut devices = PciBus::new().with_revision(profile.pci);
        if let Some(disk) = &config.disk {
            devices.add(Block::new(images.open_disk(disk)?));
        }
        devices.add(Console::new(power_on.columns, power_on.rows));
        devices.add(Rng::new(entropy_seed(&power_on.seed)));
        if let Some(network) = &config.network {
            devices.add(Net::new(network.mac, network.mtu, network.segments));
        }
        for passed in &config.passthrough {
            match passed {
                PassedDevice::Function { description, .. } => _ = devices.pass_function(description),
                PassedDevice::Ports { first, last, irq } => devices.pass_ports(*first, *last, *irq),
            }
        }
        let mut platform = Platform::new(power_on.unix_seconds, devices)
            .with_debug_ports(config.debug_ports.into())
            .with_apic_ids(processors.apic_ids());
        if profile.starts_pit {
            start_pit(&mut platform, &ram);
        }
        let bus = MachineBus::new(platform, ram.memory().clone(), profile);
        let mut engine = (kind.build)(ram, config.model())?;
        engine.set_processors(processors);
        engine.set_state(&entry, Counts::default());
        let mut machine = Machine {
            engine,
            bus,
            outcome: None,
            has_disk: config.disk.is_some(),
            stop_on_output: false,
            asked_to_be_kept: false,
            written: WrittenPages::none(pages),
            image: PageMap::zeroed(pages),
            store: None,
            digest: RamDigest::zeroed(pages, profile.likeness),
            likeness: profile.likeness,
            stopping: Stopping::default(),
            unit: PhantomData,
        };
        if let Images::State(state) = images {
            machine.begin_at(state)?;
        }
        Ok(machine)
    }

    /// The machine's present point.
    pub fn moment(&self) -> Moment<U> {
        self.moment_in()
    }

    /// The present point in the unit `V`, which may differ from the machine's unit. The count of instructions has no
    /// meaning if KVM executes the machine.
    pub fn moment_in<V: Unit>(&self) -> Moment<V> {
        let instructions = self.instructions();
        let count = V::here(instructions, self.bus.clock.exits);
        Moment { count, time_ns: self.bus.clock.time_ns(instructions) }
    }

    /// The engine's own count of instructions.
    fn instructions(&self) -> Instructions {
        Instructions(self.engine.counts().steps)
    }

    /// The number of retired conditional branches, which is zero in the same cases as [`View::branches`].
    pub fn branches(&self) -> u64 {
        let are_counted = U::NAMES_ONE_PLACE || self.stopping.counts_branches(&*self.engine);
        if are_counted { self.engine.counts().branches } else { 0 }
    }

    pub(super) fn view(&self) -> View<'_, U> {
        View {
            moment: self.moment(),
            console_room: self.bus.platform.console_room(),
            network_room: self.bus.platform.bus().network_room(),
            cpu: self.engine.cpu(),
            branches: self.branches(),
            likeness: self.likeness,
            stopped: self.stopping.stopped,
        }
    }

    /// The CPU, so that a debugger can read its state.
    pub fn cpu(&self) -> &cpu::Cpu {
        self.engine.cpu()
    }

    /// The engine's statistics so far, if it keeps any.
    pub fn engine_statistics(&self) -> Option<Statistics> {
        self.engine.statistics()
    }

    /// Wraps the engine in another engine, for tests.
    #[doc(hidden)]
    pub fn wrap_engine(self, wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine>) -> Self {
        Machine { engine: wrap(self.engine), ..self }
    }

    /// A view of guest memory, for host code that accesses the memory while the machine runs.
    pub fn ram_view(&self) -> RamView {
        self.ram().view()
    }

    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        self.engine.cpu().ram()
    }

    /// Reads physical memory for a debugger. Returns the number of bytes from `gpa` on that lie in RAM.
    pub fn read_physical(&self, gpa: u64, to: &mut [u8]) -> usize {
        self.ram().read_physical(gpa, to)
    }

    /// The board, for reading.
    pub fn board(&self) -> &Platform<PciBus> {
        &self.bus.platform
    }

    /// The states of the devices on the PCI bus, slot 1 first.
    pub fn functions(&self) -> Vec<VirtioFunctionStateV1> {
        self.bus.platform.bus().state().functions
    }

    /// How the run ended, if it has ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether the guest has asked, since the machine was built or restored, that the recording of its run is kept.
    pub fn asked_to_be_kept(&self) -> bool {
        self.asked_to_be_kept
    }

    /// Replaces all breakpoints.
    pub fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]) {
        self.engine.set_breakpoints(points);
    }

    /// Chooses the software CPU's tier, for comparisons. The choice changes nothing that the guest can see.
    pub fn set_tier(&mut self, tier: Tier) {
        self.engine.set_tier(tier);
    }

    /// Replaces all watchpoints.
    pub fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.engine.set_watchpoints(points);
    }

    /// Replaces all traps.
    pub fn set_traps(&mut self, traps: Traps) {
        self.engine.set_traps(traps);
    }

    /// Attaches an observer, or detaches it with `None`. Returns the observer that was attached before. Fails if the
    /// engine cannot observe the guest.
    pub fn set_observer(
        &mut self,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Option<Box<dyn Observer>>, Error> {
        self.engine.set_observer(observer)
    }

    /// Sets whether runs stop when the guest has printed something on its console.
    pub fn stop_on_output(&mut self, stop: bool) {
        self.stop_on_output = stop;
        self.bus.stop_on_output = stop;
    }

    /// Makes the engine leave the guest whenever the guest prints. The inputs then get output at once, and not some
    /// milliseconds of guest time later. The guest's behaviour does not change.
    pub fn hear_output_at_once(&mut self) {
        self.bus.stop_on_output = true;
    }

    /// The end of the console's output.
    pub fn console(&self) -> &ConsoleTail {
        &self.bus.console
    }

    /// Runs to `until`, or to the run's end, or to a breakpoint or watchpoint.
    ///
    /// Does not take events due at `until`, and lets no idle time pass there. So the machine stops in the first state
    /// with that count.
    pub fn run(&mut self, until: U, inputs: &mut dyn Inputs<U>) -> Result<RunStop, Error> {
        self.run_from(until, self.instructions(), inputs)
    }

    /// Does the same as [`Machine::run`], but ignores a breakpoint at the place where the engine has executed
    /// `origin` instructions.
    pub fn run_from(
        &mut self,
        until: U,
        origin: Instructions,
        inputs: &mut dyn Inputs<U>,
    ) -> Result<RunStop, Error> {
        self.run_on(until, u64::MAX, origin, inputs)
    }

    /// Runs to the first place after `time_ns`, or to the run's end. May stop somewhat later if the engine does not
    /// check the time often.
    pub fn run_past(&mut self, time_ns: u64, inputs: &mut dyn Inputs<U>) -> Result<RunStop, Error> {
        self.run_on(U::MAX, time_ns, self.instructions(), inputs)
    }

    fn run_on(
        &mut self,
        mut until: U,
        past_ns: u64,
        origin: Instructions,
        inputs: &mut dyn Inputs<U>,
    ) -> Result<RunStop, Error> {
        self.stopping.begin();
        let mut last_exit = (self.bus.clock.exits, self.instructions());
        loop {
            if self.is_over(until) {
                // The devices also advance to the present time, so that equal machines have equal states.
                self.bus.platform.advance(self.moment().time_ns);
                return Ok(self.outcome.clone().map_or(RunStop::Reached, RunStop::Ended));
            }
            if inputs.pauses() {
                self.bus.platform.advance(self.moment().time_ns);
                return Ok(RunStop::Paused);
            }
            self.take_events(until, inputs)?;
            // The run may be over now, because an event for a stop without an exit adds one to the count of exits.
            // The beginning of the loop then also advances the devices, because events may have let time pass.
            if self.is_over(until) {
                continue;
            }
            let now = self.moment();
            if now.time_ns > past_ns {
                until = until.min(now.count + 1);
            }
            let limit = until.min(inputs.next_poll(now).max(now.count + 1));
            let limit = self.bus.prepare_run(self.instructions(), limit);
            let limit = limit.min(self.latest_exit(&mut last_exit, inputs)?);
            let leave = inputs.leave(now, self.bus.platform.next_deadline_ns());
            let leave = self.depart(leave)?;
            let end = if self.bus.platform.bus().has_passed() {
                let mut asking = AskingBus::new(&mut self.bus, inputs);
                let end = self.engine.run(&mut asking, limit, origin, leave);
                asking.finish().and(end)?
            } else {
                self.engine.run(&mut self.bus, limit, origin, leave)?
            };
            let output = self.after_run(inputs)?;
            if self.stop_on_output && !output.is_empty() {
                return Ok(RunStop::Output(output));
            }
            match self.arrive(end, leave)? {
                None | Some(Stop::Budget | Stop::Bus) => {}
                // The run ends at this count, so no idle time passes here. The next run continues from here.
                Some(Stop::Halted) if self.moment().count >= until => {}
                Some(Stop::Halted) => self.idle(inputs)?,
                Some(Stop::Shutdown) => {
                    self.outcome = Some(Outcome::TripleFault { rip: self.engine.cpu().rip() });
                }
                Some(Stop::Met(met)) => return Ok(RunStop::Met(met)),
            }
        }
    }

    /// The count of instructions up to which the guest may execute without an exit. `last` has the number of the last
    /// exit in this run, and the count of instructions there.
    fn latest_exit(
        &self,
        last: &mut (Exits, Instructions),
        inputs: &dyn Inputs<U>,
    ) -> Result<Instructions, Error> {
        let here = self.instructions();
        if last.0 != self.bus.clock.exits {
            *last = (self.bus.clock.exits, here);
        }
        let rest = inputs.without_exit(self.moment(), here.saturating_since(last.1))?;
        Ok(here.saturating_add(rest))
    }

    fn is_over(&self, until: U) -> bool {
        self.outcome.is_some() || self.moment().count >= until
    }

    /// Takes the events that are due here, and executes nothing. In a machine that counts exits, the guest may make
    /// no exit after the last event. A run to a later count would then not end.
    pub fn take_due(&mut self, inputs: &mut dyn Inputs<U>) -> Result<(), Error> {
        self.take_events(U::MAX, inputs)
    }

    /// Lets the guest idle here up to `time_ns`, and takes the events that come in before this time. Executes
    /// nothing. Stops earlier if the guest would continue to execute. Afterwards the state differs from the state
    /// in which this count was first reached.
    pub fn idle_to(&mut self, time_ns: u64, inputs: &mut dyn Inputs<U>) -> Result<(), Error> {
        while self.outcome.is_none() && self.moment().time_ns < time_ns {
            if self.take_event(inputs)? {
                continue;
            }
            let signals = self.bus.signals();
            let cpu = self.engine.cpu();
            let can_run = !cpu.core().state.halted || signals.interrupt || signals.nmi;
            if can_run || cpu.another_can_run(&mut self.bus) {
                break;
            }
            self.idle(inputs)?;
            self.bus.platform.advance(self.moment().time_ns);
        }
        Ok(())
    }

    /// Takes the events due here, unless the machine is at `until`.
    fn take_events(&mut self, until: U, inputs: &mut dyn Inputs<U>) -> Result<(), Error> {
        while self.outcome.is_none() && self.moment().count < until && self.take_event(inputs)? {}
        Ok(())
    }

    /// Takes one event or check that is due here. Returns whether an event or check was due.
    fn take_event(&mut self, inputs: &mut dyn Inputs<U>) -> Result<bool, Error> {
        let view = self.view();
        let now = view.moment;
        if let Some(event) = inputs.poll(&view)? {
            self.apply(event);
        } else if let Some(parts) = inputs.check_due(now) {
            let check = self.check(parts)?;
            inputs.checked(check)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn apply(&mut self, event: Event) {
        let now_ns = self.moment().time_ns;
        let platform = &mut self.bus.platform;
        let ram = self.engine.cpu().ram().memory();
        match event {
            Event::PowerOn(_) => {}
            Event::ConsoleInput(bytes) => {
                platform.push_input(now_ns, &bytes);
            }
            Event::ConsoleResize { columns, rows } => {
                platform.with_bus(now_ns, |bus| {
                    if let Some(mut console) = bus.console_mut() {
                        console.resize(columns, rows);
                    }
                });
            }
            Event::NetworkInput(frames) => platform.with_bus(now_ns, |bus| {
                if let Some(mut network) = bus.network_mut() {
                    network.push_frames(ram, frames);
                }
            }),
            Event::PowerButton => platform.press_power_button(now_ns),
            Event::Ended | Event::Interrupted | Event::Limit | Event::TextShown => {
                self.outcome = event.outcome();
            }
            Event::Stopped(_) => {
                self.stopping.stopped = None;
                self.bus.clock.note_exit();
            }
            Event::TimePassed { ns } => self.bus.clock.pass(ns),
            Event::Devices(input) => self.bus.take_from_devices(now_ns, &input),
            Event::Turns(turns) => {
                // Interrupts that are due decide which processors can run.
                platform.advance(now_ns);
                self.engine.give_turns(&mut self.bus, &turns);
            }
        }
    }

    /// Handles the results of an engine's run: console output, sent frames, the guest's requests and a failure of the
    /// disk. Returns the console output.
    fn after_run(&mut self, inputs: &mut dyn Inputs<U>) -> Result<Vec<u8>, Error> {
        let output = std::mem::take(&mut self.bus.output);
        if !output.is_empty() {
            inputs.console_output(self.moment(), &output)?;
        }
        if !self.bus.sent.is_empty() {
            let sent = std::mem::take(&mut self.bus.sent).into_iter().map(|here| {
                let count = U::here(here.instructions, here.exits);
                Sent { at: Moment { count, time_ns: here.time_ns }, frame: here.frame }
            });
            inputs.network_output(sent.collect())?;
        }
        if std::mem::take(&mut self.bus.panicked) {
            self.outcome = Some(Outcome::Panic);
        }
        if self.bus.platform.has_requests() {
            for request in self.bus.platform.take_requests() {
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
            // Linux calls the pvpanic driver when the panic's report is complete on the console.
            Request::Panicked(PanicKind::Panicked) => Outcome::Panic,
            Request::Panicked(PanicKind::CrashLoaded) => return,
            Request::KeepRecording => {
                self.asked_to_be_kept = true;
                return;
            }
            Request::DebugExit { code } => Outcome::DebugExit { code },
        };
        self.outcome.get_or_insert(outcome);
    }

    /// The CPU is halted: lets time pass to the next deadline or the next event.
    fn idle(&mut self, inputs: &mut dyn Inputs<U>) -> Result<(), Error> {
        if self.outcome.is_some() {
            return Ok(());
        }
        if !self.engine.cpu().accepts_interrupts() && !self.bus.platform.nmi_pending() {
            // The CPU is halted with interrupts off. Only an NMI would wake the CPU, and no device of the board will
            // send one.
            self.outcome = Some(Outcome::IdleForever);
            return Ok(());
        }
        let now = self.moment();
        // A deadline at `MAX_TIME_NS` or later is never reached.
        let deadline = self.bus.platform.next_deadline_ns().filter(|&ns| ns < MAX_TIME_NS);
        match inputs.idle(now, deadline)? {
            Idle::Forever => self.outcome = Some(Outcome::IdleForever),
            Idle::Until(ns) => {
                let target = deadline.map_or(ns, |d| ns.min(d)).max(now.time_ns);
                self.bus.clock.idle_ns += target - now.time_ns;
            }
        }
        Ok(())
    }
}

/// A machine can move to another thread: each worker of a search owns one.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Machine<Instructions>>();
    is_send::<Machine<Exits>>();
};
