//! The machine at one place, as `ttvm state` shows it.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result as Written};

use cpu::CpuState;
use guest_symbols::boot::Boot;
use guest_symbols::messages::{self, Message};
use guest_symbols::tasks::Tasks;
use guest_symbols::{NoKernel, Symbols};
use history::replay::registers;
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::console;
use crate::guest_kernel::{Backtrace, GuestKernel};
use crate::memory::{Bytes, Line, Range, disassemble};
use crate::processors::{self, Activity, ProcessorRow};
use crate::tasks::{Task, TaskList};

/// The optional parts of a state, besides counts and registers.
#[derive(Clone, Debug, Default)]
pub struct StateOptions {
    /// The number of the processor to show. `None` shows the running processor.
    pub processor: Option<usize>,
    /// The ranges of virtual addresses whose memory to show.
    pub memory: Vec<Range>,
    /// The ranges of physical addresses whose memory to show.
    pub physical: Vec<Range>,
    /// Whether to show the guest's processes.
    pub processes: bool,
    /// Whether to show the guest kernel's backtrace.
    pub backtrace: bool,
    /// Whether to show the messages of the guest's kernel.
    pub dmesg: bool,
    /// The number of instructions to disassemble, from RIP on.
    pub instructions: usize,
    /// The number of the console's last lines to show.
    pub console_lines: usize,
}

/// The machine's state at one place.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct State {
    /// The number of instructions executed so far.
    pub instruction: u64,
    /// The number of conditional branches executed so far.
    pub branches: u64,
    /// The number of system calls so far.
    pub system_calls: u64,
    /// The guest's time.
    pub guest_seconds: f64,
    /// How the run ended, if it has ended.
    pub outcome: Option<String>,
    /// The number of the shown processor, from 0, if the machine has several. The running processor is shown if the
    /// options choose none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
    /// The activity of the shown processor, if the options choose a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// A row for each processor, if the machine has several processors and the options choose none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processors: Option<Vec<ProcessorRow>>,
    /// The running kernel, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<RunningKernel>,
    /// The kernel symbol at RIP, and the offset in it.
    pub place: Option<String>,
    /// The running thread, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Running>,
    /// The registers.
    pub registers: Registers,
    /// The memory in the requested ranges of virtual addresses.
    pub memory: Vec<Bytes>,
    /// The memory in the requested ranges of physical addresses.
    pub physical: Vec<Bytes>,
    /// The instructions from RIP on.
    pub code: Vec<Line>,
    /// The processes, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<TaskList>,
    /// The kernel's backtrace, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<Backtrace>,
    /// The kernel's messages, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dmesg: Option<Vec<Said>>,
    /// The console's last lines.
    pub console: Vec<String>,
}

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RunningKernel {
    /// The kernel's release.
    pub release: String,
    /// Whether another kernel has started this kernel by kexec.
    pub by_kexec: bool,
}

/// The running thread.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Running {
    /// The thread's number.
    pub pid: u32,
    /// The number of the thread's process.
    pub process: u32,
    /// The thread's name in the kernel.
    pub name: String,
}

/// The registers.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Registers {
    /// The value of each register by name, in hex.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, String>,
    /// The most important registers, as lines of text for people.
    #[serde(skip)]
    pub lines: Vec<String>,
}

/// A message of the guest's kernel.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Said {
    /// The message's time in seconds, by the kernel's clock.
    pub seconds: f64,
    /// The message's level: 0 is the most urgent.
    pub level: u8,
    /// The message.
    pub text: String,
    /// The message as `dmesg` shows it.
    #[serde(skip)]
    pub lines: String,
}

