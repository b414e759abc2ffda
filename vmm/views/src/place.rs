//! A result of a search: its position, its thread, and a description of the event.

use history::timeline::{Cause, KernelName};
use machine::Processor;
use machine::position::{Count, Instructions};
use schemars::JsonSchema;
use serde::Serialize;

use crate::guest_kernel::{Backtrace, GuestKernels};
use crate::system_calls::SystemCall;

/// A place where an event happens.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Place {
    /// The number of instructions executed before the place.
    pub instruction: u64,
    /// A description of the event.
    pub what: String,
    /// The guest's time at the place.
    pub guest_seconds: f64,
    /// The address of the next instruction in hex. Only in a search for one place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rip: Option<String>,
    /// The thread's number, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The number of the processor on which the event happens, if the machine has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<usize>,
    /// The kernel at this place, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<OfKernel>,
    /// A system call with its arguments, and its result if it returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<SystemCall>,
    /// The value before a watched write, in hex, at most eight bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value after a watched write, in hex, at most eight bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// The kernel's backtrace, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backtrace: Option<Backtrace>,
}

/// One of several kernels that a guest runs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OfKernel {
    /// The kernel's number, from 1 on.
    pub number: usize,
    /// The kernel's release.
    pub release: String,
    /// Number and release as text for people.
    #[serde(skip)]
    text: String,
}

impl std::fmt::Display for OfKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<KernelName> for OfKernel {
    fn from(name: KernelName) -> OfKernel {
        let text = name.to_string();
        let KernelName { number, release } = name;
        OfKernel { number, release, text }
    }
}

impl Place {
    /// Describes an event on one of a machine's processors at the machine's present place. `instruction` is the
    /// position of this place.
    pub(crate) fn of(
        processor: &Processor<'_, Instructions>,
        instruction: Instructions,
        cause: Cause,
        kernels: &GuestKernels,
        with_backtrace: bool,
    ) -> Place {
        let machine = processor.machine();
        let kernel = kernels.at(machine);
        let thread = kernel.and_then(|kernel| kernel.thread(processor));
        Place {
            instruction: instruction.number(),
            what: cause.told(kernel.map(|kernel| &*kernel.symbols)),
            guest_seconds: machine.moment().time_ns as f64 / 1e9,
            rip: None,
            pid: thread.as_ref().map(|thread| thread.id),
            name: thread.map(|thread| thread.name),
            processor: (machine.processors() > 1).then(|| processor.number()),
            kernel: kernels.name_at(machine).map(OfKernel::from),
            call: None,
            old: None,
            new: None,
            backtrace: kernel
                .filter(|_| with_backtrace)
                .and_then(|kernel| kernel.backtrace_on(processor).ok()),
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let rip = self.rip.as_ref().map(|rip| format!("rip {rip}, ")).unwrap_or_default();
        let mut line = format!("insn:{}  {}  {rip}{:.9} s", self.instruction, self.what, self.guest_seconds);
        if let (Some(pid), Some(name)) = (self.pid, &self.name) {
            line += &format!("  {pid} ({name})");
        }
        if let Some(processor) = self.processor {
            line += &format!("  on processor {processor}");
        }
        if let Some(kernel) = &self.kernel {
            line += &format!("  in the {}", kernel.text);
        }
        if let Some(call) = &self.call {
            line += &format!("  {call}");
        }
        if let (Some(old), Some(new)) = (&self.old, &self.new) {
            line += &format!("  {old} -> {new}");
        }
        let calls = self.backtrace.iter().flat_map(Backtrace::lines).map(|call| format!("    {call}"));
        [line].into_iter().chain(calls).collect()
    }
}
