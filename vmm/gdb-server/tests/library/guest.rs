//! The guests of these tests, and short ways to ask a target.

use gdb::{DebugTarget, FIRST_CPU, Registers, Stop};
use gdb_server::GdbTarget;
use history::never;
use history::timeline::{Timeline, TravelStop};
use machine::position::Instructions;
use recording::Recording;
use tempfile::TempDir;
use tiny_guest::linux::{self, Kernel};

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

    /// Goes to a position.
    pub fn seek(&mut self, at: u64) {
        self.timeline.seek(Instructions(at), &mut never).unwrap();
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
