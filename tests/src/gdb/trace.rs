//! Replays a recording once from start to end, and executes some parts of the recording (*windows*) in single
//! steps. A window has the machine's registers after each step, and the values of watched variables. A window also
//! has runs in which a debugger changed the machine. The replay never goes back and uses no checkpoints.

use std::collections::BTreeMap;

use cpu::{AddressKind, CpuState, Met, WatchKind, Watchpoint};
use history::replay;
use machine::inputs::Inputs;
use machine::position::{Count, Instructions};
use machine::{Machine, MachineState, RunStop};
use recording::Recording;

use machine::script::Script;

/// A general register's number in [`Place::gpr`].
pub const RAX: usize = 0;
/// See [`RAX`].
pub const RSP: usize = 4;
/// See [`RAX`].
pub const RDI: usize = 7;

/// The machine between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of the next instruction.
    pub rip: u64,
    /// RFLAGS.
    pub flags: u64,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    /// The word on top of the stack; 0 if nothing is mapped there.
    pub top: u64,
    /// Retired conditional branches.
    pub branches: u64,
    /// The values of the watched variables.
    pub values: [u64; WATCHED],
    /// For each watched variable, whether the step from here makes an access of the variable's `kind`.
    pub accesses: [bool; WATCHED],
}

/// The number of variables that are watched in one window.
pub const WATCHED: usize = 5;

/// A variable, and the kind of accesses that are recorded.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The variable's linear address.
    pub address: u64,
    /// The variable's size, at most 8 bytes.
    pub bytes: u64,
    /// The kind of accesses that are recorded. `None` if only the variable's value is recorded.
    pub kind: Option<WatchKind>,
}

impl Variable {
    /// The variable as an expression for gdb.
    pub fn expression(&self) -> String {
        let kind = match self.bytes {
            1 => "(unsigned char *)".to_string(),
            2 => "(unsigned short *)".to_string(),
            4 => "(unsigned int *)".to_string(),
            8 => "(unsigned long *)".to_string(),
            odd => format!("(unsigned char (*)[{odd}])"),
        };
        format!("*{kind} {:#x}", self.address)
    }

    fn read(&self, machine: &Machine<Instructions>) -> u64 {
        let mut bytes = [0; 8];
        machine.cpu().core().peek(self.address, &mut bytes[..self.bytes as usize]);
        u64::from_le_bytes(bytes)
    }
}

/// A part of the recording, executed in single steps.
pub struct Window {
    /// The step count at which the window begins.
    pub start: usize,
    /// The machine at every step count from `start` on.
    pub places: Vec<Place>,
    /// The watched variables.
    pub variables: [Variable; WATCHED],
    /// Runs that left the recorded history, by the step count of the debugger's change.
    pub forks: BTreeMap<usize, Fork>,
}

/// A change by a debugger, and the run after it.
pub struct Fork {
    /// The debugger's value for RAX.
    pub rax: u64,
    /// The address of the 8 written bytes, and the bytes.
    pub wrote: (u64, u64),
    /// The machine at every step count from the change on.
    pub places: Vec<Place>,
}

impl Window {
    /// Returns the last step count of the window.
    pub fn end(&self) -> usize {
        self.start + self.places.len() - 1
    }

    /// The machine at a step count.
    pub fn at(&self, step: usize) -> &Place {
        &self.places[step - self.start]
    }

    /// Whether a step count lies in this window.
    pub fn contains(&self, step: usize) -> bool {
        (self.start..=self.end()).contains(&step)
    }
}

/// The parts of a recording that need a reference.
pub struct Wanted<'a> {
    /// The windows: the step count at the beginning, and the number of steps. The windows are in ascending order, and
    /// do not touch.
    pub windows: &'a [(usize, usize)],
    /// Returns the variables to watch. The function is called at the beginning of each window.
    pub variables: &'a dyn Fn(&Machine<Instructions>) -> [Variable; WATCHED],
    /// Step counts at which runs leave history, each within a window.
    pub forks: &'a [usize],
    /// Linear addresses. The replay finds all step counts at which they are reached.
    pub rare: &'a [u64],
}

/// The windows of a replay, and data about the whole replay.
pub struct Trace {
    /// The requested windows.
    pub windows: Vec<Window>,
    /// Step counts at which the rare addresses are reached.
    pub rare: BTreeMap<u64, Vec<usize>>,
    /// The first bytes of every instruction that was seen.
    pub code: BTreeMap<u64, [u8; 4]>,
    /// The recording's last step count.
    pub end: usize,
}

/// Number of steps of each run that leaves the recorded history.
const FORK_STEPS: usize = 300;
/// The value that the debugger writes to RAX when a run leaves the recorded history.
const FORK_RAX: u64 = 0x5eed;

impl Trace {
    /// Replays a recording once from its start to its end.
    pub fn new(recording: &Recording<Instructions>, wanted: &Wanted<'_>) -> Trace {
        let (mut machine, mut player) = replay::open(recording).unwrap_or_else(|error| panic!("{error}"));
        let end = replay::last_place(recording).number() as usize;
        let rare = wanted.rare.iter().map(|&address| (address, Vec::new())).collect();
        let mut trace = Trace { windows: Vec::new(), rare, code: BTreeMap::new(), end };
        let mut forked = Vec::new();
        for &(start, length) in wanted.windows {
            trace.run(&mut machine, start, &mut player);
            let window = trace.window(&mut machine, length, wanted, &mut player, &mut forked);
            trace.windows.push(window);
        }
        trace.run(&mut machine, end, &mut player);
        for (at, snapshot) in forked {
            let fork = trace.fork(&mut machine, &snapshot);
            let window =
                trace.windows.iter_mut().find(|window| window.contains(at)).expect("it came from there");
            window.forks.insert(at, fork);
        }
        trace
    }

