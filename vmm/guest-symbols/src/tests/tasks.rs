//! Tests with made-up processes, whose structures have other offsets than Linux's.

use super::{BASE, DIRECT_MAP, Pages, Types, found};
use crate::Symbols;
use crate::kallsyms::RawSymbol;
use crate::modules::Missing;
use crate::tasks::{AddressSpace, Process, Tasks, Thread};

const TYPES: u64 = BASE + 0x10_0000;
const INIT_TASK: u64 = BASE + 0x2_0000;
const CPU_BASES: u64 = BASE + 0x2_8000;
const FEATURES: u64 = BASE + 0x2_9000;
/// The address of the first CPU's copies, and the offset of the pointer to the current task.
const CPU: u64 = DIRECT_MAP + 0x80_0000;
const CURRENT: u64 = 0x1_fb80;
/// The address of the per-CPU variables' initial values in the kernel's image.
const TEMPLATE: u64 = BASE + 0x20_0000;
/// The distance in memory, in bytes, between `task_struct::signal` and the other structures of a task.
const PLACES: u64 = 0x1000;
const KERNEL_THREAD: u32 = 0x0020_0000;

/// The address of a task by its number. The task's other structures follow.
fn task(number: u64) -> u64 {
    if number == 0 { INIT_TASK } else { DIRECT_MAP + 0x10_0000 + number * 4 * PLACES }
}

fn signal(number: u64) -> u64 {
    task(number) + PLACES
}

fn mm(number: u64) -> u64 {
    task(number) + 2 * PLACES
}

fn tables(number: u64) -> u64 {
    task(number) + 3 * PLACES
}

/// The variable with the pointer to the current task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Current {
    /// A variable whose address is a number, relative to a CPU's own variables.
    Number,
    /// A structure whose address is a number, relative to a CPU's own variables.
    Hot,
    /// A variable in the kernel's image. The variable's address plus the CPU's offset is the address of the
    /// CPU's copy.
    InImage,
}

fn types(current: Current) -> Types {
    let mut types = Types::new();
    types.record("int", 1 << 24, 4, &[0]);
    let hidden = types.structure("", 16, &[("flags", 1, 0), ("exit_state", 1, 8)]);
    let fields = [
        ("__state", 1, 0),
        ("", hidden, 0x10),
        ("tasks", 1, 0x20),
        ("mm", 1, 0x30),
        ("pid", 1, 0x38),
        ("tgid", 1, 0x3c),
        ("real_parent", 1, 0x40),
        ("thread_node", 1, 0x48),
        ("comm", 1, 0x58),
        ("signal", 1, 0x68),
    ];
    types.structure("task_struct", 0x70, &fields);
    types.structure("signal_struct", 0x20, &[("thread_head", 1, 0x10)]);
    types.structure("mm_struct", 0x20, &[("pgd", 1, 0x18)]);
    types.structure("cpuinfo_x86", 0x80, &[("x86_capability", 1, 0x20)]);
    if current == Current::Hot {
        types.structure("pcpu_hot", 0x40, &[("", 0, 0), ("current_task", 1, 8)]);
    }
    types
}

struct Kernel {
    memory: Pages,
    symbols: Vec<RawSymbol>,
}

impl Kernel {
    /// A kernel with these tasks in the list, in this order. The first task is the running task.
    fn new(current: Current, listed: &[u64]) -> Kernel {
        let mut memory = Pages::default();
        let bytes = types(current).bytes();
        memory.write(TYPES, &bytes);
        let base = if current == Current::InImage { CPU.wrapping_sub(TEMPLATE) } else { CPU };
        memory.write_u64(CPU_BASES, base);
        memory.write_u64(CPU + CURRENT, task(listed[0]));
        let nodes: Vec<_> = [0].iter().chain(listed).map(|&number| task(number) + 0x20).collect();
        for (number, node) in nodes.iter().enumerate() {
            memory.write_u64(*node, nodes[(number + 1) % nodes.len()]);
        }
        let current = match current {
            Current::Number => found(CURRENT, 'A', "current_task"),
            Current::Hot => found(CURRENT - 8, 'A', "pcpu_hot"),
            Current::InImage => found(TEMPLATE + CURRENT, 'D', "current_task"),
        };
        let mut symbols = vec![
            current,
            found(INIT_TASK, 'D', "init_task"),
            found(CPU_BASES, 'D', "__per_cpu_offset"),
            found(FEATURES, 'D', "boot_cpu_data"),
            found(TYPES, 'R', "__start_BTF"),
            found(TYPES + bytes.len() as u64, 'R', "__stop_BTF"),
        ];
        symbols.sort_by_key(|symbol| symbol.address);
        Kernel { memory, symbols }
    }

