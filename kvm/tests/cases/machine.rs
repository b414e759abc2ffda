//! The small machine for a case, on either engine. The machine has RAM with descriptor and page tables at
//! fixed places, device memory after RAM, and a HLT as handler of each vector.

use std::time::Duration;

use cpu::{Cpu, CpuModel, CpuState, Segment, Stop, TableRegister};
use engine_contract::{End, Leave};
use guest_ram::GuestRam;
use kvm::KvmCpu;

use crate::board::TestBoard;

pub const RAM_BYTES: u64 = 2 << 20;
/// The interrupt table, except in real mode, where the table is at 0.
pub const IDT: u64 = 0x1000;
pub const GDT: u64 = 0x2000;
pub const TSS: u64 = 0x3000;
pub const CODE: u64 = 0x4000;
pub const USER_CODE: u64 = 0x5000;
pub const HANDLERS: u64 = 0x6000;
/// Stacks grow down from this address.
pub const STACK: u64 = 0x8000;
pub const USER_STACK: u64 = 0xa000;
pub const IST1: u64 = 0xf000;
/// The address of memory that is free for a case's data. The whole area is compared.
pub const DATA: u64 = 0xb000;
pub const DATA_BYTES: u64 = 0x2000;
/// PML4, PDPT, PD, and page tables for RAM and for device memory.
pub const TABLES: u64 = 0x10000;
pub const PAGE_TABLE: u64 = TABLES + 0x3000;
/// Device memory, at the first address after RAM.
pub const MMIO: u64 = RAM_BYTES;
pub const MMIO_BYTES: u64 = 0x2000;
/// An address beyond all mapped memory.
pub const NOWHERE: u64 = 4 << 20;

const KERNEL_CS: u16 = 0x08;
const KERNEL_DS: u16 = 0x10;
const USER_CS32: u16 = 0x1b;
const USER_DS: u16 = 0x23;
const USER_CS64: u16 = 0x2b;
const TR: u16 = 0x30;
const GDT_LIMIT: u16 = 0x7f;

const CODE64: u64 = 0x00af_9b00_0000_ffff;
const CODE32: u64 = 0x00cf_9b00_0000_ffff;
const DATA32: u64 = 0x00cf_9300_0000_ffff;
const CODE16: u64 = 0x0000_9b00_0000_ffff;
const CONFORMING64: u64 = 0x00af_9f00_0000_ffff;
const DPL3: u64 = 3 << 45;
const PRESENT: u64 = 1 << 47;
const WRITABLE: u64 = 1 << 41;
/// User code may execute INT3, INTO and INT 80h.
const USER_VECTORS: [u64; 3] = [3, 4, 0x80];
/// Limit of steps, which is more than any case takes.
const STEPS: u64 = 100_000;
/// The time after which a case that hangs is stopped. A case has only a few instructions, but emulated hosts are slow.
const PATIENCE: Duration = Duration::from_secs(5);

/// The mode in which code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit, level 0.
    Kernel,
    /// 64-bit, level 3.
    User,
    /// 32-bit under long mode, level 3.
    Compat,
    /// 32-bit at level 0 without paging.
    Protected,
    /// 16-bit.
    Real,
}

impl Mode {
    pub fn named(name: &str) -> Option<Mode> {
        Some(match name {
            "kernel" => Mode::Kernel,
            "user" => Mode::User,
            "compat" => Mode::Compat,
            "protected" => Mode::Protected,
            "real" => Mode::Real,
            _ => return None,
        })
    }

    pub fn is_user(self) -> bool {
        matches!(self, Mode::User | Mode::Compat)
    }

    pub fn code(self) -> u64 {
        if self.is_user() { USER_CODE } else { CODE }
    }

    /// The instruction after every case's code: INT 80h in user code, HLT in all other code.
    pub fn last_instruction(self) -> &'static [u8] {
        if self.is_user() { &[0xcd, 0x80] } else { &[0xf4] }
    }
}

/// The engine that executes a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Soft(CpuModel),
    Kvm(CpuModel),
}

