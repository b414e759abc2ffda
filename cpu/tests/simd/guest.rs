//! A small machine around our CPU: 64-bit mode and RAM, nothing else.

use cpu::{Cpu, CpuState, EmptyBus, Segment, Stop};
use guest_ram::GuestRam;

const PAGE: u64 = 4096;
const ROOT: u64 = PAGE;
const FIRST_TABLE: u64 = 2 * PAGE;
const GDT: u64 = 0x20000;
const IDT: u64 = 0x21000;
const STACK: u64 = 0x23000;
/// Guest-physical address of the code page, which is also identity-mapped for the handlers.
const CODE: u64 = 0x24000;
const HANDLERS: u64 = 0x25000;
/// Guest-physical address of the data area.
const DATA: u64 = 0x30000;

/// Our CPU and its RAM.
pub struct Guest {
    cpu: Cpu,
    initial: CpuState,
    code: u64,
}

impl Guest {
    /// A machine with a code page and a data area at these page-aligned linear addresses.
    pub fn new(code: u64, data: u64, data_bytes: u64) -> Guest {
        let ram = GuestRam::new(1 << 20).expect("RAM");
        let mut next_table = FIRST_TABLE;
        let mut map = |linear: u64, physical: u64| map_page(&ram, &mut next_table, linear, physical);
        map(code, CODE);
        for offset in (0..data_bytes).step_by(PAGE as usize) {
            map(data + offset, DATA + offset);
        }
        for page in (GDT..=HANDLERS).step_by(PAGE as usize) {
            map(page, page);
        }
        ram.store_u64(GDT + 8, 0x00af_9b00_0000_ffff);
        ram.store_u64(GDT + 16, 0x00cf_9300_0000_ffff);
        for vector in 0..32 {
            let handler = HANDLERS + 16 * vector;
            let gate = handler & 0xffff | 8 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48;
            ram.store_u64(IDT + 16 * vector, gate);
        }
        let cpu = Cpu::new(ram);
        Guest { cpu, initial: initial_state(), code }
    }

    /// The initial state of runs: 64-bit mode with SSE enabled.
    pub fn initial(&self) -> CpuState {
        self.initial.clone()
    }

    /// Writes bytes to the guest's data area, at an offset.
    pub fn write_data(&self, offset: u64, bytes: &[u8]) {
        self.cpu.ram().write_bytes(DATA + offset, bytes);
    }

    /// Reads bytes of the guest's data area, from an offset.
    pub fn read_data(&self, offset: u64, bytes: &mut [u8]) {
        self.cpu.ram().read_bytes(DATA + offset, bytes);
    }

    /// Executes one instruction that starts `offset` bytes into the code page.
    pub fn run(&mut self, state: &CpuState, offset: u64, instruction: &[u8]) -> Outcome {
        self.cpu.ram().write_bytes(CODE + offset, instruction);
        let mut state = state.clone();
        state.rip = self.code + offset;
        self.cpu.set_state(&state);
        let stop = self.cpu.run(&mut EmptyBus::default(), self.cpu.steps() + 1, u64::MAX);
        let after = self.cpu.state();
        let next = state.rip + instruction.len() as u64;
        let vector = match after.rip.wrapping_sub(HANDLERS) {
            distance if distance < 512 => Some((distance / 16) as u8),
            _ if stop == Stop::Shutdown => Some(self.cpu.core().exception.vector),
            _ => None,
        };
        assert!(vector.is_some() || after.rip == next, "stopped by {stop:?} at {:#x}", after.rip);
        Outcome { state: after, vector }
    }
}

/// The outcome of one instruction.
pub struct Outcome {
    /// The state after the instruction, or after the delivery of its exception.
    pub state: CpuState,
    /// The exception that the instruction raised.
    pub vector: Option<u8>,
}

fn map_page(ram: &GuestRam, next_table: &mut u64, linear: u64, physical: u64) {
    let mut table = ROOT;
    for level in (1..4).rev() {
        let entry = table + (linear >> (12 + 9 * level) & 511) * 8;
        if ram.load_u64(entry) == 0 {
            ram.store_u64(entry, *next_table | 0x63);
            *next_table += PAGE;
            assert!(*next_table < GDT, "room for page tables");
        }
        table = ram.load_u64(entry) & !0xfff;
    }
    ram.store_u64(table + (linear >> 12 & 511) * 8, physical | 0x63);
}

fn initial_state() -> CpuState {
    let mut state = CpuState::reset();
    let flat = |selector, attributes| Segment { selector, base: 0, limit: u32::MAX, attributes };
    state.segments = [flat(16, 0xc093); 6];
    state.segments[1] = flat(8, 0xa09b);
    state.gdtr.base = GDT;
    state.gdtr.limit = 23;
    state.idtr.base = IDT;
    state.idtr.limit = 511;
    state.cr0 = 0x8000_0031;
    state.cr3 = ROOT;
    // PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
    state.cr4 = 1 << 5 | 1 << 9 | 1 << 10 | 1 << 18;
    state.xcr0 = 3;
    state.msrs.efer = 0xd01;
    state.gpr[4] = STACK + PAGE;
    state
}
