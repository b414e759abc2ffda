//! The events at which a run of a timeline can stop, and how a machine detects them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cpu::{AddressKind, Met, SystemCalls, Trap, Traps, WatchHit, WatchKind, Watchpoint};

use machine::error::Error;
use machine::position::Instructions;
use machine::{Machine, RunStop};

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// Whether `address` is linear or physical, and in which address space.
    pub space: AddressKind,
    /// Address of the instruction.
    pub address: u64,
}

impl Breakpoint {
    /// A breakpoint at a linear address, in any address space.
    pub fn at(address: u64) -> Breakpoint {
        Breakpoint { space: AddressKind::Linear, address }
    }
}

/// A condition on a breakpoint or an access. Any thread may evaluate the condition. If the condition is false, the
/// run does not stop.
#[derive(Clone)]
pub struct Filter(Arc<Question>);

/// A condition on a machine's present state.
type Question = dyn Fn(&Machine<Instructions>) -> bool + Send + Sync;

impl Filter {
    /// Makes a filter with this condition, which may depend only on the machine. If the filter is for an event of a
    /// step, the machine shows the processor that executed the step, even after this processor's turn
    /// ([`Machine::look_as_stepped`]).
    pub fn new(holds: impl Fn(&Machine<Instructions>) -> bool + Send + Sync + 'static) -> Filter {
        Filter(Arc::new(holds))
    }

    /// Whether the condition is true of a machine in its present state.
    pub fn holds(&self, machine: &Machine<Instructions>) -> bool {
        (self.0)(machine)
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Filter")
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Filter {}

/// A watched range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The range, and the kind of access.
    pub point: Watchpoint,
    /// Whether only writes that change watched bytes are hits. The result of a write to a device is unknown, so
    /// each such write is a hit.
    pub changes_only: bool,
    /// An access is a hit only if this comparison is true of the number in the range after the access. A range with
    /// a comparison has at most eight bytes.
    pub comparison: Option<Comparison>,
}

/// A comparison of the number in memory, which is unsigned and in the guest's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The relation between the number and the value.
    pub relation: Relation,
    /// The value to compare with.
    pub value: u64,
}

/// A relation between two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Relation {
    Equal,
    Different,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Comparison {
    /// Whether the relation is true of a number in memory.
    pub fn holds(self, number: u64) -> bool {
        match self.relation {
            Relation::Equal => number == self.value,
            Relation::Different => number != self.value,
            Relation::Less => number < self.value,
            Relation::AtMost => number <= self.value,
            Relation::Greater => number > self.value,
            Relation::AtLeast => number >= self.value,
        }
    }
}

impl Watch {
    /// Whether a hit of this watch's range fulfils the watch's conditions. The machine is right after the access.
    fn waits_for(&self, hit: &WatchHit, machine: &Machine<Instructions>) -> bool {
        let holds = |comparison: Comparison| comparison.holds(self.number_in(machine));
        (hit.changed || !self.changes_only) && self.comparison.is_none_or(holds)
    }

    /// The number in the watched range. Bytes that are not mapped are zero.
    fn number_in(&self, machine: &Machine<Instructions>) -> u64 {
        let mut bytes = [0; 8];
        let to = &mut bytes[..(self.point.length as usize).min(8)];
        match self.point.space {
            AddressKind::Linear => machine.cpu().core().peek(self.point.address, to),
            AddressKind::Physical => machine.read_physical(self.point.address, to),
        };
        u64::from_le_bytes(bytes)
    }
}

impl From<Watchpoint> for Watch {
    fn from(point: Watchpoint) -> Watch {
        Watch { point, changes_only: false, comparison: None }
    }
}

/// The root of the current page tables, which identifies the address space.
pub fn address_space(machine: &Machine<Instructions>) -> u64 {
    machine.cpu().core().state.cr3 & 0x000f_ffff_ffff_f000
}

/// The events at which a run stops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// The run stops before instructions at these places.
    pub breakpoints: Vec<Breakpoint>,
    /// Filters for breakpoints, by linear address.
    pub filters: BTreeMap<u64, Filter>,
    /// The run stops after accesses to these ranges.
    pub watches: Vec<Watch>,
    /// Filters for watches, by the address at which the range begins.
    pub watch_filters: BTreeMap<u64, Filter>,
    /// The run stops after these events of the CPU.
    pub traps: Traps,
    /// A filter for the events in `traps`.
    pub trap_filter: Option<Filter>,
    /// The run stops after this text has appeared on the console. If the text is empty, the run stops after any output.
    pub console: Option<Vec<u8>>,
    /// A filter that must be true at a stop of any kind.
    pub only: Option<Filter>,
}

