//! Everything around the CPU: the platform's devices, on the clock that the CPU's steps drive.

use std::sync::Arc;

use cpu::{Bus, Signals};
use devices::pci::PciBus;
use devices::platform::Platform;
use guest_ram::GuestRam;

use crate::console_tail::ConsoleTail;

/// The devices and the clock, as the CPU's bus.
///
/// Virtual time is the CPU's step count plus the time spent idle, in nanoseconds; the raw TSC ticks with it.
pub struct Board {
    /// All devices.
    pub platform: Platform<PciBus>,
    /// Virtual time that passed while the CPU was halted.
    pub idle_ns: u64,
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
}

impl Board {
    /// A board around the given devices.
    pub fn new(platform: Platform<PciBus>, ram: Arc<GuestRam>) -> Board {
        Board {
            platform,
            idle_ns: 0,
            output: Vec::new(),
            console: ConsoleTail::default(),
            panicked: false,
            stop_on_output: false,
            ram,
            run_until_ns: 0,
        }
    }

    /// Virtual time at a step count.
    pub fn time_ns(&self, steps: u64) -> u64 {
        steps + self.idle_ns
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

    /// Fires what is due, and gives the step count at which the next deadline falls, at most `limit_steps`.
    pub fn prepare_run(&mut self, steps: u64, limit_steps: u64) -> u64 {
        self.platform.advance(self.time_ns(steps));
        let deadline = self.platform.next_deadline_ns().unwrap_or(u64::MAX);
        let until = limit_steps.min(deadline.saturating_sub(self.idle_ns)).max(steps + 1).min(limit_steps);
        self.run_until_ns = self.time_ns(until);
        until
    }
}

impl Bus for Board {
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32 {
        self.platform.pio_read(self.ram.memory(), steps + self.idle_ns, port, size_bytes)
    }

    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32) {
        self.platform.pio_write(self.ram.memory(), steps + self.idle_ns, port, size_bytes, value);
        self.note_output(|platform| {
            let mut output = platform.take_output();
            output.append(&mut platform.take_debug_output());
            output
        });
    }

    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]) {
        self.platform.mmio_read(self.ram.memory(), steps + self.idle_ns, gpa, data);
    }

    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]) {
        self.platform.mmio_write(self.ram.memory(), steps + self.idle_ns, gpa, data);
        self.note_output(|platform| {
            platform.bus_mut().console_mut().map(|mut console| console.take_output()).unwrap_or_default()
        });
    }

    fn signals(&mut self) -> Signals {
        let earlier = self.platform.next_deadline_ns().is_some_and(|d| d < self.run_until_ns);
        Signals {
            interrupt: self.platform.interrupt_pending(),
            nmi: self.platform.nmi_pending(),
            stop: earlier
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

    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64> {
        self.platform.apic_read_msr(steps + self.idle_ns, index).ok()
    }

    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()> {
        self.platform.apic_write_msr(steps + self.idle_ns, index, value).ok()
    }

    fn cr8(&mut self) -> u64 {
        u64::from(self.platform.cr8())
    }

    fn set_cr8(&mut self, _steps: u64, value: u64) {
        self.platform.set_cr8(value as u8);
    }

    fn tsc(&mut self, steps: u64) -> u64 {
        steps + self.idle_ns
    }
}
