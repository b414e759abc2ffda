//! What a run along the timeline stops at, and the machine's side of finding it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cpu::{AddressKind, SystemCalls, Trap, Traps, WatchHit, WatchKind, Watchpoint};

use crate::machine::{Machine, RunStop};
use crate::position::Instructions;

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// How `address` is meant.
    pub space: AddressKind,
    /// Address of the instruction.
    pub address: u64,
}

impl Breakpoint {
    /// At a linear address, whatever address space is current.
    pub fn at(address: u64) -> Breakpoint {
        Breakpoint { space: AddressKind::Linear, address }
    }
}

/// What must hold where a breakpoint is reached or memory accessed, for it to count: asked while the run goes
/// on, by any thread.
#[derive(Clone)]
pub struct Filter(Arc<Question>);

/// A question about a machine as it stands.
type Question = dyn Fn(&Machine<Instructions>) -> bool + Send + Sync;

impl Filter {
    /// A filter that asks this. It must depend on the machine alone.
    pub fn new(holds: impl Fn(&Machine<Instructions>) -> bool + Send + Sync + 'static) -> Filter {
        Filter(Arc::new(holds))
    }

    /// Asks about a machine as it stands.
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
    /// Which accesses to what.
    pub point: Watchpoint,
    /// Only writes after which the contents are others than before.
    pub changes_only: bool,
}

impl From<Watchpoint> for Watch {
    fn from(point: Watchpoint) -> Watch {
        Watch { point, changes_only: false }
    }
}

/// The root of the current page tables: what tells address spaces apart.
pub fn address_space(machine: &Machine<Instructions>) -> u64 {
    machine.cpu().core().state.cr3 & 0x000f_ffff_ffff_f000
}

/// Everything that a run stops at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Before instructions at these places.
    pub breakpoints: Vec<Breakpoint>,
    /// Where breakpoints count under a condition only, by linear address.
    pub filters: BTreeMap<u64, Filter>,
    /// After accesses to these ranges.
    pub watches: Vec<Watch>,
    /// Where accesses count under a condition only, by the address at which the range begins.
    pub watch_filters: BTreeMap<u64, Filter>,
    /// After these events of the CPU.
    pub traps: Traps,
    /// When this text has appeared on the console.
    pub console: Option<Vec<u8>>,
}

impl Stops {
    /// One system call, or each.
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
        /// The kind that the watchpoint was set with.
        kind: WatchKind,
        /// The accessed address.
        address: u64,
    },
    /// A system call with this number was entered.
    SystemCall(u64),
    /// Control passed through this entry of the interrupt table.
    Vector(u8),
    /// The text appeared on the console.
    Console,
}

/// Something that a run stops at, where it happens: between `before` and `after`, which are the same for what
/// happens before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The place before it: where a run backward stops.
    pub before: Instructions,
    /// The place after it: where a run forward stops.
    pub after: Instructions,
    /// What it is.
    pub cause: Cause,
}

/// Stops that are armed in one machine, with what has to be remembered between two hits.
pub(super) struct Armed<'a> {
    stops: &'a Stops,
    /// The contents of each watch with `changes_only`, when last looked at.
    contents: Vec<Option<Vec<u8>>>,
}

