//! The processes of the guest's kernel, and which of them runs, read from its memory as of now.
//!
//! All processes hang in a list that begins with `init_task`, their threads in a list each, and what runs is
//! in a variable that each CPU has: `current_task`, or a part of `pcpu_hot` from Linux 6.2 to 6.14. Where a CPU
//! has it is its address plus that CPU's `__per_cpu_offset`; the address counts from zero up to Linux 6.14, and
//! lies in the kernel's image later. Where the fields of these structures are is taken from the kernel's type
//! information. A process has page tables of its own; a kernel thread borrows those of whatever ran before it.
//!
//! Follows Linux 6.1 to 7.2: `include/linux/sched.h`, `include/linux/sched/signal.h`,
//! `arch/x86/include/asm/percpu.h`. Guest memory is not to be trusted: no list is followed in circles or
//! without a limit.

use std::collections::BTreeSet;

use super::btf::Btf;
use super::guest_view::{GuestView, KernelView, USER_ROOT_BIT, page_table_root};
use super::modules::{Missing, types};
use super::symbols::{NoKernel, Symbols};

/// No more processes and threads are looked at, all in all.
const MAX_TASKS: usize = 1 << 16;
/// `TASK_COMM_LEN`.
const NAME_BYTES: usize = 16;
/// `PF_KTHREAD` of `task_struct::flags`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `TASK_REPORT`, and the letters of its bits from the lowest on; the first is for none.
const REPORTED_STATES: u64 = 0x7f;
const STATE_LETTERS: &[u8] = b"RSDTtXZP";
/// `TASK_IDLE`: waits, and does not count as load.
const IDLE: u64 = 0x402;
/// `TASK_DEAD`: the thread gives the CPU away for the last time.
const DEAD: u64 = 0x80;
/// `X86_FEATURE_PTI`: page tables are isolated. Which word of `cpuinfo_x86::x86_capability`, and which bit.
const ISOLATED: (u64, u32) = (7, 11);

/// Where a process's page tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// The physical address of their root: what CR3 holds while the process is in the kernel, without its low
    /// bits.
    Own(u64),
    /// A kernel thread: it has none.
    KernelThread,
    /// A process that is about to end and has given them back, or whose page tables cannot be found.
    None,
}

/// A thread of a process, or the process itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its own number.
    pub id: u32,
    /// Its process's number.
    pub process: u32,
    /// What the kernel calls it: at most 15 bytes. Control characters are replaced.
    pub name: String,
    /// The address of its `task_struct`.
    pub task: u64,
}

/// A process or a kernel thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number; 0 is what runs while nothing else does.
    pub pid: u32,
    /// The number of its parent.
    pub parent: u32,
    /// What it does, as `ps` writes it: R, S, D, T, t, X, Z, P or I.
    pub state: char,
    /// What the kernel calls it.
    pub name: String,
    /// Its page tables.
    pub space: AddressSpace,
    /// Its threads but the first, which has its number.
    pub threads: Vec<Thread>,
    /// The address of the `task_struct` of its first thread.
    pub task: u64,
}

/// The processes that there are at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// In the order in which the kernel has them: that of their beginning.
    pub all: Vec<Process>,
    /// What runs, or was interrupted; `None` where that cannot be told.
    pub current: Option<Thread>,
    /// Why the list is not complete, if it is not.
    pub damage: Option<&'static str>,
}

impl Processes {
    /// The processes of the guest as it stands.
    pub fn of_guest(guest: &dyn GuestView) -> Result<Processes, NoTasks> {
        Ok(Tasks::of_guest(guest)?.list(guest))
    }

    /// A process by the number of it or of one of its threads.
    pub fn with(&self, number: u32) -> Option<&Process> {
        let has = |process: &&Process| {
            process.pid == number || process.threads.iter().any(|thread| thread.id == number)
        };
        self.all.iter().find(has)
    }

    /// Whether a process is the one that runs.
    pub fn is_current(&self, process: &Process) -> bool {
        self.current.as_ref().is_some_and(|current| current.process == process.pid)
    }
}

/// Why processes cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTasks {
    /// No known kernel runs here.
    #[error(transparent)]
    Kernel(#[from] NoKernel),
    /// The kernel lacks what it takes.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// Where a kernel keeps its processes. That stays so for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The structure of the first process.
    first: u64,
    /// The variable that says what to add to the addresses of variables that each CPU has, for the first CPU.
    cpu_base: u64,
    /// The address of the variable that points to the task that runs, without what is to be added.
    current: u64,
    /// The word with the bit that says whether page tables are isolated.
    features: Option<u64>,
    layout: Layout,
}

/// Where the fields of `struct task_struct` and others are, in bytes.
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
    /// In `struct signal_struct`.
    thread_head: u64,
    /// In `struct mm_struct`.
    pgd: u64,
}