    /// Writes a task. The task is its process's only thread until `add_thread` adds another thread.
    fn write(&mut self, number: u64, parent: u64, name: &[u8], states: (u32, u32), flags: u32) {
        let (at, memory) = (task(number), &mut self.memory);
        memory.write(at, &states.0.to_le_bytes());
        memory.write(at + 0x10, &flags.to_le_bytes());
        memory.write(at + 0x18, &states.1.to_le_bytes());
        let has_memory = flags & KERNEL_THREAD == 0 && states.1 == 0;
        memory.write_u64(at + 0x30, if has_memory { mm(number) } else { 0 });
        memory.write_u64(mm(number) + 0x18, tables(number));
        memory.write_u64(tables(number), 0);
        memory.write(at + 0x38, &(number as u32).to_le_bytes());
        memory.write(at + 0x3c, &(number as u32).to_le_bytes());
        memory.write_u64(at + 0x40, task(parent));
        memory.write(at + 0x58, name);
        memory.write_u64(at + 0x68, signal(number));
        memory.write_u64(signal(number) + 0x10, at + 0x48);
        memory.write_u64(at + 0x48, signal(number) + 0x10);
    }

    /// Adds a thread to a process that has one thread.
    fn add_thread(&mut self, number: u64, process: u64, name: &[u8]) {
        self.write(number, process, name, (0, 0), 0);
        self.memory.write(task(number) + 0x3c, &(process as u32).to_le_bytes());
        self.memory.write_u64(task(process) + 0x48, task(number) + 0x48);
        self.memory.write_u64(task(number) + 0x48, signal(process) + 0x10);
    }

    fn tasks(&self) -> Tasks {
        Tasks::find(self.memory.view(), &Symbols::new(self.symbols.clone(), Vec::new()))
            .expect("all is there")
    }
}

fn kernel(current: Current) -> Kernel {
    let mut kernel = Kernel::new(current, &[7, 2, 9]);
    kernel.write(0, 0, b"swapper/0\0", (0, 0), KERNEL_THREAD);
    kernel.write(7, 0, b"tmux: server\0", (1, 0), 0x40);
    kernel.write(2, 0, b"kthreadd\0", (0x402, 0), KERNEL_THREAD | 0x40);
    kernel.write(9, 7, b"a\x1b[2Jb\0", (0x80, 0x20), 0);
    kernel.add_thread(8, 7, b"fifteen bytes..\0");
    kernel
}

fn process(pid: u32, parent: u32, state: char, name: &str, space: AddressSpace) -> Process {
    Process {
        pid,
        parent,
        state,
        name: name.to_string(),
        space,
        threads: Vec::new(),
        task: task(u64::from(pid)),
    }
}

#[test]
fn processes_are_listed_with_their_threads() {
    for current in [Current::Number, Current::Hot, Current::InImage] {
        let kernel = kernel(current);
        let processes = kernel.tasks().list_in(kernel.memory.view());
        let root = tables(7) - DIRECT_MAP;
        let threads = vec![Thread { id: 8, process: 7, name: "fifteen bytes..".to_string(), task: task(8) }];
        let expected = [
            process(0, 0, 'R', "swapper/0", AddressSpace::KernelThread),
            Process { threads, ..process(7, 0, 'S', "tmux: server", AddressSpace::Own(root)) },
            process(2, 0, 'I', "kthreadd", AddressSpace::KernelThread),
            // Control characters are replaced.
            process(9, 7, 'Z', "a?[2Jb", AddressSpace::None),
        ];
        assert_eq!(processes.all, expected, "{current:?}");
        assert_eq!(processes.damage, None);
        let current = processes.current.clone().expect("there is one");
        assert_eq!((current.id, current.process, current.name.as_str()), (7, 7, "tmux: server"));
        assert!(processes.is_current(&expected[1]) && !processes.is_current(&expected[0]));
        assert_eq!(processes.with(8), Some(&expected[1]), "by a thread's number");
        assert_eq!(processes.with(3), None);
    }
}

#[test]
fn letters_are_those_of_ps() {
    let states: [((u32, u32), char); 10] = [
        ((0, 0), 'R'),
        ((0x2001, 0), 'S'),
        ((0x102, 0), 'D'),
        ((0x104, 0), 'T'),
        ((0x108, 0), 't'),
        ((0x80, 0x10), 'X'),
        ((0x80, 0x20), 'Z'),
        ((0x40, 0), 'P'),
        ((0x402, 0), 'I'),
        ((u32::MAX, u32::MAX), 'I'),
    ];
    for (state, letter) in states {
        let mut kernel = kernel(Current::Number);
        kernel.write(2, 0, b"it\0", state, 0);
        let processes = kernel.tasks().list_in(kernel.memory.view());
        assert_eq!(processes.with(2).map(|process| process.state), Some(letter), "{state:x?}");
    }
}

#[test]
fn lists_that_do_not_end_are_left() {
    let cases: [(&str, u64, u64); 5] = [
        ("a list is circular", task(2) + 0x20, task(7) + 0x20),
        ("a list is circular", task(2) + 0x20, task(2) + 0x20),
        ("a list has a bad pointer", task(2) + 0x20, 0x10),
        ("a list is circular", task(8) + 0x48, task(8) + 0x48),
        ("a list has a bad pointer", task(8) + 0x48, u64::MAX - 3),
    ];
    for (expected, at, value) in cases {
        let mut kernel = kernel(Current::Number);
        kernel.memory.write_u64(at, value);
        let processes = kernel.tasks().list_in(kernel.memory.view());
        assert_eq!(processes.damage, Some(expected), "{value:#x} at {at:#x}");
        assert!((2..=4).contains(&processes.all.len()), "{:?}", processes.all);
    }
}

