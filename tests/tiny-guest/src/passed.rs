//! The tiny guest with passed-through devices: a PCI function and ports. Pseudo-random numbers control the devices.
//! The devices' actions influence every register and much of memory.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use devices::passthrough::{
    AskV1, BarDescriptionV1, DeviceInputV1, DmaV1, InterruptV1, MsixDescriptionV1, PciDescriptionV1,
};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use machine::checks::Intervals;
use machine::config::{MachineOptions, PassedDevice};
use machine::engine::{EngineKind, Leave};
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, View};
use machine::position::{Exits, Instructions, Moment};
use machine::unit::Unit;
use recording::log::EndRecord;
use recording::pace::CheckpointOptions;
use recording::{Recordable, Recording};

use super::{HEADER_BYTES, LOAD, Numbers, POWER_ON, end_the_run, image};

/// The address of the function's BAR 0.
const BAR: i32 = 0xC100_0000_u32 as i32;
/// The IOMMU's invalidation command, and the value of its upper half that invalidates everything.
const INVALIDATE: i32 = 0xFED9_00FC_u32 as i32;
const INVALIDATE_ALL: i32 = 0x9000_0000_u32 as i32;
/// Memory that the function writes, and the guest reads.
pub const BUFFER: u64 = 0x30_0000;

/// Describes a PCI function that has every feature, unlike any real function.
pub fn description() -> PciDescriptionV1 {
    PciDescriptionV1 {
        vendor: 0x1234,
        device: 0x11e8,
        revision: 1,
        class: 0xff_0000,
        subsystem_vendor: 1,
        subsystem: 2,
        bars: vec![
            BarDescriptionV1 { index: 0, size_bytes: 0x1000, is_ports: false },
            BarDescriptionV1 { index: 1, size_bytes: 0x1000, is_ports: false },
        ],
        has_line: true,
        msi: Some(0x40),
        msix: Some(MsixDescriptionV1 { capability: 0x60, vectors: 4, table: (1, 0), pending: (1, 0x800) }),
    }
}

fn code(rounds: u32) -> Vec<u8> {
    let assemble = || -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(32)?;
        let mut top = a.create_label();
        a.xor(ebx, ebx)?;
        a.mov(edi, BUFFER as u32)?;
        a.mov(esi, rounds)?;
        a.set_label(&mut top)?;
        a.mov(edx, 0x2f8)?;
        a.in_(al, dx)?;
        a.movzx(eax, al)?;
        a.add(ebx, eax)?;
        // Access these ports only in every second round, so that their interrupt line stays asserted for some time.
        let mut other = a.create_label();
        a.test(esi, 1)?;
        a.jz(other)?;
        a.mov(edx, 0x3e8)?;
        a.in_(al, dx)?;
        a.out(dx, al)?;
        a.mov(edx, 0x2f8)?;
        a.set_label(&mut other)?;
        a.add(ebx, dword_ptr(BAR))?;
        a.mov(dword_ptr(BAR + 4), ebx)?;
        // This instruction reads and writes device memory.
        a.add(dword_ptr(BAR + 8), ebx)?;
        a.mov(dword_ptr(INVALIDATE), INVALIDATE_ALL)?;
        a.mov(eax, ebx)?;
        a.and(eax, 0x1ffc)?;
        a.add(ebx, dword_ptr(edi + eax))?;
        a.mov(dword_ptr(edi + eax), ebx)?;
        a.mov(eax, ebx)?;
        a.out(dx, al)?;
        let mut busy = a.create_label();
        a.mov(ecx, 100)?;
        a.set_label(&mut busy)?;
        a.imul_3(ebx, ebx, 1_664_525)?;
        a.loop_(busy)?;
        a.dec(esi)?;
        a.jne(top)?;
        end_the_run(&mut a)?;
        a.assemble((LOAD + HEADER_BYTES).into())
    };
    assemble().expect("the program is a constant that can be assembled")
}

/// Devices that pseudo-random numbers control.
pub struct Devices {
    numbers: Cell<u64>,
    /// Number of the guest's writes that reached the devices.
    pub told: u64,
    /// The number of answers that the devices have returned to the guest's reads.
    pub answered: u64,
    came: bool,
}

impl Devices {
    /// Makes the devices. Pseudo-random numbers from `seed` choose their answers, their writes to memory and their
    /// interrupts.
    pub fn new(seed: u64) -> Devices {
        Devices { numbers: Cell::new(seed), told: 0, answered: 0, came: false }
    }