impl Stops {
    /// Whether a machine's next instruction has a breakpoint whose filter is true.
    pub fn stops_at(&self, machine: &Machine<Instructions>) -> bool {
        !self.breakpoints.is_empty() && self.breakpoint_at(machine).is_some()
    }

    /// The linear address of a machine's next instruction, if the instruction has a breakpoint whose filter is
    /// true.
    fn breakpoint_at(&self, machine: &Machine<Instructions>) -> Option<u64> {
        let core = machine.cpu().core();
        let linear = core.rip.wrapping_add(core.frame.seg_base[1]);
        let wanted = self.breakpoints.iter().any(|point| {
            let address = match point.space {
                AddressKind::Linear => Some(linear),
                AddressKind::Physical => core.peek_address(linear),
            };
            address == Some(point.address)
        });
        let holds = || self.filters.get(&linear).is_none_or(|filter| filter.holds(machine));
        (wanted && holds()).then_some(linear)
    }

    /// Stops at each entry of system call `number`, or at each entry of any system call.
    pub fn system_call(number: Option<u64>) -> Stops {
        let system_calls =
            number.map_or(SystemCalls::All, |number| SystemCalls::Numbered([number].into_iter().collect()));
        Stops { traps: Traps { system_calls, ..Traps::default() }, ..Stops::default() }
    }
}

/// Why a run stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The next instruction, at this linear address, has a breakpoint.
    Breakpoint(u64),
    /// An access to a watched range.
    Watch {
        /// The kind of accesses that the watchpoint detects.
        kind: WatchKind,
        /// The accessed address.
        address: u64,
    },
    /// A system call with this number was entered.
    SystemCall(u64),
    /// An interrupt or exception with this vector was delivered.
    Vector(u8),
    /// A return from a handler or a system call completed.
    Return,
    /// The turn of a processor ended, and another processor's turn begins.
    Turn,
    /// The text appeared on the console. The number is the length, in bytes, of the output that completed the text.
    Console(usize),
}

/// An event at which a run stops. The event happens between `before` and `after`. For a breakpoint, `before` and
/// `after` are equal, because a breakpoint is hit before its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The place before the hit, where a run backward stops.
    pub before: Instructions,
    /// The place after the hit, where a run forward stops.
    pub after: Instructions,
    /// The cause.
    pub cause: Cause,
    /// The number of the processor on which the event happens.
    pub processor: usize,
}

/// Stops that are armed in one machine.
pub(super) struct Armed<'a> {
    stops: &'a Stops,
}

