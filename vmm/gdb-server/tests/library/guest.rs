//! The guests of these tests, and short ways to ask a target.

use gdb::{DebugTarget, FIRST_CPU, Registers, Stop};
use gdb_server::GdbTarget;
use history::never;
use history::timeline::{Timeline, TravelStop};
use machine::position::Instructions;
use recording::Recording;
use tempfile::TempDir;
use tiny_guest::linux::{self, Kernel};
use tiny_guest::linux::{Places, programs};
use tiny_guest::{DENSE, Script};

/// The system calls of the guest that looks like Linux.
pub const CALLS_MADE: u32 = 5;
/// The system calls of this guest with several processors.
pub const CALLS_OF_SEVERAL: u32 = 3;
/// The processors of that guest. The last never starts.
pub const PROCESSORS: u8 = 3;

/// A recording's timeline, and the guest's kernel.
pub struct Guest {
    pub timeline: Timeline,
    pub kernel: Kernel,
    pub directory: TempDir,
}

/// The guest whose program runs in ring 3, with the addresses in its program.
pub struct Programs {
    pub timeline: Timeline,
    pub kernel: Kernel,
    pub places: Places,
    _directory: TempDir,
}

/// The guest whose program runs in ring 3.
pub fn programs() -> Programs {
    recorded_programs(true)
}

/// The guest whose program runs in ring 3, with a kernel that has no symbols.
pub fn programs_of_unknown_kernel() -> Programs {
    recorded_programs(false)
}

fn recorded_programs(is_known: bool) -> Programs {
    let directory = tempfile::tempdir().unwrap();
    let (recording, kernel, places) = programs::record(directory.path(), "r.ttvm", is_known);
    Programs { timeline: opened(&recording), kernel, places, _directory: directory }
}

impl Programs {
    /// The address of an instruction of the program or of the kernel, by its name.
    pub fn place(&self, name: &str) -> u64 {
        self.places.get(name).copied().unwrap_or_else(|| self.kernel.address_of(name))
    }

    /// Goes to the next visit of an instruction, and returns its position.
    pub fn go_to(&mut self, name: &str) -> u64 {
        let address = self.place(name);
        self.timeline.set_breakpoints(vec![address]);
        let stop = self.timeline.run_forward(&mut never).unwrap();
        assert!(matches!(stop, TravelStop::Hit(_)), "{name}: {stop:?}");
        self.timeline.set_breakpoints(Vec::new());
        self.timeline.position().0
    }

    /// Goes to a position.
    pub fn seek(&mut self, at: u64) {
        self.timeline.seek(Instructions(at), &mut never).unwrap();
    }

    /// A target at the present position, which gdb has shown to its user, and the names of places.
    pub fn target(&mut self) -> (GdbTarget<'_>, Names<'_>) {
        let mut target = GdbTarget::new(&mut self.timeline);
        target.shown();
        (target, Names { places: &self.places, kernel: &self.kernel })
    }

    /// As [`Self::target`], at the next visit of an instruction.
    pub fn target_at(&mut self, name: &str) -> (GdbTarget<'_>, Names<'_>) {
        self.go_to(name);
        self.target()
    }
}

/// The names of instructions.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    places: &'a Places,
    kernel: &'a Kernel,
}

impl Names<'_> {
    /// The address of an instruction of the program or of the kernel.
    pub fn of(&self, name: &str) -> u64 {
        self.places.get(name).copied().unwrap_or_else(|| self.kernel.address_of(name))
    }

    /// The name of the program's instruction at which a target stands, or its address.
    pub fn at(&self, target: &mut GdbTarget<'_>) -> String {
        let rip = target.registers().rip;
        let name = self.places.iter().find(|(_, at)| **at == rip).map(|(name, _)| name.to_string());
        name.unwrap_or_else(|| format!("{rip:#x}"))
    }
}

/// The guest that looks like Linux, with one processor.
pub fn linux() -> Guest {
    linux_that_calls(CALLS_MADE)
}

