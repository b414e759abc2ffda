//! Lists the calls of a function: who called it, with which arguments, and what it returned.
//!
//! A call begins at the function's first instruction. The call ends when its thread reaches the return address, and
//! the stack pointer is above the word that held this address. This also holds for functions that jump to another
//! function at their end.
//!
//! One replay sees most returns. Before the replay, the call instructions that name the function are searched in
//! the kernel's code. The replay watches the return addresses, which are the addresses after these instructions.
//! Calls through pointers have other return addresses. If no return of such calls was seen, a second replay watches
//! their return addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter, Result as Written};
use std::ops::Range;
use std::sync::Arc;

use guest_symbols::btf::Btf;
use guest_symbols::typed::{Describe, TypeBytes};
use guest_symbols::{Access, Symbol, Symbols, page_table_root};
use history::timeline::{Breakpoint, Cause, Filter, Hit, Poll, Stops, Timeline, TravelStop};
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::filters::Filters;
pub use crate::functions::Argument;
use crate::functions::Functions;
use crate::functions::symbol_at;
use crate::guest_kernel::{GuestKernel, GuestKernels};
use crate::moment::Moment;
use crate::place::OfKernel;

/// The largest number of functions that a pattern may name.
const MOST_FUNCTIONS: usize = 2_000;
/// The bytes of a CALL with a distance of 32 bits: its first byte, and its length.
const CALL: (u8, u64) = (0xe8, 5);
/// The bytes of code that are read at once.
const CODE_BYTES: usize = 1 << 20;

/// The calls of a function to list.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The function: a name of the guest's kernel, a pattern with `*`, or an address.
    pub function: &'a str,
    /// The filters of the calls.
    pub filters: &'a Filters,
    /// The largest number of calls in the list.
    pub limit: usize,
}

/// The calls in a part of a recording.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Calls {
    /// The calls, in the order in which they begin.
    pub calls: Vec<Call>,
    /// Steps executed to find the calls.
    pub replayed: u64,
    /// Whether there may be more calls than the limit.
    pub is_cut: bool,
    /// Whether the poll function ended the search.
    pub interrupted: bool,
    /// The position where an interrupted search can continue. The search has found all calls before this position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_at: Option<u64>,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Call {
    /// The moment just before the function's first instruction.
    #[serde(flatten)]
    pub at: Moment,
    /// The kernel that executes the function, if the guest has several kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<OfKernel>,
    /// The function's name, or its address in hex.
    pub function: String,
    /// The arguments.
    pub arguments: Vec<Argument>,
    /// The place to which the function returns, as function and offset, or as an address.
    pub caller: String,
    /// The end of the call. `None` if the function does not return in the searched part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<Returned>,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Returned {
    /// The number of instructions executed before the instruction to which the function returned.
    pub instruction: u64,
    /// The result as text; `None` if the function has no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The guest's time between the call's beginning and its end.
    pub seconds: f64,
    /// Number of instructions that the machine executed in between, in all threads.
    pub instructions: u64,
}

/// A thread's stack: its address space and the stack pointer. The address space distinguishes the stacks of programs.
type Stack = (u64, u64);

/// An event of a call.
enum Met {
    Begins { call: Box<Call>, open: Open },
    Ends { stack: Stack, end: End },
}

/// A call that has not ended.
#[derive(Clone, Copy)]
struct Open {
    stack: Stack,
    return_address: u64,
    /// The address of the function.
    function: u64,
    time_ns: u64,
}

/// The place where a call may end.
#[derive(Clone, Copy)]
struct End {
    instruction: u64,
    return_address: u64,
    time_ns: u64,
    /// The value of RAX when the function has returned.
    result: u64,
}

/// The types of one kernel as bytes. Empty if the kernel has none.
type Bytes = Option<TypeBytes>;

