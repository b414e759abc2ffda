//! The calls of a thread as a tree: which function called which, with arguments, results and durations.
//!
//! An [`Observer`] is told of all branches of the run. A call begins a node, and a return ends all nodes whose return
//! addresses are below the new stack pointer. So functions end too if the kernel leaves several at once. A jump to the
//! first instruction of another function replaces the function of the node. Compilers make such jumps from calls at a
//! function's end. Interrupts and exceptions are nodes, too.
//!
//! Several kinds of stacks belong to one thread: the program's stack, the thread's stack in the kernel, and the stacks
//! of interrupts. A return ends nodes on its own stack only.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result as Written};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use cpu::{At, Core, Happening, Observer, Vectors, Wants};
use guest_symbols::tasks::{Tasks, Thread};
use guest_symbols::typed::{Describe, TypeBytes};
use guest_symbols::{GuestView, Symbol, Symbols};
use history::timeline::{Poll, Timeline};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};
use machine::error::Error;
use machine::position::Instructions;
use schemars::JsonSchema;
use serde::Serialize;

use crate::functions::{Argument, Functions, symbol_at};
use crate::guest_kernel::{GuestKernel, GuestKernels};

/// The largest number of nodes in a tree.
const MOST_NODES: usize = 200_000;
/// The number of bytes that are kept of the memory to which a register points, in case it is a text.
const KEPT_BYTES: usize = 64;
/// The longest instruction in bytes.
const INSTRUCTION_BYTES: usize = 15;
/// Two addresses closer than this are on the same stack. The kernel's stacks have 16 KiB.
const STACK_BYTES: u64 = 16 << 10;
const RAX: u8 = 0;
const RSP: u8 = 4;
/// The registers of arguments: RDI, RSI, RDX, RCX, R8, R9.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// The tree to make.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The thread's number; `None` for the thread that runs at the beginning of the part.
    pub thread: Option<u32>,
    /// The largest depth of the tree. Deeper calls are not kept.
    pub depth: usize,
    /// Whether functions of programs are nodes, too.
    pub with_programs: bool,
}

/// The calls of a thread in a part of a recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Tree {
    /// The thread's number, if the kernel is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The outermost calls, in the order of the run.
    pub calls: Vec<Node>,
    /// The number of steps in this part of the recording.
    pub replayed: u64,
    /// Whether calls are missing because there are too many.
    pub is_cut: bool,
}

/// A call, with the calls that it made.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Node {
    /// The number of instructions executed before the function's first instruction.
    pub instruction: u64,
    /// The function's name, or its address in hex. An interrupt or exception has its vector.
    pub function: String,
    /// The arguments; empty for an interrupt or exception.
    pub arguments: Vec<Argument>,
    /// The result as text, if the function has one and returns in the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The number of instructions that the machine executed until the function returned. `None` if it does not return
    /// in the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// The number of calls inside this call that are too deep to be kept.
    pub deeper: u64,
    /// The calls that this call made.
    pub calls: Vec<Node>,
}

/// A call as the observer records it.
struct Noted {
    parent: Option<usize>,
    at: u64,
    /// The function's first address, or the vector of a delivery.
    function: Entered,
    gpr: [u64; 16],
    /// The memory to which the registers of arguments point, and the top of the stack, for texts.
    memory: Vec<(u64, Vec<u8>)>,
    end: Option<(u64, u64)>,
    deeper: u64,
}

#[derive(Clone, Copy)]
enum Entered {
    Function(u64),
    Vector(u8),
}

/// A call that has not returned.
struct Open {
    /// The stack pointer at the function's first instruction.
    rsp: u64,
    /// The call's number in the list of notes; `None` if the call is too deep to be kept.
    note: Option<usize>,
}

/// Records the calls of one thread.
struct Watcher {
    tasks: Option<Tasks>,
    symbols: Arc<Symbols>,
    /// The address of the watched thread's structure. With `None`, the calls of all threads are recorded.
    task: Option<u64>,
    question: Question,
    notes: Vec<Noted>,
    open: Vec<Open>,
    is_full: bool,
}

/// The memory and the page tables of the CPU that an observer sees.
struct Seen<'a>(&'a Core);

impl GuestView for Seen<'_> {
    fn cr3(&self) -> u64 {
        self.0.state.cr3
    }

    fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
        if cr3 == self.0.state.cr3 { self.0.peek(address, to) } else { self.0.peek_in(cr3, address, to) }
    }

    fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
        if cr3 == self.0.state.cr3 {
            self.0.peek_address(address)
        } else {
            self.0.peek_address_in(cr3, address)
        }
    }
}

impl Watcher {
    /// Whether the watched thread runs.
    fn is_watched(&self, core: &Core) -> bool {
        let (Some(task), Some(tasks)) = (self.task, &self.tasks) else { return true };
        tasks.running_of(&Seen(core), per_cpu_base(core)) == Some(task)
    }

