//! The CPU's bus: the platform's devices, and the clock, whose time comes from the CPU's steps or exits.

use boot::time_reads::TIME_READ_MARK;
use cpu::{Bus, BusSignals, ProcessorSignals, Startup};
use devices::passthrough::DeviceInputV1;
use devices::pci::PciBus;
use devices::platform::Platform;
use devices::virtio::SentFrame;
use guest_ram::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use crate::clock::Clock;
use crate::console_tail::ConsoleTail;
use crate::position::{Exits, Instructions};
use crate::profile::Profile;
use crate::unit::Unit;

/// The CPU stops when this many sent frames wait in the bus. The machine can then pass the frames to the inputs.
/// Otherwise the frames of a fast guest would fill the host's memory.
const MOST_SENT: usize = 64;

/// The devices and the clock, as the CPU's bus.
pub struct MachineBus {
    /// All devices.
    pub platform: Platform<PciBus>,
    /// Virtual time.
    pub clock: Clock,
    /// Output of all the guest's consoles, in the order of writing, that the machine has not passed to the inputs yet.
    pub output: Vec<u8>,
    /// Frames of the guest that the machine has not passed to the inputs yet.
    pub sent: Vec<SentHere>,
    /// The end of the console's output.
    pub console: ConsoleTail,
    /// Whether the console's latest output contains the end of a panic's report.
    pub panicked: bool,
    /// Whether the CPU stops after each instruction that prints on a console.
    pub stop_on_output: bool,
    /// Whether a HLT before the byte [`boot::time_reads::TIME_READ_MARK`] is a rewritten RDTSC ([`boot::time_reads`]).
    answers_time_reads: bool,
    ram: GuestMemory,
}

/// A frame that the guest sent, and the point where the guest sent it.
pub struct SentHere {
    /// Instructions executed before the instruction that sent the frame.
    pub instructions: Instructions,
    /// Exits before the guest sent the frame.
    pub exits: Exits,
    /// Virtual time in nanoseconds when the guest sent the frame.
    pub time_ns: u64,
    /// The frame.
    pub frame: SentFrame,
}

impl MachineBus {
    /// The bus of a machine of this profile, with the given devices.
    pub fn new(platform: Platform<PciBus>, ram: GuestMemory, profile: Profile) -> MachineBus {
        MachineBus {
            platform,
            clock: Clock::new(profile.time_base),
            output: Vec::new(),
            sent: Vec::new(),
            console: ConsoleTail::default(),
            panicked: false,
            stop_on_output: false,
            answers_time_reads: profile.rewrites_time_reads,
            ram,
        }
    }

    pub(super) fn time_ns(&self, steps: u64) -> u64 {
        self.clock.time_ns(Instructions(steps))
    }

    /// Takes console output right after the instruction that printed this output. So the end of a panic's report is
    /// at one exact place in the run, and a replay finds the same place.
    fn note_output(&mut self, take: impl FnOnce(&mut Platform<PciBus>) -> Vec<u8>) {
        let mut output = take(&mut self.platform);
        if !output.is_empty() {
            self.panicked |= self.console.push(&output);
            self.output.append(&mut output);
        }
    }

    /// Makes an access to a device, and stores the frames that the guest sent by this access.
    fn note_sent(&mut self, steps: u64, access: impl FnOnce(&mut MachineBus)) {
        let (instructions, exits, time_ns) = (Instructions(steps), self.clock.exits, self.time_ns(steps));
        access(self);
        let Some(mut network) = self.platform.bus_mut().network_mut() else { return };
        let sent = network.take_sent().into_iter();
        self.sent.extend(sent.map(|frame| SentHere { instructions, exits, time_ns, frame }));
    }

    /// Fires the timers that are due. Returns the count of instructions up to which the CPU may run: the next
    /// deadline or `limit`.
    pub fn prepare_run<U: Unit>(&mut self, now: Instructions, limit: U) -> Instructions {
        self.platform.advance(self.clock.time_ns(now));
        self.clock.prepare_run(now, limit, self.platform.next_deadline_ns())
    }

    /// Applies an input from passed-through devices: first the devices' writes to memory, then the rest. Writes
    /// outside of RAM are lost.
    pub fn take_from_devices(&mut self, now_ns: u64, input: &DeviceInputV1) {
        for write in &input.dma {
            if self.ram.write_slice(&write.bytes, GuestAddress(write.gpa)).is_err() {
                log::debug!("a device wrote {} bytes at {:#x}, outside of RAM", write.bytes.len(), write.gpa);
            }
        }
        self.platform.with_bus(now_ns, |bus| bus.take_input(input));
    }

    /// Tells the clock whether the engine's run ends when the next deadline is due.
    pub fn await_deadline(&mut self, awaited: bool) {
        let next_ns = || self.platform.next_deadline_ns().unwrap_or(u64::MAX);
        self.clock.await_deadline(awaited.then(next_ns));
    }
}

impl Bus for MachineBus {
    fn port_read(&mut self, steps: u64, port: u16, size_bytes: u8) -> u32 {
        let value = self.platform.pio_read(&self.ram, self.time_ns(steps), port, size_bytes);
        self.clock.note_exit();
        value
    }

    fn port_write(&mut self, steps: u64, port: u16, size_bytes: u8, value: u32) {
        self.note_sent(steps, |bus| {
            bus.platform.pio_write(&bus.ram, bus.time_ns(steps), port, size_bytes, value);
            bus.clock.note_exit();
        });
        self.note_output(|platform| {
            let mut output = platform.take_output();
            output.append(&mut platform.take_debug_output());
            output
        });
    }

    fn mmio_read(&mut self, steps: u64, gpa: u64, data: &mut [u8]) {
        self.platform.mmio_read(&self.ram, self.time_ns(steps), gpa, data);
        self.clock.note_exit();
    }

