//! The machine's clock: how its virtual time follows from what the guest does, and where a run has to end
//! because a device's time has come.

use cpu::Counts;

use crate::position::{Count, Exits, Instructions};
use crate::unit::Unit;

/// Virtual time that no run gets to, in nanoseconds: 146 years. Nothing overflows before it.
pub const MAX_TIME_NS: u64 = 1 << 62;

/// What lets virtual time pass while the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeBase {
    /// Each instruction is a nanosecond.
    #[default]
    Instructions,
    /// Each exit is a nanosecond; all other time comes in as events. Machines that KVM can run have this.
    Exits,
}

/// Virtual time, and the exits that were counted.
///
/// It is the CPU's count of instructions plus the time spent idle, in nanoseconds; the raw TSC ticks with it.
/// In a machine whose time base is exits, each exit takes the instruction's place, and all of the time is in
/// `idle_ns`.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: TimeBase,
    /// Virtual time that passed while the CPU was halted, or came in as an event.
    pub idle_ns: u64,
    /// Exits since this clock was made.
    pub exits: Exits,
    /// The virtual time up to which the CPU may run without asking again.
    run_until_ns: u64,
    /// The number of exits at which the CPU is to stop.
    run_until_exits: Exits,
}

impl Clock {
    /// A clock at power-on.
    pub fn new(base: TimeBase) -> Clock {
        Clock { base, idle_ns: 0, exits: Exits(0), run_until_ns: 0, run_until_exits: Exits::MAX }
    }

    /// What lets time pass.
    pub fn base(&self) -> TimeBase {
        self.base
    }

    /// Virtual time where the CPU has executed `instructions`.
    pub fn time_ns(&self, instructions: Instructions) -> u64 {
        match self.base {
            TimeBase::Instructions => instructions.number() + self.idle_ns,
            TimeBase::Exits => self.idle_ns,
        }
    }

    /// Counts an exit.
    pub fn note_exit(&mut self) {
        self.exits = self.exits + 1;
        if self.base == TimeBase::Exits {
            self.idle_ns += 1;
        }
    }

    /// Lets time pass in which the guest does nothing. No run gets to the end of time, but a log may claim
    /// it.
    pub fn pass(&mut self, ns: u64) {
        self.idle_ns = self.idle_ns.saturating_add(ns).min(MAX_TIME_NS);
    }

    /// The CPU is about to run from `now` to `limit` at most: gives the count of instructions at which it is
    /// to stop, because of that or of the next deadline.
    pub fn prepare_run<U: Unit>(
        &mut self,
        now: Instructions,
        limit: U,
        deadline_ns: Option<u64>,
    ) -> Instructions {
        let (limit, exits) = limit.limits();
        self.run_until_exits = exits;
        if self.base == TimeBase::Exits {
            // No instruction lets time pass; exits and events do, after which deadlines are looked at.
            return limit;
        }
        let deadline = Instructions(deadline_ns.unwrap_or(u64::MAX).saturating_sub(self.idle_ns));
        let until = limit.min(deadline).max(now + 1).min(limit);
        self.run_until_ns = self.time_ns(until);
        until
    }

    /// Says whether the inputs wait for this deadline, where time comes in from outside. If the guest then
    /// sets an earlier one, the run ends at once.
    pub fn await_deadline(&mut self, deadline_ns: Option<u64>) {
        if self.base == TimeBase::Exits {
            self.run_until_ns = deadline_ns.unwrap_or(0);
        }
    }

    /// Whether the CPU is to stop here: for the number of exits, or because the next deadline has come nearer
    /// since it ran.
    pub fn stops_here(&self, deadline_ns: Option<u64>) -> bool {
        let horizon_ns = match self.base {
            TimeBase::Instructions => self.run_until_ns,
            TimeBase::Exits => self.run_until_ns.max(self.idle_ns + 1),
        };
        deadline_ns.is_some_and(|ns| ns < horizon_ns) || self.exits >= self.run_until_exits
    }

    /// The virtual time of a stored state, if its counts are such as a machine with this clock can have them.
    /// States may come from strangers.
    pub fn time_of(&self, counts: Counts, idle_ns: u64) -> Result<u64, &'static str> {
        let Counts { steps, branches, system_calls } = counts;
        let (counted, most_branches) = match self.base {
            TimeBase::Instructions => (steps, steps),
            // KVM's states may count branches, and never instructions.
            TimeBase::Exits => (0, MAX_TIME_NS),
        };
        let now_ns = counted.checked_add(idle_ns).filter(|&ns| ns.max(steps) <= MAX_TIME_NS);
        if branches > most_branches || system_calls > steps {
            return Err("it counts more branches or system calls than instructions");
        }
        now_ns.ok_or("it lies behind the end of time")
    }
}
