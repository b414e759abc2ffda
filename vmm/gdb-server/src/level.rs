//! A thread's place in the guest: the thread, whether it runs a program or the kernel, and its stack pointer. By such a
//! place ([`Level`]), a step distinguishes the stepped code from interrupt handlers and other threads.
//!
//! The kernel's pointer to the running task identifies a thread. If the kernel is unknown, CR3 and the base
//! of FS identify a program's thread. Inside an unknown kernel, the processor and the stack pointer identify a thread.

use std::sync::Arc;

use cpu::SegReg;
use guest_symbols::tasks::Tasks;
use guest_symbols::{GuestView, page_table_root};

use history::timeline::address_space;
use machine::Machine;
use machine::position::Instructions;
use machine::processor::Processor;

/// The privilege level of programs.
const PROGRAM: u8 = 3;
/// The largest number of bytes by which a handler may move the stack pointer of the interrupted code. A kernel's
/// handler that emulates a call instruction moves this stack pointer.
const MOVED_BYTES: u64 = 16;
const RDX: u8 = 2;
const RSP: u8 = 4;
/// Offsets of a program's registers in a signal handler's `ucontext`. At the beginning of the handler, RDX has the
/// address of the `ucontext`.
const CONTEXT_RSP: u64 = 160;
const CONTEXT_RIP: u64 = 168;
const SYSCALL_BYTES: u64 = 2;
/// A program may jump out of a signal handler. Then the program's stack pointer is at most this number of bytes higher
/// than before the signal.
const JUMPED_BYTES: u64 = 1 << 16;

/// A thread of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// The address of the thread's structure in the kernel, if known.
    pub task: Option<u64>,
    space: u64,
    local: u64,
}

/// A thread's place: the thread, its processor, its instruction pointer and its stack pointer.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub thread: Thread,
    tasks: Option<Arc<Tasks>>,
    /// The number of the processor that executes the thread.
    pub processor: usize,
    /// Whether the thread is in a program, and not in the kernel.
    pub is_program: bool,
    pub rip: u64,
    pub stack: u64,
}

impl Level {
    /// The place of the thread on a processor.
    pub fn on(processor: usize, machine: &Machine<Instructions>, tasks: Option<&Arc<Tasks>>) -> Level {
        match machine.processor_at(processor).filter(|processor| !processor.has_seat()) {
            Some(parked) => Level::of_parked(&parked, tasks),
            None => Level::of(machine, tasks),
        }
    }

    fn of_parked(parked: &Processor<'_, Instructions>, tasks: Option<&Arc<Tasks>>) -> Level {
        let tasks = tasks.cloned();
        let state = parked.state();
        let local = state.segments[SegReg::Fs as usize].base;
        Level {
            thread: Thread::new(parked, page_table_root(state.cr3), local, tasks.as_deref()),
            tasks,
            processor: parked.number(),
            is_program: parked.is_user(),
            rip: state.rip,
            stack: state.gpr[usize::from(RSP)],
        }
    }

    /// The place of the thread that executes the next step.
    pub fn of(machine: &Machine<Instructions>, tasks: Option<&Arc<Tasks>>) -> Level {
        let core = machine.cpu().core();
        let tasks = tasks.cloned();
        Level {
            thread: Thread::running(machine, tasks.as_deref()),
            tasks,
            processor: machine.cpu().seat(),
            is_program: core.cpl == PROGRAM,
            rip: core.rip,
            stack: core.reg64(RSP),
        }
    }

    /// Sets the thread's place to the machine's present place.
    pub fn move_to(&mut self, machine: &Machine<Instructions>) {
        let core = machine.cpu().core();
        (self.is_program, self.rip, self.stack) = (core.cpl == PROGRAM, core.rip, core.reg64(RSP));
        self.processor = machine.cpu().seat();
    }

    /// Reads memory through the thread's page tables. Returns the number of bytes that could be read, from the first
    /// byte on.
    pub fn read(&self, machine: &Machine<Instructions>, address: u64, to: &mut [u8]) -> usize {
        let processor = machine.processor_at(self.processor);
        processor.map_or(0, |processor| machine.read(processor.state().cr3, address, to))
    }

    /// The kernel's tasks that identify the thread.
    pub fn tasks(&self) -> Option<&Arc<Tasks>> {
        self.tasks.as_ref()
    }

    /// Whether the machine runs this thread.
    pub fn runs(&self, machine: &Machine<Instructions>) -> bool {
        match (self.thread.task, &self.tasks) {
            (Some(task), Some(tasks)) => tasks.running(machine) == Some(task),
            _ if self.is_program => Thread::running(machine, None) == Thread { task: None, ..self.thread },
            // The callers compare stack pointers, which distinguish kernel threads.
            _ => machine.cpu().seat() == self.processor,
        }
    }

