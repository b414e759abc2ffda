//! Checks: hashes of the machine's state that a recording notes at intervals. A replay compares its own hashes with the
//! recorded hashes. If a recording was cut off, its last check is the last known state of the run.
//!
//! A check has up to three parts, from cheap to expensive: registers, devices, RAM. [`Schedule`] tells a recorder when
//! to check which parts. A player checks the parts that the log's check has. A check changes nothing that the guest can
//! see.

use crate::position::{Count, Moment};

/// How often a recorder takes each kind of check. Distances are in the machine's unit (instructions or exits),
/// except for times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Distance between two checks of the registers.
    pub registers: u64,
    /// Virtual time between two checks of an idle guest's registers.
    pub registers_ns: u64,
    /// Distance between two checks of the devices.
    pub devices: u64,
    /// Distance between two checks of RAM. The cost of a check of RAM depends on the pages written since the last such
    /// check.
    pub ram: u64,
}

impl Intervals {
    /// The intervals for machines that count instructions.
    pub const OF_INSTRUCTIONS: Intervals = Intervals {
        // The interval takes some tens of milliseconds of host time. A recording that is cut off loses at most this
        // time.
        registers: 16_000_000,
        // While the console has live input, half a second of virtual time takes half a second of real time.
        registers_ns: 500_000_000,
        devices: 128_000_000,
        ram: 512_000_000,
    };
    /// The intervals for machines that count exits. A run has far fewer exits than instructions. In addition to these
    /// checks, each stop of the guest between exits records RAM's digest.
    pub const OF_EXITS: Intervals =
        Intervals { registers: 20_000, registers_ns: 500_000_000, devices: 100_000, ram: 400_000 };
}

/// Which parts a check has besides the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckParts {
    /// Whether the check covers the devices and the clock.
    pub devices: bool,
    /// Whether the check covers all of RAM.
    pub ram: bool,
}

/// A summary of the machine's state at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRecord<C> {
    /// The point.
    pub at: Moment<C>,
    /// The number of retired conditional branches at this point.
    pub branches: u64,
    /// RIP at this point.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state.
    pub cpu_hash: [u8; 8],
    /// First bytes of the hash of devices and clock, if the check has this part.
    pub devices_hash: Option<[u8; 8]>,
    /// The digest of RAM ([`crate::ram_digest`]), if the check has this part.
    pub ram_digest: Option<[u8; 16]>,
}

impl<C> CheckRecord<C> {
    /// The parts that this check has.
    pub fn parts(&self) -> CheckParts {
        CheckParts { devices: self.devices_hash.is_some(), ram: self.ram_digest.is_some() }
    }
}

/// The schedule of a recorder's checks.
///
/// Only the registers are also checked by virtual time. The other parts are checked by the count alone. While a
/// guest is idle, seconds of virtual time pass in almost no host time. So checks of these parts by virtual time
/// would cost too much.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<C> {
    intervals: Intervals,
    next: Moment<C>,
    next_devices: C,
    next_ram: C,
}

impl<C: Count> Schedule<C> {
    /// A schedule in which all parts are due at the first point of the run.
    pub fn new(intervals: Intervals) -> Schedule<C> {
        Schedule { intervals, next: Moment::default(), next_devices: C::default(), next_ram: C::default() }
    }

    /// The parts to check at `now`. `None` if no check is due.
    pub fn due(&self, now: Moment<C>) -> Option<CheckParts> {
        let due = now.count >= self.next.count || now.time_ns >= self.next.time_ns;
        let parts = CheckParts { devices: now.count >= self.next_devices, ram: now.count >= self.next_ram };
        due.then_some(parts)
    }

    /// The count at which the next check is due at the latest.
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
