//! Everything around the CPU: the platform's devices, on the clock that the CPU's steps or exits drive.

use std::sync::Arc;

use boot::time_reads::TIME_READ_MARK;
use cpu::{Bus, BusSignals};
use devices::pci::PciBus;
use devices::platform::Platform;
use guest_ram::GuestRam;

use crate::machine::console_tail::ConsoleTail;
use crate::position::{Counting, TimeBase};

/// The devices and the clock, as the CPU's bus.
///
/// Virtual time is the CPU's step count plus the time spent idle, in nanoseconds; the raw TSC ticks with it. In a machine
/// whose time base is exits, each exit takes the step's place, and all of the time is in `idle_ns`.
pub struct Board {
    /// All devices.
    pub platform: Platform<PciBus>,
    /// Virtual time that passed otherwise than by steps: while the CPU was halted.
    pub idle_ns: u64,
    /// Exits since this board was made.
    pub exits: u64,
    time_base: TimeBase,
    counting: Counting,
    /// Console output of the guest that nobody has taken yet, of all its consoles in the order of writing.
    pub output: Vec<u8>,
    /// The last of the console's output.
    pub console: ConsoleTail,
    /// The console has just shown the end of a panic's report.
    pub panicked: bool,
    /// Whether the CPU is to stop after the instruction that printed something.
    pub stop_on_output: bool,
    ram: Arc<GuestRam>,
    /// The virtual time up to which the CPU may run without asking again.
    run_until_ns: u64,
    /// The number of exits at which the CPU is to stop.
    run_until_exits: u64,
}

impl Board {
    /// A board around the given devices.
    pub fn new(
        platform: Platform<PciBus>,
        ram: Arc<GuestRam>,
        time_base: TimeBase,
        counting: Counting,
    ) -> Board {
        Board {
            platform,
            idle_ns: 0,
            exits: 0,
            time_base,
            counting,
            output: Vec::new(),
            console: ConsoleTail::default(),
            panicked: false,
            stop_on_output: false,
            ram,
            run_until_ns: 0,
            run_until_exits: u64::MAX,
        }
    }

    /// Virtual time at a step count.
    pub fn time_ns(&self, steps: u64) -> u64 {
        match self.time_base {
            TimeBase::Instructions => steps + self.idle_ns,
            TimeBase::Exits => self.idle_ns,
        }
    }

    /// The guest was left.
    pub fn note_exit(&mut self) {
        self.exits += 1;
        if self.time_base == TimeBase::Exits {
            self.idle_ns += 1;
        }
    }

    /// Takes what the guest may just have printed. That it is looked at right after the instruction which did it is
    /// what makes the end of a panic a place in the run, and not where somebody happened to look.
    fn note_output(&mut self, take: impl FnOnce(&mut Platform<PciBus>) -> Vec<u8>) {
        let mut output = take(&mut self.platform);
        if !output.is_empty() {
            self.panicked |= self.console.push(&output);
            self.output.append(&mut output);
        }
    }

    /// Fires what is due, and gives the CPU's step count at which the next deadline falls, at most `limit`, which is
    /// in what the machine counts.
    pub fn prepare_run(&mut self, steps: u64, limit: u64) -> u64 {
        self.platform.advance(self.time_ns(steps));
        let limit_steps = match self.counting {
            Counting::Instructions => limit,
            Counting::Exits => {
                self.run_until_exits = limit;
                u64::MAX
            }
        };
        if self.time_base == TimeBase::Exits {
            // No step lets time pass; exits and events do, after which deadlines are looked at.
            return limit_steps;
        }
        let deadline = self.platform.next_deadline_ns().unwrap_or(u64::MAX);
        let until = limit_steps.min(deadline.saturating_sub(self.idle_ns)).max(steps + 1).min(limit_steps);
        self.run_until_ns = self.time_ns(until);
        until
    }

