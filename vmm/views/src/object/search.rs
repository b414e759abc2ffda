//! Finds the allocations and frees of some memory before and after a position.

use std::ops::Range;
use std::sync::Arc;

use cpu::{AddressKind, WatchKind, Watchpoint};
use guest_symbols::page_owners::{Owner, PageOwners};
use history::timeline::{Breakpoint, Cause, Filter, Hit, Poll, Stops, Timeline, TravelStop, Watch};
use machine::error::Error;
use machine::position::{Count, Instructions};
use machine::{Machine, Processor};

use super::allocators::{Allocators, Meaning, RAX};
use super::lives::{Event, LARGE, PAGE_BYTES, name};
use crate::guest_kernel::{Call, GuestKernel, GuestKernels};
use crate::moment::Moment;

/// The numbers of registers.
const RCX: u8 = 1;
const RDX: u8 = 2;
const RSP: u8 = 4;
const RSI: u8 = 6;
const RDI: u8 = 7;
/// The largest number of objects in an array that are read.
const MOST_IN_ARRAY: u64 = 4096;
/// The number of functions that are shown of a stack.
const SHOWN_CALLERS: usize = 5;

/// The memory whose allocations and frees to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// An object.
    Object {
        /// The virtual addresses of the object.
        memory: Range<u64>,
        /// The virtual address of the object's `struct kmem_cache`.
        cache: u64,
        /// The virtual address of the `struct page` of the first page of the object's block.
        pages: u64,
    },
    /// A block of pages with a count of references.
    Pages {
        /// The virtual address of the count.
        references_at: u64,
    },
}

/// An event in the lives of the memory.
pub(super) struct Found {
    pub kind: Kind,
    pub event: Event,
    /// The cache to which the memory belongs at the event.
    pub cache: Option<String>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Allocated,
    Freed,
    /// The pages in which the object lies are allocated, for this or another use.
    PagesAllocated,
}

/// A search from a position of a timeline.
pub(super) struct Search<'a> {
    pub timeline: &'a mut Timeline,
    /// Whether the poll function has ended the search.
    pub interrupted: bool,
    known: Known,
    stops: Stops,
}

/// The data that explains an event at any position.
struct Known {
    kernels: Arc<GuestKernels>,
    owners: PageOwners,
    watched: Watched,
    allocators: Allocators,
}

