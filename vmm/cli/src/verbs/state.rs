//! `ttvm state`: the machine at one position.

use guest_symbols::Symbols;
use guest_symbols::messages::{self, Message};
use guest_symbols::tasks::{AddressSpace, Processes, Thread};
use history::replay::registers;
use history::timeline::{Timeline, number};
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use machine::error::{Error, exit_code};
use machine::position::{Count, Instructions};
use machine::{Machine, hex};
use serde::Serialize;
use views::guest_kernel::{Backtrace, GuestKernel};

use crate::travel::PlaceArgs;

/// No more memory is printed at once.
const MAX_MEMORY_BYTES: u64 = 1 << 20;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Show memory at a virtual address, as ADDR:LEN (repeatable)
    #[arg(long, value_name = "ADDR:LEN", value_parser = parse_range)]
    memory: Vec<Range>,
    /// Show memory at a physical address, as ADDR:LEN (repeatable)
    #[arg(long, value_name = "ADDR:LEN", value_parser = parse_range)]
    physical: Vec<Range>,
    /// Show the guest's processes
    #[arg(long)]
    processes: bool,
    /// Show which functions of the guest's kernel have called one another, by the kernel's own tables (ORC)
    #[arg(long)]
    backtrace: bool,
    /// Show the messages of the guest's kernel, as dmesg does: also those that the console does not show
    #[arg(long)]
    dmesg: bool,
    /// Instructions to disassemble from RIP on
    #[arg(long, value_name = "N", default_value_t = 8)]
    instructions: usize,
    /// Lines of the console to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    console: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An address and a length.
#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    length: u64,
}

fn parse_range(text: &str) -> Result<Range, String> {
    let parsed = text
        .split_once(':')
        .and_then(|(address, length)| Some(Range { address: number(address)?, length: number(length)? }));
    let is_range = |range: &Range| {
        let last = range.length.checked_sub(1).and_then(|last| range.address.checked_add(last));
        range.length <= MAX_MEMORY_BYTES && last.is_some()
    };
    parsed
        .filter(is_range)
        .ok_or_else(|| format!("'{text}' is no range: write ADDR:LEN, 1 to {MAX_MEMORY_BYTES} bytes"))
}

#[derive(Serialize)]
struct State {
    instruction: u64,
    branches: u64,
    system_calls: u64,
    guest_seconds: f64,
    outcome: Option<String>,
    /// The kernel symbol that RIP is in, and how far.
    place: Option<String>,
    registers: Registers,
    memory: Vec<Bytes>,
    physical: Vec<Bytes>,
    code: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<Task>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backtrace: Option<Backtrace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dmesg: Option<Vec<Said>>,
    console: Vec<String>,
}

/// A message of the guest's kernel.
#[derive(Serialize)]
struct Said {
    seconds: f64,
    level: u8,
    text: String,
    #[serde(skip)]
    lines: String,
}

/// A process, or a thread beside the first one of a process.
#[derive(Serialize)]
struct Task {
    pid: u32,
    /// Of a thread: its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_of: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<char>,
    /// What is in CR3 while the kernel works for it, without the low bits.
    cr3: Option<String>,
    kernel_thread: bool,
    /// It runs, or was interrupted.
    current: bool,
    name: String,
}

#[derive(Serialize)]
struct Registers {
    #[serde(flatten)]
    values: serde_json::Map<String, serde_json::Value>,
    #[serde(skip)]
    lines: Vec<String>,
}

/// Memory as far as it can be read.
#[derive(Serialize)]
struct Bytes {
    address: String,
    bytes: String,
    /// Why there are no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends: Option<String>,
}

#[derive(Serialize)]
struct Line {
    address: String,
    bytes: String,
    text: String,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let timeline = args.place.open()?;
    let state = state(args, &timeline)?;
    crate::output::print(&if args.json {
        serde_json::to_string_pretty(&state).expect("plain data always serializes")
    } else {
        text(&state)
    })?;
    Ok(exit_code::DONE)
}

