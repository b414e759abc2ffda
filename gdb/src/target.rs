//! What a debugger needs from a machine: the trait that this crate's user implements, and its plain values.
//!
//! The protocol's own details (packets, threads, signals, register numbers) stay out of here on purpose.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::condition::Condition;
use crate::registers::Registers;

/// Asks "should I stop now?". Once it has said `true` it keeps saying so until the run is over.
///
/// A call costs about one system call (it looks at the client's connection). A target should call it every
/// few thousand instructions, and at least every 50 ms, so that ^C is answered at once.
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// Says how far a movement is, for the person who waits: text to be shown at once, or nothing yet.
pub type Progress = dyn FnMut() -> Option<String>;

/// The target did not do what was asked. The text is one sentence for the person at gdb, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    /// A refusal with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// Which accesses a watchpoint watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchKind {
    /// Stores only (gdb's `watch`).
    Write,
    /// Loads only (`rwatch`).
    Read,
    /// Loads and stores (`awatch`).
    Access,
}

/// A range of guest-virtual addresses that stops a run when it is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watchpoint {
    /// The first watched guest-virtual address.
    pub address: u64,
    /// The number of watched bytes: never zero, never past the end of the address space, but not restricted
    /// to what debug registers could do.
    pub length: u64,
    /// Which accesses stop the run.
    pub kind: WatchKind,
}

/// A thread that does not run while the target stands still: what the guest's system has put aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SleepingThread {
    /// Its number for gdb. Not 1, which is the CPU's, nor 0.
    pub number: u32,
    /// What gdb shows of it besides.
    pub description: String,
}

/// The target's threads at the current position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// What gdb shows of the CPU besides its name: the thread that runs on it.
    pub running: String,
    /// All others.
    pub sleeping: Vec<SleepingThread>,
}

/// Why the target stands still after a step or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The requested step, or range of steps, is done.
    Step,
    /// The movement has ended where nobody asked it to: what it waited for cannot come.
    Elsewhere,
    /// RIP is at a breakpoint, whose guest-virtual address this is; the instruction there has not been
    /// executed.
    Breakpoint(u64),
    /// A watchpoint was hit. Forwards the accessing instruction has just been executed; backwards it has just
    /// been undone, so that in both directions the access lies between the old and the new position.
    Watchpoint {
        /// The kind that the watchpoint was set with.
        kind: WatchKind,
        /// An accessed guest-virtual address within the watchpoint.
        address: u64,
    },
    /// The poll function asked to stop.
    Interrupted,
    /// The target stands at the first position of its history.
    HistoryStart,
    /// The target stands at the last position of its history.
    HistoryEnd,
}

/// A machine with one CPU that can be moved forwards and backwards along its history.
///
/// The server calls from one thread, one method at a time, and the target stands still between calls.
/// Breakpoints and watchpoints change only while it stands still, right before it moves.
///
/// Every movement returns `Err` when the target could not go where it was asked to (a divergence, an
/// unreadable recording); the sentence is shown to the person at gdb, and the target must then still stand at
/// some position that registers and memory can be read from.
pub trait DebugTarget {
    /// The registers at the current position.
    ///
    /// The server asks once per stop and remembers the answer until the target moves or is written to.
    fn read_registers(&mut self) -> Result<Registers, Refusal>;

    /// Replaces all registers: only what the user changed differs from what [`Self::read_registers`]
    /// returned.
    fn write_registers(&mut self, registers: &Registers) -> Result<(), Refusal>;

    /// Reads guest-virtual memory as a debugger (no permission checks, no accessed bits, no side effects) and
    /// returns how many bytes, counted from `address`, could be read.
    fn read_memory(&mut self, address: u64, buffer: &mut [u8]) -> usize;

    /// Writes guest-virtual memory as a debugger: all bytes, or none and a refusal.
    fn write_memory(&mut self, address: u64, bytes: &[u8]) -> Result<(), Refusal>;

    /// gdb shows this place to its user.
    fn shown(&mut self) {}

    /// The threads to show, of which the CPU itself is always one. Without any sleeping ones, as here, gdb sees the CPU alone.
    ///
    /// The server asks once per stop, and again after a `monitor` command.
    fn threads(&mut self) -> Threads {
        Threads::default()
    }

    /// The registers with which a sleeping thread goes on, as far as they are known; the others are zero.
    fn read_thread_registers(&mut self, number: u32) -> Result<Registers, Refusal> {
        Err(Refusal::new(format!("there is no thread {number}")))
    }

