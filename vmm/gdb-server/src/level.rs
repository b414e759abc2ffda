//! Where in the guest a thread executes: which thread, in a program or in the kernel, and how deep on its stack. That tells an
//! interrupt's handler, or another thread, from the code that is being stepped through.
//!
//! The kernel's variable of the running task identifies a thread. Without a known kernel, CR3 and the base of FS identify a program's
//! thread. Inside an unknown kernel, only the stack pointer can.

use std::sync::Arc;

use cpu::SegReg;
use guest_symbols::tasks::Tasks;

use history::timeline::address_space;
use machine::Machine;
use machine::position::Instructions;

/// The privilege level of programs.
const PROGRAM: u8 = 3;
/// How far a handler may move the stack pointer of the code that it interrupted. The kernel emulates calls that way.
const MOVED_BYTES: u64 = 16;
const RDX: u8 = 2;
const RSP: u8 = 4;
/// Where a program's registers are in the `ucontext` of a signal's handler, which has its address in RDX.
const CONTEXT_RSP: u64 = 160;
const CONTEXT_RIP: u64 = 168;
const SYSCALL_BYTES: u64 = 2;
/// A program may jump out of a signal's handler. Then its stack pointer lies higher than before the signal, by less than this.
const JUMPED_BYTES: u64 = 1 << 16;

/// A thread of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// The address of its structure in the kernel, where that is known.
    pub task: Option<u64>,
    space: u64,
    local: u64,
}

/// Where a thread executes.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub thread: Thread,
    tasks: Option<Arc<Tasks>>,
    /// In a program, and not in the kernel.
    pub is_program: bool,
    pub rip: u64,
    pub stack: u64,
}

impl Level {
    /// Where the machine stands.
    pub fn of(machine: &Machine<Instructions>, tasks: Option<&Arc<Tasks>>) -> Level {
        let core = machine.cpu().core();
        let tasks = tasks.cloned();
        Level {
            thread: Thread::running(machine, tasks.as_deref()),
            tasks,
            is_program: core.cpl == PROGRAM,
            rip: core.rip,
            stack: core.reg64(RSP),
        }
    }

    /// The thread goes on to where the machine stands.
    pub fn move_to(&mut self, machine: &Machine<Instructions>) {
        let core = machine.cpu().core();
        (self.is_program, self.rip, self.stack) = (core.cpl == PROGRAM, core.rip, core.reg64(RSP));
    }

    /// By what the thread is known.
    pub fn tasks(&self) -> Option<&Arc<Tasks>> {
        self.tasks.as_ref()
    }

    /// Whether the thread runs there.
    pub fn runs(&self, machine: &Machine<Instructions>) -> bool {
        match (self.thread.task, &self.tasks) {
            (Some(task), Some(tasks)) => tasks.running(machine) == Some(task),
            _ if self.is_program => Thread::running(machine, None) == Thread { task: None, ..self.thread },
            // Another stack pointer tells kernel threads apart, where one is looked at.
            _ => true,
        }
    }

    /// Whether a program of the thread runs.
    pub fn is_program_of_thread(&self, machine: &Machine<Instructions>) -> bool {
        machine.cpu().core().cpl == PROGRAM && self.runs(machine)
    }

    /// The page tables in use. If the kernel is known, a program and its system calls have the same ones.
    pub fn tables(&self, machine: &Machine<Instructions>) -> u64 {
        self.tasks.as_ref().map_or_else(|| address_space(machine), |tasks| tasks.address_space(machine))
    }

    /// Whether the thread runs a program with other page tables than these: it has executed it.
    pub fn executes_another(&self, tables: u64, machine: &Machine<Instructions>) -> bool {
        self.thread.task.is_some() && self.is_program_of_thread(machine) && self.tables(machine) != tables
    }

    /// Whether a return from a handler has just led back to where it came.
    pub fn is_back(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        (core.cpl == PROGRAM) == self.is_program
            && (self.is_program || is_near(core.reg64(RSP), self.stack))
            && self.runs(machine)
    }

    /// Whether a handler or system call of the program, which came here, has led to a signal's handler instead: the kernel has
    /// put down for it where the program was.
    pub fn is_signalled(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        let context = core.reg64(RDX);
        let word = |offset: u64| {
            let mut bytes = [0; 8];
            let read = core.peek(context.wrapping_add(offset), &mut bytes);
            (read == bytes.len()).then(|| u64::from_le_bytes(bytes))
        };
        // Behind a system call, or before it where it is tried again.
        let is_here = |rip: u64| rip.wrapping_sub(self.rip) <= SYSCALL_BYTES;
        self.is_program
            && core.cpl == PROGRAM
            && core.rip != self.rip
            && word(CONTEXT_RSP) == Some(self.stack)
            && word(CONTEXT_RIP).is_some_and(is_here)
    }

