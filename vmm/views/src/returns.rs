//! Matches system calls to their returns. A call returns in the thread that made it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cpu::SystemCalls;
use history::timeline::{Breakpoint, Filter, Stops};
use machine::Machine;
use machine::position::Instructions;

use crate::guest_kernel::{GuestKernel, GuestKernels};
use crate::place::Place;
use crate::saved_registers::{self, SavedRegisters};
use crate::system_calls::arguments_at_return;
use crate::trace::stack_word;

/// The return of a system call.
#[derive(Clone, Debug)]
pub(crate) struct Return {
    /// The thread's number.
    pub thread: u32,
    pub result: u64,
    /// The call's arguments, from [`arguments_at_return`].
    pub arguments: Vec<String>,
    pub time_ns: u64,
}

/// An event that a search for system calls found.
pub(crate) enum Met {
    Place(Box<Place>, u64),
    Return(Return),
    /// An event that the search does not show.
    Nothing,
}

impl Return {
    /// Adds breakpoints at which the kernels return from `do_syscall_64`. A filter at each breakpoint is true only for
    /// returns that the search waits for.
    pub fn join(kernels: &Arc<GuestKernels>, stops: &mut Stops) {
        let wanted = stops.traps.system_calls.clone();
        let places: BTreeSet<u64> = kernels.all().iter().filter_map(|kernel| kernel.call_return).collect();
        for at in places {
            stops.breakpoints.push(Breakpoint::at(at));
            let (wanted, kernels) = (wanted.clone(), kernels.clone());
            let is_wanted = move |machine: &Machine<Instructions>| {
                let number = || stack_word(&machine.running_processor(), saved_registers::NUMBER);
                kernels.at(machine).is_some_and(|kernel| kernel.call_return == Some(at))
                    && (wanted == SystemCalls::All || number().is_some_and(|number| wanted.contains(number)))
            };
            stops.filters.insert(at, Filter::new(is_wanted));
        }
    }

    /// Whether a machine's next instruction is the instruction after the kernel's call of `do_syscall_64`.
    pub fn is_at(machine: &Machine<Instructions>, kernels: &GuestKernels) -> bool {
        kernels.at(machine).is_some_and(|kernel| kernel.call_return == Some(machine.cpu().rip()))
    }

    /// The return at a machine's position.
    pub fn seen(machine: &Machine<Instructions>, kernel: &GuestKernel) -> Option<Return> {
        let processor = machine.running_processor();
        let saved = SavedRegisters::at_return(&processor)?;
        let number = stack_word(&processor, saved_registers::NUMBER)?;
        Some(Return {
            thread: kernel.thread(machine)?.id,
            result: saved.result,
            arguments: arguments_at_return(&processor, number, &saved),
            time_ns: machine.moment().time_ns,
        })
    }
}