impl<'a> Search<'a> {
    /// Sets the stops of the timeline, whose position is the beginning of the search.
    pub fn new(
        timeline: &'a mut Timeline,
        kernels: Arc<GuestKernels>,
        owners: PageOwners,
        watched: Watched,
    ) -> Result<Search<'a>, Error> {
        let machine = timeline.machine();
        let (allocators, stops) = match &watched {
            Watched::Object { .. } => {
                let symbols = kernels.at(machine).map(|kernel| kernel.symbols.clone()).unwrap_or_default();
                let allocators = Allocators::of_kernel(&machine.running_processor(), &symbols);
                let has = |wanted: Meaning| allocators.places.values().any(|meaning| *meaning == wanted);
                if !has(Meaning::Returned) {
                    let why = "the guest's kernel has no known function that allocates objects";
                    return Err(Error::Position(why.to_string()));
                }
                let stops = stops_of_object(&allocators, &watched);
                (allocators, stops)
            }
            Watched::Pages { references_at } => (Allocators::default(), stops_of_pages(*references_at)),
        };
        let stops = in_kernel(stops, &kernels, machine);
        timeline.set_stops(stops.clone());
        let known = Known { kernels, owners, watched, allocators };
        Ok(Search { timeline, interrupted: false, known, stops })
    }

    /// Removes the stops from the timeline.
    pub fn end(self) {
        self.timeline.set_stops(Stops::default());
    }

    /// The event at the present position, if there is one.
    pub fn here(&self) -> Option<Found> {
        let machine = self.timeline.machine();
        let is_here = self.stops.stops_at(machine);
        let meaning = self.known.allocators.places.get(&machine.running_processor().linear_rip());
        let is_known = |meaning: &&Meaning| is_here && **meaning != Meaning::BulkAllocated;
        meaning.filter(is_known).map(|meaning| self.found(kind_of(*meaning)))
    }

    /// The last event before the present position. Goes to this event.
    pub fn previous(&mut self, poll: &mut Poll<'_>) -> Result<Option<Found>, Error> {
        loop {
            let stop = self.timeline.run_backward(poll)?;
            let TravelStop::Hit(cause) = stop else { return Ok(self.nothing(stop)) };
            let found = match (cause, self.known.meaning(cause)) {
                (_, Some(Meaning::BulkAllocated)) => self.filled(poll)?,
                (_, Some(meaning)) => Some(self.found(kind_of(meaning))),
                (Cause::Watch { .. }, None) => {
                    Some(self.found(self.known.kind_of_write(self.timeline.machine())))
                }
                (_, None) => None,
            };
            if found.is_some() || self.interrupted {
                return Ok(found);
            }
        }
    }

    /// The first event after the present position. Goes to this event.
    pub fn next(&mut self, poll: &mut Poll<'_>) -> Result<Option<Found>, Error> {
        loop {
            let stop = self.timeline.run_forward(poll)?;
            let TravelStop::Hit(cause) = stop else { return Ok(self.nothing(stop)) };
            let found = match (cause, self.known.meaning(cause)) {
                (_, Some(Meaning::BulkAllocated)) => self.filled(poll)?,
                (_, Some(meaning)) => Some(self.found(kind_of(meaning))),
                (Cause::Watch { .. }, None) => {
                    // A run forward stops after the write, but the event is before the write.
                    let behind = self.timeline.snapshot()?;
                    self.timeline.seek(self.timeline.position().saturating_back(1), &mut || false)?;
                    let found = self.found(self.known.kind_of_write(self.timeline.machine()));
                    self.timeline.return_to(&behind)?;
                    Some(found)
                }
                (_, None) => None,
            };
            if found.is_some() || self.interrupted {
                return Ok(found);
            }
        }
    }

    /// The names of all lives that begin before a position, in the order of the run.
    pub fn names_until(&mut self, end: Instructions, poll: &mut Poll<'_>) -> Result<Vec<String>, Error> {
        let look = |machine: &Machine<Instructions>, hit: Hit| {
            let meaning = self.known.meaning(hit.cause);
            let is_write = matches!(hit.cause, Cause::Watch { .. }) && self.known.references(machine) != 0;
            let is_allocation = is_write || meaning.map(kind_of) == Some(Kind::Allocated);
            let is_bulk = meaning == Some(Meaning::BulkAllocated);
            is_allocation.then(|| (hit.before, is_bulk, self.known.cache(machine)))
        };
        let seen = self.timeline.hits_seen(Instructions(0), end, usize::MAX, &look, poll)?;
        self.interrupted |= seen.interrupted_at.is_some();
        let mut names = Vec::new();
        for (at, is_bulk, cache) in seen.found.into_iter().flatten() {
            if !is_bulk {
                names.push(name(cache.as_deref(), at.number()));
                continue;
            }
            self.timeline.seek(at, poll)?.unless_interrupted()?;
            if let Some(found) = self.filled(poll)? {
                names.push(name(found.cache.as_deref(), found.event.at.instruction));
            }
        }
        Ok(names)
    }

    /// The event at the present position.
    fn found(&self, kind: Kind) -> Found {
        self.known.found(kind, self.timeline.machine())
    }

    fn nothing(&mut self, stop: TravelStop) -> Option<Found> {
        self.interrupted |= stop == TravelStop::Interrupted;
        None
    }

    /// Whether the function that begins here fills its array with the object. Runs to the function's end, and returns
    /// to the present position.
    fn filled(&mut self, poll: &mut Poll<'_>) -> Result<Option<Found>, Error> {
        let begun = self.timeline.snapshot()?;
        let machine = self.timeline.machine();
        let (count, array) = (register(machine, RDX), register(machine, RCX));
        let (stack, end) = (register(machine, RSP), return_address(machine));
        let function = self.found(Kind::Allocated).event.function;
        let is_end = Filter::new(move |machine| register(machine, RSP) == stack.wrapping_add(8));
        let filters = [(end, is_end)].into();
        let stops = Stops { breakpoints: vec![Breakpoint::at(end)], filters, ..Stops::default() };
        self.timeline.set_stops(stops);
        let stop = self.timeline.run_forward(poll);
        self.timeline.set_stops(self.stops.clone());
        let stop = stop?;
        self.interrupted |= stop == TravelStop::Interrupted;
        let is_filled = matches!(stop, TravelStop::Hit(_))
            && array_has(self.timeline.machine(), (array, count), self.known.memory());
        let found = is_filled.then(|| {
            let mut found = self.found(Kind::Allocated);
            let machine = self.timeline.machine();
            found.event.function = function;
            found.event.callers = callers(&machine.running_processor(), self.known.kernels.at(machine));
            found.event.callers.truncate(SHOWN_CALLERS);
            found
        });
        self.timeline.return_to(&begun)?;
        Ok(found)
    }
}

