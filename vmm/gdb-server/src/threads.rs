//! The guest's threads that do not run. gdb shows each as a thread, with its saved registers and its memory.

use std::sync::Arc;

use gdb::{Refusal, Registers, SleepingThread, Threads};
use guest_symbols::GuestView;
use guest_symbols::switched_out::{SavedRegisters, SwitchFrame};
use guest_symbols::tasks::{AddressSpace, Processes, Tasks};

use super::registers::to_gdb;
use machine::Machine;
use machine::position::Instructions;
use views::visible::in_a_line;

/// gdb's number for the kernel's thread 0 (the idle thread); thread 1 has the next number. No process has such a large
/// number (`PID_MAX_LIMIT` of Linux), and gdb's thread 1 is the CPU.
const FIRST_TWO: u32 = 1 << 22;
/// gdb's number for the CPU's thread.
pub(super) const CPU: u32 = 1;

/// The guest's threads, as gdb sees them.
pub(super) struct ShownThreads {
    tasks: Arc<Tasks>,
    frame: SwitchFrame,
    /// The threads at the place of gdb's last query.
    sleepers: Vec<Sleeper>,
    /// The thread that gdb's user looks at. gdb 18 does not name it when it reads memory. `None` for the CPU.
    pub looked_at: Option<u32>,
}

/// A thread that does not run.
struct Sleeper {
    number: u32,
    /// The address of the thread's `task_struct`.
    task: u64,
    /// The page tables that it would run on; `None` for a kernel thread, which runs on any.
    cr3: Option<u64>,
    description: String,
}

impl ShownThreads {
    /// The threads of a kernel with these tasks and this switch frame.
    pub fn new(tasks: Arc<Tasks>, frame: SwitchFrame) -> ShownThreads {
        ShownThreads { tasks, frame, sleepers: Vec::new(), looked_at: None }
    }

    /// Whether `tasks` listed these threads. If so, the threads belong to the same kernel as `tasks`.
    pub fn is_of(&self, tasks: &Arc<Tasks>) -> bool {
        Arc::ptr_eq(&self.tasks, tasks)
    }

    /// Lists all threads now.
    pub fn list(&mut self, machine: &Machine<Instructions>) -> Threads {
        let processes = self.tasks.list(machine);
        self.sleepers = sleepers(&processes, |task| self.tasks.at(machine, task).map(|(_, state)| state));
        let running = processes.current.as_ref();
        let running = running
            .map(|thread| format!("{}, pid {}", in_a_line(&thread.name), thread.id))
            .unwrap_or_default();
        let sleeping = self.sleepers.iter().map(|sleeper| SleepingThread {
            number: sleeper.number,
            description: sleeper.description.clone(),
        });
        Threads { running, sleeping: sleeping.collect() }
    }

    /// The saved registers of a listed thread.
    pub fn registers(&self, machine: &Machine<Instructions>, number: u32) -> Result<Registers, Refusal> {
        let none = || Refusal::new(format!("there is no thread {number} here"));
        let sleeper = self.sleeper(number).ok_or_else(none)?;
        let unreadable = || Refusal::new(format!("the stack of {} cannot be read", sleeper.description));
        let saved = self.frame.registers(machine, sleeper.task).ok_or_else(unreadable)?;
        let cr3 = self.tables(machine, sleeper);
        Ok(Registers { cr3, ..in_kernel(&to_gdb(&machine.cpu().state()), saved) })
    }

    /// Reads memory as a listed thread sees it. Returns the number of bytes that could be read from the start.
    pub fn read(&self, machine: &Machine<Instructions>, number: u32, address: u64, to: &mut [u8]) -> usize {
        self.sleeper(number).map_or(0, |sleeper| machine.read(self.tables(machine, sleeper), address, to))
    }

    fn sleeper(&self, number: u32) -> Option<&Sleeper> {
        self.sleepers.iter().find(|sleeper| sleeper.number == number)
    }

    fn tables(&self, machine: &Machine<Instructions>, of: &Sleeper) -> u64 {
        of.cr3.unwrap_or_else(|| self.tasks.address_space(machine))
    }
}

/// All threads except the running one; `state` returns the state of each.
fn sleepers(processes: &Processes, state: impl Fn(u64) -> Option<char>) -> Vec<Sleeper> {
    let mut found = Vec::new();
    for process in &processes.all {
        let cr3 = match process.space {
            AddressSpace::Own(root) => Some(root),
            AddressSpace::KernelThread | AddressSpace::None => None,
        };
        let first = (process.pid, &process.name, process.task);
        let others = process.threads.iter().map(|thread| (thread.id, &thread.name, thread.task));
        for (id, name, task) in [first].into_iter().chain(others) {
            if processes.current.as_ref().is_some_and(|current| current.task == task) {
                continue;
            }
            let number = if id < 2 { FIRST_TWO + id } else { id };
            let of = if id == process.pid { String::new() } else { format!(" of {}", process.pid) };
            let state = state(task).unwrap_or('?');
            found.push(Sleeper {
                number,
                task,
                cr3,
                description: format!("{}, pid {id}{of}, {state}", in_a_line(name)),
            });
        }
    }
    found
}

/// The registers of a sleeping thread, which is always in the kernel. The running thread may be in a program. Registers
/// that the kernel does not save are zero. Registers that all threads share have their current values.
fn in_kernel(running: &Registers, saved: SavedRegisters) -> Registers {
    const KERNEL_CODE: u16 = 0x10;
    const KERNEL_DATA: u16 = 0x18;
    let SavedRegisters { rip, rsp, rbp, rbx, r12, r13, r14, r15 } = saved;
    Registers {
        rip,
        rsp,
        rbp,
        rbx,
        r12,
        r13,
        r14,
        r15,
        cs: KERNEL_CODE,
        ss: KERNEL_DATA,
        cr0: running.cr0,
        cr4: running.cr4,
        efer: running.efer,
        ..Registers::default()
    }
}