    /// Whether a turn has just ended whose last step the thread executed.
    pub fn ran_until_here(&self, machine: &Machine<Instructions>) -> bool {
        let ended = machine.cpu().hits().iter().find_map(|hit| match hit {
            cpu::Hit::Trap(cpu::Trap::Turn(processor)) => Some(*processor),
            _ => None,
        });
        ended.is_some_and(|processor| {
            Level::on(processor, machine, self.tasks.as_ref()).thread == self.thread
                && (self.is_known() || processor == self.processor)
        })
    }

    /// Whether the thread is identified by its task, or by CR3 and FS, and not only by processor and stack pointer.
    fn is_known(&self) -> bool {
        self.thread.task.is_some() || self.is_program
    }

    /// Whether the thread runs and is in a program.
    pub fn is_program_of_thread(&self, machine: &Machine<Instructions>) -> bool {
        machine.cpu().core().cpl == PROGRAM && self.runs(machine)
    }

    /// The page tables in use. If the kernel is known, the result is the same while a program runs and while the kernel
    /// runs for it.
    pub fn tables(&self, machine: &Machine<Instructions>) -> u64 {
        let parked = machine.processor_at(self.processor).filter(|_| !self.runs(machine));
        let guest: &dyn GuestView = parked.as_ref().map_or(machine, |parked| parked);
        let tables = || page_table_root(guest.cr3());
        self.tasks.as_ref().map_or_else(tables, |tasks| tasks.address_space(guest))
    }

    /// Whether the thread runs a program on other page tables than `tables`, because it has called `exec`.
    pub fn executes_another(&self, tables: u64, machine: &Machine<Instructions>) -> bool {
        self.thread.task.is_some() && self.is_program_of_thread(machine) && self.tables(machine) != tables
    }

    /// Whether a handler has just returned to this place.
    pub fn is_back(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        (core.cpl == PROGRAM) == self.is_program
            && (self.is_program || is_near(core.reg64(RSP), self.stack))
            && self.runs(machine)
    }

    /// Whether the thread is now at the beginning of a signal handler, after a handler or system call was entered at
    /// this place. The kernel has saved this place for the signal handler's return.
    pub fn is_signalled(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        let context = core.reg64(RDX);
        let word = |offset: u64| {
            let mut bytes = [0; 8];
            let read = core.peek(context.wrapping_add(offset), &mut bytes);
            (read == bytes.len()).then(|| u64::from_le_bytes(bytes))
        };
        // After a system call, the saved address is the address after the instruction, or the instruction itself if the
        // call is restarted.
        let is_here = |rip: u64| rip.wrapping_sub(self.rip) <= SYSCALL_BYTES;
        self.is_program
            && core.cpl == PROGRAM
            && core.rip != self.rip
            && word(CONTEXT_RSP) == Some(self.stack)
            && word(CONTEXT_RIP).is_some_and(is_here)
    }

    /// Whether a return from the kernel has just left a signal handler, and has returned to this place or to a caller
    /// of this place.
    pub fn is_behind_signal(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        core.cpl == PROGRAM && core.reg64(RSP).wrapping_sub(self.stack) < JUMPED_BYTES && self.runs(machine)
    }

    /// Whether an interrupt or exception has just been delivered at this place. Ignores software interrupts (INT n).
    pub fn was_interrupted(&self, machine: &Machine<Instructions>) -> bool {
        Interrupted::now(machine).is_some_and(|at| {
            at.is_program == self.is_program
                && (at.rip == self.rip || at.vector == BREAKPOINT && at.rip == self.rip.wrapping_add(1))
                && (self.is_program || is_near(at.stack, self.stack))
        })
    }

    /// Whether an interrupt, an exception or a system call has just entered the kernel from this place.
    pub fn was_left(&self, machine: &Machine<Instructions>) -> bool {
        let from_here = match Interrupted::now(machine) {
            Some(at) => at.is_program == self.is_program && (at.is_program || is_near(at.stack, self.stack)),
            // Without an interrupt or exception, a system call has entered the kernel.
            None => self.is_program,
        };
        from_here && self.runs(machine)
    }

    /// Whether the machine's next instruction is the thread's own, and certainly leads to this place. The delivery
    /// of an interrupt or exception would move the stack pointer by a frame, or by more if it changes stacks.
    pub fn came_from(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        let is_next = self.rip.wrapping_sub(core.rip) <= LONGEST_BYTES;
        let is_on_stack = self.stack.wrapping_sub(core.reg64(RSP)).wrapping_add(16) <= 32;
        is_long(machine)
            && self.processor == machine.cpu().seat()
            && self.is_program == (core.cpl == PROGRAM)
            && (is_next || is_on_stack)
            && !is_at(machine, &IRET)
            && (self.is_program || self.runs(machine))
    }

    /// Whether both levels are the same place of the same thread.
    pub fn is_same(&self, other: &Level) -> bool {
        let place = |level: &Level| (level.is_program, level.rip, level.stack);
        self.thread == other.thread && place(self) == place(other)
    }