    /// Whether a return from the kernel has just led out of a signal's handler, to where it came or farther out.
    pub fn is_behind_signal(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        core.cpl == PROGRAM && core.reg64(RSP).wrapping_sub(self.stack) < JUMPED_BYTES && self.runs(machine)
    }

    /// Whether an event has just been delivered here, and not asked for by an instruction.
    pub fn was_interrupted(&self, machine: &Machine<Instructions>) -> bool {
        Interrupted::now(machine).is_some_and(|at| {
            at.is_program == self.is_program
                && (at.rip == self.rip || at.vector == BREAKPOINT && at.rip == self.rip.wrapping_add(1))
                && (self.is_program || is_near(at.stack, self.stack))
        })
    }

    /// Whether the kernel has just been entered from here, by an event or a system call.
    pub fn was_left(&self, machine: &Machine<Instructions>) -> bool {
        let from_here = match Interrupted::now(machine) {
            Some(at) => at.is_program == self.is_program && (at.is_program || is_near(at.stack, self.stack)),
            // A system call.
            None => self.is_program,
        };
        from_here && self.runs(machine)
    }

    /// Whether the thread certainly came here by its own last instruction, at which the machine stands. A delivery moves the
    /// stack pointer by a frame, and where it changes stacks, by more.
    pub fn came_from(&self, machine: &Machine<Instructions>) -> bool {
        let core = machine.cpu().core();
        let is_next = self.rip.wrapping_sub(core.rip) <= LONGEST_BYTES;
        let is_on_stack = self.stack.wrapping_sub(core.reg64(RSP)).wrapping_add(16) <= 32;
        is_long(machine)
            && self.is_program == (core.cpl == PROGRAM)
            && (is_next || is_on_stack)
            && !is_at(machine, &IRET)
            && (self.is_program || self.runs(machine))
    }

    /// Whether this is the same place of the same thread.
    pub fn is_same(&self, other: &Level) -> bool {
        let place = |level: &Level| (level.is_program, level.rip, level.stack);
        self.thread == other.thread && place(self) == place(other)
    }

    /// Where the kernel says what runs, if this thread is known by it.
    pub fn switches(&self, machine: &Machine<Instructions>) -> Option<(u64, u64)> {
        Some((self.tasks.as_ref()?.place_of_current(machine)?, self.thread.task?))
    }

    /// Whether the thread, which runs no more, has ended.
    pub fn has_ended(&self, machine: &Machine<Instructions>) -> bool {
        match (self.thread.task, &self.tasks) {
            (Some(task), Some(tasks)) => !self.runs(machine) && tasks.has_ended(machine, task),
            _ => false,
        }
    }

    /// What a person calls the thread.
    pub fn name(&self, machine: &Machine<Instructions>) -> Option<String> {
        let (thread, _) = self.tasks.as_ref()?.at(machine, self.thread.task?)?;
        Some(format!("{} ({})", thread.id, thread.name))
    }
}

impl Thread {
    fn running(machine: &Machine<Instructions>, tasks: Option<&Tasks>) -> Thread {
        let task = tasks.and_then(|tasks| tasks.running(machine));
        if task.is_some() {
            return Thread { task, space: 0, local: 0 };
        }
        let local = machine.cpu().core().segment(SegReg::Fs).base;
        Thread { task, space: address_space(machine), local }
    }
}

/// What an event that has just been delivered has interrupted.
struct Interrupted {
    vector: u8,
    is_program: bool,
    rip: u64,
    stack: u64,
}

impl Interrupted {
    /// `None` where the last step was no delivery, or its frame cannot be read.
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
        // Without a change of privilege, 32-bit code does not push its stack pointer.
        let stack = if width == 8 || is_program { word(3)? } else { frame.wrapping_add(3 * width) };
        Some(Interrupted { vector, is_program, rip: word(0)?, stack })
    }
}

/// INT3: kernels that change their own code while it may run put one there.
const BREAKPOINT: u8 = 3;
/// SYSRET, which leads back from system calls only.
pub(super) const SYSRET: [&[u8]; 2] = [&[0x0f, 0x07], &[0x48, 0x0f, 0x07]];
const IRET: [&[u8]; 3] = [&[0xcf], &[0x48, 0xcf], &[0x66, 0xcf]];
/// The longest instruction.
pub(super) const LONGEST_BYTES: u64 = 15;
const LONG_MODE_ACTIVE: u64 = 1 << 10;
/// The exceptions that push an error code (SDM vol. 3, table 6-1).
const WITH_ERROR_CODE: [u8; 10] = [8, 10, 11, 12, 13, 14, 17, 21, 29, 30];

/// Whether the next instruction is one of these.
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