    /// Where time passes from outside, somebody waits for the next deadline: one that the guest sets before that is to
    /// be known at once.
    pub fn await_deadline(&mut self, awaited: bool) {
        if self.time_base == TimeBase::Exits {
            let next_ns = || self.platform.next_deadline_ns().unwrap_or(u64::MAX);
            self.run_until_ns = if awaited { next_ns() } else { 0 };
        }
    }
}

impl Bus for Board {
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32 {
        let value = self.platform.pio_read(self.ram.memory(), self.time_ns(steps), port, size_bytes);
        self.note_exit();
        value
    }

    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32) {
        self.platform.pio_write(self.ram.memory(), self.time_ns(steps), port, size_bytes, value);
        self.note_exit();
        self.note_output(|platform| {
            let mut output = platform.take_output();
            output.append(&mut platform.take_debug_output());
            output
        });
    }

    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]) {
        self.platform.mmio_read(self.ram.memory(), self.time_ns(steps), gpa, data);
        self.note_exit();
    }

    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]) {
        self.platform.mmio_write(self.ram.memory(), self.time_ns(steps), gpa, data);
        self.note_exit();
        self.note_output(|platform| {
            platform.bus_mut().console_mut().map(|mut console| console.take_output()).unwrap_or_default()
        });
    }

    fn signals(&mut self) -> BusSignals {
        let horizon_ns = match self.time_base {
            TimeBase::Instructions => self.run_until_ns,
            TimeBase::Exits => self.run_until_ns.max(self.idle_ns + 1),
        };
        let earlier = self.platform.next_deadline_ns().is_some_and(|d| d < horizon_ns);
        let enough = self.exits >= self.run_until_exits;
        BusSignals {
            interrupt: self.platform.interrupt_pending(),
            nmi: self.platform.nmi_pending(),
            stop: earlier
                || enough
                || self.panicked
                || self.platform.has_requests()
                || (self.stop_on_output && !self.output.is_empty()),
        }
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.platform.acknowledge_interrupt()
    }

    fn take_nmi(&mut self) -> bool {
        self.platform.take_nmi()
    }

    // A refused access is no exit. The fault that follows has begun on one engine and not on another where the CPU is asked
    // whether to stop, so that nobody may stop there.
    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64> {
        let value = self.platform.apic_read_msr(self.time_ns(steps), index).ok()?;
        self.note_exit();
        Some(value)
    }

    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()> {
        self.platform.apic_write_msr(self.time_ns(steps), index, value).ok()?;
        self.note_exit();
        Some(())
    }

    fn cr8(&mut self) -> u64 {
        u64::from(self.platform.cr8())
    }

    fn set_cr8(&mut self, _steps: u64, value: u64) {
        self.platform.set_cr8(value as u8);
    }

    fn halt(&mut self, steps: u64, following: Option<u8>) -> Option<u64> {
        let time = (self.time_base == TimeBase::Exits && following == Some(TIME_READ_MARK))
            .then(|| self.time_ns(steps));
        self.note_exit();
        time
    }

    fn tsc(&mut self, steps: u64) -> u64 {
        self.time_ns(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_access_to_a_register_is_no_exit() {
        let ram = Arc::new(GuestRam::new(1 << 20).unwrap());
        for time_base in [TimeBase::Instructions, TimeBase::Exits] {
            let platform = Platform::new(0, PciBus::new());
            let mut board = Board::new(platform, ram.clone(), time_base, Counting::Exits);
            let before = (board.exits, board.time_ns(5));
            assert_eq!(board.read_msr(5, UNKNOWN), None);
            assert_eq!(board.write_msr(5, UNKNOWN, 1), None);
            assert_eq!((board.exits, board.time_ns(5)), before);
            let base = board.read_msr(5, APIC_BASE).expect("the local APIC's base can be read");
            assert_eq!(board.write_msr(5, APIC_BASE, base), Some(()));
            assert_eq!(board.exits, before.0 + 2);
        }
    }

    const APIC_BASE: u32 = 0x1b;
    /// Old AMD processors count events there.
    const UNKNOWN: u32 = 0xc001_0000;
}
