//! `monitor threads`: the guest's threads that do not run, each as a thread of gdb's with the registers that it will go on
//! with and the memory that it sees.

use std::sync::Arc;

use gdb::{Refusal, Registers, SleepingThread, Threads};
use guest_symbols::switched_out::{SavedRegisters, SwitchFrame};
use guest_symbols::tasks::{AddressSpace, Processes, Tasks};
use guest_symbols::{GuestView, page_table_root};

use super::GdbTarget;

/// The number for gdb of the thread with the kernel's number 0, which runs while no other does; that of thread 1 is the next.
/// No process has a number as large (`PID_MAX_LIMIT` of Linux), and gdb knows the CPU as thread 1.
const FIRST_TWO: u32 = 1 << 22;

/// What it takes to show threads.
pub(super) struct Shown {
    tasks: Arc<Tasks>,
    frame: SwitchFrame,
    /// Those at the place where gdb last asked for them.
    sleepers: Vec<Sleeper>,
}

/// A thread that does not run.
struct Sleeper {
    number: u32,
    /// The address of its `task_struct`.
    task: u64,
    /// The page tables with which it would run; a kernel thread takes any.
    cr3: Option<u64>,
    description: String,
}

impl GdbTarget<'_> {
    /// Lets gdb see the threads of the guest, or the CPU alone again.
    pub(super) fn set_threads(&mut self, argument: &str) -> Result<String, Refusal> {
        match argument {
            "" => {}
            "off" => self.shown_threads = None,
            "on" => {
                let tasks = self.tasks().map_err(|error| Refusal::new(error.to_string()))?;
                let symbols = self.symbols().map_err(|none| Refusal::new(format!("{none} here")))?;
                let frame = SwitchFrame::of_kernel(self.timeline.machine(), &symbols);
                let frame = frame.map_err(|missing| Refusal::new(missing.to_string()))?;
                self.shown_threads = Some(Shown { tasks, frame, sleepers: Vec::new() });
            }
            _ => return Err(Refusal::new("write: monitor threads [on|off]")),
        }
        Ok(match self.shown_threads {
            Some(_) => "gdb sees the guest's threads; thread 1 is the CPU, and the only one that moves\n",
            None => "gdb sees the CPU alone\n",
        }
        .to_string())
    }

    pub(super) fn list_threads(&mut self) -> Threads {
        let Some(shown) = &mut self.shown_threads else { return Threads::default() };
        let machine = self.timeline.machine();
        let processes = shown.tasks.list(machine);
        shown.sleepers = sleepers(&processes, |task| {
            let (_, state) = shown.tasks.at(machine, task)?;
            Some(state)
        });
        let running = processes.current.as_ref();
        let running = running.map(|thread| format!("{}, pid {}", thread.name, thread.id)).unwrap_or_default();
        let sleeping = shown.sleepers.iter().map(|sleeper| SleepingThread {
            number: sleeper.number,
            description: sleeper.description.clone(),
        });
        Threads { running, sleeping: sleeping.collect() }
    }

    pub(super) fn thread_registers(&mut self, number: u32) -> Result<Registers, Refusal> {
        let machine = self.timeline.machine();
        let none = || Refusal::new(format!("there is no thread {number} here"));
        let (shown, sleeper) = self.sleeper(number).ok_or_else(none)?;
        let saved = shown
            .frame
            .registers(machine, sleeper.task)
            .ok_or_else(|| Refusal::new(format!("the stack of {} cannot be read", sleeper.description)))?;
        let running = self.timeline.machine().cpu().state();
        let cr3 = sleeper.cr3.unwrap_or_else(|| shown.tasks.address_space(machine));
        Ok(Registers { cr3, ..in_kernel(&super::registers::to_gdb(&running), saved) })
    }

    pub(super) fn thread_memory(&self, number: u32, address: u64, to: &mut [u8]) -> usize {
        let machine = self.timeline.machine();
        let cr3 = match self.sleeper(number) {
            Some((shown, sleeper)) => sleeper.cr3.unwrap_or_else(|| shown.tasks.address_space(machine)),
            None => page_table_root(machine.cr3()),
        };
        machine.read(cr3, address, to)
    }

    fn sleeper(&self, number: u32) -> Option<(&Shown, &Sleeper)> {
        let shown = self.shown_threads.as_ref()?;
        Some((shown, shown.sleepers.iter().find(|sleeper| sleeper.number == number)?))
    }
}

/// All threads but the one that runs; `state` knows what each of them does.
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
            found.push(Sleeper { number, task, cr3, description: format!("{name}, pid {id}{of}, {state}") });
        }
    }
    found
}

/// The registers of a thread inside the kernel, where the running one may be in a program. What the kernel does not keep for it is
/// zero; what is the same for all threads is as it is.
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