impl Engine {
    pub fn model(self) -> CpuModel {
        match self {
            Engine::Soft(model) | Engine::Kvm(model) => model,
        }
    }

    pub fn name(self) -> String {
        let kind = if matches!(self, Engine::Kvm(_)) { "KVM" } else { "soft" };
        format!("{kind} as {}", self.model().name())
    }
}

/// A machine before or after its run.
pub struct Machine {
    pub ram: GuestRam,
    pub state: CpuState,
    pub board: TestBoard,
    /// Instructions that the software CPU executed in KVM's place.
    pub emulated: u64,
}

impl Machine {
    /// The machine before a case's first instruction.
    pub fn new(mode: Mode, code: &[u8]) -> Machine {
        let ram = GuestRam::new(RAM_BYTES).expect("2 MiB can be mapped");
        let mut machine = Machine { ram, state: base_state(), board: TestBoard::new(), emulated: 0 };
        let ram = &machine.ram;
        ram.write_bytes(mode.code(), &[code, mode.last_instruction()].concat());
        (0..256).for_each(|vector| ram.store_u8(HANDLERS + 16 * vector, 0xf4));
        build_gdt(ram, mode == Mode::Protected);
        match mode {
            Mode::Kernel => machine.long_mode(),
            Mode::User => machine.user_mode(USER_CS64, CODE64),
            Mode::Compat => machine.user_mode(USER_CS32, CODE32),
            Mode::Protected => machine.protected_mode(),
            Mode::Real => machine.real_mode(),
        }
        machine.state.rip = mode.code();
        machine
    }

    fn long_mode(&mut self) {
        let ram = &self.ram;
        ram.store_u64(TSS + 4, STACK);
        ram.store_u64(TSS + 36, IST1);
        for vector in 0..256 {
            ram.store_u64(IDT + 16 * vector, gate(vector));
        }
        for (table, entry) in [(0, 0x1007), (0x1000, 0x2007), (0x2000, 0x3007), (0x2008, 0x4007)] {
            ram.store_u64(TABLES + table, TABLES + entry);
        }
        for page in 0..(RAM_BYTES + MMIO_BYTES) >> 12 {
            ram.store_u64(PAGE_TABLE + 8 * page, page << 12 | 7);
        }
        self.state.idtr = TableRegister { base: IDT, limit: 0xfff };
        self.state.cr0 = 0x8005_0033;
        self.state.cr3 = TABLES;
        self.state.cr4 = 0x620;
        self.state.msrs.efer = 0xd01;
        self.load_segments(segment(KERNEL_CS, CODE64), segment(KERNEL_DS, DATA32));
    }

    fn user_mode(&mut self, selector: u16, code: u64) {
        self.long_mode();
        self.load_segments(segment(selector, code | DPL3), segment(USER_DS, DATA32 | DPL3));
        self.state.gpr[4] = USER_STACK;
    }

    fn protected_mode(&mut self) {
        let ram = &self.ram;
        ram.store_u32(TSS + 4, STACK as u32);
        ram.store_u32(TSS + 8, KERNEL_DS.into());
        for vector in 0..256 {
            ram.store_u64(IDT + 8 * vector, gate(vector));
        }
        self.state.idtr = TableRegister { base: IDT, limit: 0x7ff };
        self.state.cr0 = 0x5_0033;
        self.state.cr4 = 0x600;
        self.load_segments(segment(KERNEL_CS, CODE32), segment(KERNEL_DS, DATA32));
    }