#[test]
fn a_list_without_an_end_is_cut_off() {
    let mut kernel = kernel(Current::Number);
    // In a range of 2 MiB, each word is a node that points to the next word.
    let start = DIRECT_MAP + 0x400_0000;
    for at in (start..start + (2 << 20)).step_by(8) {
        kernel.memory.write_u64(at, at + 8);
    }
    kernel.memory.write_u64(task(9) + 0x20, start);
    let processes = kernel.tasks().list_in(kernel.memory.view());
    assert_eq!(processes.damage, Some("there are too many processes"));
}

#[test]
fn damaged_tasks_do_no_harm() {
    let kernel = kernel(Current::Number);
    let tasks = kernel.tasks();
    for at in (0..0x70).step_by(4).flat_map(|offset| [0, 2, 7, 8, 9].map(|number| task(number) + offset)) {
        for value in [0, 1, DIRECT_MAP, u64::MAX, 0x0020_0020_0020_0020] {
            let mut memory = Pages(kernel.memory.0.clone());
            memory.write_u64(at, value);
            let processes = tasks.list_in(memory.view());
            assert!((1..=5).contains(&processes.all.len()), "{value:#x} at {at:#x}: {processes:?}");
        }
    }
    let nothing = tasks.list_in(Pages::default().view());
    assert_eq!((nothing.all.len(), nothing.current), (0, None));
    assert!(nothing.damage.is_some());
}

#[test]
fn what_is_missing_for_processes_is_said() {
    let kernel = kernel(Current::Number);
    let find = |symbols: &[RawSymbol]| {
        Tasks::find(kernel.memory.view(), &Symbols::new(symbols.to_vec(), Vec::new()))
    };
    for (number, name) in [(0, "current_task"), (1, "init_task"), (2, "__per_cpu_offset"), (5, "__stop_BTF")]
    {
        let mut symbols = kernel.symbols.clone();
        symbols.remove(number);
        assert_eq!(find(&symbols), Err(Missing::Symbol(name)));
    }
    let mut memory = Pages(kernel.memory.0.clone());
    memory.write(TYPES, b"none");
    let symbols = Symbols::new(kernel.symbols.clone(), Vec::new());
    assert_eq!(Tasks::find(memory.view(), &symbols), Err(Missing::Types));
}

#[test]
fn the_running_task_is_where_its_cpu_says() {
    for current in [Current::Number, Current::Hot, Current::InImage] {
        let mut kernel = kernel(current);
        let tasks = kernel.tasks();
        assert_eq!(tasks.place_of_current(&kernel.memory), Some(CPU + CURRENT), "{current:?}");
        assert_eq!(tasks.running(&kernel.memory), Some(task(7)));
        assert_eq!(tasks.current(&kernel.memory).map(|thread| thread.id), Some(7));
        kernel.memory.write_u64(CPU + CURRENT, task(8));
        let thread = Thread { id: 8, process: 7, name: "fifteen bytes..".to_string(), task: task(8) };
        assert_eq!(tasks.current(&kernel.memory), Some(thread.clone()));
        assert_eq!(tasks.at(&kernel.memory, task(8)), Some((thread, 'R')));
        assert_eq!(tasks.at(&kernel.memory, 0x10), None);
        let ended = [7, 2, 9].map(|number| tasks.has_ended(&kernel.memory, task(number)));
        assert_eq!(ended, [false, false, true], "only the dead task");
        assert!(!tasks.has_ended(&kernel.memory, 0x10));
    }
}

#[test]
fn isolated_page_tables_belong_to_the_same_process() {
    struct At<'a>(&'a Pages, u64);
    impl crate::GuestView for At<'_> {
        fn cr3(&self) -> u64 {
            self.1
        }
        fn read(&self, cr3: u64, address: u64, to: &mut [u8]) -> usize {
            crate::GuestView::read(self.0, cr3, address, to)
        }
        fn physical(&self, cr3: u64, address: u64) -> Option<u64> {
            crate::GuestView::physical(self.0, cr3, address)
        }
    }
    let mut kernel = kernel(Current::Number);
    let tasks = kernel.tasks();
    let user = 0x10_0000 | crate::USER_ROOT_BIT | 0x86;
    assert_eq!(tasks.address_space(&At(&kernel.memory, user)), 0x10_1000, "nothing says that it is isolated");
    for (bits, isolated, root) in [(1_u32 << 11, true, 0x10_0000), (!(1 << 11), false, 0x10_1000)] {
        // Word 7 of the capabilities.
        kernel.memory.write(FEATURES + 0x20 + 4 * 7, &bits.to_le_bytes());
        let guest = At(&kernel.memory, user);
        assert_eq!((tasks.is_isolated(&guest), tasks.address_space(&guest)), (isolated, root), "{bits:#x}");
    }
}
