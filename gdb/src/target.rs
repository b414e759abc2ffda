//! The interface between this crate and a machine: the trait that the crate's user implements, and its plain values.
//!
//! Details of the protocol (packets, threads, signals, register numbers) stay out of here on purpose.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::condition::Condition;
use crate::registers::Registers;

/// A function that the target calls while it moves. Returns whether the target must stop now. After the first `true`,
/// every call returns `true`.
///
/// A call costs about one system call, which checks the client's connection. A target should call it every few thousand
/// instructions, and at least every 50 ms, so that ^C is answered at once.
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// A function that returns a text for the user about a movement's progress, or `None` if there is nothing to show now.
pub type Progress = dyn FnMut() -> Option<String>;

/// The target did not do what was asked. The text is one sentence for gdb's user, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// A refusal with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// The accesses that a watchpoint watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchKind {
    /// Stores only (gdb's `watch`).
    Write,
    /// Loads only (`rwatch`).
    Read,
    /// Loads and stores (`awatch`).
    Access,
}

/// A range of guest-virtual addresses. An access to the range stops a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watchpoint {
    /// The first watched guest-virtual address.
    pub address: u64,
    /// Number of watched bytes. The length is never zero, never passes the end of the address space, and need
    /// not fit debug registers.
    pub length: u64,
    /// The accesses that stop the run.
    pub kind: WatchKind,
}

/// A thread's number in gdb. The target's CPUs are the threads from [`FIRST_CPU`] on.
pub type Thread = u32;

/// The thread of the target's first CPU.
pub const FIRST_CPU: Thread = 1;

/// A thread that the guest's system has suspended: no CPU executes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SleepingThread {
    /// The thread's number, which is neither 0 nor a CPU's.
    pub number: Thread,
    /// The text that gdb shows for the thread beside its number.
    pub description: String,
}

/// The target's threads at the current position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threads {
    /// The text that gdb shows for each CPU beside its name: a description of the running thread.
    pub cpus: Vec<String>,
    /// The threads that no CPU executes.
    pub sleeping: Vec<SleepingThread>,
}

impl Default for Threads {
    /// One CPU without a description.
    fn default() -> Threads {
        Threads { cpus: vec![String::new()], sleeping: Vec::new() }
    }
}

/// Why the target stands still after a step or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The requested step, or range of steps, is done.
    Step,
    /// The movement has ended early, because its goal cannot be reached.
    Elsewhere,
    /// RIP is at the breakpoint with this guest-virtual address. The instruction there has not been executed.
    Breakpoint(u64),
    /// A watchpoint was hit. Forwards, the accessing instruction has just been executed; backwards, it has just been
    /// undone. So in both directions the access lies between the old and the new position.
    Watchpoint {
        /// The kind with which the watchpoint was set.
        kind: WatchKind,
        /// An accessed guest-virtual address inside the watchpoint.
        address: u64,
    },
    /// The poll function asked to stop.
    Interrupted,
    /// The target is at the first position of its history.
    HistoryStart,
    /// The target is at the last position of its history.
    HistoryEnd,
}

/// A machine that can move forwards and backwards along its history. All CPUs together execute their instructions in
/// one order.
///
/// The server calls from one thread, one method at a time, and the target stands still between calls.
/// Breakpoints and watchpoints change only while it stands still, right before it moves.
///
/// Every movement returns `Err` if the target cannot go where it was asked to (a divergence, an unreadable recording).
/// gdb's user sees the sentence. The target must then still be at a position whose registers and memory can be read.
pub trait DebugTarget {
    /// The CPU that gdb shows at the current position: the CPU to which the last stop belongs. If the target knows that
    /// gdb's user has selected another CPU since, the selected CPU.
    fn selected_cpu(&mut self) -> Thread {
        FIRST_CPU
    }

    /// The registers of a thread at the current position. A sleeping thread has the registers with which it continues;
    /// unknown registers are zero.
    ///
    /// The server caches the last answer until the target moves or is written to.
    fn read_registers(&mut self, thread: Thread) -> Result<Registers, Refusal>;

    /// Replaces all registers of a thread. The new registers differ from the result of [`Self::read_registers`] only in
    /// the user's changes.
    fn write_registers(&mut self, thread: Thread, registers: &Registers) -> Result<(), Refusal>;

    /// Reads guest-virtual memory as a debugger, in the address space of a thread: no permission checks, no accessed
    /// bits, no side effects. Returns how many bytes from `address` on could be read.
    fn read_memory(&mut self, thread: Thread, address: u64, buffer: &mut [u8]) -> usize;