    /// [`Self::read_memory`] in the address space of a sleeping thread.
    fn read_thread_memory(&mut self, _number: u32, address: u64, buffer: &mut [u8]) -> usize {
        self.read_memory(address, buffer)
    }

    /// Makes runs stop before the instruction at this guest-virtual address. Called once per address until
    /// cleared.
    fn set_breakpoint(&mut self, address: u64) -> Result<(), Refusal>;

    /// Takes back [`Self::set_breakpoint`].
    fn clear_breakpoint(&mut self, address: u64);

    /// Makes the breakpoint at this address, which is set, stop a run only where one of these conditions holds; without
    /// any, always. Called when that changes.
    ///
    /// A target that ignores this stops too often, and gdb then looks at the conditions itself.
    fn set_conditions(&mut self, _address: u64, _conditions: &[Condition]) {}

    /// Makes runs and steps stop at accesses to this range. Called once per watchpoint until cleared.
    fn set_watchpoint(&mut self, watchpoint: Watchpoint) -> Result<(), Refusal>;

    /// Takes back [`Self::set_watchpoint`].
    fn clear_watchpoint(&mut self, watchpoint: Watchpoint);

    /// Executes exactly one instruction and returns [`Stop::Step`], [`Stop::Watchpoint`], or
    /// [`Stop::HistoryEnd`] when the target already stood at the end.
    ///
    /// A step that takes long (because the target has to replay its way there) may poll, and is either done
    /// or, with [`Stop::Interrupted`], has not moved the target.
    ///
    /// The instruction's own breakpoint and that of the next one do not count: gdb steps off a breakpoint after taking it out.
    /// A target that leaves out what comes between, such as an interrupt's handler, returns [`Stop::Breakpoint`] for one there.
    fn step_forward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Undoes exactly one instruction: the mirror image of [`Self::step_forward`], with
    /// [`Stop::HistoryStart`].
    fn step_backward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Runs until a breakpoint, a watchpoint, the end of the history, or the poll function stops it.
    ///
    /// The position that the run starts from does not count: a breakpoint there is hit only when execution
    /// comes back to it.
    fn run_forward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Runs backwards: the mirror image of [`Self::run_forward`], with the start of the history.
    fn run_backward(&mut self, poll: &mut Poll<'_>) -> Result<Stop, Refusal>;

    /// Executes one instruction and then more for as long as RIP lies within `range` and nothing else stops
    /// the target. Returns [`Stop::Step`] when RIP has left the range.
    ///
    /// `breakpoints` are those that are set, for an implementation that steps, as this default does. A target
    /// that can do better than reading its registers after each instruction should.
    fn step_range(
        &mut self,
        range: Range<u64>,
        breakpoints: &BTreeSet<u64>,
        poll: &mut Poll<'_>,
    ) -> Result<Stop, Refusal> {
        for step in 1u64.. {
            let stop = self.step_forward(poll)?;
            if stop != Stop::Step {
                return Ok(stop);
            }
            let rip = self.read_registers()?.rip;
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

    /// Obeys gdb's `monitor COMMAND` and returns what gdb shall print (a missing final newline is added).
    ///
    /// The command may take long and should then poll as often as a run does: the answer is `true` once the client has
    /// gone, or does not wait for the command any more. It may move the
    /// target; gdb does not expect that and must then be told to drop what it has cached (`maintenance flush
    /// register-cache`).
    fn monitor(&mut self, command: &str, poll: &mut Poll<'_>) -> Result<String, Refusal>;

    /// What tells the person at gdb how far a movement is. The server asks for it before the target moves or obeys a `monitor`
    /// command, and then calls it at every poll: how often there is something to say is up to the target.
    ///
    /// During a movement gdb prints the text as it comes. During a `monitor` command it would keep it and take it for a part
    /// of the answer: the text is not sent then.
    fn progress(&mut self) -> Box<Progress> {
        Box::new(|| None)
    }

    /// What the person at a new gdb should know, once for each connection. gdb prints it while it connects, unless it was told
    /// not to ask for the state of a trace (`set remote trace-status-packet off`).
    fn take_greeting(&mut self) -> Option<String> {
        None
    }

    /// Something that the person at gdb should know although nothing failed ("a scratch branch starts here"), once.
    ///
    /// The server asks after every movement and every `monitor` command, the only times when gdb prints what a server
    /// says. A message about an accepted write waits in the target until then.
    fn take_message(&mut self) -> Option<String> {
        None
    }
}
