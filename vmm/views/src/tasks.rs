//! The guest's processes and threads.

use guest_symbols::tasks::{AddressSpace, Process, Processes, Thread};
use serde::Serialize;

/// A process, or a thread beside the first one of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    /// The kernel's number for it.
    pub pid: u32,
    /// Of a thread: its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_of: Option<u32>,
    /// Of a process: its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Of a process: what it does, as `ps` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// What is in CR3 while the kernel works for it, without the low bits.
    pub cr3: Option<String>,
    /// Whether it is a thread of the kernel, without page tables of its own.
    pub kernel_thread: bool,
    /// It runs, or was interrupted.
    pub current: bool,
    /// What the kernel calls it.
    pub name: String,
}

/// All that there are at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TaskList {
    /// Each process, followed by its threads.
    pub tasks: Vec<Task>,
    /// Why these are not all.
    #[serde(skip)]
    pub damage: Option<&'static str>,
}

impl From<Processes> for TaskList {
    fn from(processes: Processes) -> TaskList {
        let current = processes.current.map(|current| current.id);
        let tasks = processes.all.into_iter().flat_map(|process| tasks_of(process, current)).collect();
        TaskList { tasks, damage: processes.damage }
    }
}

/// A process and its threads; `current` is the number of the thread that runs.
fn tasks_of(process: Process, current: Option<u32>) -> impl Iterator<Item = Task> {
    let Process { pid, parent, state, name, space, threads, .. } = process;
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
        current: current == Some(pid),
        name,
    };
    let thread = move |thread: Thread| Task {
        pid: thread.id,
        thread_of: Some(pid),
        parent: None,
        state: None,
        cr3: cr3.clone(),
        kernel_thread,
        current: current == Some(thread.id),
        name: thread.name,
    };
    std::iter::once(first).chain(threads.into_iter().map(thread))
}

impl Task {
    /// Where its page tables are, in words.
    pub fn space(&self) -> &str {
        if self.kernel_thread { "kernel thread" } else { self.cr3.as_deref().unwrap_or("none") }
    }

    /// A line of a table.
    pub fn line(&self) -> String {
        let mark = if self.current { '*' } else { ' ' };
        let parent = match self.thread_of {
            Some(process) => format!("in {process}"),
            None => self.parent.unwrap_or(0).to_string(),
        };
        let state = self.state.unwrap_or(' ');
        format!("{mark} {:7} {parent:>10} {state} {:14} {}", self.pid, self.space(), self.name)
    }
}
