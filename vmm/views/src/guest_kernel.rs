//! The guest's kernel at a place of the run: the running thread, and the kernel's backtrace. A guest that uses kexec
//! has several kernels.

use std::sync::Arc;

use guest_symbols::modules::Missing;
use guest_symbols::orc::{self, Frame, Unwinder};
use guest_symbols::tasks::{Tasks, Thread};
use guest_symbols::{GuestView, KernelView, NoKernel, Symbols};
use history::timeline::{KernelName, Kernels, Names, Poll, Stops, Timeline};
use iced_x86::{Code, Decoder, DecoderOptions};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use machine::error::Error;
use machine::position::Instructions;
use machine::unit::Unit;
use machine::{Machine, Processor};

/// A symbol in the kernel's entry code for SYSCALL. The next constant is the function that this code calls.
const ENTRY: &str = "entry_SYSCALL_64_after_hwframe";
const CALLED: &str = "do_syscall_64";
/// Bytes of the entry code that are searched for the call.
const ENTRY_BYTES: usize = 512;

/// A guest's kernel: its symbols, its tasks and its unwind tables.
///
/// A `GuestKernel` was made at one place. The value is valid at all places where the kernel and its modules have the
/// same addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// The names of the kernel's functions and variables.
    pub symbols: Arc<Symbols>,
    /// The address to which `do_syscall_64` returns in the kernel's entry code.
    pub(crate) call_return: Option<u64>,
    tasks: Option<Tasks>,
    unwinder: Result<Unwinder, Missing>,
}

/// The functions that have not returned, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Backtrace {
    /// The functions that have not returned.
    pub frames: Vec<Call>,
    /// Why the backtrace ends after the last function.
    pub end: String,
}

/// A function that has not returned.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Call {
    /// The address at which the function continues.
    #[serde(serialize_with = "in_hex")]
    #[schemars(with = "String")]
    pub address: u64,
    /// The function's name in the kernel's notation.
    pub function: Option<String>,
}

impl GuestKernel {
    /// Finds the guest's current kernel. The search is slow, because it looks through RAM for the kernel's symbols.
    pub fn of_guest<U: Unit>(machine: &Machine<U>) -> Result<GuestKernel, NoKernel> {
        Ok(GuestKernel::with_symbols(machine, Arc::new(Symbols::of_guest(machine)?)))
    }

    /// Makes the guest's current kernel from symbols that the caller has already.
    pub fn with_symbols<U: Unit>(machine: &Machine<U>, symbols: Arc<Symbols>) -> GuestKernel {
        let call_return = call_return(machine, &symbols);
        let tasks = Tasks::of_kernel(machine, &symbols).ok();
        let unwinder = Unwinder::of_kernel(machine, &symbols);
        GuestKernel { symbols, call_return, tasks, unwinder }
    }

    /// The running or interrupted thread, of a machine's running processor or of another processor.
    pub fn thread(&self, guest: &dyn GuestView) -> Option<Thread> {
        self.tasks.as_ref()?.current(guest)
    }

    /// A thread by the address of its structure, and the letter of its state.
    pub(super) fn thread_at(&self, guest: &dyn GuestView, task: u64) -> Option<(Thread, char)> {
        self.tasks.as_ref()?.at(guest, task)
    }

    /// The kernel's backtrace on the running processor.
    pub fn backtrace<U: Unit>(&self, machine: &Machine<U>) -> Result<Backtrace, Missing> {
        self.backtrace_on(&machine.running_processor())
    }

    /// The kernel's backtrace on a processor.
    pub fn backtrace_on<U: Unit>(&self, processor: &Processor<'_, U>) -> Result<Backtrace, Missing> {
        Ok(Backtrace::of_frames(&self.frames_on(processor)?, &self.symbols))
    }

    /// The frames of the kernel's stack on a processor, with addresses instead of names.
    pub fn frames_on<U: Unit>(&self, processor: &Processor<'_, U>) -> Result<orc::Backtrace, Missing> {
        let unwinder = self.unwinder.as_ref().map_err(Missing::clone)?;
        Ok(unwinder.walk(processor, processor.unwind_registers()))
    }
}