impl Known {
    fn meaning(&self, cause: Cause) -> Option<Meaning> {
        match cause {
            Cause::Breakpoint(at) => self.allocators.places.get(&at).copied(),
            _ => None,
        }
    }

    /// The event at a machine's present position.
    fn found(&self, kind: Kind, machine: &Machine<Instructions>) -> Found {
        let processor = machine.running_processor();
        let kernel = self.kernels.at(machine);
        let place = kernel.and_then(|kernel| kernel.symbols.name_of(processor.linear_rip()));
        let function =
            place.map_or_else(|| format!("{:#x}", processor.linear_rip()), |(name, _)| name.to_string());
        let mut callers = callers(&processor, kernel);
        if !callers.is_empty() {
            callers.remove(0);
        }
        callers.truncate(SHOWN_CALLERS);
        let at = Moment::of(&processor, machine.moment().count, kernel);
        Found { kind, event: Event { at, function, callers }, cache: self.cache(machine) }
    }

    /// The kind of the write of the count of references that the next instruction makes.
    fn kind_of_write(&self, machine: &Machine<Instructions>) -> Kind {
        if self.references(machine) == 0 { Kind::Allocated } else { Kind::Freed }
    }

    /// The number of references to the watched pages.
    fn references(&self, machine: &Machine<Instructions>) -> u32 {
        let Watched::Pages { references_at } = self.watched else { return 0 };
        references(machine, references_at)
    }

    /// The cache to which the memory belongs now.
    fn cache(&self, machine: &Machine<Instructions>) -> Option<String> {
        let Watched::Object { memory, pages, .. } = &self.watched else { return None };
        let physical = memory.start.wrapping_sub(self.owners.direct_address(0));
        match self.owners.owner(machine, physical)? {
            Owner::Slab(slab) => Some(slab.cache),
            _ => {
                let block = self.owners.block(machine, physical)?;
                let is_large = block.structure == *pages && memory.end - memory.start >= PAGE_BYTES;
                is_large.then(|| LARGE.to_string())
            }
        }
    }

    fn memory(&self) -> &Range<u64> {
        match &self.watched {
            Watched::Object { memory, .. } => memory,
            Watched::Pages { .. } => &(0..0),
        }
    }
}

fn kind_of(meaning: Meaning) -> Kind {
    match meaning {
        Meaning::Returned | Meaning::BulkAllocated => Kind::Allocated,
        Meaning::Freed(_) | Meaning::BulkFreed => Kind::Freed,
        Meaning::Pages => Kind::PagesAllocated,
    }
}

