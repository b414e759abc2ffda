//! The guest's processes and threads.

use std::collections::BTreeMap;
use std::ops::Range;

use guest_symbols::Symbols;
use guest_symbols::orc::{Registers, Unwinder};
use guest_symbols::switched_out::SwitchFrame;
use guest_symbols::tasks::{AddressSpace, Process, Processes, Tasks, Thread};
use machine::unit::Unit;
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

/// A process, or one of the other threads of a process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Task {
    /// The task's number in the kernel.
    pub pid: u32,
    /// For a thread: the number of its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_of: Option<u32>,
    /// For a process: the number of its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// For a process: its state, as `ps` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// CR3 while this task runs in the kernel, in hex, without the low bits. `None` if the task has no page tables of
    /// its own.
    pub cr3: Option<String>,
    /// Whether the task is a kernel thread, without page tables of its own.
    pub kernel_thread: bool,
    /// Whether the task is running, or was interrupted.
    pub current: bool,
    /// The number of the processor on which the task is running, if the machine has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
    /// The task's name in the kernel.
    pub name: String,
    /// For a task that does not run: the kernel function in which it waits. This function has called the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_in: Option<String>,
}

/// All tasks at a place.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(transparent)]
pub struct TaskList {
    /// Each process, followed by its threads.
    pub tasks: Vec<Task>,
    /// Why the list is not complete, if it is not.
    #[serde(skip)]
    pub damage: Option<&'static str>,
}

impl TaskList {
    /// The tasks of a machine's kernel with these symbols.
    pub fn of<U: Unit>(machine: &Machine<U>, processes: Processes, symbols: &Symbols) -> TaskList {
        let waits = Waits::of(machine, symbols);
        let runs = Running::of(machine, &processes, symbols);
        let waits_in =
            |task: u64| waits.as_ref().filter(|_| !runs.has(task))?.function(machine, task, symbols);
        let all = processes.all.into_iter();
        let tasks = all.flat_map(|process| tasks_of(process, &runs, &waits_in)).collect();
        TaskList { tasks, damage: processes.damage }
    }
}

/// The running tasks, by the addresses of their structures, each with the number of its processor.
struct Running {
    tasks: BTreeMap<u64, usize>,
    are_several: bool,
}

impl Running {
    fn of<U: Unit>(machine: &Machine<U>, processes: &Processes, symbols: &Symbols) -> Running {
        let current = processes.current.as_ref().map(|current| (current.task, machine.cpu().seat()));
        let mut tasks = BTreeMap::from_iter(current);
        let are_several = machine.processors() > 1;
        if are_several && let Ok(kernel) = Tasks::of_kernel(machine, symbols) {
            let started = machine.all_processors().filter(Processor::is_started);
            tasks.extend(
                started.filter_map(|processor| Some((kernel.running(&processor)?, processor.number()))),
            );
        }
        Running { tasks, are_several }
    }

    fn has(&self, task: u64) -> bool {
        self.tasks.contains_key(&task)
    }

    /// The number of a task's processor, if there are several processors.
    fn processor(&self, task: u64) -> Option<usize> {
        self.tasks.get(&task).copied().filter(|_| self.are_several)
    }
}

/// Finds the functions in which threads wait.
struct Waits {
    frame: SwitchFrame,
    unwinder: Unwinder,
    /// The addresses of the scheduler's code, and of functions that only sleep for their callers.
    scheduler: Range<u64>,
}

impl Waits {
    fn of<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Option<Waits> {
        let scheduler = symbols.address_of("__sched_text_start")?..symbols.address_of("__sched_text_end")?;
        let frame = SwitchFrame::of_kernel(machine, symbols).ok()?;
        Some(Waits { frame, unwinder: Unwinder::of_kernel(machine, symbols).ok()?, scheduler })
    }

    /// The function in which a task waits, which is the caller of the scheduler. `task` is the address of the task's
    /// structure.
    fn function<U: Unit>(&self, machine: &Machine<U>, task: u64, symbols: &Symbols) -> Option<String> {
        let saved = self.frame.registers(machine, task)?;
        let registers = Registers {
            rip: saved.rip,
            rsp: saved.rsp,
            rbp: saved.rbp,
            r13: saved.r13,
            ..Registers::default()
        };
        let frames = self.unwinder.walk(machine, registers).frames;
        let waits = frames.iter().skip(1).find(|frame| !self.scheduler.contains(&frame.inside()))?;
        symbols.name_of(waits.inside()).map(|(name, _)| name.to_string())
    }
}

/// The entries of the list for a process and for its threads.
fn tasks_of(
    process: Process,
    runs: &Running,
    waits_in: &impl Fn(u64) -> Option<String>,
) -> impl Iterator<Item = Task> {
    let Process { pid, parent, state, name, space, threads, task } = process;
    let cr3 = match space {
        AddressSpace::Own(root) => Some(format!("{root:#x}")),
        AddressSpace::KernelThread | AddressSpace::None => None,
    };
    let kernel_thread = space == AddressSpace::KernelThread;
    let first = Task {
        pid,
        thread_of: None,
        parent: Some(parent),
        state: Some(state),
        cr3: cr3.clone(),
        kernel_thread,
        current: runs.has(task),
        processor: runs.processor(task),
        name,
        waits_in: waits_in(task),
    };
    let thread = move |thread: Thread| Task {
        pid: thread.id,
        thread_of: Some(pid),
        parent: None,
        state: None,
        cr3: cr3.clone(),
        kernel_thread,
        current: runs.has(thread.task),
        processor: runs.processor(thread.task),
        waits_in: waits_in(thread.task),
        name: thread.name,
    };
    std::iter::once(first).chain(threads.into_iter().map(thread))
}

impl Task {
    /// The task's page tables as text for people.
    pub fn space(&self) -> &str {
        if self.kernel_thread { "kernel thread" } else { self.cr3.as_deref().unwrap_or("none") }
    }

    /// Formats the task as a line of a table. A mark shows that the task is running: the number of its processor,
    /// or a star if the machine has one processor.
    pub fn line(&self) -> String {
        let mark = match self.processor {
            Some(number) => number.to_string(),
            None => if self.current { "*" } else { "" }.to_string(),
        };
        let parent = match self.thread_of {
            Some(process) => format!("in {process}"),
            None => self.parent.unwrap_or(0).to_string(),
        };
        let state = self.state.unwrap_or(' ');
        let waits = self.waits_in.as_deref().unwrap_or("-");
        format!("{mark:<2}{:7} {parent:>10} {state} {:14} {waits:24} {}", self.pid, self.space(), self.name)
    }
}