impl State {
    /// The machine's current state. Fails if a requested part cannot be shown at this place.
    pub fn of(machine: &Machine<Instructions>, options: &StateOptions) -> Result<State, Error> {
        let (now, cpu) = (machine.moment(), machine.cpu());
        let shown = options.processor.map(|number| processors::find(machine, number)).transpose()?;
        let shown = shown.unwrap_or_else(|| machine.running_processor());
        let are_several = machine.processors() > 1;
        let symbols = Symbols::of_guest(machine).ok();
        // Before the guest starts a processor, the registers say nothing about the guest.
        let of_guest = symbols.as_ref().filter(|_| shown.is_started());
        let rows = are_several && options.processor.is_none();
        Ok(State {
            instruction: now.count.number(),
            branches: cpu.branches(),
            system_calls: cpu.system_calls(),
            guest_seconds: now.time_ns as f64 / 1e9,
            outcome: machine.outcome().map(|outcome| outcome.to_string()),
            processor: are_several.then(|| shown.number()),
            activity: options.processor.filter(|_| are_several).map(|_| Activity::of(&shown)),
            processors: rows.then(|| ProcessorRow::all(machine, symbols.as_ref())),
            kernel: symbols.as_ref().and_then(|symbols| kernel(machine, symbols)),
            place: of_guest.and_then(|symbols| processors::place(&shown, symbols)),
            thread: of_guest.and_then(|symbols| running(&shown, symbols)),
            registers: Registers::of(shown.state()),
            memory: options.memory.iter().map(|&range| Bytes::at(&shown, range)).collect(),
            physical: options.physical.iter().map(|&range| Bytes::at_physical(machine, range)).collect(),
            code: disassemble(&shown, options.instructions),
            processes: options.processes.then(|| tasks(machine, symbols.as_ref())).transpose()?,
            backtrace: options.backtrace.then(|| backtrace(&shown)).transpose()?,
            dmesg: options.dmesg.then(|| dmesg(machine)).transpose()?,
            console: console::last_lines(machine, options.console_lines),
        })
    }
}

impl Registers {
    /// The registers of a processor.
    pub fn of(state: &CpuState) -> Registers {
        let named = registers::named(state).into_iter();
        let values = named.map(|(name, value)| (name, format!("{value:#x}"))).collect();
        Registers { values, lines: registers::lines(state) }
    }
}

impl From<Message> for Said {
    fn from(message: Message) -> Said {
        Said {
            seconds: message.time_ns as f64 / 1e9,
            level: message.level,
            lines: message.to_string(),
            text: message.text,
        }
    }
}

fn kernel(machine: &Machine<Instructions>, symbols: &Symbols) -> Option<RunningKernel> {
    let boot = Boot::of_kernel(machine, symbols)?;
    Some(RunningKernel { release: boot.release(), by_kexec: boot.is_by_kexec() })
}

fn running(shown: &Processor<'_, Instructions>, symbols: &Symbols) -> Option<Running> {
    let thread = Tasks::of_kernel(shown.machine(), symbols).ok()?.current(shown)?;
    Some(Running { pid: thread.id, process: thread.process, name: thread.name })
}

fn nothing_to_show(what: &str, why: &dyn Display) -> Error {
    Error::Position(format!("there {what} to show: {why}"))
}

fn tasks(machine: &Machine<Instructions>, symbols: Option<&Symbols>) -> Result<TaskList, Error> {
    let none = |why: &dyn Display| nothing_to_show("are no processes", why);
    let symbols = symbols.ok_or_else(|| none(&NoKernel))?;
    let tasks = Tasks::of_kernel(machine, symbols).map_err(|missing| none(&missing))?;
    Ok(TaskList::of(machine, tasks.list(machine), symbols))
}

fn backtrace(shown: &Processor<'_, Instructions>) -> Result<Backtrace, Error> {
    let none = |why: &dyn Display| nothing_to_show("is no backtrace", why);
    if !shown.is_started() {
        return Err(none(&format!("processor {} has not started", shown.number())));
    }
    let kernel = GuestKernel::of_guest(shown.machine()).map_err(|no_kernel| none(&no_kernel))?;
    kernel.backtrace_on(shown).map_err(|missing| none(&missing))
}