    fn mmio_write(&mut self, steps: u64, gpa: u64, data: &[u8]) {
        self.note_sent(steps, |bus| {
            bus.platform.mmio_write(&bus.ram, bus.time_ns(steps), gpa, data);
            bus.clock.note_exit();
        });
        self.note_output(|platform| {
            platform.bus_mut().console_mut().map(|mut console| console.take_output()).unwrap_or_default()
        });
    }

    fn signals(&mut self) -> BusSignals {
        let stop = self.clock.stops_here(self.platform.next_deadline_ns())
            || self.panicked
            || self.platform.has_requests()
            || self.sent.len() >= MOST_SENT
            || (self.stop_on_output && !self.output.is_empty());
        BusSignals { interrupt: self.platform.interrupt_pending(), nmi: self.platform.nmi_pending(), stop }
    }

    fn processor_signals(&mut self, processor: usize) -> ProcessorSignals {
        ProcessorSignals {
            interrupt: self.platform.interrupt_pending_for(processor),
            nmi: self.platform.nmi_pending_for(processor),
            startup: match self.platform.startup(processor) {
                devices::lapic::StartupV1::Done => Startup::Done,
                devices::lapic::StartupV1::Awaited => Startup::Awaited,
                devices::lapic::StartupV1::Due(_) => Startup::Due,
            },
        }
    }

    fn take_seat(&mut self, processor: usize) {
        self.platform.take_seat(processor);
    }

    fn take_start(&mut self) -> Option<u8> {
        self.platform.take_start()
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.platform.acknowledge_interrupt()
    }

    fn take_nmi(&mut self) -> bool {
        self.platform.take_nmi()
    }

    // A refused access is not counted as an exit. One engine begins the fault before the CPU checks whether to stop.
    // Another engine begins the fault after this check. So a run must not be able to stop at such an access.
    fn read_msr(&mut self, steps: u64, index: u32) -> Option<u64> {
        let value = self.platform.apic_read_msr(self.time_ns(steps), index).ok()?;
        self.clock.note_exit();
        Some(value)
    }

    fn write_msr(&mut self, steps: u64, index: u32, value: u64) -> Option<()> {
        self.platform.apic_write_msr(self.time_ns(steps), index, value).ok()?;
        self.clock.note_exit();
        Some(())
    }

    fn apic_enabled(&mut self) -> bool {
        self.platform.apic_enabled()
    }

    fn cr8(&mut self) -> u64 {
        u64::from(self.platform.cr8())
    }

    fn set_cr8(&mut self, _steps: u64, value: u64) {
        self.platform.set_cr8(value as u8);
    }

    fn halt(&mut self, steps: u64, following: Option<u8>) -> Option<u64> {
        let time =
            (self.answers_time_reads && following == Some(TIME_READ_MARK)).then(|| self.time_ns(steps));
        self.clock.note_exit();
        time
    }

    fn tsc(&mut self, steps: u64) -> u64 {
        self.time_ns(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devices::virtio::HEADER_BYTES;
    use guest_ram::GuestRam;

    use cpu::CpuModel;

    #[test]
    fn a_refused_access_to_a_register_is_no_exit() {
        let ram = GuestRam::new(1 << 20).unwrap().memory().clone();
        for model in [CpuModel::V2, CpuModel::V2Kvm] {
            let platform = Platform::new(0, PciBus::new());
            let mut bus = MachineBus::new(platform, ram.clone(), Profile::of(model));
            let before = (bus.clock.exits, bus.time_ns(5));
            assert_eq!(bus.read_msr(5, UNKNOWN), None);
            assert_eq!(bus.write_msr(5, UNKNOWN, 1), None);
            assert_eq!((bus.clock.exits, bus.time_ns(5)), before);
            let base = bus.read_msr(5, APIC_BASE).expect("the local APIC's base can be read");
            assert_eq!(bus.write_msr(5, APIC_BASE, base), Some(()));
            assert_eq!(bus.clock.exits, before.0 + 2);
        }
    }

    /// A NOP cannot be the mark, because compilers and assemblers put NOPs after HLT.
    #[test]
    fn only_a_marked_halt_reads_the_time_and_only_where_time_reads_are_rewritten() {
        const NOP: u8 = 0x90;
        let ram = GuestRam::new(1 << 20).unwrap().memory().clone();
        for (model, reads) in [(CpuModel::V2, false), (CpuModel::V2Kvm, true)] {
            let platform = Platform::new(0, PciBus::new());
            let mut bus = MachineBus::new(platform, ram.clone(), Profile::of(model));
            for own in [Some(NOP), Some(0xcc), Some(0xf4), None] {
                assert_eq!(bus.halt(5, own), None, "{own:x?}");
            }
            assert_eq!(bus.halt(5, Some(TIME_READ_MARK)).is_some(), reads);
        }
    }

    #[test]
    fn a_guest_that_sends_without_end_is_stopped_so_that_its_frames_are_handed_on() {
        let ram = GuestRam::new(1 << 20).unwrap().memory().clone();
        let mut bus = MachineBus::new(Platform::new(0, PciBus::new()), ram, Profile::of(CpuModel::V2));
        for number in 0..MOST_SENT {
            assert!(!bus.signals().stop, "after {number}");
            let frame = SentFrame { header: [0; HEADER_BYTES], bytes: Vec::new() };
            bus.sent.push(SentHere { instructions: Instructions(0), exits: Exits(0), time_ns: 0, frame });
        }
        assert!(bus.signals().stop);
    }

    const APIC_BASE: u32 = 0x1b;
    /// The index of an MSR that the board does not have.
    const UNKNOWN: u32 = 0xc001_0000;
}
