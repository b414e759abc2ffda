//! Checks: what a recording notes of the machine's own state every so often, so that a replay can prove that it
//! is the same run, and so that a recording which was cut off says how far it is known.
//!
//! A check has up to three parts, from cheap to dear: registers, devices, RAM. [`Schedule`] says when a recorder
//! takes which; a player takes them wherever the log has them. Taking one changes nothing that the guest can see.

use serde::{Deserialize, Serialize};

use crate::position::Moment;

/// How often a recorder takes which check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Steps between two checks of the registers.
    pub registers_steps: u64,
    /// Virtual time between two checks of an idle guest's registers.
    pub registers_ns: u64,
    /// Steps between two checks that look at the devices too.
    pub devices_steps: u64,
    /// Steps between two checks that look at RAM too. They cost as much as the pages written in between.
    pub ram_steps: u64,
}

impl Default for Intervals {
    fn default() -> Intervals {
        Intervals {
            // Some tens of milliseconds of the host's time: that much can be lost at most.
            registers_steps: 16_000_000,
            // With somebody at the console, as much real time.
            registers_ns: 500_000_000,
            devices_steps: 128_000_000,
            ram_steps: 512_000_000,
        }
    }
}

impl Intervals {
    /// For machines that are counted in exits, of which there are far fewer. RAM is looked at wherever the guest is stopped.
    pub fn of_exits() -> Intervals {
        Intervals {
            registers_steps: 20_000,
            registers_ns: 500_000_000,
            devices_steps: 100_000,
            ram_steps: 400_000,
        }
    }
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRecord {
    /// Where.
    pub at: Moment,
    /// Retired conditional branches there.
    pub branches: u64,
    /// RIP there.
    pub rip: u64,
    /// First bytes of the hash of the CPU's state.
    pub cpu_hash: [u8; 8],
    /// First bytes of the hash of devices and clock, where the check looked at them.
    pub devices_hash: Option<[u8; 8]>,
    /// The digest of RAM ([`crate::machine::ram_digest`]), where the check looked at it.
    pub ram_digest: Option<[u8; 16]>,
}

impl CheckRecord {
    /// What this check looked at.
    pub fn parts(&self) -> CheckParts {
        CheckParts { devices: self.devices_hash.is_some(), ram: self.ram_digest.is_some() }
    }
}

/// When a recorder takes which check.
///
/// Dear parts are scheduled by steps, never by virtual time: an idle guest's seconds pass in next to no time of
/// the host, and each would otherwise cost as much as a busy one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    intervals: Intervals,
    next: Moment,
    next_devices: u64,
    next_ram: u64,
}

impl Schedule {
    /// A schedule at whose very first point everything is due.
    pub fn new(intervals: Intervals) -> Schedule {
        Schedule { intervals, ..Schedule::default() }
    }

    /// What to check at `now`; the very first point is due.
    pub fn due(&self, now: Moment) -> Option<CheckParts> {
        let due = now.steps >= self.next.steps || now.time_ns >= self.next.time_ns;
        let parts = CheckParts { devices: now.steps >= self.next_devices, ram: now.steps >= self.next_ram };
        due.then_some(parts)
    }

    /// The step count at which a check is due at the latest.
    pub fn next_steps(&self) -> u64 {
        self.next.steps
    }

    /// Notes that `parts` were checked at `now`.
    pub fn taken(&mut self, now: Moment, parts: CheckParts) {
        self.next = Moment {
            steps: now.steps + self.intervals.registers_steps,
            time_ns: now.time_ns + self.intervals.registers_ns,
        };
        if parts.devices {
            self.next_devices = now.steps + self.intervals.devices_steps;
        }
        if parts.ram {
            self.next_ram = now.steps + self.intervals.ram_steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVALS: Intervals =
        Intervals { registers_steps: 10, registers_ns: 70, devices_steps: 100, ram_steps: 1000 };

    fn at(steps: u64, time_ns: u64) -> Moment {
        Moment { steps, time_ns }
    }

    #[test]
    fn everything_is_due_at_the_start_and_each_part_at_its_own_distance() {
        let mut schedule = Schedule::new(INTERVALS);
        let all = CheckParts { devices: true, ram: true };
        assert_eq!(schedule.due(at(0, 0)), Some(all));
        schedule.taken(at(0, 0), all);
        let (mut counts, mut steps) = ([0; 3], 0);
        while steps < 2000 {
            steps = schedule.next_steps();
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