    fn begin(&mut self, at: u64, function: Entered, rsp: u64, core: &Core) {
        let parent = self.open.iter().rev().find_map(|open| open.note);
        if self.open.len() >= self.question.depth || self.notes.len() >= MOST_NODES {
            self.is_full |= self.notes.len() >= MOST_NODES;
            if let Some(parent) = parent {
                self.notes[parent].deeper += 1;
            }
            self.open.push(Open { rsp, note: None });
            return;
        }
        let gpr = registers(core);
        let memory = match function {
            Entered::Function(_) => memory_of(core, &gpr),
            Entered::Vector(_) => Vec::new(),
        };
        self.open.push(Open { rsp, note: Some(self.notes.len()) });
        self.notes.push(Noted { parent, at, function, gpr, memory, end: None, deeper: 0 });
    }

    /// Ends the calls from the last one to the one with this number in the list of open calls.
    fn end_from(&mut self, number: usize, at: u64, core: &Core) {
        for open in self.open.drain(number..) {
            if let Some(note) = open.note {
                self.notes[note].end = Some((at, core.reg64(RAX)));
            }
        }
    }

    /// Ends the call that a return has ended, and the calls that it made.
    fn returned(&mut self, at: u64, core: &Core) {
        let rsp = core.reg64(RSP);
        let ended = self.open.iter().rposition(|open| open.rsp.wrapping_add(8) == rsp);
        let is_below = |open: &Open| open.rsp < rsp && rsp - open.rsp <= STACK_BYTES;
        let left = self.open.iter().rposition(|open| !is_below(open)).map_or(0, |last| last + 1);
        let from = ended.map_or(left, |ended| ended.min(left));
        self.end_from(from, at, core);
    }

    /// Handles a return by IRET, SYSRET or SYSEXIT. A return to a program ends all calls in the kernel. A return
    /// inside the kernel ends the newest interrupt or exception, and the calls since then.
    fn left(&mut self, at: u64, core: &Core) {
        let is_delivery = |open: &Open| {
            open.note.is_some_and(|note| matches!(self.notes[note].function, Entered::Vector(_)))
        };
        let from = self.open.iter().rposition(is_delivery);
        if is_user(core) {
            let first = self.open.iter().position(|open| open.rsp >> 63 != 0 || is_delivery(open));
            self.end_from(first.unwrap_or(self.open.len()), at, core);
        } else if let Some(from) = from {
            self.end_from(from, at, core);
        }
    }

    /// A jump to the first instruction of a function replaces the function of the last call. A return does the same in a
    /// thunk, which the kernel has in place of a jump through a pointer.
    fn went(&mut self, at: u64, from: u64, to: u64, core: &Core) {
        let function = |address: u64| self.symbols.at(address).map(|(symbol, _)| symbol.address);
        if !self.is_function(to) || function(from) == function(to) {
            return;
        }
        let Some(open) = self.open.last().filter(|open| open.rsp == core.reg64(RSP)) else { return };
        if let Some(note) = open.note
            && let Entered::Function(function) = &mut self.notes[note].function
        {
            *function = to;
            self.notes[note].at = at;
            self.notes[note].gpr = registers(core);
            self.notes[note].memory = memory_of(core, &self.notes[note].gpr);
        }
    }

    /// Whether an address is the first instruction of a function.
    fn is_function(&self, address: u64) -> bool {
        self.symbols.at(address).is_some_and(|(symbol, offset)| offset == 0 && symbol.is_code())
    }
}