impl Tasks {
    /// Where the kernel that a guest runs keeps its processes. Takes a while: searches for the kernel's
    /// symbols.
    pub fn of_guest(guest: &dyn GuestView) -> Result<Tasks, NoTasks> {
        let symbols = Symbols::of_guest(guest)?;
        Tasks::of_kernel(guest, &symbols)
    }

    /// Where the kernel with these symbols keeps its processes.
    pub fn of_kernel(guest: &dyn GuestView, symbols: &Symbols) -> Result<Tasks, NoTasks> {
        Ok(KernelView::first_with(guest, |view| Tasks::find(view, symbols))?)
    }

    /// Looks for the variables, and for the places of the fields.
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

    /// All processes as of now.
    pub fn list(&self, guest: &dyn GuestView) -> Processes {
        let lists = KernelView::all(guest).map(|view| self.list_in(view));
        let is_better =
            |list: &Processes, other: &Processes| list.damage.is_none() || list.all.len() >= other.all.len();
        let best = lists.reduce(|first, second| if is_better(&first, &second) { first } else { second });
        best.expect("there is always the current view")
    }

    /// What runs, or was interrupted.
    pub fn current(&self, guest: &dyn GuestView) -> Option<Thread> {
        KernelView::all(guest).find_map(|view| self.current_in(view))
    }

    /// The address of the running task's structure. In an interrupt, that is the interrupted task. Much cheaper than
    /// [`Tasks::current`].
    pub fn running(&self, guest: &dyn GuestView) -> Option<u64> {
        KernelView::all(guest).find_map(|view| view.number::<8>(self.place_of_current_in(view)?))
    }

    /// The address of the variable that says what runs: the kernel writes it whenever it switches to another thread.
    pub fn place_of_current(&self, guest: &dyn GuestView) -> Option<u64> {
        KernelView::all(guest).find_map(|view| self.place_of_current_in(view))
    }

    /// Whether a task, by the address of its structure, has ended and never runs again.
    pub fn has_ended(&self, guest: &dyn GuestView, task: u64) -> bool {
        let state = |view: KernelView<'_>| view.number::<4>(task.wrapping_add(self.layout.state));
        KernelView::all(guest).find_map(state).is_some_and(|state| state & DEAD != 0)
    }

    /// A task by the address of its structure, and the letter of what it does.
    pub fn at(&self, guest: &dyn GuestView, task: u64) -> Option<(Thread, char)> {
        KernelView::all(guest).find_map(|view| {
            let word = |offset: u64| view.number::<4>(task.wrapping_add(offset));
            let state = state_letter(word(self.layout.state)?, word(self.layout.exit_state)?);
            Some((self.thread(view, task)?, state))
        })
    }

    /// The root of the page tables that are in use, as a process has it: the same whether it is in the kernel
    /// or not.
    pub fn address_space(&self, guest: &dyn GuestView) -> u64 {
        let root = page_table_root(guest.cr3());
        if self.is_isolated(guest) { root & !USER_ROOT_BIT } else { root }
    }

    /// Whether programs run on page tables of their own, beside those that the kernel uses for them.
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
        Some(memory.number::<8>(self.cpu_base)?.wrapping_add(self.current))
    }

    fn thread(&self, memory: KernelView<'_>, task: u64) -> Option<Thread> {
        let word = |offset: u64| Some(memory.number::<4>(task.wrapping_add(offset))? as u32);
        let name = name(memory, task.wrapping_add(self.layout.comm))?;
        Some(Thread { id: word(self.layout.pid)?, process: word(self.layout.tgid)?, name, task })
    }

    /// A process whose first thread is at an address, and what is wrong with the list of its threads.
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
            // Without the underscores before Linux 5.14.
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

/// The addresses of a list's nodes, as far as it can be followed, and what is wrong with it. `room` is how
/// many there may still be.
fn list(memory: KernelView<'_>, head: u64, room: &mut usize) -> (Vec<u64>, Option<&'static str>) {
    let (mut nodes, mut seen, mut at) = (Vec::new(), BTreeSet::new(), head);
    loop {
        let trouble = match memory.number::<8>(at) {
            Some(next) if next == head => return (nodes, None),
            Some(_) if *room == 0 => "there are too many",
            Some(next) if !seen.insert(next) => "a list leads in circles",
            Some(next) => {
                *room -= 1;
                nodes.push(next);
                at = next;
                continue;
            }
            None => {
                // The node itself is not there.
                nodes.pop();
                "a list leads nowhere"
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

/// A name with what a terminal would obey taken out.
fn name(memory: KernelView<'_>, address: u64) -> Option<String> {
    let mut bytes = [0; NAME_BYTES];
    (memory.read(address, &mut bytes) == NAME_BYTES).then_some(())?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
    let visible = |c: char| if c.is_control() { '?' } else { c };
    Some(String::from_utf8_lossy(&bytes[..end]).chars().map(visible).collect())
}