fn dmesg(machine: &Machine<Instructions>) -> Result<Vec<Said>, Error> {
    let none = |why: &dyn Display| nothing_to_show("are no messages", why);
    let symbols = Symbols::of_guest(machine).map_err(|no_kernel| none(&no_kernel))?;
    let messages = messages::of_kernel(machine, &symbols).map_err(|missing| none(&missing))?;
    Ok(messages.into_iter().map(Said::from).collect())
}

/// The text for people.
impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(
            f,
            "instruction {}, branch {}, system call {}, {:.9} s guest time",
            self.instruction, self.branches, self.system_calls, self.guest_seconds
        )?;
        let activity = self.activity.map(|activity| format!(", {}", activity.words())).unwrap_or_default();
        let processor = self.processor.iter().map(|number| format!("on processor {number}{activity}"));
        let by_kexec = self.kernel.iter().filter(|kernel| kernel.by_kexec);
        let by_kexec = by_kexec.map(|kernel| format!("in the kernel {}, started by kexec", kernel.release));
        let place = self.place.iter().map(|place| format!("in the kernel's {place}"));
        let thread = self.thread.iter().map(|Running { pid, process, name }| {
            let of = if pid == process { String::new() } else { format!(" of process {process}") };
            format!("in {pid} ({name}){of}")
        });
        for line in self
            .outcome
            .iter()
            .cloned()
            .chain(processor)
            .chain(by_kexec)
            .chain(place)
            .chain(thread)
            .chain(self.registers.lines.iter().cloned())
        {
            write!(f, "\n{line}")?;
        }
        if let Some(processors) = &self.processors {
            part(f, "processors", "", processors.iter().map(ProcessorRow::line))?;
        }
        for bytes in &self.memory {
            part(f, &format!("memory at {}", bytes.address), "  ", rows(bytes))?;
        }
        for bytes in &self.physical {
            part(f, &format!("physical memory at {}", bytes.address), "  ", rows(bytes))?;
        }
        if !self.code.is_empty() {
            let line = |line: &Line| format!("{}  {:<24} {}", line.address, line.bytes, line.text);
            part(f, "code", "  ", self.code.iter().map(line))?;
        }
        if let Some(processes) = &self.processes {
            part(f, "processes", "", processes.tasks.iter().map(Task::line))?;
        }
        if let Some(backtrace) = &self.backtrace {
            part(f, "backtrace", "  ", backtrace.lines())?;
        }
        if let Some(dmesg) = &self.dmesg {
            part(f, "messages", "  ", dmesg.iter().flat_map(|said| said.lines.lines()))?;
        }
        if !self.console.is_empty() {
            part(f, "console", "  ", &self.console)?;
        }
        Ok(())
    }
}

/// A part of the text: an empty line, a heading, and indented lines.
pub(crate) fn part<L: Display>(
    f: &mut Formatter<'_>,
    heading: &str,
    indent: &str,
    lines: impl IntoIterator<Item = L>,
) -> Written {
    write!(f, "\n\n{heading}")?;
    lines.into_iter().try_for_each(|line| write!(f, "\n{indent}{line}"))
}

/// Rows of sixteen bytes. If fewer bytes than requested are readable, the last row gives the reason.
fn rows(bytes: &Bytes) -> impl Iterator<Item = String> {
    let digits = bytes.bytes.as_bytes().chunks(32);
    digits.map(|row| String::from_utf8_lossy(row).into_owned()).chain(bytes.ends.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_time_in_seconds_and_its_lines_as_dmesg_shows_them() {
        let message = Message { time_ns: 1_500_000_000, level: 3, text: "one\ntwo".to_string() };
        let lines = message.to_string();
        assert_eq!(lines.lines().count(), 2);
        let said = Said::from(message);
        assert_eq!((said.seconds, said.level, said.text.as_str()), (1.5, 3, "one\ntwo"));
        assert_eq!(said.lines, lines);
    }
}