pub fn linux_that_calls(calls: u32) -> Guest {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _, kernel) = linux::record(directory.path(), "r.ttvm", calls, None);
    Guest { timeline: opened(&recording), kernel, directory }
}

/// The guest that looks like Linux, with several processors.
pub fn several() -> Guest {
    let directory = tempfile::tempdir().unwrap();
    let (recording, kernel) = linux::record_several(directory.path(), "r.ttvm", CALLS_OF_SEVERAL, PROCESSORS);
    Guest { timeline: opened(&recording), kernel, directory }
}

/// A guest of three processors without a kernel.
pub fn unknown_several() -> (TempDir, Timeline) {
    let directory = tempfile::tempdir().unwrap();
    let processors = (60_000, tiny_guest::several::processors(PROCESSORS));
    let none = Script(Vec::new());
    let (recording, _) =
        tiny_guest::several::record(directory.path(), "r.ttvm", processors, DENSE, None, none);
    (directory, opened(&recording))
}

/// A guest of a few instructions without a kernel, which runs for some rounds.
pub fn tiny(rounds: u32) -> (TempDir, Timeline) {
    let directory = tempfile::tempdir().unwrap();
    let (recording, _) = tiny_guest::record(directory.path(), "r.ttvm", rounds, Vec::new());
    (directory, opened(&recording))
}

fn opened(recording: &Recording<Instructions>) -> Timeline {
    Timeline::open_with(recording, 1).unwrap()
}

impl Guest {
    /// Goes to the next visit of one of the kernel's functions.
    pub fn go_to(&mut self, function: &str) -> Instructions {
        let address = self.kernel.address_of(function);
        self.timeline.set_breakpoints(vec![address]);
        assert!(matches!(self.timeline.run_forward(&mut never).unwrap(), TravelStop::Hit(_)));
        self.timeline.set_breakpoints(Vec::new());
        self.timeline.position()
    }

    /// A target at the present position.
    pub fn target(&mut self) -> GdbTarget<'_> {
        GdbTarget::new(&mut self.timeline)
    }
}

/// Short forms of a target's methods.
pub trait Asked {
    /// The answer to a `monitor` command.
    fn ask(&mut self, command: &str) -> String;
    /// The registers of the selected processor.
    fn registers(&mut self) -> Registers;
    /// The position, which a script asks for.
    fn position(&mut self) -> u64;
    /// The position at which a command leaves the target.
    fn after(&mut self, command: &str) -> u64;
    /// Sets a breakpoint of gdb's user, to whom gdb has shown the present position.
    fn break_at(&mut self, address: u64);
    fn forward(&mut self) -> Stop;
    fn backward(&mut self) -> Stop;
    fn step(&mut self) -> Stop;
    fn step_back(&mut self) -> Stop;
    /// The eight bytes at an address.
    fn word(&mut self, address: u64) -> u64;
}

impl Asked for GdbTarget<'_> {
    fn ask(&mut self, command: &str) -> String {
        self.monitor(command, &mut never).unwrap()
    }

    fn registers(&mut self) -> Registers {
        let cpu = self.selected_cpu();
        self.read_registers(cpu).unwrap()
    }

    fn position(&mut self) -> u64 {
        self.ask("position").split(' ').next().unwrap().parse().unwrap()
    }

    fn after(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        assert!(!answer.starts_with("error"), "{answer}");
        self.position()
    }

    fn break_at(&mut self, address: u64) {
        self.shown();
        self.set_breakpoint(address).unwrap();
    }

    fn forward(&mut self) -> Stop {
        self.run_forward(&mut never).unwrap()
    }

    fn backward(&mut self) -> Stop {
        self.run_backward(&mut never).unwrap()
    }

    fn step(&mut self) -> Stop {
        let cpu = self.selected_cpu();
        self.step_forward(cpu, &mut never).unwrap()
    }

    fn step_back(&mut self) -> Stop {
        let cpu = self.selected_cpu();
        self.step_backward(cpu, &mut never).unwrap()
    }

    fn word(&mut self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(self.read_memory(FIRST_CPU, address, &mut bytes), 8, "{address:#x}");
        u64::from_le_bytes(bytes)
    }
}
