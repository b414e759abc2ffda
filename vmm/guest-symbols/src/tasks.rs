//! The processes of the guest's kernel, and which of them runs, read from its current memory.
//!
//! All processes are in a list that begins with `init_task`, and the threads of each process are in a list of their
//! own. The running task is in a per-CPU variable: `current_task`, or a part of `pcpu_hot` from Linux 6.2 to 6.14. A
//! CPU's copy is at the variable's address plus the CPU's `__per_cpu_offset`. Up to Linux 6.14, the variable's address
//! is an offset from zero. In later versions it is an address in the kernel's image. The offsets of fields come from
//! the kernel's type information. A process has its own page tables. A kernel thread uses the page tables of the task
//! that ran before it.
//!
//! Follows Linux 6.1 to 7.2: `include/linux/sched.h`, `include/linux/sched/signal.h`, `arch/x86/include/asm/percpu.h`.
//! Guest memory is not trusted: circular lists are detected, and every list has a limit.

use std::collections::BTreeSet;

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView, USER_ROOT_BIT, page_table_root};
use super::modules::{Missing, types};
use super::symbols::{NoKernel, Symbols};

/// The largest number of processes and threads that are read.
const MAX_TASKS: usize = 1 << 16;
/// `TASK_COMM_LEN`.
const NAME_BYTES: usize = 16;
/// `PF_KTHREAD` of `task_struct::flags`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `TASK_REPORT`: the bits of a task's state that have letters. The next constant has the letters, from the lowest bit
/// on. The first letter means that no bit is set.
const REPORTED_STATES: u64 = 0x7f;
const STATE_LETTERS: &[u8] = b"RSDTtXZP";
/// `TASK_IDLE`: the task waits, and does not count as load.
const IDLE: u64 = 0x402;
/// `TASK_DEAD`: the thread has ended and never runs again.
const DEAD: u64 = 0x80;
/// `X86_FEATURE_PTI`: page tables are isolated. The numbers are the index of the word in `cpuinfo_x86::x86_capability`,
/// and the bit in this word.
const ISOLATED: (u64, u32) = (7, 11);

/// A process's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// The physical address of the page tables' root: CR3 while the process is in the kernel, without its low
    /// bits.
    Own(u64),
    /// A kernel thread has no page tables of its own.
    KernelThread,
    /// The process is exiting and has released its page tables, or the page tables cannot be found.
    None,
}

/// A thread of a process. The process itself is its first thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The thread's own number.
    pub id: u32,
    /// The number of the thread's process.
    pub process: u32,
    /// The task's name in the kernel: at most 15 bytes. Control characters are replaced.
    pub name: String,
    /// The address of the `task_struct`.
    pub task: u64,
}

/// A process or a kernel thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process's number; 0 is the idle task.
    pub pid: u32,
    /// The number of the process's parent.
    pub parent: u32,
    /// The process's state, as `ps` prints it: R, S, D, T, t, X, Z, P or I.
    pub state: char,
    /// The task's name in the kernel.
    pub name: String,
    /// The process's page tables.
    pub space: AddressSpace,
    /// The process's threads except the first, which has the process's number.
    pub threads: Vec<Thread>,
    /// The address of the `task_struct` of its first thread.
    pub task: u64,
}

/// The processes at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// The processes, in the order of the kernel's list, which is the order of their starts.
    pub all: Vec<Process>,
    /// The running or interrupted thread; `None` if unknown.
    pub current: Option<Thread>,
    /// Why the list is not complete, if it is not.
    pub damage: Option<&'static str>,
}

impl Processes {
    /// The processes of the guest now.
    pub fn of_guest(guest: &dyn GuestView) -> Result<Processes, NoTasks> {
        Ok(Tasks::of_guest(guest)?.list(guest))
    }

    /// A process by its number, or by the number of one of its threads.
    pub fn with(&self, number: u32) -> Option<&Process> {
        let has = |process: &&Process| {
            process.pid == number || process.threads.iter().any(|thread| thread.id == number)
        };
        self.all.iter().find(has)
    }