fn state(args: &Args, timeline: &Timeline) -> Result<State, Error> {
    let machine = timeline.machine();
    let (now, cpu) = (machine.moment(), machine.cpu());
    let console = String::from_utf8_lossy(machine.console().text()).replace('\r', "");
    let lines: Vec<&str> = console.lines().collect();
    let processes = args.processes.then(|| tasks(machine)).transpose()?;
    let backtrace = args.backtrace.then(|| backtrace(machine)).transpose()?;
    let dmesg = args.dmesg.then(|| dmesg(machine)).transpose()?;
    Ok(State {
        instruction: now.count.number(),
        branches: cpu.branches(),
        system_calls: cpu.system_calls(),
        guest_seconds: now.time_ns as f64 / 1e9,
        outcome: machine.outcome().map(|outcome| outcome.to_string()),
        place: place(machine),
        registers: registers_of(&cpu.state()),
        memory: args.memory.iter().map(|range| memory(machine, range)).collect(),
        physical: args.physical.iter().map(|range| physical(machine, range)).collect(),
        code: disassemble(timeline, args.instructions),
        processes,
        backtrace,
        dmesg,
        console: lines[lines.len().saturating_sub(args.console)..]
            .iter()
            .map(|line| (*line).to_string())
            .collect(),
    })
}

fn memory(machine: &Machine<Instructions>, range: &Range) -> Bytes {
    let core = machine.cpu().core();
    bytes_of(
        range,
        |to| core.peek(range.address, to),
        |at| match core.peek_address(at) {
            Some(gpa) => format!("{at:#x} is mapped to {gpa:#x}, where there is no RAM"),
            None => format!("nothing is mapped at {at:#x}"),
        },
    )
}

fn physical(machine: &Machine<Instructions>, range: &Range) -> Bytes {
    let read = |to: &mut [u8]| machine.read_physical(range.address, to);
    bytes_of(range, read, |at| format!("there is no RAM at {at:#x}"))
}

fn bytes_of(range: &Range, read: impl Fn(&mut [u8]) -> usize, why: impl Fn(u64) -> String) -> Bytes {
    let mut bytes = vec![0; range.length as usize];
    let count = read(&mut bytes);
    let ends = (count < bytes.len()).then(|| why(range.address + count as u64));
    Bytes { address: format!("{:#x}", range.address), bytes: hex(&bytes[..count]), ends }
}

fn tasks(machine: &Machine<Instructions>) -> Result<Vec<Task>, Error> {
    let processes = Processes::of_guest(machine)
        .map_err(|none| Error::Position(format!("there are no processes to show: {none}")))?;
    if let Some(damage) = processes.damage {
        eprintln!("ttvm: these are not all processes: {damage}");
    }
    let current = processes.current.as_ref().map(|current| current.id);
    let mut tasks = Vec::new();
    for process in processes.all {
        let (cr3, kernel_thread) = match process.space {
            AddressSpace::Own(root) => (Some(format!("{root:#x}")), false),
            AddressSpace::KernelThread => (None, true),
            AddressSpace::None => (None, false),
        };
        let thread = |thread: Thread| Task {
            pid: thread.id,
            thread_of: Some(process.pid),
            parent: None,
            state: None,
            cr3: cr3.clone(),
            kernel_thread,
            current: current == Some(thread.id),
            name: thread.name,
        };
        let threads: Vec<_> = process.threads.into_iter().map(thread).collect();
        tasks.push(Task {
            pid: process.pid,
            thread_of: None,
            parent: Some(process.parent),
            state: Some(process.state),
            cr3,
            kernel_thread,
            current: current == Some(process.pid),
            name: process.name,
        });
        tasks.extend(threads);
    }
    Ok(tasks)
}

fn backtrace(machine: &Machine<Instructions>) -> Result<Backtrace, Error> {
    let none = |why: &dyn std::fmt::Display| Error::Position(format!("there is no backtrace to show: {why}"));
    let kernel = GuestKernel::of_guest(machine).map_err(|no_kernel| none(&no_kernel))?;
    kernel.backtrace(machine).map_err(|missing| none(&missing))
}

fn dmesg(machine: &Machine<Instructions>) -> Result<Vec<Said>, Error> {
    let none = |why: &dyn std::fmt::Display| Error::Position(format!("there are no messages to show: {why}"));
    let symbols = Symbols::of_guest(machine).map_err(|no_kernel| none(&no_kernel))?;
    let messages = messages::of_kernel(machine, &symbols).map_err(|missing| none(&missing))?;
    let said = |message: Message| Said {
        seconds: message.time_ns as f64 / 1e9,
        level: message.level,
        lines: message.to_string(),
        text: message.text,
    };
    Ok(messages.into_iter().map(said).collect())
}

