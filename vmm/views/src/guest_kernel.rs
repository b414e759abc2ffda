//! What can be said of the guest at a place of its run: which thread runs, and who called whom.

use guest_symbols::modules::Missing;
use guest_symbols::orc::Unwinder;
use guest_symbols::tasks::{Tasks, Thread};
use guest_symbols::{NoKernel, Symbols};
use serde::Serialize;

use machine::Machine;
use machine::unit::Unit;

/// What is known of a guest's kernel, at all places where it and its modules lie where they lay when this was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The names of its functions and variables.
    pub symbols: Symbols,
    tasks: Option<Tasks>,
    unwinder: Result<Unwinder, Missing>,
}

/// Who called whom, the innermost function first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    /// The functions.
    pub frames: Vec<Call>,
    /// What is behind the last of them.
    pub end: String,
}

/// A function that has not returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Where it goes on.
    pub address: String,
    /// Which function that is, as the kernel writes it.
    pub function: Option<String>,
}

impl Witness {
    /// What there is to know of the kernel that a guest runs. Takes a while: searches for the kernel's symbols.
    pub fn of_guest<U: Unit>(machine: &Machine<U>) -> Result<Witness, NoKernel> {
        let symbols = Symbols::of_guest(machine)?;
        let tasks = Tasks::of_kernel(machine, &symbols).ok();
        let unwinder = Unwinder::of_kernel(machine, &symbols);
        Ok(Witness { symbols, tasks, unwinder })
    }

    /// The thread that runs, or was interrupted.
    pub fn thread<U: Unit>(&self, machine: &Machine<U>) -> Option<Thread> {
        self.tasks.as_ref()?.current(machine)
    }

    /// A thread by the address of its structure, and the letter of what it does.
    pub(super) fn thread_at<U: Unit>(&self, machine: &Machine<U>, task: u64) -> Option<(Thread, char)> {
        self.tasks.as_ref()?.at(machine, task)
    }

    /// Who called whom in the kernel.
    pub fn backtrace<U: Unit>(&self, machine: &Machine<U>) -> Result<Told, Missing> {
        let unwinder = self.unwinder.as_ref().map_err(Missing::clone)?;
        let found = unwinder.walk(machine, machine.unwind_registers());
        let call = |frame: &guest_symbols::orc::Frame| Call {
            address: format!("{:#x}", frame.address),
            function: frame.name(&self.symbols),
        };
        Ok(Told { frames: found.frames.iter().map(call).collect(), end: found.end.to_string() })
    }
}

impl Told {
    /// A line for each function, and one for what is behind them.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let line = |call: &Call| format!("{}  {}", call.address, call.function.as_deref().unwrap_or("?"));
        self.frames.iter().map(line).chain([format!("from {}", self.end)])
    }
}