    /// Whether a process is the running process.
    pub fn is_current(&self, process: &Process) -> bool {
        self.current.as_ref().is_some_and(|current| current.process == process.pid)
    }
}

/// Why the processes cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTasks {
    /// No known kernel runs in the guest.
    #[error(transparent)]
    Kernel(#[from] NoKernel),
    /// The kernel lacks a required symbol or field.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// The location of a kernel's processes. The location is constant while the kernel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The address of the first process's structure.
    first: u64,
    /// The address of `__per_cpu_offset` for the first CPU: the offset to add to the addresses of per-CPU variables.
    cpu_base: u64,
    /// The address of the per-CPU pointer to the running task, without the CPU's offset.
    current: u64,
    /// The address of the word with the bit for isolated page tables.
    features: Option<u64>,
    layout: Layout,
}

/// The offsets of fields in `struct task_struct` and others, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    tasks: u64,
    pid: u64,
    tgid: u64,
    comm: u64,
    state: u64,
    exit_state: u64,
    flags: u64,
    real_parent: u64,
    mm: u64,
    signal: u64,
    thread_node: u64,
    /// Offset of the list of threads in `struct signal_struct`.
    thread_head: u64,
    /// Offset of the page tables' address in `struct mm_struct`.
    pgd: u64,
}

impl Tasks {
    /// Finds the processes of the guest's current kernel. Slow: it searches for the kernel's symbols.
    pub fn of_guest(guest: &dyn GuestView) -> Result<Tasks, NoTasks> {
        let symbols = Symbols::of_guest(guest)?;
        Tasks::of_kernel(guest, &symbols)
    }

