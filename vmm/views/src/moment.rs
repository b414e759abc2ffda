//! The place of an event in a list: position, time, thread and processor.

use std::fmt::{Display, Formatter, Result as Written};

use machine::Processor;
use machine::position::{Count, Instructions};
use schemars::JsonSchema;
use serde::Serialize;

use crate::guest_kernel::GuestKernel;

/// The position of an event, and the thread and the processor on which the event happens.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Moment {
    /// The number of instructions executed before the event.
    pub instruction: u64,
    /// The guest's time at the event.
    pub guest_seconds: f64,
    /// The thread's number, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The number of the processor, if the machine has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
}

impl Moment {
    /// The moment of an event on a processor at its machine's present place. `instruction` is the position to show.
    pub fn of(
        processor: &Processor<'_, Instructions>,
        instruction: Instructions,
        kernel: Option<&GuestKernel>,
    ) -> Moment {
        let machine = processor.machine();
        let thread = kernel.and_then(|kernel| kernel.thread(processor));
        Moment {
            instruction: instruction.number(),
            guest_seconds: machine.moment().time_ns as f64 / 1e9,
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            processor: (machine.processors() > 1).then(|| processor.number()),
        }
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "insn:{}  {:.9} s", self.instruction, self.guest_seconds)?;
        if let (Some(pid), Some(name)) = (self.pid, &self.name) {
            write!(f, "  {pid} ({name})")?;
        }
        self.processor.iter().try_for_each(|processor| write!(f, "  on processor {processor}"))
    }
}
