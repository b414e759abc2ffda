//! The whole machine: engine, RAM, board and disk, run from event to event.

use std::sync::Arc;

use checkpoint::MemoryImage;
use cpu::{AddressKind, CpuState, SegReg, Segment, Stop, WatchHit, Watchpoint};
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
use crate::config::{Images, MachineConfig};
use crate::console_watch::ConsoleWatch;
use crate::disk::{DiskVersion, OverlayDisk};
use crate::engine::{Engine, SoftEngine};
use crate::error::Error;
use crate::inputs::{Event, Idle, Inputs, PowerOn, View};
use crate::position::{MAX_TIME_NS, Moment};
use crate::ram_digest::RamDigest;
use crate::written_pages::{Reader, WrittenPages};

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
    /// The instruction that just completed hit a watchpoint.
    Watchpoint(WatchHit),
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
    /// What the console showed so far, as far as the machine looks at it.
    pub console_watch: ConsoleWatch,
    /// How the run ended, if it did.
    pub outcome: Option<Outcome>,
}

/// One machine.
pub struct Machine {
    engine: Box<dyn Engine>,
    ram: Arc<GuestRam>,
    board: Board,
    console_watch: ConsoleWatch,
    outcome: Option<Outcome>,
    has_disk: bool,
    written: WrittenPages,
    /// What RAM held when it was last asked for.
    image: MemoryImage,
    /// The digest of what RAM held when it was last asked for.
    digest: RamDigest,
}

impl Machine {
    /// Builds a machine and loads its kernel: the state at the first instruction.
    pub fn new(config: &MachineConfig, images: &Images, power_on: &PowerOn) -> Result<Machine, Error> {
        let ram = Arc::new(GuestRam::new(config.memory_bytes)?);
        let entry = boot::load(&ram, &images.for_boot(config, &kernel_seed(&power_on.seed)))?;
        let mut bus = PciBus::new();
        if let Some(disk) = &config.disk {
            bus.add(Block::new(OverlayDisk::open(&disk.path)?));
        }
        bus.add(Console::new(power_on.columns, power_on.rows));
        bus.add(Rng::new(entropy_seed(&power_on.seed)));
        let platform = Platform::new(power_on.unix_seconds, bus).with_debug_ports(config.debug_ports);
        let board = Board::new(platform, ram.clone());
        let mut engine = Box::new(SoftEngine::new(ram.clone()));
        engine.set_state(&entry_state(&entry));
        let pages = ram.flags().pages();
        Ok(Machine {
            engine,
            board,
            console_watch: ConsoleWatch::default(),
            outcome: None,
            has_disk: config.disk.is_some(),
            written: WrittenPages::none(pages),
            image: MemoryImage::zeroed(pages),
            digest: RamDigest::zeroed(pages),
            ram,
        })
    }

    /// Where the machine is.
    pub fn moment(&self) -> Moment {
        let steps = self.engine.cpu().steps();
        Moment { steps, time_ns: self.board.time_ns(steps) }
    }

    /// The engine, for a debugger's reads.
    pub fn cpu(&self) -> &cpu::Cpu {
        self.engine.cpu()
    }

    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// How the run ended, if it did.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Replaces all breakpoints (linear addresses).
    pub fn set_breakpoints(&mut self, addresses: &[u64]) {
        let points: Vec<_> = addresses.iter().map(|&a| (AddressKind::Linear, a)).collect();
        self.engine.set_breakpoints(&points);
    }

    /// Replaces all watchpoints.
    pub fn set_watchpoints(&mut self, points: &[Watchpoint]) {
        self.engine.set_watchpoints(points);
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
        loop {
            if let Some(outcome) = &self.outcome {
                return Ok(RunStop::Ended(outcome.clone()));
            }
            let now = self.moment();
            if now.steps >= until {
                // Devices too stand at this point, so that equal machines have equal states.
                self.board.platform.advance(now.time_ns);
                return Ok(RunStop::Reached);
            }
            self.take_events(inputs)?;
            if self.outcome.is_some() {
                continue;
            }
            let limit = until.min(inputs.next_poll(now).max(now.steps + 1));
            let limit = self.board.prepare_run(now.steps, limit);
            let stop = self.engine.run(&mut self.board, limit, origin);
            self.after_run(inputs)?;
            match stop {
                Stop::Budget | Stop::Bus => {}
                // No time passes where this run ends: the next one goes on from here.
                Stop::Halted if self.moment().steps >= until => {}
                Stop::Halted => self.idle(inputs)?,
                Stop::Shutdown => self.outcome = Some(Outcome::TripleFault { rip: self.engine.cpu().rip() }),
                Stop::Breakpoint => return Ok(RunStop::Breakpoint),
                Stop::Watchpoint(hit) => return Ok(RunStop::Watchpoint(hit)),
            }
        }
    }