    /// Writes guest-virtual memory as a debugger, in the address space of a thread: either all bytes, or none and a
    /// refusal.
    fn write_memory(&mut self, thread: Thread, address: u64, bytes: &[u8]) -> Result<(), Refusal>;

    /// Tells the target that gdb shows the current position to its user.
    fn shown(&mut self) {}

    /// The threads to show. By default gdb sees one CPU.
    ///
    /// The server asks once per stop, and again after a `monitor` command.
    fn threads(&mut self) -> Threads {
        Threads::default()
    }

    /// Makes runs stop before the instruction at this guest-virtual address. The server sets an address again only
    /// after it has cleared the breakpoint there.
    fn set_breakpoint(&mut self, address: u64) -> Result<(), Refusal>;

    /// Undoes [`Self::set_breakpoint`].
    fn clear_breakpoint(&mut self, address: u64);

    /// Sets the conditions of the breakpoint at this address. The breakpoint then stops a run only if a
    /// condition is true, or always if there is no condition. gdb's server calls this when the conditions
    /// change.
    ///
    /// A target that ignores this stops too often, and gdb then evaluates the conditions itself.
    fn set_conditions(&mut self, _address: u64, _conditions: &[Condition]) {}

    /// Makes runs and steps stop at accesses to this range. The server sets a watchpoint again only after it has
    /// cleared the watchpoint.
    fn set_watchpoint(&mut self, watchpoint: Watchpoint) -> Result<(), Refusal>;

    /// Undoes [`Self::set_watchpoint`].
    fn clear_watchpoint(&mut self, watchpoint: Watchpoint);