    fn below(&self, limit: u64) -> u64 {
        let mut numbers = Numbers(self.numbers.get());
        let number = numbers.below(limit);
        self.numbers.set(numbers.0);
        number
    }

    fn dma(&self) -> Vec<DmaV1> {
        let writes = (0..self.below(3)).map(|_| {
            let bytes = (0..1 + self.below(20)).map(|_| self.below(256) as u8).collect();
            DmaV1 { gpa: BUFFER + self.below(0x2000), bytes }
        });
        writes.collect()
    }
}

impl<C: Unit> Inputs<C> for Devices {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        if let Some(stopped) = view.stopped {
            return Ok(Some(Event::Stopped(stopped)));
        }
        self.came = !self.came && self.below(4) == 0;
        if !self.came {
            return Ok(None);
        }
        let interrupts = (0..self.below(2))
            .map(|vector| InterruptV1 { device: 2 * self.below(2) as u8, vector: vector as u16 })
            .collect();
        Ok(Some(Event::Devices(DeviceInputV1 { dma: self.dma(), interrupts, ..DeviceInputV1::default() })))
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        now.count + if C::NAMES_ONE_PLACE { 1 + self.below(2000) } else { 1 + self.below(3) }
    }

    fn idle(&mut self, _now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        Ok(deadline_ns.map_or(Idle::Forever, Idle::Until))
    }

    fn leave(&self, _now: Moment<C>, _deadline_ns: Option<u64>) -> Leave {
        if C::NAMES_ONE_PLACE {
            return Leave::AtExits;
        }
        let force = Duration::from_nanos(1 + self.below(400));
        Leave::After { due: force, force, note: true }
    }

    fn ask_devices(&mut self, _at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        let value = (self.below(5) != 0).then(|| self.below(1 << 31));
        self.answered += u64::from(value.is_some());
        Ok(DeviceInputV1 { asked: Some(*ask), dma: self.dma(), interrupts: Vec::new(), value })
    }

    fn tell_devices(&mut self, _at: AskedAt<C>, _told: &AskV1) -> Result<(), Error> {
        self.told += 1;
        Ok(())
    }
}

fn record_by<U: Unit>(
    path: &Path,
    rounds: u32,
    seed: u64,
    intervals: Intervals,
    checkpoints: Option<CheckpointOptions>,
) -> EndRecord<U> {
    let kernel = path.with_extension("kernel");
    std::fs::write(&kernel, image(&code(rounds))).unwrap();
    let function = PassedDevice::Function { address: "0000:00:01.0".to_string(), description: description() };
    let options = MachineOptions {
        kernel,
        memory_bytes: 4 << 20,
        debug_exit: Some(0x501),
        model: if U::NAMES_ONE_PLACE { cpu::CpuModel::default() } else { cpu::CpuModel::V2Kvm },
        passthrough: vec![
            function,
            PassedDevice::Ports { first: 0x2f8, last: 0x2ff, irq: None },
            PassedDevice::Ports { first: 0x3e8, last: 0x3ef, irq: Some(5) },
        ],
        ..MachineOptions::default()
    };
    let mut guest = Recordable::<U>::on(EngineKind::SOFT, &options, POWER_ON).unwrap();
    let recording = guest.record_in(path).unwrap().checks(intervals).checkpoints(checkpoints);
    recording.run(Devices::new(seed)).unwrap()
}

/// Records the guest, which accesses its devices in each of `rounds` rounds.
pub fn record(
    path: &Path,
    rounds: u32,
    seed: u64,
    checkpoints: Option<CheckpointOptions>,
) -> (Recording<Instructions>, EndRecord<Instructions>) {
    let intervals = Intervals { registers: 2_000, registers_ns: 1 << 40, devices: 5_000, ram: 10_000 };
    let end = record_by(path, rounds, seed, intervals, checkpoints);
    (super::open(path), end)
}

/// Does the same as [`record`], but the recording counts exits.
pub fn record_exits(path: &Path, rounds: u32, seed: u64) -> (Recording<Exits>, EndRecord<Exits>) {
    let intervals = Intervals { registers: 20, registers_ns: 1 << 40, devices: 50, ram: 100 };
    let end = record_by(path, rounds, seed, intervals, None);
    (super::stopped::open(path), end)
}