    /// Returns the window that contains a step count; `None` if no window contains it.
    pub fn window_of(&self, step: usize) -> Option<&Window> {
        self.windows.iter().find(|window| window.contains(step))
    }

    /// Runs to a step count and notes where the rare addresses are reached.
    fn run(&mut self, machine: &mut Machine<Instructions>, to: usize, inputs: &mut dyn Inputs<Instructions>) {
        let points: Vec<_> = self.rare.keys().map(|&address| (AddressKind::Linear, address)).collect();
        machine.set_breakpoints(&points);
        let until = Instructions(to as u64);
        while machine.moment().count < until {
            match machine.run(until, inputs).unwrap_or_else(|error| panic!("{error}")) {
                RunStop::Met(Met::Breakpoint) => self.note(machine),
                RunStop::Reached => {}
                other => panic!("{other:?} before step {to}"),
            }
        }
        machine.set_breakpoints(&[]);
    }

    fn note(&mut self, machine: &Machine<Instructions>) {
        let hits = self.rare.get_mut(&machine.cpu().rip()).expect("it stopped there");
        hits.push(here(machine));
    }

    fn window(
        &mut self,
        machine: &mut Machine<Instructions>,
        length: usize,
        wanted: &Wanted<'_>,
        inputs: &mut dyn Inputs<Instructions>,
        forked: &mut Vec<(usize, Snapshot)>,
    ) -> Window {
        let start = here(machine);
        let variables = (wanted.variables)(machine);
        let points = variables.iter().filter_map(|variable| {
            let Variable { address, bytes: length, kind } = *variable;
            Some(Watchpoint { space: AddressKind::Linear, address, length, kind: kind? })
        });
        machine.set_watchpoints(&points.collect::<Vec<_>>());
        let mut places: Vec<Place> = Vec::with_capacity(length + 1);
        for at in start..=start + length {
            let hit = if at > start { step(machine, at, inputs) } else { None };
            if let Some(address) = hit {
                let before = places.last_mut().expect("it is not the first");
                before.accesses =
                    variables.map(|variable| variable.kind.is_some() && variable.address == address);
            }
            places.push(look(machine, &variables));
            let rip = machine.cpu().rip();
            self.code.entry(rip).or_insert_with(|| {
                let mut bytes = [0; 4];
                machine.cpu().core().peek(rip, &mut bytes);
                bytes
            });
            if self.rare.contains_key(&rip) && at < start + length {
                self.note(machine);
            }
            if wanted.forks.contains(&at) {
                forked.push((at, Snapshot { state: machine.state(), maps: machine.maps().unwrap() }));
            }
        }
        machine.set_watchpoints(&[]);
        Window { start, places, variables, forks: BTreeMap::new() }
    }

    /// Changes RAX and the word below the stack, and continues without input from outside.
    fn fork(&self, machine: &mut Machine<Instructions>, from: &Snapshot) -> Fork {
        machine.restore(&from.state, &from.maps).unwrap_or_else(|error| panic!("{error}"));
        let mut state: CpuState = machine.cpu().state();
        state.gpr[RAX] = FORK_RAX;
        let wrote = (state.gpr[RSP] & !7, state.gpr[RSP] ^ FORK_RAX);
        machine.change_registers(&state);
        machine.change_memory(wrote.0, &wrote.1.to_le_bytes());
        let nothing = Variable { address: 0, bytes: 0, kind: None };
        let mut silent = Script::silent();
        let mut places = vec![look(machine, &[nothing; WATCHED])];
        let start = here(machine);
        for at in start + 1..=start + FORK_STEPS {
            step(machine, at, &mut silent);
            places.push(look(machine, &[nothing; WATCHED]));
        }
        Fork { rax: FORK_RAX, wrote, places }
    }
}

/// A state to which a machine can go back.
struct Snapshot {
    state: MachineState,
    maps: checkpoint::Maps,
}

/// The machine's step count, as an index.
fn here(machine: &Machine<Instructions>) -> usize {
    machine.moment().count.number() as usize
}

/// Executes one step. Returns the address of the watched variable that the step accessed; `None` if it accessed none.
fn step(
    machine: &mut Machine<Instructions>,
    to: usize,
    inputs: &mut dyn Inputs<Instructions>,
) -> Option<u64> {
    match machine.run(Instructions(to as u64), inputs).unwrap_or_else(|error| panic!("{error}")) {
        RunStop::Reached => None,
        RunStop::Met(Met::Watchpoint(hit)) => Some(hit.watchpoint.address),
        other => panic!("{other:?} at step {to}"),
    }
}

fn look(machine: &Machine<Instructions>, variables: &[Variable; WATCHED]) -> Place {
    let cpu = machine.cpu();
    let core = cpu.core();
    let mut top = [0; 8];
    core.peek(core.frame.regs[RSP], &mut top);
    Place {
        rip: cpu.rip(),
        flags: core.rflags | core.flags.bits(),
        gpr: core.frame.regs[..16].try_into().expect("there are more than that"),
        top: u64::from_le_bytes(top),
        branches: cpu.branches(),
        values: variables.map(|variable| variable.read(machine)),
        accesses: [false; WATCHED],
    }
}