impl Question<'_> {
    /// Lists the calls that begin in this part of the recording. Changes the timeline's position, and the stops
    /// that are set in the timeline.
    pub fn answer(
        &self,
        timeline: &mut Timeline,
        part: Range<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<Calls, Error> {
        self.filters.check(timeline.machine())?;
        if self.filters.longer_ns.is_some() {
            return Err(Error::Usage("longer: is a filter for system calls only".to_string()));
        }
        let before = timeline.replayed_steps();
        if timeline.seek(part.end, poll)? == TravelStop::Interrupted {
            return Ok(Calls::interrupted_before(part.start));
        }
        let kernels = match GuestKernels::of(timeline, part.end, poll) {
            Err(Error::Interrupted) => return Ok(Calls::interrupted_before(part.start)),
            found => Arc::new(found?),
        };
        let bytes: Vec<Bytes> = kernels
            .all()
            .iter()
            .map(|kernel| TypeBytes::of_guest(timeline.machine(), &kernel.symbols).ok())
            .collect();
        let first: Vec<Option<Btf<'_>>> =
            bytes.iter().map(|bytes| bytes.as_ref().and_then(|bytes| bytes.kernel().ok())).collect();
        let mut known = Vec::new();
        for ((kernel, bytes), types) in kernels.all().iter().zip(&bytes).zip(&first) {
            let mut all: Vec<Btf<'_>> = Vec::new();
            if let (Some(bytes), Some(types)) = (bytes, types) {
                all.extend(bytes.kernel());
                all.extend(bytes.modules(types));
            }
            known.push(self.functions(&kernel.symbols, all)?);
        }
        if known.is_empty() {
            known.push(self.functions(&Symbols::default(), Vec::new())?);
        }
        if known.iter().all(|functions| functions.addresses().next().is_none()) {
            return Err(Error::Position(self.unknown()));
        }
        let entries: BTreeSet<u64> = known.iter().flat_map(Functions::addresses).collect();
        let returns = return_addresses(timeline.machine(), &kernels, &entries);
        let asked = Asked { question: self, kernels, known, entries };
        let mut found = asked.calls(timeline, part, returns, poll)?;
        found.replayed = timeline.replayed_steps() - before;
        Ok(found)
    }

    /// The functions of a kernel that `self.function` names, by address.
    fn functions<'a>(&self, symbols: &Symbols, types: Vec<Btf<'a>>) -> Result<Functions<'a>, Error> {
        let named = |found: Vec<&Symbol>| Functions::of(found, types);
        if let Some(address) = history::timeline::number(self.function) {
            let at = symbols.at(address).filter(|(symbol, offset)| *offset == 0 && symbol.is_code());
            return Ok(match at {
                Some((symbol, _)) => named(vec![symbol]),
                None => Functions::without_name(address),
            });
        }
        if !self.function.contains('*') {
            return Ok(named(symbols.all_named(self.function).filter(|symbol| symbol.is_code()).collect()));
        }
        let wanted = |symbol: &&Symbol| symbol.is_code() && matches(self.function, &symbol.name);
        let found: Vec<&Symbol> = symbols.all().iter().filter(wanted).collect();
        if found.len() > MOST_FUNCTIONS {
            let why = format!(
                "{} functions match '{}', and {MOST_FUNCTIONS} can be watched at once: write a longer pattern",
                found.len(),
                self.function
            );
            return Err(Error::Position(why));
        }
        Ok(named(found))
    }

    fn unknown(&self) -> String {
        format!(
            "'{}' is no function of the guest's kernel: write a name, a pattern such as vfs_*, or an address",
            self.function
        )
    }
}

/// Whether a name has the form of a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The return addresses of all call instructions in the kernels' code that call one of these functions.
fn return_addresses(
    machine: &Machine<Instructions>,
    kernels: &GuestKernels,
    entries: &BTreeSet<u64>,
) -> BTreeSet<u64> {
    let (opcode, length) = CALL;
    let mut found = BTreeSet::new();
    let processor = machine.running_processor();
    for kernel in kernels.all() {
        for section in kernel.symbols.sections().iter().filter(|section| section.access == Access::Code) {
            let mut at = section.start;
            while at < section.end() {
                // The parts overlap, so that a call across the end of a part is found.
                let mut code = vec![0; CODE_BYTES.min((section.end() - at) as usize) + length as usize];
                let count = processor.peek(at, &mut code);
                let calls =
                    code[..count].windows(length as usize).enumerate().filter(|(_, it)| it[0] == opcode);
                for (offset, bytes) in calls {
                    let behind = (at + offset as u64).wrapping_add(length);
                    let distance = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                    if entries.contains(&behind.wrapping_add_signed(distance.into())) {
                        found.insert(behind);
                    }
                }
                at += CODE_BYTES as u64;
            }
        }
    }
    found
}

/// A question about calls, with the data that describes the calls.
struct Asked<'a> {
    question: &'a Question<'a>,
    kernels: Arc<GuestKernels>,
    /// For each kernel its functions; one element if there is no kernel.
    known: Vec<Functions<'a>>,
    entries: BTreeSet<u64>,
}

