//! The machine's clock. The clock derives virtual time from the guest's work, and stops a run at a device's
//! deadline.

use cpu::Counts;

use crate::position::{Count, Exits, Instructions};
use crate::unit::Unit;

/// A virtual time in nanoseconds that no run reaches: 146 years. The sum of two times below it does not overflow.
pub const MAX_TIME_NS: u64 = 1 << 62;

/// The source of virtual time while the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeBase {
    /// Each instruction takes a nanosecond.
    #[default]
    Instructions,
    /// Each exit takes a nanosecond. All other time comes in as events. KVM can run machines with this time base.
    Exits,
}

/// Virtual time, and the number of exits.
///
/// Time is the CPU's count of instructions plus the time spent idle, in nanoseconds; the TSC shows this time. If the
/// time base is exits, instructions take no time, each exit takes a nanosecond, and `idle_ns` is all of the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: TimeBase,
    /// Virtual time that passed while the CPU was halted, or came in as an event.
    pub idle_ns: u64,
    /// Exits since this clock was made.
    pub exits: Exits,
    /// The virtual time up to which the CPU may run before the machine checks deadlines again.
    run_until_ns: u64,
    /// The number of exits at which the CPU stops.
    run_until_exits: Exits,
}

impl Clock {
    /// A clock at power-on.
    pub fn new(base: TimeBase) -> Clock {
        Clock { base, idle_ns: 0, exits: Exits(0), run_until_ns: 0, run_until_exits: Exits::MAX }
    }

    /// The source of virtual time.
    pub fn base(&self) -> TimeBase {
        self.base
    }

    /// Virtual time after the CPU has executed `instructions`.
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

    /// Lets time pass in which the guest does nothing. Time stops at [`MAX_TIME_NS`]. No run reaches this time, but a
    /// damaged log may.
    pub fn pass(&mut self, ns: u64) {
        self.idle_ns = self.idle_ns.saturating_add(ns).min(MAX_TIME_NS);
    }

    /// Prepares a run that begins at `now` and ends at `limit` at the latest. Returns the count of instructions at
    /// which the CPU stops, for the limit or for the next deadline.
    pub fn prepare_run<U: Unit>(
        &mut self,
        now: Instructions,
        limit: U,
        deadline_ns: Option<u64>,
    ) -> Instructions {
        let (limit, exits) = limit.limits();
        self.run_until_exits = exits;
        if self.base == TimeBase::Exits {
            // Time passes at exits and events, and not with instructions. The deadlines are checked after each exit
            // and each event.
            return limit;
        }
        let deadline = Instructions(deadline_ns.unwrap_or(u64::MAX).saturating_sub(self.idle_ns));
        let until = limit.min(deadline).max(now + 1).min(limit);
        self.run_until_ns = self.time_ns(until);
        until
    }

    /// Notes the deadline at which the engine will end its run, if time comes in as events. `None` means that the
    /// engine does not wait for a deadline. If the guest sets an earlier deadline during the run, the CPU stops at
    /// once.
    pub fn await_deadline(&mut self, deadline_ns: Option<u64>) {
        if self.base == TimeBase::Exits {
            self.run_until_ns = deadline_ns.unwrap_or(0);
        }
    }

    /// Whether the CPU stops here: at the limit of exits, or because the next deadline has moved nearer during the
    /// run.
    pub fn stops_here(&self, deadline_ns: Option<u64>) -> bool {
        let horizon_ns = match self.base {
            TimeBase::Instructions => self.run_until_ns,
            TimeBase::Exits => self.run_until_ns.max(self.idle_ns + 1),
        };
        deadline_ns.is_some_and(|ns| ns < horizon_ns) || self.exits >= self.run_until_exits
    }

    /// The virtual time of a stored state. Refuses counts that a machine with this clock cannot have: states may come
    /// from strangers.
    pub fn time_of(&self, counts: Counts, idle_ns: u64) -> Result<u64, &'static str> {
        let Counts { steps, branches, system_calls } = counts;
        let (counted, most_branches) = match self.base {
            TimeBase::Instructions => (steps, steps),
            // A state from KVM may have a count of branches, but its count of instructions is 0.
            TimeBase::Exits => (0, MAX_TIME_NS),
        };
        let now_ns = counted.checked_add(idle_ns).filter(|&ns| ns.max(steps) <= MAX_TIME_NS);
        if branches > most_branches || system_calls > steps {
            return Err("it counts more branches or system calls than instructions");
        }
        now_ns.ok_or("its time is too large")
    }
}
