//! A machine of RAM and a fake bus, with descriptor tables and page tables at fixed places.
//!
//! Every vector's handler is a single HLT at [`handler`]. A test runs until the CPU halts. After a delivery,
//! RIP then shows the handler, and the stack shows the frame.

use cpu::{Bus, BusSignals, Counts, Cpu, CpuState, Parts, SegReg, Segment, Stop, TableRegister, Tier};
use guest_ram::GuestRam;
use iced_x86::code_asm::CodeAssembler;
use std::collections::BTreeMap;

pub const RAM_BYTES: u64 = 16 << 20;
pub const IDT: u64 = 0x1000;
pub const GDT: u64 = 0x2000;
pub const TSS: u64 = 0x3000;
/// A second TSS, for task switches.
pub const TSS2: u64 = 0x3800;
pub const TABLES: u64 = 0x10000;
pub const CODE: u64 = 0x2_0000;
pub const HANDLERS: u64 = 0x3_0000;
pub const KERNEL_STACK: u64 = 0x5_0000;
pub const IST1: u64 = 0x5_8000;
pub const USER_CODE: u64 = 0x6_0000;
pub const USER_STACK: u64 = 0x7_0000;
/// The address of memory that is free for a test's data.
pub const DATA: u64 = 0x8_0000;

/// Selectors of the descriptor table that [`Machine`] builds.
pub const KERNEL_CS: u16 = 0x08;
pub const KERNEL_DS: u16 = 0x10;
pub const USER_CS32: u16 = 0x18 | 3;
pub const USER_DS: u16 = 0x20 | 3;
pub const USER_CS64: u16 = 0x28 | 3;
pub const TR: u16 = 0x30;
pub const NOT_PRESENT_DS: u16 = 0x40;
pub const READ_ONLY_DS: u16 = 0x48;
pub const KERNEL_CS32: u16 = 0x50;
/// A free slot of 16 bytes.
pub const FREE1: u16 = 0x60;
const GDT_LIMIT: u16 = 0x7f;

pub const DPL3: u64 = 3 << 45;
const ACCESSED: u64 = 1 << 40;
pub const CODE64: u64 = 0x00af_9a00_0000_ffff | ACCESSED;
pub const CODE32: u64 = 0x00cf_9a00_0000_ffff | ACCESSED;
pub const DATA32: u64 = 0x00cf_9200_0000_ffff | ACCESSED;

/// Address of the handler of a vector, which halts.
pub fn handler(vector: u8) -> u64 {
    HANDLERS + 16 * u64::from(vector)
}

#[derive(Default)]
pub struct FakeBus {
    pub signals: BusSignals,
    pub vector: u8,
    pub ports: Vec<(u16, u8, u32)>,
    pub msrs: BTreeMap<u32, u64>,
    pub apic_disabled: bool,
    /// The mark byte and a clock value. A HLT that is followed by the mark byte reads this clock value.
    pub time_reads: Option<(u8, u64)>,
    pub cr8: u64,
    pub acknowledged: u32,
}

impl Bus for FakeBus {
    fn port_read(&mut self, _steps: u64, port: u16, _size_bytes: u8) -> u32 {
        0x1111_0000 | u32::from(port)
    }
    fn port_write(&mut self, _steps: u64, port: u16, size_bytes: u8, value: u32) {
        self.ports.push((port, size_bytes, value));
    }
    fn mmio_read(&mut self, _steps: u64, _gpa: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&mut self, _steps: u64, _gpa: u64, _data: &[u8]) {}
    fn signals(&mut self) -> BusSignals {
        self.signals
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.acknowledged += 1;
        self.signals.interrupt = false;
        Some(self.vector)
    }
    fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.signals.nmi)
    }
    fn read_msr(&mut self, _steps: u64, index: u32) -> Option<u64> {
        self.msrs.get(&index).copied()
    }
    fn write_msr(&mut self, _steps: u64, index: u32, value: u64) -> Option<()> {
        self.msrs.get_mut(&index).map(|slot| *slot = value)
    }
    fn apic_enabled(&mut self) -> bool {
        !self.apic_disabled
    }
    fn cr8(&mut self) -> u64 {
        self.cr8
    }
    fn set_cr8(&mut self, _steps: u64, value: u64) {
        self.cr8 = value;
    }
    fn halt(&mut self, _steps: u64, following: Option<u8>) -> Option<u64> {
        self.time_reads.filter(|(mark, _)| following == Some(*mark)).map(|(_, time)| time)
    }
    fn tsc(&mut self, steps: u64) -> u64 {
        1000 + steps
    }
}

pub struct Machine {
    pub cpu: Cpu,
    pub bus: FakeBus,
    /// The state from which the next [`Machine::run`] starts.
    pub state: CpuState,
    /// The counts from which the next run starts.
    pub counts: Counts,
}

fn segment(selector: u16, descriptor: u64) -> Segment {
    Segment { selector, base: 0, limit: u32::MAX, attributes: (descriptor >> 40) as u16 & 0xf0ff }
}

