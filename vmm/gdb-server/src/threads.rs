//! The threads that gdb shows: the processors, and the guest's threads that do not run, with their saved registers and
//! their memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use gdb::{FIRST_CPU, Refusal, Registers, SleepingThread};
use guest_symbols::GuestView;
use guest_symbols::switched_out::{SavedRegisters, SwitchFrame};
use guest_symbols::tasks::{AddressSpace, Processes, Tasks};

use super::registers::to_gdb;
use machine::Machine;
use machine::position::Instructions;
use machine::processor::Processor;
use views::visible::in_a_line;

/// gdb's number for the kernel's thread 0, the idle thread. No process has such a large number (`PID_MAX_LIMIT` of
/// Linux). Small numbers are the numbers of processors in gdb. So a thread whose number could be a processor's number
/// gets its own number plus this constant.
const FIRST: gdb::Thread = 1 << 22;

/// The guest's threads that gdb shows.
pub(super) struct ShownThreads {
    tasks: Arc<Tasks>,
    frame: SwitchFrame,
    /// The threads at the place of gdb's last query.
    sleepers: Vec<Sleeper>,
}

/// A thread that does not run.
struct Sleeper {
    number: u32,
    /// The address of the thread's `task_struct`.
    task: u64,
    /// CR3 while the thread runs. `None` for a kernel thread, which runs on any page tables.
    cr3: Option<u64>,
    description: String,
}

impl ShownThreads {
    /// The threads of a kernel with these tasks and this switch frame.
    pub fn new(tasks: Arc<Tasks>, frame: SwitchFrame) -> ShownThreads {
        ShownThreads { tasks, frame, sleepers: Vec::new() }
    }

    /// Whether `tasks` listed these threads. If so, the threads belong to the same kernel as `tasks`.
    pub fn is_of(&self, tasks: &Arc<Tasks>) -> bool {
        Arc::ptr_eq(&self.tasks, tasks)
    }

    /// Lists all threads that no processor executes at this place.
    pub fn list(&mut self, machine: &Machine<Instructions>) -> Vec<SleepingThread> {
        let processes = self.tasks.list(machine);
        let running =
            machine.all_processors().filter_map(|processor| self.tasks.running(&processor)).collect();
        let state = |task| self.tasks.at(machine, task).map(|(_, state)| state);
        self.sleepers = sleepers(&processes, &running, machine.processors(), state);
        let sleeping = self.sleepers.iter().map(|sleeper| SleepingThread {
            number: sleeper.number,
            description: sleeper.description.clone(),
        });
        sleeping.collect()
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

    /// Reads memory through a listed thread's page tables. Returns the number of bytes that could be read, from the
    /// first byte on.
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

/// The text that gdb shows after a processor's number: the running thread, if it is known.
pub(super) fn running_on(processor: &Processor<'_, Instructions>, tasks: Option<&Tasks>) -> String {
    let thread = tasks.and_then(|tasks| tasks.current(processor));
    match thread {
        _ if !processor.is_started() => "not started".to_string(),
        Some(thread) => format!("{}, pid {}", in_a_line(&thread.name), thread.id),
        None => String::new(),
    }
}

/// gdb's number of the kernel's thread `id`.
fn number_of(id: u32, processors: usize) -> gdb::Thread {
    // With several processors, all threads get their number plus `FIRST`.
    if processors == 1 && id > FIRST_CPU { id } else { FIRST + id }
}

/// All threads that are not `running`; `state` returns the state of each.
fn sleepers(
    processes: &Processes,
    running: &BTreeSet<u64>,
    processors: usize,
    state: impl Fn(u64) -> Option<char>,
) -> Vec<Sleeper> {
    let mut found = Vec::new();
    for process in &processes.all {
        let cr3 = match process.space {
            AddressSpace::Own(root) => Some(root),
            AddressSpace::KernelThread | AddressSpace::None => None,
        };
        let first = (process.pid, &process.name, process.task);
        let others = process.threads.iter().map(|thread| (thread.id, &thread.name, thread.task));
        for (id, name, task) in [first].into_iter().chain(others) {
            if running.contains(&task) {
                continue;
            }
            let number = number_of(id, processors);
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
