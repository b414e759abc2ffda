//! Matches system calls to their returns. A call returns in the thread that made it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cpu::SystemCalls;
use history::timeline::{Breakpoint, Filter, Stops};
use machine::Machine;
use machine::position::Instructions;

use crate::guest_kernel::{GuestKernel, GuestKernels};
use crate::place::Place;
use crate::trace::{RESULT_OFFSET, stack_word};

/// The offset of the system call's number in `struct pt_regs` (`orig_ax`).
const NUMBER_OFFSET: u64 = 120;

/// The return of a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    /// The thread's number.
    pub thread: u32,
    pub result: u64,
    pub time_ns: u64,
}

/// An event that a search for system calls met.
pub(crate) enum Met {
    Place(Box<Place>, u64),
    Return(Return),
    /// An event that the search does not show.
    Nothing,
}

impl Return {
    /// Adds breakpoints at which the kernels return from `do_syscall_64`. A filter at each breakpoint lets only returns
    /// pass that the search waits for.
    pub fn join(kernels: &Arc<GuestKernels>, stops: &mut Stops) {
        let wanted = stops.traps.system_calls.clone();
        let places: BTreeSet<u64> = kernels.all().iter().filter_map(|kernel| kernel.call_return).collect();
        for at in places {
            stops.breakpoints.push(Breakpoint::at(at));
            let (wanted, kernels) = (wanted.clone(), kernels.clone());
            let is_wanted = move |machine: &Machine<Instructions>| {
                let number = || stack_word(machine, NUMBER_OFFSET);
                kernels.at(machine).is_some_and(|kernel| kernel.call_return == Some(at))
                    && (wanted == SystemCalls::All || number().is_some_and(|number| wanted.contains(number)))
            };
            stops.filters.insert(at, Filter::new(is_wanted));
        }
    }

    /// The return at a machine's position.
    pub fn seen(machine: &Machine<Instructions>, kernel: &GuestKernel) -> Option<Return> {
        Some(Return {
            thread: kernel.thread(machine)?.id,
            result: stack_word(machine, RESULT_OFFSET)?,
            time_ns: machine.moment().time_ns,
        })
    }
}

/// System calls in the order of their entry. Returns are added to the calls.
pub(crate) struct Joined {
    longer_ns: Option<u64>,
    limit: usize,
    found: BTreeMap<u64, Place>,
    /// For each thread with a call in progress: the key of the call in `found`, and the time of its entry.
    open: BTreeMap<u32, (u64, u64)>,
    entered: u64,
    last_ns: u64,
}

impl Joined {
    pub fn new(longer_ns: Option<u64>, limit: usize) -> Joined {
        let (found, open) = (BTreeMap::new(), BTreeMap::new());
        Joined { longer_ns, limit, found, open, entered: 0, last_ns: 0 }
    }

    pub fn take(&mut self, met: Met) {
        match met {
            Met::Nothing => {}
            Met::Place(place, time_ns) => {
                self.last_ns = time_ns;
                if self.found.len() >= self.limit.saturating_add(self.open.len()) {
                    return;
                }
                let key = self.entered;
                self.entered += 1;
                if let Some(thread) = place.pid.filter(|_| place.call.is_some()) {
                    // This replaces an earlier call of the thread that never returns, for example because the thread
                    // has executed another program.
                    self.open.insert(thread, (key, time_ns));
                }
                self.found.insert(key, *place);
            }
            Met::Return(returned) => self.close(returned),
        }
    }

    fn close(&mut self, returned: Return) {
        self.last_ns = returned.time_ns;
        let Some((key, begun_ns)) = self.open.remove(&returned.thread) else { return };
        let took_ns = returned.time_ns.saturating_sub(begun_ns);
        if self.longer_ns.is_some_and(|least| took_ns < least) {
            self.found.remove(&key);
            return;
        }
        if let Some(place) = self.found.get_mut(&key) {
            place.call = place.call.take().map(|call| call.returned(returned.result, took_ns as f64 / 1e9));
        }
    }

    /// All results, in the order of the run. With a filter by duration, a call without return counts as in progress
    /// until the end.
    pub fn finish(mut self, end_ns: u64) -> Vec<Place> {
        if let Some(least) = self.longer_ns {
            let end_ns = end_ns.max(self.last_ns);
            let open: BTreeMap<u64, u64> = self.open.values().copied().collect();
            self.found.retain(|key, place| {
                let call = place.call.as_ref();
                if call.is_some_and(|call| ["exit", "exit_group"].contains(&call.name.as_str())) {
                    return false;
                }
                let returned = call.is_some_and(|call| call.seconds.is_some());
                returned || open.get(key).is_some_and(|begun_ns| end_ns.saturating_sub(*begun_ns) >= least)
            });
        }
        self.found.into_values().take(self.limit).collect()
    }
}