impl Machine {
    /// Guest memory.
    pub fn ram(&self) -> &GuestRam {
        self.cpu.ram()
    }

    fn empty() -> Machine {
        let ram = GuestRam::new(RAM_BYTES).expect("16 MiB can be mapped");
        let mut state = CpuState::reset();
        state.rflags = 2;
        state.rip = CODE;
        state.gpr[4] = KERNEL_STACK;
        state.gdtr = TableRegister { base: GDT, limit: GDT_LIMIT };
        let mut cpu = Cpu::new(ram);
        // The test program `translated` has the same tests, but its CPU translates all code before its first
        // execution.
        if !module_path!().starts_with("translated") {
            cpu.set_tier(Tier::Interpreter);
        } else {
            cpu.set_tier(Tier::Translator { after: 0, parts: Parts::ALL });
        }
        Machine { cpu, bus: FakeBus::default(), state, counts: Counts::default() }
    }

    /// 64-bit mode at level 0. All RAM is identity-mapped for user and supervisor in 4 KiB pages.
    pub fn long() -> Machine {
        let mut m = Machine::empty();
        m.build_gdt();
        m.put64(GDT + 0x08, CODE64);
        m.put64(TSS + 4, KERNEL_STACK);
        m.put64(TSS + 36, IST1);
        for vector in 0..=255 {
            m.long_gate(vector, handler(vector), 0x8e00, 0);
            m.put(handler(vector), &[0xf4]);
        }
        m.state.idtr = TableRegister { base: IDT, limit: 0xfff };
        // PML4, PDPT, PD, and eight page tables for 16 MiB.
        m.put64(TABLES, (TABLES + 0x1000) | 7);
        m.put64(TABLES + 0x1000, (TABLES + 0x2000) | 7);
        for n in 0..8 {
            m.put64(TABLES + 0x2000 + 8 * n, (TABLES + 0x3000 + 0x1000 * n) | 7);
        }
        for page in 0..RAM_BYTES >> 12 {
            m.put64(TABLES + 0x3000 + 8 * page, page << 12 | 7);
        }
        m.state.cr0 = 0x8001_0031;
        m.state.cr3 = TABLES;
        m.state.cr4 = 0x20;
        m.state.msrs.efer = 0xd01;
        m.load_segments(segment(KERNEL_CS, CODE64), segment(KERNEL_DS, DATA32));
        m.state.tr = Segment { selector: TR, base: TSS, limit: 0x7ff, attributes: 0x8b };
        m
    }

    /// 32-bit protected mode at level 0 without paging.
    pub fn protected() -> Machine {
        let mut m = Machine::empty();
        m.build_gdt();
        m.put64(GDT + 0x08, CODE32);
        m.put32(TSS + 4, KERNEL_STACK as u32);
        m.put32(TSS + 8, KERNEL_DS.into());
        for vector in 0..=255_u8 {
            m.gate(vector, handler(vector) as u32, 0x8e00);
            m.put(handler(vector), &[0xf4]);
        }
        m.state.idtr = TableRegister { base: IDT, limit: 0x7ff };
        m.state.cr0 = 0x31;
        m.load_segments(segment(KERNEL_CS, CODE32), segment(KERNEL_DS, DATA32));
        m.state.tr = Segment { selector: TR, base: TSS, limit: 0x7ff, attributes: 0x8b };
        m
    }

    /// Real mode. CS and all other segments have base 0, where the handlers are reachable.
    pub fn real() -> Machine {
        let mut m = Machine::empty();
        m.state.cr0 = 0x10;
        m.state.rip = 0x100;
        m.state.gpr[4] = 0x8000;
        for register in [SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Es] {
            m.state.segments[register as usize].base = 0x2_0000;
            m.state.segments[register as usize].selector = 0x2000;
        }
        m.state.idtr = TableRegister { base: 0, limit: 0x3ff };
        for vector in 0..=255_u8 {
            m.put32(u64::from(vector) * 4, 0x3000_0000 | (u32::from(vector) * 16));
            m.put(handler(vector), &[0xf4]);
        }
        m
    }

    fn build_gdt(&mut self) {
        self.put64(GDT + 0x10, DATA32);
        self.put64(GDT + 0x18, CODE32 | DPL3);
        self.put64(GDT + 0x20, DATA32 | DPL3);
        self.put64(GDT + 0x28, CODE64 | DPL3);
        self.put64(GDT + 0x30, tss_descriptor(TSS, 0xb));
        self.put64(GDT + 0x40, DATA32 & !(1 << 47));
        self.put64(GDT + 0x48, DATA32 & !(2 << 40));
        self.put64(GDT + 0x50, CODE32);
    }

    fn load_segments(&mut self, code: Segment, data: Segment) {
        self.state.segments = [data, code, data, data, data, data];
    }

