//! A line about each processor of a machine.

use guest_symbols::Symbols;
use guest_symbols::tasks::Tasks;
use machine::error::Error;
use machine::unit::Unit;
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

/// One processor of a machine with several processors.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ProcessorRow {
    /// The processor's number, from 0.
    pub number: usize,
    /// The processor's activity.
    pub activity: Activity,
    /// The number of the running thread, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of the processor's next instruction, in hex.
    pub rip: String,
    /// The kernel symbol at this address, and the offset in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// The activity of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// The processor executes the machine's next instruction.
    Running,
    /// The processor can run, but it is another processor's turn.
    Waiting,
    /// The processor waits for an interrupt.
    Halted,
    /// The guest has not started the processor.
    NotStarted,
}

impl Activity {
    /// A processor's current activity.
    pub fn of<U: Unit>(processor: &Processor<'_, U>) -> Activity {
        match () {
            () if !processor.is_started() => Activity::NotStarted,
            () if processor.is_halted() => Activity::Halted,
            () if processor.has_seat() => Activity::Running,
            () => Activity::Waiting,
        }
    }

    /// The activity in words.
    pub fn words(self) -> &'static str {
        match self {
            Activity::Running => "running",
            Activity::Waiting => "waiting for its turn",
            Activity::Halted => "halted",
            Activity::NotStarted => "not started",
        }
    }
}

impl ProcessorRow {
    /// All processors of a machine, in the order of their numbers.
    pub fn all<U: Unit>(machine: &Machine<U>, symbols: Option<&Symbols>) -> Vec<ProcessorRow> {
        let tasks = symbols.and_then(|symbols| Tasks::of_kernel(machine, symbols).ok());
        let row = |processor: Processor<'_, U>| {
            let activity = Activity::of(&processor);
            let is_started = activity != Activity::NotStarted;
            let thread = tasks.as_ref().filter(|_| is_started).and_then(|tasks| tasks.current(&processor));
            ProcessorRow {
                number: processor.number(),
                activity,
                pid: thread.as_ref().map(|thread| thread.id),
                name: thread.map(|thread| thread.name),
                rip: format!("{:#x}", processor.state().rip),
                place: symbols.filter(|_| is_started).and_then(|symbols| place(&processor, symbols)),
            }
        };
        machine.all_processors().map(row).collect()
    }

    /// Formats the processor as a line of a table.
    pub fn line(&self) -> String {
        let ProcessorRow { number, activity, rip, .. } = self;
        if *activity == Activity::NotStarted {
            return format!("{number:3}  {}", activity.words());
        }
        let thread = match (self.pid, &self.name) {
            (Some(pid), Some(name)) => format!("{pid} ({name})"),
            _ => "-".to_string(),
        };
        let place = self.place.as_ref().map(|place| format!(" <{place}>")).unwrap_or_default();
        format!("{number:3}  {:20}  {thread:23}  {rip}{place}", activity.words())
    }
}

/// A processor by its number. Fails with a sentence if the machine has no such processor.
pub fn find<U: Unit>(machine: &Machine<U>, number: usize) -> Result<Processor<'_, U>, Error> {
    let last = machine.processors() - 1;
    let all = if last == 0 { "only processor 0".to_string() } else { format!("processors 0 to {last}") };
    let none = || Error::Position(format!("there is no processor {number}: this machine has {all}"));
    machine.processor_at(number).ok_or_else(none)
}

/// The kernel symbol at a processor's RIP. User programs have no symbols in this view.
pub(crate) fn place<U: Unit>(processor: &Processor<'_, U>, symbols: &Symbols) -> Option<String> {
    (!processor.is_user()).then(|| symbols.place_of(processor.state().rip))?
}
