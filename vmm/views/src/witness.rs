//! What can be said of the guest at a place of its run: which thread runs, and who called whom.

use guest_symbols::modules::Missing;
use guest_symbols::orc::{Frame, Unwinder};
use guest_symbols::tasks::{Tasks, Thread};
use guest_symbols::{NoKernel, Symbols};
use serde::{Serialize, Serializer};

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
    #[serde(serialize_with = "in_hex")]
    pub address: u64,
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
        Ok(Told::by(unwinder, machine, &self.symbols))
    }
}

impl Told {
    /// As [`Witness::backtrace`], for whoever has the kernel's symbols already.
    pub fn of<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Result<Told, Missing> {
        Ok(Told::by(&Unwinder::of_kernel(machine, symbols)?, machine, symbols))
    }

    fn by<U: Unit>(unwinder: &Unwinder, machine: &Machine<U>, symbols: &Symbols) -> Told {
        let found = unwinder.walk(machine, machine.unwind_registers());
        let call = |frame: &Frame| Call { address: frame.address, function: frame.name(symbols) };
        Told { frames: found.frames.iter().map(call).collect(), end: found.end.to_string() }
    }

    /// A line for each function, and one for what is behind them.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let line = |call: &Call| format!("{:#x}  {}", call.address, call.name());
        self.frames.iter().map(line).chain([format!("from {}", self.end)])
    }
}

impl Call {
    /// The function's name, or a question mark.
    pub fn name(&self) -> &str {
        self.function.as_deref().unwrap_or("?")
    }
}

fn in_hex<S: Serializer>(address: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{address:#x}"))
}