    /// Finds the processes of the kernel with these symbols.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Tasks, NoTasks> {
        Ok(KernelView::first_with(guest, |view| Tasks::find(view, symbols))?)
    }

    /// Finds the variables and the offsets of the fields.
    pub(super) fn find(memory: KernelView<'_>, symbols: &Symbols) -> Result<Tasks, Missing> {
        let address = |name: &'static str| symbols.address_of(name).ok_or(Missing::Symbol(name));
        let (first, cpu_base) = (address("init_task")?, address("__per_cpu_offset")?);
        let bytes = types(memory, &|name| symbols.address_of(name))?;
        let btf = Btf::parse(&bytes).ok_or(Missing::Types)?;
        let current = match symbols.address_of("pcpu_hot") {
            Some(hot) => hot.wrapping_add(field(&btf, "pcpu_hot", "current_task")?),
            None => address("current_task")?,
        };
        let features = symbols.address_of("boot_cpu_data").and_then(|data| {
            let words = field(&btf, "cpuinfo_x86", "x86_capability").ok()?;
            Some(data.wrapping_add(words).wrapping_add(4 * ISOLATED.0))
        });
        Ok(Tasks { first, cpu_base, current, features, layout: Layout::of(&btf)? })
    }

    /// Lists all processes now.
    pub fn list(&self, guest: &dyn GuestView) -> Processes {
        let lists = KernelView::all(guest).map(|view| self.list_in(view));
        let is_better =
            |list: &Processes, other: &Processes| list.damage.is_none() || list.all.len() >= other.all.len();
        let best = lists.reduce(|first, second| if is_better(&first, &second) { first } else { second });
        best.expect("there is always the current view")
    }

    /// The running or interrupted thread.
    pub fn current(&self, guest: &dyn GuestView) -> Option<Thread> {
        KernelView::all(guest).find_map(|view| self.current_in(view))
    }

    /// The address of the running task's structure. In an interrupt, this is the interrupted task. This
    /// function is much cheaper than [`Tasks::current`].
    pub fn running(&self, guest: &dyn GuestView) -> Option<u64> {
        KernelView::all(guest).find_map(|view| view.number::<8>(self.place_of_current_in(view)?))
    }

    /// Does the same as [`Tasks::running`] for the processor whose per-CPU variables have this base. The kernel
    /// keeps the base in GS.
    pub fn running_of(&self, guest: &dyn GuestView, per_cpu_base: u64) -> Option<u64> {
        let place = per_cpu_base.wrapping_add(self.current);
        KernelView::all(guest).find_map(|view| view.number::<8>(place))
    }

    /// The address of the variable with the running task. The kernel writes this variable at every
    /// thread switch.
    pub fn place_of_current(&self, guest: &dyn GuestView) -> Option<u64> {
        KernelView::all(guest).find_map(|view| self.place_of_current_in(view))
    }

    /// Whether a task, by the address of its structure, has ended and never runs again.
    pub fn has_ended(&self, guest: &dyn GuestView, task: u64) -> bool {
        let state = |view: KernelView<'_>| view.number::<4>(task.wrapping_add(self.layout.state));
        KernelView::all(guest).find_map(state).is_some_and(|state| state & DEAD != 0)
    }

    /// A task by the address of its structure, and the letter of its state.
    pub fn at(&self, guest: &dyn GuestView, task: u64) -> Option<(Thread, char)> {
        KernelView::all(guest).find_map(|view| {
            let word = |offset: u64| view.number::<4>(task.wrapping_add(offset));
            let state = state_letter(word(self.layout.state)?, word(self.layout.exit_state)?);
            Some((self.thread(view, task)?, state))
        })
    }

    /// The root of the current process's page tables, as [`AddressSpace::Own`] has it. The root is the same while the
    /// process's program runs and while the kernel runs.
    pub fn address_space(&self, guest: &dyn GuestView) -> u64 {
        let root = page_table_root(guest.cr3());
        if self.is_isolated(guest) { root & !USER_ROOT_BIT } else { root }
    }

    /// Whether programs run on separate page tables, which do not map the kernel.
    pub fn is_isolated(&self, guest: &dyn GuestView) -> bool {
        let (_, bit) = ISOLATED;
        let word = |view: KernelView<'_>| view.number::<4>(self.features?);
        KernelView::all(guest).find_map(word).is_some_and(|word| word >> bit & 1 != 0)
    }

    pub(super) fn list_in(&self, memory: KernelView<'_>) -> Processes {
        let (mut room, mut all) = (MAX_TASKS, Vec::new());
        let (others, mut damage) = list(memory, self.first.wrapping_add(self.layout.tasks), &mut room);
        let others = others.into_iter().map(|node| node.wrapping_sub(self.layout.tasks));
        for at in [self.first].into_iter().chain(others) {
            match self.process(memory, at, &mut room) {
                Some((process, trouble)) => {
                    all.push(process);
                    damage = damage.or(trouble);
                }
                None => damage = damage.or(Some("a process cannot be read")),
            }
        }
        Processes { all, current: self.current_in(memory), damage }
    }

    pub(super) fn current_in(&self, memory: KernelView<'_>) -> Option<Thread> {
        let task = memory.number::<8>(self.place_of_current_in(memory)?)?;
        self.thread(memory, task)
    }

    fn place_of_current_in(&self, memory: KernelView<'_>) -> Option<u64> {
        let offset = self.cpu_base.wrapping_add(8 * memory.processor());
        Some(memory.number::<8>(offset)?.wrapping_add(self.current))
    }

    fn thread(&self, memory: KernelView<'_>, task: u64) -> Option<Thread> {
        let word = |offset: u64| Some(memory.number::<4>(task.wrapping_add(offset))? as u32);
        let name = name(memory, task.wrapping_add(self.layout.comm))?;
        Some(Thread { id: word(self.layout.pid)?, process: word(self.layout.tgid)?, name, task })
    }

    /// The process whose first thread has its `task_struct` at an address. Also returns the fault in the process's
    /// list of threads, if there is one.
    fn process(
        &self,
        memory: KernelView<'_>,
        task: u64,
        room: &mut usize,
    ) -> Option<(Process, Option<&'static str>)> {
        let layout = &self.layout;
        let word = |offset: u64| memory.number::<4>(task.wrapping_add(offset));
        let pointer = |offset: u64| memory.number::<8>(task.wrapping_add(offset));
        let thread = self.thread(memory, task)?;
        let state = state_letter(word(layout.state)?, word(layout.exit_state)?);
        let parent = pointer(layout.real_parent)?;
        let parent = memory.number::<4>(parent.wrapping_add(layout.tgid)).unwrap_or(0) as u32;
        let tables = |mm: u64| memory.physical(memory.number::<8>(mm.wrapping_add(layout.pgd))?);
        let space = match (pointer(layout.mm)?, word(layout.flags)?) {
            (_, flags) if flags & KERNEL_THREAD != 0 => AddressSpace::KernelThread,
            (0, _) => AddressSpace::None,
            (mm, _) => tables(mm).map_or(AddressSpace::None, AddressSpace::Own),
        };
        let head = pointer(layout.signal)?.wrapping_add(layout.thread_head);
        let (nodes, trouble) = list(memory, head, room);
        let tasks = nodes.into_iter().map(|node| node.wrapping_sub(layout.thread_node));
        let threads = tasks.filter(|&other| other != task).filter_map(|other| self.thread(memory, other));
        let threads = threads.collect();
        let Thread { process: pid, name, .. } = thread;
        Some((Process { pid, parent, state, name, space, threads, task }, trouble))
    }
}