impl Asked<'_> {
    fn calls(
        &self,
        timeline: &mut Timeline,
        part: Range<Instructions>,
        returns: BTreeSet<u64>,
        poll: &mut Poll<'_>,
    ) -> Result<Calls, Error> {
        let limit = self.question.limit;
        let result = |function, value| self.result(function, value);
        let mut joined = Joined::new(limit, &result);
        // Each call has at most one beginning and one end.
        let rows = limit.saturating_mul(2).saturating_add(1);
        let edge = self.rows(timeline, (part.clone(), rows), (&self.entries, &returns), &mut joined, poll)?;
        let to = edge.unwrap_or(part.end);
        let open: Vec<(u64, u64)> = joined
            .still_open()
            .map(|&(index, open)| (joined.calls[index].at.instruction, open.return_address))
            .filter(|(_, at)| !returns.contains(at))
            .collect();
        let mut interrupted = edge.is_some();
        if let (false, Some(from)) = (interrupted, open.iter().map(|&(from, _)| from).min()) {
            let (entries, missing) = (BTreeSet::new(), open.into_iter().map(|(_, at)| at).collect());
            let part = (Instructions(from)..to, usize::MAX);
            interrupted = self.rows(timeline, part, (&entries, &missing), &mut joined, poll)?.is_some();
        }
        let (calls, is_cut) = (joined.calls, joined.is_full);
        Ok(Calls { calls, replayed: 0, is_cut, interrupted, goes_on_at: interrupted.then_some(to.number()) })
    }

    /// Joins the events at these addresses, entries and returns, in a part of the recording. Returns the place where the
    /// search was interrupted, if it was.
    fn rows(
        &self,
        timeline: &mut Timeline,
        (part, rows): (Range<Instructions>, usize),
        (entries, returns): (&BTreeSet<u64>, &BTreeSet<u64>),
        joined: &mut Joined<'_>,
        poll: &mut Poll<'_>,
    ) -> Result<Option<Instructions>, Error> {
        let breakpoints = entries.union(returns).map(|&at| Breakpoint::at(at)).collect();
        let only = Some(self.only(entries.clone()));
        timeline.set_stops(Stops { breakpoints, only, ..Stops::default() });
        let look = |machine: &Machine<Instructions>, hit: Hit| self.met(machine, hit, entries, returns);
        let mut hand_on = |rows: Vec<Vec<Met>>| {
            rows.into_iter().flatten().for_each(|row| joined.take(row));
            Ok(())
        };
        let edge = timeline.each_hit(part, rows, &look, &mut hand_on, poll);
        timeline.set_stops(Stops::default());
        edge
    }

    /// The filter for threads and processors. A call may return on another processor.
    fn only(&self, entries: BTreeSet<u64>) -> Filter {
        let (filters, kernels) = (self.question.filters.clone(), self.kernels.clone());
        Filter::new(move |machine: &Machine<Instructions>| {
            let begins = entries.contains(&machine.cpu().rip());
            (!begins || filters.admit_processor(machine.cpu().seat()))
                && (!filters.choose_threads() || filters.admit(kernels.thread(machine).as_ref()))
        })
    }

    /// The events at a breakpoint: the end of a call, the beginning of a call, or both.
    fn met(
        &self,
        machine: &Machine<Instructions>,
        hit: Hit,
        entries: &BTreeSet<u64>,
        returns: &BTreeSet<u64>,
    ) -> Vec<Met> {
        let Cause::Breakpoint(at) = hit.cause else { return Vec::new() };
        let processor = machine.processor_at(hit.processor).unwrap_or_else(|| machine.running_processor());
        let end = || Met::Ends {
            stack: stack_of(&processor, processor.state().gpr[4].wrapping_sub(8)),
            end: End {
                instruction: hit.before.number(),
                return_address: at,
                time_ns: machine.moment().time_ns,
                result: processor.state().gpr[0],
            },
        };
        let ends = returns.contains(&at).then(end);
        let begins = entries.contains(&at).then(|| self.begins(&processor, hit.before, at)).flatten();
        ends.into_iter().chain(begins).collect()
    }

    fn kernel(&self, machine: &Machine<Instructions>) -> (Option<&GuestKernel>, &Functions<'_>) {
        let number = self.kernels.number_at(machine);
        let known = number.and_then(|number| self.known.get(number)).unwrap_or(&self.known[0]);
        (self.kernels.at(machine), known)
    }

    fn begins(&self, processor: &Processor<'_, Instructions>, at: Instructions, address: u64) -> Option<Met> {
        let machine = processor.machine();
        let (kernel, known) = self.kernel(machine);
        let name = known.name(address)?;
        let rsp = processor.state().gpr[4];
        let mut bytes = [0; 8];
        let return_address =
            (processor.peek(rsp, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes));
        let time_ns = machine.moment().time_ns;
        let symbol = |address| symbol_at(kernel, address);
        let read = |address: u64, to: &mut [u8]| processor.peek(address, to);
        let describe = Describe { read: &read, symbol: &symbol };
        let call = Call {
            at: Moment::of(processor, at, kernel),
            kernel: self.kernels.name_at(machine).map(OfKernel::from),
            function: name.to_string(),
            arguments: known.arguments(address, &processor.state().gpr, &describe),
            caller: return_address.map_or_else(
                || "?".to_string(),
                |address| symbol(address).unwrap_or_else(|| format!("{address:#x}")),
            ),
            returned: None,
        };
        let stack = stack_of(processor, rsp);
        let open = Open { stack, return_address: return_address.unwrap_or(0), function: address, time_ns };
        Some(Met::Begins { call: Box::new(call), open })
    }

    /// The result of a function as text. `None` if the function has no result.
    fn result(&self, function: u64, value: u64) -> Option<String> {
        let known = self.known.iter().find(|functions| functions.name(function).is_some())?;
        known.result(function, value, &|address| symbol_at(self.kernels.all().first(), address))
    }
}