    /// The addresses of the kernel's pointers to the running tasks, one for each processor, and this thread's task, if
    /// they are known.
    pub fn switches(&self, machine: &Machine<Instructions>) -> Option<(Vec<u64>, u64)> {
        let tasks = self.tasks.as_ref()?;
        let places = machine.all_processors().filter_map(|processor| tasks.place_of_current(&processor));
        let places: Vec<u64> = places.collect();
        (!places.is_empty()).then_some((places, self.thread.task?))
    }

    /// Whether the thread has ended. A running thread has not ended.
    pub fn has_ended(&self, machine: &Machine<Instructions>) -> bool {
        match (self.thread.task, &self.tasks) {
            (Some(task), Some(tasks)) => !self.runs(machine) && tasks.has_ended(machine, task),
            _ => false,
        }
    }

    /// The thread's number and name as text for people. `None` if the kernel is unknown.
    pub fn name(&self, machine: &Machine<Instructions>) -> Option<String> {
        let (thread, _) = self.tasks.as_ref()?.at(machine, self.thread.task?)?;
        Some(format!("{} ({})", thread.id, thread.name))
    }
}

impl Thread {
    fn running(machine: &Machine<Instructions>, tasks: Option<&Tasks>) -> Thread {
        let local = machine.cpu().core().segment(SegReg::Fs).base;
        Thread::new(machine, address_space(machine), local, tasks)
    }

    /// The thread of a guest as one processor sees it. `space` and `local` identify the thread only if the kernel
    /// is unknown.
    fn new(guest: &dyn GuestView, space: u64, local: u64, tasks: Option<&Tasks>) -> Thread {
        match tasks.and_then(|tasks| tasks.running(guest)) {
            Some(task) => Thread { task: Some(task), space: 0, local: 0 },
            None => Thread { task: None, space, local },
        }
    }
}

/// The place that an interrupt or exception, which was just delivered, has interrupted.
struct Interrupted {
    vector: u8,
    is_program: bool,
    rip: u64,
    stack: u64,
}

impl Interrupted {
    /// Returns `None` if the last step did not deliver an interrupt or exception, or if the frame on the stack
    /// cannot be read.
    fn now(machine: &Machine<Instructions>) -> Option<Interrupted> {
        let cpu = machine.cpu();
        let vector = cpu.hits().iter().find_map(|hit| match hit {
            cpu::Hit::Trap(cpu::Trap::Vector(vector)) => Some(*vector),
            _ => None,
        })?;
        let core = cpu.core();
        if core.state.cr0 & 1 == 0 {
            return None;
        }
        let width = if is_long(machine) { 8 } else { 4 };
        let code = if WITH_ERROR_CODE.contains(&vector) { width } else { 0 };
        let base = if width == 8 { 0 } else { core.segment(SegReg::Ss).base };
        let frame = core.reg64(RSP).wrapping_add(code);
        let word = |number: u64| {
            let mut bytes = [0; 8];
            let at = base.wrapping_add(frame).wrapping_add(number * width);
            let read = core.peek(at, &mut bytes[..width as usize]);
            (read == width as usize).then(|| u64::from_le_bytes(bytes))
        };
        let is_program = word(1)? & 3 == u64::from(PROGRAM);
        // Without a privilege change, 32-bit code does not push its stack pointer.
        let stack = if width == 8 || is_program { word(3)? } else { frame.wrapping_add(3 * width) };
        Some(Interrupted { vector, is_program, rip: word(0)?, stack })
    }
}

/// The vector of INT3. A kernel puts INT3 into its own code while it changes the code.
const BREAKPOINT: u8 = 3;
/// The encodings of SYSRET, which returns only from system calls.
pub(super) const SYSRET: [&[u8]; 2] = [&[0x0f, 0x07], &[0x48, 0x0f, 0x07]];
const IRET: [&[u8]; 3] = [&[0xcf], &[0x48, 0xcf], &[0x66, 0xcf]];
/// The largest size of an instruction in bytes.
pub(super) const LONGEST_BYTES: u64 = 15;
const LONG_MODE_ACTIVE: u64 = 1 << 10;
/// The exceptions that push an error code (SDM vol. 3, table 6-1).
const WITH_ERROR_CODE: [u8; 10] = [8, 10, 11, 12, 13, 14, 17, 21, 29, 30];

/// Whether the next instruction has one of these opcodes.
pub(super) fn is_at(machine: &Machine<Instructions>, codes: &[&[u8]]) -> bool {
    let mut code = [0; 3];
    machine.cpu().core().peek(machine.cpu().rip(), &mut code);
    codes.iter().any(|wanted| code.starts_with(wanted))
}

fn is_long(machine: &Machine<Instructions>) -> bool {
    machine.cpu().core().state.msrs.efer & LONG_MODE_ACTIVE != 0
}

fn is_near(stack: u64, other: u64) -> bool {
    stack.wrapping_sub(other).wrapping_add(MOVED_BYTES) <= 2 * MOVED_BYTES
}