impl Layout {
    fn of(btf: &Btf<'_>) -> Result<Layout, Missing> {
        let task = |name| field(btf, "task_struct", name);
        Ok(Layout {
            tasks: task("tasks")?,
            pid: task("pid")?,
            tgid: task("tgid")?,
            comm: task("comm")?,
            // Before Linux 5.14 the name has no underscores.
            state: task("__state").or_else(|_| task("state"))?,
            exit_state: task("exit_state")?,
            flags: task("flags")?,
            real_parent: task("real_parent")?,
            mm: task("mm")?,
            signal: task("signal")?,
            thread_node: task("thread_node")?,
            thread_head: field(btf, "signal_struct", "thread_head")?,
            pgd: field(btf, "mm_struct", "pgd")?,
        })
    }
}

pub(super) fn field(btf: &Btf<'_>, structure: &'static str, name: &'static str) -> Result<u64, Missing> {
    let found = btf.structure(structure).and_then(|number| btf.field(number, name));
    found.map(|field| field.offset).ok_or(Missing::Field { structure, field: name })
}

/// The addresses of a list's nodes, as far as the list can be followed, and the list's fault, if there is one. `room`
/// is the number of nodes that may still be read, and is reduced.
fn list(memory: KernelView<'_>, head: u64, room: &mut usize) -> (Vec<u64>, Option<&'static str>) {
    let (mut nodes, mut seen, mut at) = (Vec::new(), BTreeSet::new(), head);
    loop {
        let trouble = match memory.number::<8>(at) {
            Some(next) if next == head => return (nodes, None),
            Some(_) if *room == 0 => "there are too many processes",
            Some(next) if !seen.insert(next) => "a list is circular",
            Some(next) => {
                *room -= 1;
                nodes.push(next);
                at = next;
                continue;
            }
            None => {
                // The last node's own address is not mapped, so this node is no task.
                nodes.pop();
                "a list has a bad pointer"
            }
        };
        return (nodes, Some(trouble));
    }
}

fn state_letter(state: u64, exit_state: u64) -> char {
    if state & IDLE == IDLE {
        return 'I';
    }
    let reported = (state | exit_state) & REPORTED_STATES;
    STATE_LETTERS[(u64::BITS - reported.leading_zeros()) as usize] as char
}

/// A name, with control characters replaced.
fn name(memory: KernelView<'_>, address: u64) -> Option<String> {
    let mut bytes = [0; NAME_BYTES];
    (memory.read(address, &mut bytes) == NAME_BYTES).then_some(())?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
    let visible = |c: char| if c.is_control() { '?' } else { c };
    Some(String::from_utf8_lossy(&bytes[..end]).chars().map(visible).collect())
}