    /// Level 3 with the user's code and stack: 64-bit code in long mode, otherwise 32-bit.
    pub fn in_user_mode(mut self) -> Machine {
        let long = self.state.msrs.efer & 0x400 != 0;
        let code = if long { segment(USER_CS64, CODE64 | DPL3) } else { segment(USER_CS32, CODE32 | DPL3) };
        self.load_segments(code, segment(USER_DS, DATA32 | DPL3));
        self.state.rip = USER_CODE;
        self.state.gpr[4] = USER_STACK;
        self
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.ram().write_bytes(address, bytes);
    }
    pub fn put32(&self, address: u64, value: u32) {
        self.ram().store_u32(address, value);
    }
    pub fn put64(&self, address: u64, value: u64) {
        self.ram().store_u64(address, value);
    }

    pub fn long_gate(&self, vector: u8, offset: u64, attributes: u64, ist: u64) {
        let low = offset & 0xffff
            | u64::from(KERNEL_CS) << 16
            | ist << 32
            | attributes << 32
            | (offset >> 16 & 0xffff) << 48;
        self.put64(IDT + 16 * u64::from(vector), low);
        self.put64(IDT + 16 * u64::from(vector) + 8, offset >> 32);
    }

    pub fn gate(&self, vector: u8, offset: u32, attributes: u64) {
        self.gate_to(vector, KERNEL_CS, offset, attributes);
    }

    pub fn gate_to(&self, vector: u8, selector: u16, offset: u32, attributes: u64) {
        let offset = u64::from(offset);
        let gate = offset & 0xffff | u64::from(selector) << 16 | attributes << 32 | (offset >> 16) << 48;
        self.put64(IDT + 8 * u64::from(vector), gate);
    }

    /// Changes bits of a page's page-table entry: clears some, then sets others.
    pub fn page(&self, address: u64, clear: u64, set: u64) {
        let entry = TABLES + 0x3000 + 8 * (address >> 12);
        self.put64(entry, self.ram().load_u64(entry) & !clear | set);
    }

    /// Assembles code at the machine's RIP.
    pub fn code(&mut self, bitness: u32, write: impl FnOnce(&mut CodeAssembler)) -> &mut Machine {
        let rip = self.state.rip;
        let base = if bitness == 16 { self.state.segments[1].base } else { 0 };
        self.code_at(bitness, base + rip, rip, write);
        self
    }

    /// Assembles code that runs at `rip`, and writes it to physical memory at `address`.
    pub fn code_at(&self, bitness: u32, address: u64, rip: u64, write: impl FnOnce(&mut CodeAssembler)) {
        let mut assembler = CodeAssembler::new(bitness).expect("a valid bitness");
        write(&mut assembler);
        self.put(address, &assembler.assemble(rip).expect("the test's code assembles"));
    }

    /// Runs from `state` until the CPU stops, for at most 1000 steps, and stores the new state in `state`.
    pub fn run(&mut self) -> Stop {
        self.run_steps(1000)
    }

    /// Runs at most `steps` steps.
    pub fn run_steps(&mut self, steps: u64) -> Stop {
        self.load();
        let origin = self.counts.steps;
        let stop = self.cpu.run(&mut self.bus, origin + steps, origin);
        (self.state, self.counts) = (self.cpu.state(), self.cpu.counts());
        stop
    }

    /// Loads the start state of the next run into the CPU.
    pub fn load(&mut self) {
        self.cpu.set_state(&self.state);
        self.cpu.set_counts(self.counts);
    }

    /// Runs until a handler halts and returns its vector.
    pub fn run_to_handler(&mut self) -> u8 {
        let stop = self.run();
        assert_eq!(stop, Stop::Halted, "rip {:#x}", self.state.rip);
        let linear = self.state.rip + if self.state.cr0 & 1 == 0 { self.state.segments[1].base } else { 0 };
        let distance = linear.wrapping_sub(1 + HANDLERS);
        assert!(
            distance < 0x1000 && distance.is_multiple_of(16),
            "halted outside handlers, at {:#x}",
            linear - 1
        );
        (distance / 16) as u8
    }

    /// The 8-byte word number `n` on the stack, counted from 0 at RSP.
    pub fn stack64(&self, n: u64) -> u64 {
        self.ram().load_u64(self.state.gpr[4] + 8 * n)
    }

    /// The 4-byte word number `n` on the stack, counted from 0 at ESP.
    pub fn stack32(&self, n: u64) -> u32 {
        self.ram().load_u32(self.state.gpr[4] + 4 * n)
    }

    /// The 2-byte word number `n` on the stack, counted from 0 at the stack pointer.
    pub fn stack16(&self, n: u64) -> u16 {
        self.ram().load_u16(self.state.segments[2].base + self.state.gpr[4] + 2 * n)
    }
}

/// An 8-byte TSS descriptor of a type, with a limit of 0x7ff.
pub fn tss_descriptor(base: u64, kind: u64) -> u64 {
    0x7ff | (base & 0xff_ffff) << 16 | (0x80 | kind) << 40 | (base >> 24 & 0xff) << 56
}