/// The address space and the stack pointer. The kernel's stacks are the same in all address spaces.
fn stack_of(processor: &Processor<'_, Instructions>, rsp: u64) -> Stack {
    let is_kernel = rsp >> 63 != 0;
    (if is_kernel { 0 } else { page_table_root(processor.state().cr3) }, rsp)
}

/// Joins the beginnings and the ends of calls.
struct Joined<'a> {
    limit: usize,
    /// A function that describes the result of the guest's function at an address as text.
    result: &'a dyn Fn(u64, u64) -> Option<String>,
    calls: Vec<Call>,
    /// The calls that have not ended, by their stack, with their index in `calls`.
    open: BTreeMap<Stack, Vec<(usize, Open)>>,
    is_full: bool,
}

impl<'a> Joined<'a> {
    fn new(limit: usize, result: &'a dyn Fn(u64, u64) -> Option<String>) -> Joined<'a> {
        Joined { limit, result, calls: Vec::new(), open: BTreeMap::new(), is_full: false }
    }

    fn take(&mut self, row: Met) {
        match row {
            Met::Begins { call, open } => {
                if self.calls.len() == self.limit {
                    self.is_full = true;
                    return;
                }
                self.open.entry(open.stack).or_default().push((self.calls.len(), open));
                self.calls.push(*call);
            }
            Met::Ends { stack, end } => self.end(stack, end),
        }
    }

    /// Ends the newest call on this stack that returns to this address. A call that began later on the same stack has
    /// ended without a return that was seen.
    fn end(&mut self, stack: Stack, end: End) {
        let Some(open) = self.open.get_mut(&stack) else { return };
        let is_it = |(index, open): &(usize, Open)| {
            open.return_address == end.return_address && self.calls[*index].at.instruction < end.instruction
        };
        let Some(at) = open.iter().rposition(is_it) else { return };
        let (index, begun) = open.remove(at);
        let call = &mut self.calls[index];
        call.returned = Some(Returned {
            instruction: end.instruction,
            value: (self.result)(begun.function, end.result),
            seconds: end.time_ns.saturating_sub(begun.time_ns) as f64 / 1e9,
            instructions: end.instruction - call.at.instruction,
        });
    }

    fn still_open(&self) -> impl Iterator<Item = &(usize, Open)> {
        self.open.values().flatten()
    }
}

impl Calls {
    fn interrupted_before(from: Instructions) -> Calls {
        let goes_on_at = Some(from.number());
        Calls { calls: Vec::new(), replayed: 0, is_cut: false, interrupted: true, goes_on_at }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}", self.at)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "  in the {kernel}")?;
        }
        let arguments: Vec<String> = self.arguments.iter().map(Argument::to_string).collect();
        write!(f, "  {}({})", self.function, arguments.join(", "))?;
        if let Some(Returned { value, seconds, instructions, .. }) = &self.returned {
            value.iter().try_for_each(|value| write!(f, " = {value}"))?;
            write!(f, "  in {instructions} instructions, {seconds:.9} s")?;
        } else {
            f.write_str("  does not return here")?;
        }
        write!(f, "  from {}", self.caller)
    }
}

/// The text for people.
impl Display for Calls {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut lines: Vec<String> = self.calls.iter().map(Call::to_string).collect();
        if let Some(at) = self.goes_on_at {
            lines.push(format!("interrupted: go on with --from insn:{at}"));
        } else if lines.is_empty() {
            lines.push("no call in that part of the recording".to_string());
        } else if self.is_cut {
            lines.push(format!("these are the first {} calls: use --limit for more", lines.len()));
        }
        f.write_str(&lines.join("\n"))
    }
}