/// Where in the kernel RIP is; user programs have no symbols here.
fn place(machine: &Machine<Instructions>) -> Option<String> {
    let core = machine.cpu().core();
    let symbols = (core.cpl == 0).then(|| Symbols::of_guest(machine).ok())??;
    let (name, offset) = symbols.name_of(core.rip)?;
    Some(format!("{name}+{offset:#x}"))
}

fn registers_of(state: &cpu::CpuState) -> Registers {
    let values = registers::named(state)
        .into_iter()
        .map(|(name, value)| (name.to_string(), format!("{value:#x}").into()))
        .collect();
    Registers { values, lines: registers::lines(state) }
}

/// The instructions from RIP on.
fn disassemble(timeline: &Timeline, count: usize) -> Vec<Line> {
    let core = timeline.machine().cpu().core();
    let start = core.rip.wrapping_add(core.frame.seg_base[1]);
    let mut bytes = vec![0; count.min(10_000) * 15];
    let readable = core.peek(start, &mut bytes);
    let bits = match core.code_size {
        cpu::CodeSize::Bits16 => 16,
        cpu::CodeSize::Bits32 => 32,
        cpu::CodeSize::Bits64 => 64,
    };
    let mut decoder = Decoder::with_ip(bits, &bytes[..readable], core.rip, DecoderOptions::NONE);
    let (mut formatter, mut instruction) = (IntelFormatter::new(), Instruction::default());
    let mut lines = Vec::new();
    while lines.len() < count && decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let code = &bytes[at..decoder.position()];
        lines.push(Line { address: format!("{:#x}", instruction.ip()), bytes: hex(code), text });
    }
    lines
}

fn text(state: &State) -> String {
    let mut lines = vec![format!(
        "instruction {}, branch {}, system call {}, {:.9} s guest time",
        state.instruction, state.branches, state.system_calls, state.guest_seconds
    )];
    lines.extend(state.outcome.iter().cloned());
    lines.extend(state.place.iter().map(|place| format!("in the kernel's {place}")));
    lines.extend(state.registers.lines.iter().cloned());
    for (kind, ranges) in [("memory", &state.memory), ("physical memory", &state.physical)] {
        for range in ranges {
            lines.push(format!("\n{kind} at {}", range.address));
            let digits = range.bytes.as_bytes().chunks(32);
            lines.extend(digits.map(|row| format!("  {}", String::from_utf8_lossy(row))));
            lines.extend(range.ends.iter().map(|why| format!("  {why}")));
        }
    }
    if !state.code.is_empty() {
        lines.push("\ncode".to_string());
        lines.extend(
            state.code.iter().map(|line| format!("  {}  {:<24} {}", line.address, line.bytes, line.text)),
        );
    }
    if let Some(processes) = &state.processes {
        lines.push("\nprocesses".to_string());
        lines.extend(processes.iter().map(task_line));
    }
    if let Some(backtrace) = &state.backtrace {
        lines.push("\nbacktrace".to_string());
        lines.extend(backtrace.lines().map(|line| format!("  {line}")));
    }
    if let Some(dmesg) = &state.dmesg {
        lines.push("\nmessages".to_string());
        lines.extend(dmesg.iter().flat_map(|said| said.lines.lines()).map(|line| format!("  {line}")));
    }
    if !state.console.is_empty() {
        lines.push("\nconsole".to_string());
        lines.extend(state.console.iter().map(|line| format!("  {line}")));
    }
    lines.join("\n")
}

fn task_line(task: &Task) -> String {
    let mark = if task.current { '*' } else { ' ' };
    let parent = match (task.thread_of, task.parent) {
        (Some(process), _) => format!("in {process}"),
        (None, parent) => parent.unwrap_or(0).to_string(),
    };
    let space = if task.kernel_thread { Some("kernel thread") } else { task.cr3.as_deref() };
    let (state, space) = (task.state.unwrap_or(' '), space.unwrap_or("none"));
    format!("{mark} {:7} {parent:>10} {state} {space:14} {}", task.pid, task.name)
}