impl<'a> Armed<'a> {
    /// Arms the stops where the machine stands.
    pub fn new(stops: &'a Stops, machine: &mut Machine<Instructions>) -> Armed<'a> {
        let points: Vec<_> = stops.breakpoints.iter().map(|b| (b.space, b.address)).collect();
        machine.set_breakpoints(&points);
        machine.set_watchpoints(&stops.watches.iter().map(|watch| watch.point).collect::<Vec<_>>());
        machine.set_traps(stops.traps.clone());
        machine.stop_on_output(stops.console.is_some());
        let mut armed = Armed { stops, contents: vec![None; stops.watches.len()] };
        armed.look(machine);
        armed
    }

    /// Disarms everything.
    pub fn disarm(machine: &mut Machine<Instructions>) {
        machine.set_breakpoints(&[]);
        machine.set_watchpoints(&[]);
        machine.set_traps(Traps::default());
        machine.stop_on_output(false);
    }

    /// The addresses of its breakpoints, if it stops at nothing but breakpoints at no more than `most` linear
    /// addresses.
    pub fn addresses(&self, most: usize) -> Option<Vec<u64>> {
        let Stops { breakpoints, filters: _, watches, watch_filters: _, traps, console } = self.stops;
        let others = !watches.is_empty() || *traps != Traps::default() || console.is_some();
        let linear = breakpoints.iter().filter(|point| point.space == AddressKind::Linear);
        let mut addresses: Vec<u64> = linear.map(|point| point.address).collect();
        let only_linear = addresses.len() == breakpoints.len();
        addresses.sort_unstable();
        addresses.dedup();
        (!others && only_linear && addresses.len() <= most).then_some(addresses)
    }

    fn look(&mut self, machine: &Machine<Instructions>) {
        for (watch, contents) in self.stops.watches.iter().zip(&mut self.contents) {
            if watch.changes_only {
                *contents = contents_of(&watch.point, machine);
            }
        }
    }

    /// What a stop of the machine means: a hit, or `None` where no stop waits for it.
    pub fn hit(&mut self, stop: &RunStop, machine: &Machine<Instructions>) -> Option<Hit> {
        let here = machine.moment().count;
        let step = |cause| Some(Hit { before: here - 1, after: here, cause });
        match stop {
            RunStop::Breakpoint => self.at_breakpoint(machine, here),
            RunStop::Watchpoint(hit) => self.watched(hit, machine).and_then(step),
            RunStop::Trap(Trap::SystemCall(number)) => step(Cause::SystemCall(*number)),
            RunStop::Trap(Trap::Vector(vector)) => step(Cause::Vector(*vector)),
            RunStop::Output(output) => {
                let wanted = self.stops.console.as_ref()?;
                machine.console().ended_with(wanted, output.len()).then_some(Cause::Console).and_then(step)
            }
            RunStop::Reached | RunStop::Ended(_) => None,
        }
    }

    fn at_breakpoint(&self, machine: &Machine<Instructions>, here: Instructions) -> Option<Hit> {
        let core = machine.cpu().core();
        let linear = core.rip.wrapping_add(core.seg_base[1]);
        let wanted = self.stops.breakpoints.iter().any(|point| {
            let address = match point.space {
                AddressKind::Linear => Some(linear),
                AddressKind::Physical => core.peek_address(linear),
            };
            address == Some(point.address)
        });
        let holds = || self.stops.filters.get(&linear).is_none_or(|filter| filter.holds(machine));
        (wanted && holds()).then_some(Hit { before: here, after: here, cause: Cause::Breakpoint(linear) })
    }

    /// The engine names one watchpoint of those that an access hit; others may want it too.
    fn watched(&mut self, hit: &WatchHit, machine: &Machine<Instructions>) -> Option<Cause> {
        let mut cause = None;
        for (watch, contents) in self.stops.watches.iter().zip(&mut self.contents) {
            if watch.changes_only {
                let now = contents_of(&watch.point, machine);
                let changed = now != *contents;
                *contents = now;
                if !changed {
                    continue;
                }
            } else if watch.point != hit.watchpoint {
                continue;
            }
            let filter = self.stops.watch_filters.get(&watch.point.address);
            if filter.is_none_or(|filter| filter.holds(machine)) {
                let address = if watch.point == hit.watchpoint { hit.address } else { watch.point.address };
                cause.get_or_insert(Cause::Watch { kind: watch.point.kind, address });
            }
        }
        cause
    }
}

/// The bytes of a watched range, as far as they can be read.
fn contents_of(point: &Watchpoint, machine: &Machine<Instructions>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(point.length).ok()?.min(MAX_COMPARED)];
    let length = match point.space {
        AddressKind::Linear => machine.cpu().core().peek(point.address, &mut bytes),
        AddressKind::Physical => machine.read_physical(point.address, &mut bytes),
    };
    bytes.truncate(length);
    Some(bytes)
}

/// Bytes of a watched range that are compared at most.
const MAX_COMPARED: usize = 1 << 20;