/// The kernels that a guest runs one after the other, with the data to describe events in each.
#[derive(Clone, Debug, Default)]
pub struct GuestKernels {
    kernels: Kernels,
    /// One `GuestKernel` for each kernel, in the order of the run.
    guests: Vec<GuestKernel>,
}

impl GuestKernels {
    /// Finds the kernels that run up to a place. The symbols include the modules that are loaded at the timeline's
    /// position. The position does not change.
    pub fn of(
        timeline: &mut Timeline,
        until: Instructions,
        poll: &mut Poll<'_>,
    ) -> Result<GuestKernels, Error> {
        let kernels = timeline.names(until, poll)?;
        let (begun, here) = (timeline.snapshot()?, timeline.position());
        let mut guests = Vec::new();
        for kernel in kernels.all() {
            if timeline.position() != kernel.seen_at {
                timeline.seek(kernel.seen_at, poll)?.unless_interrupted()?;
            }
            guests.push(GuestKernel::with_symbols(timeline.machine(), kernel.symbols.clone()));
        }
        if timeline.position() != here {
            timeline.return_to(&begun)?;
        }
        Ok(GuestKernels { kernels, guests })
    }

    /// All kernels, in the order of the run.
    pub fn all(&self) -> &[GuestKernel] {
        &self.guests
    }

    /// The index of a machine's current kernel.
    pub fn number_at(&self, machine: &Machine<Instructions>) -> Option<usize> {
        self.kernels.at(machine)
    }

    /// A machine's current kernel.
    pub fn at(&self, machine: &Machine<Instructions>) -> Option<&GuestKernel> {
        self.guests.get(self.number_at(machine)?)
    }

    /// The running or interrupted thread.
    pub fn thread(&self, machine: &Machine<Instructions>) -> Option<Thread> {
        self.at(machine)?.thread(machine)
    }

    /// The name of a machine's current kernel, if there are several.
    pub fn name_at(&self, machine: &Machine<Instructions>) -> Option<KernelName> {
        self.kernels.name_at(machine)
    }

    /// Resolves names in each kernel, as [`Kernels::stops`] does.
    pub fn stops<E>(&self, parse: impl Fn(&dyn Names) -> Result<Stops, E>) -> Result<Stops, E> {
        self.kernels.stops(parse)
    }
}

impl Backtrace {
    /// Does the same as [`GuestKernel::backtrace`], for callers that already have the kernel's symbols.
    pub fn of<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Result<Backtrace, Missing> {
        let (unwinder, processor) = (Unwinder::of_kernel(machine, symbols)?, machine.running_processor());
        Ok(Backtrace::of_frames(&unwinder.walk(&processor, processor.unwind_registers()), symbols))
    }

    /// Names the functions of these frames.
    pub fn of_frames(found: &orc::Backtrace, symbols: &Symbols) -> Backtrace {
        let call = |frame: &Frame| Call { address: frame.address, function: frame.name(symbols) };
        Backtrace { frames: found.frames.iter().map(call).collect(), end: found.end.to_string() }
    }

    /// A line for each function, and a line for the end of the stack.
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

/// The address to which `do_syscall_64` returns in the entry code of SYSCALL.
fn call_return<U: Unit>(machine: &Machine<U>, symbols: &Symbols) -> Option<u64> {
    let (entry, called) = (symbols.address_of(ENTRY)?, symbols.address_of(CALLED)?);
    let mut code = [0; ENTRY_BYTES];
    let count = KernelView::all(machine).map(|view| view.read(entry, &mut code)).max()?;
    let decoder = Decoder::with_ip(64, &code[..count], entry, DecoderOptions::NONE);
    let is_call = |code: Code| code == Code::Call_rel32_64;
    let mut calls = decoder.into_iter().filter(|instruction| is_call(instruction.code()));
    calls.find(|call| call.near_branch64() == called).map(|call| call.next_ip())
}

fn in_hex<S: Serializer>(address: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{address:#x}"))
}