    fn real_mode(&mut self) {
        for vector in 0..256 {
            self.ram.store_u32(4 * vector, (HANDLERS + 16 * vector) as u32);
        }
        self.state.idtr = TableRegister { base: 0, limit: 0x3ff };
        let data = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x93 };
        self.load_segments(Segment { attributes: 0x9b, ..data }, data);
        self.state.tr = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x8b };
    }

    fn load_segments(&mut self, code: Segment, data: Segment) {
        self.state.segments = [data, code, data, data, data, data];
    }

    /// Runs to the end. An error says that there was no end.
    pub fn run(&mut self, engine: Engine) -> Result<Stop, String> {
        match engine {
            Engine::Soft(model) => self.run_soft(model),
            Engine::Kvm(model) => self.run_kvm(model).map_err(|error| error.to_string())?,
        }
    }

    /// A copy of RAM for a CPU, which owns its RAM.
    fn take_ram(&self) -> GuestRam {
        let ram = GuestRam::new(RAM_BYTES).expect("2 MiB can be mapped");
        copy_ram(&self.ram, &ram);
        ram
    }

    fn put_ram_back(&self, ram: &GuestRam) {
        copy_ram(ram, &self.ram);
    }

    fn run_soft(&mut self, model: CpuModel) -> Result<Stop, String> {
        let mut cpu = Cpu::new(self.take_ram());
        cpu.set_model(model);
        cpu.set_state(&self.state);
        let stop = cpu.run(&mut self.board, STEPS, 0);
        self.state = cpu.state();
        self.put_ram_back(cpu.ram());
        self.ended(stop)
    }

    fn run_kvm(&mut self, model: CpuModel) -> Result<Result<Stop, String>, kvm::Error> {
        let mut cpu = KvmCpu::new(self.take_ram(), model)?;
        cpu.set_state(&self.state);
        let end = cpu.run(&mut self.board, Leave::After { due: PATIENCE, force: PATIENCE, note: false })?;
        self.state = cpu.cpu().state();
        self.put_ram_back(cpu.cpu().ram());
        self.emulated = cpu.statistics().emulated;
        Ok(match end {
            End::Stop(stop) => self.ended(stop),
            _ => Err(format!("no end within {PATIENCE:?}, at {:#x}", self.state.rip)),
        })
    }

    fn ended(&self, stop: Stop) -> Result<Stop, String> {
        match stop {
            Stop::Halted | Stop::Shutdown => Ok(stop),
            other => Err(format!("no end but {other:?}, at {:#x}", self.state.rip)),
        }
    }
}

fn copy_ram(from: &GuestRam, to: &GuestRam) {
    let mut bytes = vec![0; RAM_BYTES as usize];
    from.read_bytes(0, &mut bytes);
    to.write_bytes(0, &bytes);
}

fn base_state() -> CpuState {
    let mut state = CpuState::reset();
    state.gpr = [0; 16];
    state.gpr[4] = STACK;
    state.gdtr = TableRegister { base: GDT, limit: GDT_LIMIT };
    state.tr = Segment { selector: TR, base: TSS, limit: 0x67, attributes: 0x8b };
    state.cr0 = 0x10;
    state.fpu.control = 0x37f;
    state.fpu.valid = 0;
    state
}

fn segment(selector: u16, descriptor: u64) -> Segment {
    Segment { selector, base: 0, limit: u32::MAX, attributes: (descriptor >> 40) as u16 & 0xf0ff }
}

/// An interrupt gate to the vector's handler. The gate's low half is the same in 16- and 8-byte tables.
fn gate(vector: u64) -> u64 {
    let level = if USER_VECTORS.contains(&vector) { DPL3 } else { 0 };
    HANDLERS + 16 * vector | u64::from(KERNEL_CS) << 16 | 0x8e00 << 32 | level
}

fn build_gdt(ram: &GuestRam, protected: bool) {
    // A busy TSS at the address `TSS`, whose limit has room for the fields only: there is no I/O permission bitmap.
    let tss = 0x67 | TSS << 16 | 0x8b << 40;
    let kernel = if protected { CODE32 } else { CODE64 };
    for (selector, descriptor) in [
        (0x08, kernel),
        (0x10, DATA32),
        (0x18, CODE32 | DPL3),
        (0x20, DATA32 | DPL3),
        (0x28, CODE64 | DPL3),
        (0x30, tss),
        (0x40, DATA32 & !PRESENT),
        (0x48, DATA32 & !WRITABLE),
        (0x50, CODE32),
        (0x58, CODE16),
        (0x70, CONFORMING64),
    ] {
        ram.store_u64(GDT + selector, descriptor);
    }
    ram.store_u16(TSS + 102, 0x68);
}
