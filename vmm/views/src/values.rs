//! Lists all values that a variable had in a part of a recording: when each value was written, and by whom.
//!
//! A variable is a symbol or an address, with a length, or with a type of the guest's kernel or of a file. Fields, elements and
//! pointers are followed once, at the end of the part. So all listed writes are to the same memory, even if a
//! pointer changes.

use std::fmt::{Display, Formatter, Result as Written};
use std::ops::Range;
use std::sync::Arc;

use cpu::{AddressKind, WatchKind, Watchpoint};
use guest_symbols::btf::Btf;
use guest_symbols::typed::{Describe, MOST_VALUE_BYTES, TypeBytes, Variable};
use history::timeline::{Filter, Hit, Poll, Stops, Timeline, TravelStop, Watch};
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::{Machine, Processor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::debug_files::DebugFiles;
use crate::filters::Filters;
use crate::functions::symbol_at;
use crate::guest_kernel::{GuestKernel, GuestKernels};
use crate::moment::Moment;
use crate::variable::{self, Names, TypeOrigin};

/// The variable whose values to list.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The variable, in the notation of [`VARIABLES`](variable::VARIABLES).
    pub variable: &'a str,
    /// Files whose variables and types the text may name.
    pub files: &'a DebugFiles,
    /// The filters of the writes.
    pub filters: &'a Filters,
    /// Whether to list also writes that do not change the value.
    pub all_writes: bool,
    /// Whether values are shown as their bytes in hex, in the order of memory.
    pub as_bytes: bool,
    /// The largest number of writes in the list.
    pub limit: usize,
}

/// The values of a variable.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Values {
    /// The variable as the user wrote it.
    pub variable: String,
    /// The variable's address in hex.
    pub address: String,
    /// The variable's type, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The value before the first write of the list. `None` if the variable's memory was not mapped.
    pub first: Option<String>,
    /// The writes, in the order of the run.
    pub writes: Vec<Write>,
    /// Steps executed to find the writes.
    pub replayed: u64,
    /// Whether there may be more writes than the limit.
    pub is_cut: bool,
    /// Whether the poll function ended the search.
    pub interrupted: bool,
    /// The position where an interrupted search can continue. The search has found all writes before this position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_at: Option<u64>,
}

/// A write of the variable.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Write {
    /// The moment just before the writing instruction.
    #[serde(flatten)]
    pub at: Moment,
    /// The function that wrote, with the offset of the instruction after the write. If no function is known, the
    /// address of this instruction.
    pub place: String,
    /// The value after the write.
    pub value: String,
}

/// A variable with its type, ready to be shown.
struct Known<'a> {
    variable: Variable,
    as_bytes: bool,
    types: Option<&'a Btf<'a>>,
}