/// Joins system calls and their returns. The calls are in the order of their entries.
pub(crate) struct Joined {
    longer_ns: Option<u64>,
    limit: usize,
    found: BTreeMap<u64, Place>,
    /// For each thread with a call in progress: the key of the call in `found`, and the time in nanoseconds when the
    /// call was entered.
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
            let Return { result, arguments, .. } = returned;
            place.call =
                place.call.take().map(|call| call.returned(result, took_ns as f64 / 1e9, &arguments));
        }
    }

    /// All results, in the order of the run. With a filter by duration, a call without a return is treated as if it
    /// lasted until `end_ns`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_calls::SystemCall;

    /// A call of a thread, at a time.
    fn call(thread: u32, time_ns: u64, name: &str) -> Met {
        let call = SystemCall { name: name.to_string(), arguments: Vec::new(), result: None, seconds: None };
        Met::Place(Box::new(Place { call: Some(call), ..event(thread, time_ns) }), time_ns)
    }

    /// Another event of a thread.
    fn event(thread: u32, time_ns: u64) -> Place {
        Place {
            instruction: time_ns,
            what: String::new(),
            guest_seconds: 0.0,
            rip: None,
            pid: Some(thread),
            name: None,
            processor: None,
            kernel: None,
            call: None,
            old: None,
            new: None,
            backtrace: None,
        }
    }

    fn returned(thread: u32, time_ns: u64, result: u64) -> Met {
        Met::Return(Return { thread, result, arguments: Vec::new(), time_ns })
    }

    /// The joined calls: the time of entry, the result and the duration.
    fn joined(longer_ns: Option<u64>, limit: usize, met: Vec<Met>, end_ns: u64) -> Vec<String> {
        let mut joined = Joined::new(longer_ns, limit);
        met.into_iter().for_each(|met| joined.take(met));
        let line = |place: Place| match place.call {
            Some(call) => format!("{} {call}", place.instruction),
            None => format!("{} event", place.instruction),
        };
        joined.finish(end_ns).into_iter().map(line).collect()
    }

    #[test]
    fn a_call_gets_the_next_return_of_its_own_thread() {
        let met = vec![
            returned(1, 5, 7),
            call(1, 10, "read"),
            call(2, 20, "write"),
            Met::Nothing,
            returned(1, 30, 3),
            returned(1, 31, 9),
            returned(2, 1_000_000_020, 4),
            Met::Place(Box::new(event(1, 40)), 40),
            returned(1, 50, 1),
            // This call never returns, because the thread makes another call.
            call(1, 60, "execve"),
            call(1, 70, "brk"),
            returned(1, 75, 0x1000),
        ];
        let expected = [
            "10 read() = 3 in 0.000000020 s",
            "20 write() = 4 in 1.000000000 s",
            "40 event",
            "60 execve()",
            "70 brk() = 0x1000 in 0.000000005 s",
        ];
        assert_eq!(joined(None, 100, met, 0), expected);
    }

    #[test]
    fn short_calls_are_left_out_and_unfinished_ones_last_until_the_end() {
        let met = || {
            vec![
                call(1, 10, "read"),
                returned(1, 20, 0),
                call(1, 30, "write"),
                returned(1, 39, 0),
                call(2, 40, "poll"),
                call(3, 45, "exit"),
                call(4, 46, "exit_group"),
            ]
        };
        let read = "10 read() = 0 in 0.000000010 s";
        assert_eq!(joined(Some(10), 100, met(), 49), [read]);
        assert_eq!(joined(Some(10), 100, met(), 50), [read, "40 poll()"]);
        assert_eq!(joined(Some(11), 100, met(), 51), ["40 poll()"]);
        // If the last event is later than `end_ns`, the calls are treated as if they lasted until this event.
        let late = met().into_iter().chain([returned(9, 60, 0)]).collect();
        assert_eq!(joined(Some(10), 100, late, 0), [read, "40 poll()"]);
        let later = met().into_iter().chain([call(9, 60, "brk")]).collect();
        assert_eq!(joined(Some(10), 100, later, 0), [read, "40 poll()"]);
    }

    #[test]
    fn only_as_many_calls_are_kept_as_are_wanted_and_those_in_progress() {
        let met = || vec![call(1, 10, "read"), call(2, 20, "write"), returned(1, 25, 0), returned(2, 30, 1)];
        assert_eq!(joined(None, 1, met(), 0), ["10 read() = 0 in 0.000000015 s"]);
        assert_eq!(joined(None, 0, met(), 0), [""; 0]);
        // With a filter, a call in progress may be left out later, so that another one takes its place.
        let met = vec![call(1, 10, "read"), call(2, 11, "write"), returned(1, 12, 0), returned(2, 30, 1)];
        assert_eq!(joined(Some(5), 1, met, 0), ["11 write() = 1 in 0.000000019 s"]);
        let mut two = Joined::new(None, 2);
        for time_ns in 1..=3 {
            two.take(Met::Place(Box::new(event(1, time_ns)), time_ns));
        }
        assert_eq!(two.found.len(), 2, "no more are held in memory");
    }
}
