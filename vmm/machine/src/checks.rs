//! Checks: what a recording notes of the machine's own state every so often, so that a replay can prove that
//! it is the same run, and so that a recording which was cut off says how far it is known.
//!
//! A check has up to three parts, from cheap to dear: registers, devices, RAM. [`Schedule`] says when a
//! recorder takes which; a player takes them wherever the log has them. Taking one changes nothing that the
//! guest can see.

use crate::position::{Count, Moment};

/// How often a recorder takes which check: distances in what the machine counts, unless they are times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Between two checks of the registers.
    pub registers: u64,
    /// Virtual time between two checks of an idle guest's registers.
    pub registers_ns: u64,
    /// Between two checks that look at the devices too.
    pub devices: u64,
    /// Between two checks that look at RAM too. They cost as much as the pages written in between.
    pub ram: u64,
}

impl Intervals {
    /// For machines that are counted in instructions.
    pub const OF_INSTRUCTIONS: Intervals = Intervals {
        // Some tens of milliseconds of the host's time: that much can be lost at most.
        registers: 16_000_000,
        // With a person at the console, as much real time.
        registers_ns: 500_000_000,
        devices: 128_000_000,
        ram: 512_000_000,
    };
    /// For machines that are counted in exits, of which there are far fewer. RAM is looked at wherever the
    /// guest is stopped.
    pub const OF_EXITS: Intervals =
        Intervals { registers: 20_000, registers_ns: 500_000_000, devices: 100_000, ram: 400_000 };
}

/// What a check looks at besides the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckParts {
    /// All devices and the clock.
    pub devices: bool,
    /// All of RAM.
    pub ram: bool,
}

/// The machine's state at one point, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRecord<C> {
    /// Where.
    pub at: Moment<C>,
    /// Retired conditional branches there.
    pub branches: u64,
    /// RIP there.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state.
    pub cpu_hash: [u8; 8],
    /// First bytes of the hash of devices and clock, where the check looked at them.
    pub devices_hash: Option<[u8; 8]>,
    /// The digest of RAM ([`crate::ram_digest`]), where the check looked at it.
    pub ram_digest: Option<[u8; 16]>,
}

impl<C> CheckRecord<C> {
    /// What this check looked at.
    pub fn parts(&self) -> CheckParts {
        CheckParts { devices: self.devices_hash.is_some(), ram: self.ram_digest.is_some() }
    }
}

/// When a recorder takes which check.
///
/// Dear parts are scheduled by count, never by virtual time: an idle guest's seconds pass in next to no time
/// of the host, and each would otherwise cost as much as a busy one.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<C> {
    intervals: Intervals,
    next: Moment<C>,
    next_devices: C,
    next_ram: C,
}

impl<C: Count> Schedule<C> {
    /// A schedule at whose very first point everything is due.
    pub fn new(intervals: Intervals) -> Schedule<C> {
        Schedule { intervals, next: Moment::default(), next_devices: C::default(), next_ram: C::default() }
    }

    /// What to check at `now`; the very first point is due.
    pub fn due(&self, now: Moment<C>) -> Option<CheckParts> {
        let due = now.count >= self.next.count || now.time_ns >= self.next.time_ns;
        let parts = CheckParts { devices: now.count >= self.next_devices, ram: now.count >= self.next_ram };
        due.then_some(parts)
    }

    /// Where a check is due at the latest.
    pub fn next(&self) -> C {
        self.next.count
    }

    /// Notes that `parts` were checked at `now`.
    pub fn taken(&mut self, now: Moment<C>, parts: CheckParts) {
        self.next = Moment {
            count: now.count + self.intervals.registers,
            time_ns: now.time_ns + self.intervals.registers_ns,
        };
        if parts.devices {
            self.next_devices = now.count + self.intervals.devices;
        }
        if parts.ram {
            self.next_ram = now.count + self.intervals.ram;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Instructions;

    const INTERVALS: Intervals = Intervals { registers: 10, registers_ns: 70, devices: 100, ram: 1000 };

    fn at(instructions: u64, time_ns: u64) -> Moment<Instructions> {
        Moment { count: Instructions(instructions), time_ns }
    }

    #[test]
    fn everything_is_due_at_the_start_and_each_part_at_its_own_distance() {
        let mut schedule = Schedule::new(INTERVALS);
        let all = CheckParts { devices: true, ram: true };
        assert_eq!(schedule.due(at(0, 0)), Some(all));
        schedule.taken(at(0, 0), all);
        let (mut counts, mut steps) = ([0; 3], 0);
        while steps < 2000 {
            steps = schedule.next().number();
            let parts = schedule.due(at(steps, 0)).unwrap();
            counts[0] += 1;
            counts[1] += u64::from(parts.devices);
            counts[2] += u64::from(parts.ram);
            schedule.taken(at(steps, 0), parts);
        }
        assert_eq!(counts, [200, 20, 2]);
    }

    #[test]
    fn an_idle_guest_is_checked_by_time_and_cheaply() {
        let mut schedule = Schedule::new(INTERVALS);
        schedule.taken(at(0, 0), CheckParts { devices: true, ram: true });
        assert_eq!(schedule.due(at(9, INTERVALS.registers_ns - 1)), None);
        assert_eq!(schedule.due(at(9, INTERVALS.registers_ns)), Some(CheckParts::default()));
    }
}