/// The functions on the kernel's stack, the innermost first. If the kernel has no unwind tables, the list is empty.
fn callers(processor: &Processor<'_, Instructions>, kernel: Option<&GuestKernel>) -> Vec<String> {
    let trace = kernel.and_then(|kernel| kernel.backtrace_on(processor).ok());
    trace.iter().flat_map(|trace| &trace.frames).map(Call::name).map(str::to_string).collect()
}

/// Stops at the instructions of the allocator that concern an object.
fn stops_of_object(allocators: &Allocators, watched: &Watched) -> Stops {
    let Watched::Object { memory, cache, pages } = watched.clone() else { return Stops::default() };
    let code: Arc<[Range<u64>]> = allocators.code.clone().into();
    let mut stops = Stops::default();
    for (&at, &meaning) in &allocators.places {
        let (memory, code) = (memory.clone(), code.clone());
        let concerns = move |machine: &Machine<Instructions>| match meaning {
            Meaning::Returned => {
                let is_inner = || {
                    let caller = return_address(machine);
                    code.iter().any(|function| function.contains(&caller))
                };
                memory.contains(&register(machine, RAX)) && !is_inner()
            }
            Meaning::Freed(number) => memory.contains(&register(machine, number)),
            Meaning::BulkAllocated => register(machine, RDI) == cache,
            Meaning::BulkFreed => {
                array_has(machine, (register(machine, RDX), register(machine, RSI)), &memory)
            }
            Meaning::Pages => register(machine, RAX) == pages,
        };
        stops.breakpoints.push(Breakpoint::at(at));
        stops.filters.insert(at, Filter::new(concerns));
    }
    stops
}

/// Stops where the count of references becomes 0, or is no longer 0.
fn stops_of_pages(references_at: u64) -> Stops {
    let point =
        Watchpoint { space: AddressKind::Linear, address: references_at, length: 4, kind: WatchKind::Write };
    let is_edge = move |machine: &Machine<Instructions>| {
        let new = references(machine, references_at);
        let is_edge = |old: u64| (old == 0) != (new == 0);
        machine.cpu().hits().iter().any(|hit| match hit {
            cpu::Hit::Watch(hit) => hit.watchpoint.address == references_at && hit.old.is_none_or(is_edge),
            cpu::Hit::Trap(_) => false,
        })
    };
    let watch = Watch { point, changes_only: true, comparison: None };
    Stops {
        watches: vec![watch],
        watch_filters: [(references_at, Filter::new(is_edge))].into(),
        ..Stops::default()
    }
}

/// Ignores the stops while another kernel of the guest runs.
fn in_kernel(stops: Stops, kernels: &Arc<GuestKernels>, machine: &Machine<Instructions>) -> Stops {
    if kernels.all().len() < 2 {
        return stops;
    }
    let (number, kernels) = (kernels.number_at(machine), kernels.clone());
    Stops { only: Some(Filter::new(move |machine| kernels.number_at(machine) == number)), ..stops }
}

/// The number in a count of references. 0 if the count is not mapped.
fn references(machine: &Machine<Instructions>, at: u64) -> u32 {
    let mut bytes = [0; 4];
    machine.cpu().core().peek(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn register(machine: &Machine<Instructions>, number: u8) -> u64 {
    machine.cpu().core().reg64(number)
}

/// The address at the top of the stack.
fn return_address(machine: &Machine<Instructions>) -> u64 {
    let mut bytes = [0; 8];
    machine.cpu().core().peek(register(machine, RSP), &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Whether an array of pointers has a pointer to this memory.
fn array_has(machine: &Machine<Instructions>, (array, count): (u64, u64), memory: &Range<u64>) -> bool {
    let mut bytes = vec![0; 8 * count.min(MOST_IN_ARRAY) as usize];
    let read = machine.cpu().core().peek(array, &mut bytes);
    let pointers = bytes[..read].chunks_exact(8);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    pointers.map(number).any(|pointer: u64| memory.contains(&pointer))
}