/// The memory to which the registers of arguments point, and the arguments on the stack.
fn memory_of(core: &Core, gpr: &[u64; 16]) -> Vec<(u64, Vec<u8>)> {
    let keep = |address: u64| {
        let mut bytes = vec![0; KEPT_BYTES];
        let count = core.peek(address, &mut bytes);
        bytes.truncate(count);
        (address, bytes)
    };
    let on_stack = gpr[usize::from(RSP)].wrapping_add(8);
    let addresses = ARGUMENTS.into_iter().map(|register| gpr[register]).chain([on_stack]);
    addresses.map(keep).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

/// The current general registers. While the CPU runs, its stored state has old values.
fn registers(core: &Core) -> [u64; 16] {
    let mut numbers = 0..16;
    [0; 16].map(|_: u64| core.reg64(numbers.next().unwrap_or(0)))
}

/// The base of the running processor's per-CPU variables: the kernel's GS base.
fn per_cpu_base(core: &Core) -> u64 {
    let (now, other) = (core.state.segments[5].base, core.state.msrs.kernel_gs_base);
    if now >> 63 != 0 { now } else { other }
}

fn is_user(core: &Core) -> bool {
    core.state.segments[2].dpl() == 3
}

impl Observer for Watcher {
    fn wants(&self) -> Wants {
        Wants { branches: true, deliveries: Vectors::All, ..Wants::default() }
    }

    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()> {
        if !self.is_watched(core) {
            return ControlFlow::Continue(());
        }
        let after = at.step + 1;
        match *happening {
            Happening::Delivery { vector, .. } => {
                self.begin(after, Entered::Vector(vector), core.reg64(RSP), core);
            }
            Happening::Branch { to, taken: true, .. } => {
                let Some(instruction) = instruction_at(core, at.rip) else {
                    return ControlFlow::Continue(());
                };
                let in_program = is_user(core);
                match instruction.flow_control() {
                    FlowControl::Call | FlowControl::IndirectCall if !is_system_call(&instruction) => {
                        // A call to an address inside a function is a part of a thunk, and begins no node.
                        let is_inside =
                            |symbols: &Symbols| symbols.at(to).is_some_and(|(_, offset)| offset != 0);
                        if !is_inside(&self.symbols) && (!in_program || self.question.with_programs) {
                            self.begin(after, Entered::Function(to), core.reg64(RSP), core);
                        }
                    }
                    FlowControl::Return if is_far_return(&instruction) => self.left(after, core),
                    FlowControl::Return => {
                        self.returned(after, core);
                        self.went(after, at.rip, to, core);
                    }
                    FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                        self.went(after, at.rip, to, core);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The instruction that has just been executed.
fn instruction_at(core: &Core, rip: u64) -> Option<Instruction> {
    let mut bytes = [0; INSTRUCTION_BYTES];
    let count = core.peek(rip, &mut bytes);
    (count > 0).then(|| Decoder::with_ip(64, &bytes[..count], rip, DecoderOptions::NONE).decode())
}

/// Whether an instruction is SYSCALL or SYSENTER. The decoder treats these instructions as calls, but they call no
/// function.
fn is_system_call(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Syscall | Code::Sysenter)
}

/// Whether an instruction is IRET, SYSRET or SYSEXIT.
fn is_far_return(instruction: &Instruction) -> bool {
    use Code::{Iretd, Iretq, Iretw, Sysexitd, Sysexitq, Sysretd, Sysretq};
    matches!(instruction.code(), Iretd | Iretq | Iretw | Sysexitd | Sysexitq | Sysretd | Sysretq)
}

impl Question {
    /// Makes the tree of this part of the recording. Changes the timeline's position, and the stops that are set in
    /// the timeline.
    pub fn answer(
        &self,
        timeline: &mut Timeline,
        part: Range<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<Tree, Error> {
        let part = timeline.part(part)?;
        timeline.seek(part.start, poll)?.unless_interrupted()?;
        let kernels = GuestKernels::of(timeline, part.end, poll)?;
        let machine = timeline.machine();
        let kernel = kernels.at(machine);
        let symbols = kernel.map(|kernel| kernel.symbols.clone()).unwrap_or_default();
        let tasks = kernel.and_then(|kernel| Tasks::of_kernel(machine, &kernel.symbols).ok());
        let thread = self.thread(&tasks, machine)?;
        let bytes = kernel.and_then(|kernel| TypeBytes::of_guest(machine, &kernel.symbols).ok());
        let watcher = Watcher {
            tasks,
            symbols: symbols.clone(),
            task: thread.as_ref().map(|thread| thread.task),
            question: *self,
            notes: Vec::new(),
            open: Vec::new(),
            is_full: false,
        };
        let before = timeline.replayed_steps();
        let watcher = timeline.observe(part, watcher, poll)?.ok_or(Error::Interrupted)?;
        let types = bytes.as_ref().and_then(|bytes| bytes.kernel().ok());
        let mut all = Vec::new();
        if let (Some(bytes), Some(types)) = (&bytes, &types) {
            all.extend(bytes.kernel());
            all.extend(bytes.modules(types));
        }
        let called = watcher.notes.iter().filter_map(|note| match note.function {
            Entered::Function(address) => symbols.at(address).filter(|(_, offset)| *offset == 0),
            Entered::Vector(_) => None,
        });
        let called: BTreeMap<u64, &Symbol> = called.map(|(symbol, _)| (symbol.address, symbol)).collect();
        let functions = Functions::of(called.into_values().collect(), all);
        Ok(Tree {
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            is_cut: watcher.is_full,
            calls: nodes(watcher.notes, &functions, kernel_of(&kernels)),
            replayed: timeline.replayed_steps() - before,
        })
    }

    /// The thread to watch, if the guest has a known kernel.
    fn thread(
        &self,
        tasks: &Option<Tasks>,
        machine: &machine::Machine<Instructions>,
    ) -> Result<Option<Thread>, Error> {
        match (self.thread, tasks) {
            (None, tasks) => Ok(tasks.as_ref().and_then(|tasks| tasks.current(machine))),
            (Some(pid), Some(tasks)) => {
                let list = tasks.list(machine);
                let first = list.all.iter().map(|process| Thread {
                    id: process.pid,
                    process: process.pid,
                    name: process.name.clone(),
                    task: process.task,
                });
                let others = list.all.iter().flat_map(|process| process.threads.iter().cloned());
                let found = first.chain(others).find(|thread| thread.id == pid);
                found.map(Some).ok_or_else(|| {
                    Error::Position(format!(
                        "there is no thread {pid} where the part begins: `ttvm state --processes` lists them"
                    ))
                })
            }
            (Some(_), None) => {
                Err(Error::Position("there are no threads to choose from: leave --thread out".to_string()))
            }
        }
    }
}

fn kernel_of(kernels: &GuestKernels) -> Option<&GuestKernel> {
    kernels.all().last()
}

/// Builds the tree from the notes, which are in the order in which the calls began.
fn nodes(notes: Vec<Noted>, functions: &Functions<'_>, kernel: Option<&GuestKernel>) -> Vec<Node> {
    let mut children: BTreeMap<Option<usize>, Vec<(usize, Node)>> = BTreeMap::new();
    // A call begins before the calls that it makes, so in reverse order the nodes of its calls are made before its
    // own node.
    for (number, note) in notes.into_iter().enumerate().rev() {
        let parent = note.parent;
        let mut calls: Vec<Node> =
            children.remove(&Some(number)).unwrap_or_default().into_iter().map(|(_, node)| node).collect();
        calls.reverse();
        children.entry(parent).or_default().push((number, note.node(functions, kernel, calls)));
    }
    let mut calls: Vec<Node> =
        children.remove(&None).unwrap_or_default().into_iter().map(|(_, node)| node).collect();
    calls.reverse();
    calls
}

impl Noted {
    fn node(self, functions: &Functions<'_>, kernel: Option<&GuestKernel>, calls: Vec<Node>) -> Node {
        let symbol = |address| symbol_at(kernel, address);
        let read = |address: u64, to: &mut [u8]| {
            let kept = self
                .memory
                .iter()
                .find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&address));
            let Some((start, bytes)) = kept else { return 0 };
            let part = &bytes[(address - start) as usize..];
            let count = part.len().min(to.len());
            to[..count].copy_from_slice(&part[..count]);
            count
        };
        let describe = Describe { read: &read, symbol: &symbol };
        let instructions = self.end.map(|(at, _)| at - self.at);
        let (function, arguments, result) = match self.function {
            Entered::Vector(vector) => (format!("interrupt {vector}"), Vec::new(), None),
            Entered::Function(address) => match functions.name(address) {
                Some(name) => {
                    let result = self.end.and_then(|(_, value)| functions.result(address, value, &symbol));
                    (name.to_string(), functions.arguments(address, &self.gpr, &describe), result)
                }
                None => (symbol(address).unwrap_or_else(|| format!("{address:#x}")), Vec::new(), None),
            },
        };
        Node { instruction: self.at, function, arguments, result, instructions, deeper: self.deeper, calls }
    }
}

impl Node {
    fn lines(&self, depth: usize, lines: &mut Vec<String>) {
        let arguments: Vec<String> = self.arguments.iter().map(Argument::to_string).collect();
        let is_function = !self.function.starts_with("interrupt ");
        let arguments = if is_function { format!("({})", arguments.join(", ")) } else { String::new() };
        let result = self.result.iter().map(|result| format!(" = {result}")).collect::<String>();
        let length = self.instructions.map_or("not ended".to_string(), |count| count.to_string());
        let deeper = if self.deeper > 0 { format!("  +{} calls", self.deeper) } else { String::new() };
        let indent = "  ".repeat(depth);
        lines.push(format!(
            "insn:{:<12} {length:>10}  {indent}{}{arguments}{result}{deeper}",
            self.instruction, self.function
        ));
        self.calls.iter().for_each(|call| call.lines(depth + 1, lines));
    }
}

/// The text for people: for each call its position, its number of instructions, and the call.
impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut lines = Vec::new();
        if let (Some(pid), Some(name)) = (self.pid, &self.name) {
            lines.push(format!("thread {pid} ({name})"));
        }
        self.calls.iter().for_each(|call| call.lines(0, &mut lines));
        if self.calls.is_empty() {
            lines.push("no call of this thread in that part of the recording".to_string());
        }
        if self.is_cut {
            lines.push(format!(
                "calls are missing: the tree has its first {MOST_NODES}, choose a shorter part"
            ));
        }
        f.write_str(&lines.join("\n"))
    }
}