    /// Executes exactly one instruction of a CPU. The other CPUs execute their instructions that come before this
    /// instruction. Returns [`Stop::Step`], [`Stop::Watchpoint`], or [`Stop::HistoryEnd`] if the target was already at
    /// the end.
    ///
    /// A long step, for which the target must replay, may poll. The step either completes, or returns
    /// [`Stop::Interrupted`] without moving the target.
    ///
    /// Breakpoints at the instruction and at the next one do not stop the step: gdb removes a breakpoint before it
    /// steps off. A target may step over other code between these two instructions, such as an interrupt's handler.
    /// At a breakpoint in such code the target returns [`Stop::Breakpoint`].
    fn step_forward(&mut self, cpu: Thread, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Undoes exactly one instruction of a CPU: the mirror image of [`Self::step_forward`], with
    /// [`Stop::HistoryStart`].
    fn step_backward(&mut self, cpu: Thread, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Runs until a breakpoint, a watchpoint, the end of the history, or the poll function stops it.
    ///
    /// A breakpoint at the start of the run is hit only when execution returns to it.
    fn run_forward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Runs backwards: the mirror image of [`Self::run_forward`], with the start of the history.
    fn run_backward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Executes one instruction of a CPU, and then more while the CPU's RIP is in `range` and nothing else stops the
    /// target. Returns [`Stop::Step`] when RIP has left the range.
    ///
    /// `breakpoints` are the breakpoints in the target, for an implementation that steps, as this default
    /// does. This default reads the registers after each instruction; a faster target should replace it.
    fn step_range(
        &mut self,
        cpu: Thread,
        range: Range<u64>,
        breakpoints: &BTreeSet<u64>,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        for step in 1u64.. {
            let stop = self.step_forward(cpu, poll)?;
            if stop != Stop::Step {
                return Ok(stop);
            }
            let rip = self.read_registers(cpu)?.rip;
            if breakpoints.contains(&rip) {
                return Ok(Stop::Breakpoint(rip));
            }
            if !range.contains(&rip) {
                return Ok(Stop::Step);
            }
            // A poll costs more than a step.
            if step.is_multiple_of(256) && poll() {
                return Ok(Stop::Interrupted);
            }
        }
        unreachable!("2^64 steps take longer than any session")
    }

    /// Executes gdb's `monitor COMMAND` and returns the text for gdb to print. A missing final newline is added.
    ///
    /// A long command should call `poll` as often as a run does. `poll` returns `true` once the client has gone, or no
    /// longer waits for the command. The command may move the target. gdb does not expect a movement, so the user must
    /// then tell gdb to drop its caches (`maintenance flush register-cache`).
    fn monitor(&mut self, command: &str, poll: &mut Poll<'_>) -> Result<String, Refusal>;

    /// Returns a function that tells gdb's user how far a movement is. The server calls this method before the target
    /// moves or executes a `monitor` command. The server then calls the returned function at every poll. The target
    /// decides how often this function returns a text.
    ///
    /// During a movement gdb prints the text as it comes. During a `monitor` command the text is not sent, because gdb
    /// would take the text for a part of the answer.
    fn progress(&mut self) -> Box<Progress> {
        Box::new(|| None)
    }

    /// A text for the user of a newly connected gdb. Each connection gets the text once. gdb prints it while it
    /// connects, unless `set remote trace-status-packet off` keeps gdb from asking.
    fn take_greeting(&mut self) -> Option<String> {
        None
    }

    /// A message for gdb's user although nothing failed ("a scratch branch starts here"). Each message is
    /// returned once.
    ///
    /// The server asks after every movement and every `monitor` command, the only times when gdb prints a server's
    /// text. Until then, a message about an accepted write waits in the target.
    fn take_message(&mut self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target with only the methods that every target must have. The CPU executes instructions of one byte, one after
    /// the other, up to an address.
    struct Plain {
        rip: u64,
        end: u64,
    }

    impl DebugTarget for Plain {
        fn read_registers(&mut self, _: Thread) -> Result<Registers, Refusal> {
            Ok(Registers { rip: self.rip, ..Registers::default() })
        }

        fn write_registers(&mut self, _: Thread, _: &Registers) -> Result<(), Refusal> {
            Err(Refusal::new("it cannot be changed"))
        }

        fn read_memory(&mut self, _: Thread, _: u64, _: &mut [u8]) -> usize {
            0
        }

        fn write_memory(&mut self, _: Thread, _: u64, _: &[u8]) -> Result<(), Refusal> {
            Err(Refusal::new("it cannot be changed"))
        }

        fn set_breakpoint(&mut self, _: u64) -> Result<(), Refusal> {
            Ok(())
        }

        fn clear_breakpoint(&mut self, _: u64) {}

        fn set_watchpoint(&mut self, _: Watchpoint) -> Result<(), Refusal> {
            Ok(())
        }

        fn clear_watchpoint(&mut self, _: Watchpoint) {}

        fn step_forward(&mut self, _: Thread, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
            if self.rip == self.end {
                return Ok(Stop::HistoryEnd);
            }
            self.rip += 1;
            Ok(Stop::Step)
        }

        fn step_backward(&mut self, _: Thread, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
            Ok(Stop::HistoryStart)
        }

        fn run_forward(&mut self, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
            Ok(Stop::HistoryEnd)
        }

        fn run_backward(&mut self, _: &mut Poll<'_>) -> Result<Stop, Refusal> {
            Ok(Stop::HistoryStart)
        }

        fn monitor(&mut self, _: &str, _: &mut Poll<'_>) -> Result<String, Refusal> {
            Ok(String::new())
        }
    }

    #[test]
    fn a_range_of_steps_ends_behind_the_range_or_at_another_stop() {
        for (range, breakpoints, interrupts, stop, rip) in [
            (100..150, vec![], false, Stop::Step, 150),
            (100..101, vec![], false, Stop::Step, 101),
            // The range does not have the next instruction.
            (0..50, vec![], false, Stop::Step, 101),
            (100..150, vec![100, 120, 130], false, Stop::Breakpoint(120), 120),
            (100..150, vec![150], false, Stop::Breakpoint(150), 150),
            (100..5000, vec![], false, Stop::HistoryEnd, 2000),
            // The caller is asked after each 256 steps.
            (100..5000, vec![], true, Stop::Interrupted, 356),
            (100..356, vec![], true, Stop::Step, 356),
        ] {
            let mut target = Plain { rip: 100, end: 2000 };
            let breakpoints = breakpoints.into_iter().collect();
            let stopped = target.step_range(FIRST_CPU, range.clone(), &breakpoints, &mut || interrupts);
            assert_eq!((stopped, target.rip), (Ok(stop), rip), "{range:?}");
        }
    }

    #[test]
    fn a_plain_target_has_one_cpu_and_says_nothing() {
        let mut target = Plain { rip: 0, end: 0 };
        let threads = target.threads();
        assert_eq!((threads.cpus, threads.sleeping), (vec![String::new()], Vec::new()));
        assert_eq!(target.selected_cpu(), 1);
        assert_eq!((target.take_greeting(), target.take_message(), target.progress()()), (None, None, None));
    }
}