    fn take_events(&mut self, inputs: &mut dyn Inputs) -> Result<(), Error> {
        while self.outcome.is_none() {
            let view = View {
                moment: self.moment(),
                console_room: self.board.platform.console_room(),
                cpu: self.engine.cpu(),
            };
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
        }
    }

    /// Looks at what the guest did: console output, requests, a failing disk.
    fn after_run(&mut self, inputs: &mut dyn Inputs) -> Result<(), Error> {
        let mut output = self.board.platform.take_output();
        output.extend(self.board.platform.take_debug_output());
        if let Some(mut console) = self.board.platform.bus_mut().console_mut() {
            output.extend(console.take_output());
        }
        if !output.is_empty() {
            inputs.console_output(self.moment(), &output)?;
            if self.console_watch.saw_panic_end(&output) {
                self.outcome = Some(Outcome::Panic);
            }
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
        Ok(())
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
            console_watch: self.console_watch.clone(),
            outcome: self.outcome.clone(),
        }
    }

    /// The guest's writes to its disk.
    pub fn disk_version(&mut self) -> DiskVersion {
        self.disk_mut().map(|disk| disk.version()).unwrap_or_default()
    }

    /// The contents of RAM. Costs as much as the pages written since the last call, or restore.
    pub fn memory_image(&mut self) -> MemoryImage {
        self.collect_written();
        let (ram, written) = (&self.ram, &self.written);
        self.image = self.image.next(
            |page| written.has(page, Reader::Image),
            |page, to| ram.read_bytes(page * guest_ram::PAGE_SIZE, to),
        );
        self.written.seen_by(Reader::Image);
        self.image.clone()
    }

    /// The state here in short. Changes nothing that the guest can see.
    pub fn check(&mut self, parts: CheckParts) -> CheckRecord {
        let at = self.moment();
        CheckRecord {
            at,
            branches: self.engine.cpu().branches(),
            rip: self.engine.cpu().rip(),
            cpu_hash: short(&hash_of(&self.engine.state())),
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
        let written = &self.written;
        let digest = self.digest.update(&self.ram, |page| written.has(page, Reader::Digest));
        self.written.seen_by(Reader::Digest);
        digest
    }

    fn collect_written(&mut self) {
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

    /// Goes to another state of the same machine.
    pub fn restore(
        &mut self,
        state: &MachineState,
        memory: &MemoryImage,
        disk: &DiskVersion,
    ) -> Result<(), Error> {
        self.restore_memory(memory);
        let now_ns = state.cpu.steps + state.idle_ns;
        self.board
            .platform
            .restore(&state.platform, now_ns)
            .map_err(|error| Error::State(error.to_string()))?;
        self.board.idle_ns = state.idle_ns;
        self.console_watch = state.console_watch.clone();
        self.outcome = state.outcome.clone();
        self.engine.set_state(&state.cpu);
        self.engine.track_writes_anew();
        if let Some(overlay) = self.disk_mut() {
            overlay.set_version(disk);
        }
        Ok(())
    }

    fn restore_memory(&mut self, memory: &MemoryImage) {
        self.collect_written();
        let (ram, written) = (&self.ram, &self.written);
        memory.apply(
            &self.image,
            |page| written.has(page, Reader::Image),
            |page, contents| ram.replace_bytes(page * guest_ram::PAGE_SIZE, contents),
        );
        // What was replaced is news to the digest, but not to the image.
        self.collect_written();
        self.written.seen_by(Reader::Image);
        self.image = memory.clone();
    }

    /// Hashes of everything that can influence the future.
    pub fn hashes(&mut self) -> Hashes {
        Hashes {
            cpu: hash_of(&self.engine.state()),
            devices: self.devices_hash(),
            ram: self.ram_hash(),
            disk: self.disk_mut().map(|disk| disk.hash()).unwrap_or_default(),
        }
    }

    fn devices_hash(&self) -> [u8; 32] {
        hash_of(&(&self.board.platform.state(), self.board.idle_ns, &self.console_watch))
    }

    fn ram_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < self.ram.size_bytes() {
            let length = (self.ram.size_bytes() - offset).min(buffer.len() as u64) as usize;
            self.ram.read_bytes(offset, &mut buffer[..length]);
            hasher.update(&buffer[..length]);
            offset += length as u64;
        }
        *hasher.finalize().as_bytes()
    }
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