impl Question<'_> {
    /// Lists the values in this part of the recording. Changes the timeline's position, and the stops that are set
    /// in the timeline.
    pub fn answer(
        &self,
        timeline: &mut Timeline,
        part: Range<Instructions>,
        poll: &mut Poll<'_>,
    ) -> Result<Values, Error> {
        self.filters.check(timeline.machine())?;
        if self.filters.longer_ns.is_some() {
            return Err(Error::Usage("longer: is a filter for system calls only".to_string()));
        }
        let before = timeline.replayed_steps();
        if timeline.seek(part.end, poll)? == TravelStop::Interrupted {
            return Err(Error::Interrupted);
        }
        let kernels = Arc::new(GuestKernels::of(timeline, part.end, poll)?);
        let machine = timeline.machine();
        let kernel = kernels.at(machine);
        let typed = kernel.filter(|_| variable::names_type(self.variable));
        let bytes = typed.and_then(|kernel| TypeBytes::of_guest(machine, &kernel.symbols).ok());
        let types = bytes.as_ref().and_then(|bytes| bytes.kernel().ok());
        let symbols = kernel.map(|kernel| &*kernel.symbols);
        let names = Names { symbols, types: types.as_ref(), files: self.files };
        let found = variable::find(self.variable.trim(), &machine.running_processor(), names);
        let found = found.map_err(Error::Position)?;
        let of_file = match &found.origin {
            TypeOrigin::File(bytes) => bytes.kernel().ok(),
            TypeOrigin::None | TypeOrigin::Kernel => None,
        };
        let types = match &found.origin {
            TypeOrigin::None => None,
            TypeOrigin::Kernel => types.as_ref(),
            TypeOrigin::File(_) => of_file.as_ref(),
        };
        let known = Known { variable: found.variable, as_bytes: self.as_bytes, types };
        let Variable { address, size, .. } = known.variable;
        let size = u32::try_from(size).ok().filter(|&size| size > 0 && u64::from(size) <= MOST_VALUE_BYTES);
        let size = size.ok_or_else(|| {
            Error::Position(format!(
                "'{}' has no bytes, or more than {MOST_VALUE_BYTES}: name a part",
                self.variable
            ))
        })?;

        timeline.seek(part.start, poll)?.unless_interrupted()?;
        let kernel = kernels.at(timeline.machine()).or(kernels.all().last());
        let first = known.shown(&timeline.machine().running_processor(), kernel);
        let point =
            Watchpoint { space: AddressKind::Linear, address, length: size.into(), kind: WatchKind::Write };
        let watch = Watch { point, changes_only: !self.all_writes, comparison: None };
        timeline.set_stops(Stops {
            watches: vec![watch],
            only: self.only(kernels.clone()),
            ..Stops::default()
        });
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            let processor =
                machine.processor_at(hit.processor).unwrap_or_else(|| machine.running_processor());
            self.write(&processor, hit, &known, &kernels)
        };
        let mut writes = Vec::new();
        let mut hand_on = |mut rows: Vec<Write>| {
            writes.append(&mut rows);
            Ok(())
        };
        let rows = self.limit.saturating_add(1);
        let edge = timeline.each_hit(part, rows, &look, &mut hand_on, poll)?.map(Count::number);
        timeline.set_stops(Stops::default());
        let is_cut = writes.len() > self.limit;
        writes.truncate(self.limit);
        Ok(Values {
            variable: self.variable.to_string(),
            address: format!("{address:#x}"),
            kind: known.types.map(|types| types.spelled(known.variable.kind)),
            first,
            writes,
            replayed: timeline.replayed_steps() - before,
            is_cut,
            interrupted: edge.is_some(),
            goes_on_at: edge,
        })
    }

    fn only(&self, kernels: Arc<GuestKernels>) -> Option<Filter> {
        let filters = self.filters.clone();
        if !filters.choose_threads() && !filters.choose_processors() {
            return None;
        }
        Some(Filter::new(move |machine: &Machine<Instructions>| {
            filters.admit_processor(machine.cpu().seat())
                && (!filters.choose_threads() || filters.admit(kernels.thread(machine).as_ref()))
        }))
    }

    fn write(
        &self,
        processor: &Processor<'_, Instructions>,
        hit: Hit,
        known: &Known<'_>,
        kernels: &GuestKernels,
    ) -> Write {
        let machine = processor.machine();
        let kernel = kernels.at(machine);
        let rip = processor.linear_rip();
        let place = kernel.and_then(|kernel| kernel.symbols.place_of(rip));
        Write {
            at: Moment::of(processor, hit.before, kernel),
            place: place.unwrap_or_else(|| format!("{rip:#x}")),
            value: known.shown(processor, kernel).unwrap_or_else(|| "not mapped".to_string()),
        }
    }
}

impl Known<'_> {
    /// The present value as text. `None` if the variable's memory is not mapped.
    fn shown(&self, processor: &Processor<'_, Instructions>, kernel: Option<&GuestKernel>) -> Option<String> {
        let mut bytes = vec![0; self.variable.size.min(MOST_VALUE_BYTES) as usize];
        if processor.peek(self.variable.address, &mut bytes) != bytes.len() {
            return None;
        }
        let symbol = |address| symbol_at(kernel, address);
        let read = |address: u64, to: &mut [u8]| processor.peek(address, to);
        Some(match self.types {
            _ if self.as_bytes => digits(&bytes),
            Some(types) => types.shown(&self.variable, &bytes, &Describe { read: &read, symbol: &symbol }),
            None => in_hex(&bytes),
        })
    }
}

/// At most eight bytes as a number, and more bytes as digits in the order of memory.
fn in_hex(bytes: &[u8]) -> String {
    if bytes.len() <= 8 {
        let number = bytes.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        return format!("{number:#x}");
    }
    digits(bytes)
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Display for Write {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}", self.at)?;
        write!(f, "  {}  {}", self.place, self.value)
    }
}

impl Values {
    /// The variable with its first value, as text.
    pub fn heading(&self) -> String {
        let kind = self.kind.as_ref().map(|kind| format!("{kind} ")).unwrap_or_default();
        let first = self.first.as_deref().unwrap_or("not mapped");
        format!("{kind}{} at {}, at first {first}", self.variable, self.address)
    }
}

/// The text for people.
impl Display for Values {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut lines = vec![self.heading()];
        lines.extend(self.writes.iter().map(Write::to_string));
        if let Some(at) = self.goes_on_at {
            lines.push(format!("interrupted: go on with --from insn:{at}"));
        } else if self.writes.is_empty() {
            lines.push("not written in that part of the recording".to_string());
        } else if self.is_cut {
            lines.push(format!("these are the first {} writes: use --limit for more", self.writes.len()));
        }
        f.write_str(&lines.join("\n"))
    }
}