impl<'a> Armed<'a> {
    /// Sets the stops in the machine (arms them).
    pub fn new(stops: &'a Stops, machine: &mut Machine<Instructions>) -> Armed<'a> {
        let points: Vec<_> = stops.breakpoints.iter().map(|b| (b.space, b.address)).collect();
        machine.set_breakpoints(&points);
        machine.set_watchpoints(&stops.watches.iter().map(|watch| watch.point).collect::<Vec<_>>());
        machine.set_traps(stops.traps.clone());
        machine.stop_on_output(stops.console.is_some());
        Armed { stops }
    }

    /// Uses stops that [`Armed::new`] has set in the machine before. The machine's stops must not have changed since
    /// then.
    pub fn again(stops: &'a Stops) -> Armed<'a> {
        Armed { stops }
    }

    /// Removes all stops from the machine.
    pub fn disarm(machine: &mut Machine<Instructions>) {
        machine.set_breakpoints(&[]);
        machine.set_watchpoints(&[]);
        machine.set_traps(Traps::default());
        machine.stop_on_output(false);
    }

    /// The addresses of the breakpoints. `None` if there are other stops, or breakpoints at more than `most` linear
    /// addresses.
    pub fn addresses(&self, most: usize) -> Option<Vec<u64>> {
        let Stops {
            breakpoints,
            filters: _,
            watches,
            watch_filters: _,
            traps,
            trap_filter: _,
            console,
            only,
        } = self.stops;
        let others = only.is_some() || !watches.is_empty() || *traps != Traps::default() || console.is_some();
        let linear = breakpoints.iter().filter(|point| point.space == AddressKind::Linear);
        let mut addresses: Vec<u64> = linear.map(|point| point.address).collect();
        let only_linear = addresses.len() == breakpoints.len();
        addresses.sort_unstable();
        addresses.dedup();
        (!others && only_linear && addresses.len() <= most).then_some(addresses)
    }

    /// The hit that made the machine stop. `None` if none of the stops, with their filters, matches. Filters see
    /// the processor that executed the step.
    pub fn hit(&self, stop: &RunStop, machine: &mut Machine<Instructions>) -> Option<Hit> {
        if matches!(stop, RunStop::Met(Met::Breakpoint)) {
            return self.breakpoint_hit(machine);
        }
        let after = machine.moment().count;
        let cause =
            machine.look_as_stepped(|machine| self.cause(stop, machine).filter(|_| self.counts(machine)));
        let cause = cause.or_else(|| self.turn(stop, machine).filter(|_| self.counts(machine)))?;
        Some(Hit { before: after - 1, after, cause, processor: machine.cpu().stepped_by() })
    }

    /// The hit of a breakpoint at the machine's next instruction, if there is a breakpoint whose filters are true.
    pub fn breakpoint_hit(&self, machine: &Machine<Instructions>) -> Option<Hit> {
        let here = machine.moment().count;
        let linear = self.stops.breakpoint_at(machine).filter(|_| self.counts(machine))?;
        let (cause, processor) = (Cause::Breakpoint(linear), machine.cpu().seat());
        Some(Hit { before: here, after: here, cause, processor })
    }

    fn counts(&self, machine: &Machine<Instructions>) -> bool {
        self.stops.only.as_ref().is_none_or(|only| only.holds(machine))
    }

    fn cause(&self, stop: &RunStop, machine: &Machine<Instructions>) -> Option<Cause> {
        match stop {
            RunStop::Met(Met::Watchpoint(_) | Met::Trap(_)) => self.of_step(machine),
            // A step that printed something may also have caused another hit.
            RunStop::Output(output) => self.printed(output, machine).or_else(|| self.of_step(machine)),
            RunStop::Reached | RunStop::Paused | RunStop::Met(_) | RunStop::Ended(_) => None,
        }
    }

    /// The cause [`Cause::Turn`], if a turn ended here. The filter sees the processor whose turn begins.
    fn turn(&self, stop: &RunStop, machine: &Machine<Instructions>) -> Option<Cause> {
        let is_trapped = matches!(stop, RunStop::Met(_) | RunStop::Output(_)) && self.stops.traps.turns;
        let is_turn = |hit: &cpu::Hit| matches!(hit, cpu::Hit::Trap(Trap::Turn(_)));
        let is_turn = is_trapped && machine.cpu().hits().iter().any(is_turn);
        (is_turn && self.trap_counts(machine)).then_some(Cause::Turn)
    }

    fn trap_counts(&self, machine: &Machine<Instructions>) -> bool {
        self.stops.trap_filter.as_ref().is_none_or(|filter| filter.holds(machine))
    }

    fn printed(&self, output: &[u8], machine: &Machine<Instructions>) -> Option<Cause> {
        let wanted = self.stops.console.as_ref()?;
        let has_it = wanted.is_empty() || machine.console().ended_with(wanted, output.len());
        has_it.then_some(Cause::Console(output.len()))
    }

    /// The cause of the last step's first hit that is among the stops and whose filter is true.
    fn of_step(&self, machine: &Machine<Instructions>) -> Option<Cause> {
        machine.cpu().hits().iter().find_map(|hit| match hit {
            cpu::Hit::Watch(hit) => self.watched(hit, machine),
            cpu::Hit::Trap(trap) => self.trapped(*trap, machine),
        })
    }

    fn trapped(&self, trap: Trap, machine: &Machine<Instructions>) -> Option<Cause> {
        let cause = match trap {
            Trap::SystemCall(number) => Cause::SystemCall(number),
            Trap::Vector(vector) => Cause::Vector(vector),
            Trap::Return => Cause::Return,
            Trap::Turn(_) => return None,
        };
        self.trap_counts(machine).then_some(cause)
    }

    fn watched(&self, hit: &WatchHit, machine: &Machine<Instructions>) -> Option<Cause> {
        let mut watches = self.stops.watches.iter().filter(|watch| watch.point == hit.watchpoint);
        let wanted = watches.any(|watch| watch.waits_for(hit, machine));
        let filter = self.stops.watch_filters.get(&hit.watchpoint.address);
        let holds = || filter.is_none_or(|filter| filter.holds(machine));
        (wanted && holds()).then_some(Cause::Watch { kind: hit.watchpoint.kind, address: hit.address })
    }
}

/// Why a movement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TravelStop {
    /// The movement reached its goal.
    Reached,
    /// The movement reached a stop. After a movement forward, the machine is after the hit; after a movement
    /// backward, it is before the hit.
    Hit(Cause),
    /// The poll function returned true.
    Interrupted,
    /// The movement reached the first instruction of the recording.
    Start,
    /// The movement reached the end of the recording.
    End,
}

impl TravelStop {
    /// Returns an error if the movement was interrupted, for callers that need the whole movement.
    pub fn unless_interrupted(self) -> Result<TravelStop, Error> {
        if self == TravelStop::Interrupted { Err(Error::Interrupted) } else { Ok(self) }
    }
}
