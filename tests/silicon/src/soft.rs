//! Executes cases on the software CPU. The user half of the guest has the same mappings at the same addresses as
//! the process of [`crate::native`]. The kernel half has an interrupt table, whose handlers show which exception
//! was raised.

use cpu::{Counts, Cpu, CpuState, EmptyBus, Segment, Stop, TableRegister, Tier};
use guest_ram::GuestRam;

use crate::layout::{CODE, CODE_BYTES, DATA, DATA_BYTES, PAGE, READ_ONLY, USER_CS, USER_SS};
use crate::state::{Fault, FxImage, Outcome, Registers};

/// The constants below are RAM offsets, which are guest-physical addresses.
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const IDT: u64 = 0x4000;
const GDT: u64 = 0x5000;
const TSS: u64 = 0x6000;
const HANDLERS: u64 = 0x7000;
const STACK_TOP: u64 = 0xa000;
const FIRST_TABLE: u64 = 0x1_0000;
const DATA_RAM: u64 = 0x10_0000;
const CODE_RAM: u64 = 0x20_0000;
const RAM_BYTES: u64 = 0x40_0000;

/// Linear address of RAM offset 0 for the kernel half. The guest's descriptor tables and handlers are at such
/// addresses, which the guest's user code cannot access.
pub const KERNEL: u64 = 0x3000_0000;
const KERNEL_CS: u16 = 0x10;
const HANDLER_BYTES: u64 = 16;
const VECTORS: u64 = 32;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const NO_EXECUTE: u64 = 1 << 63;

/// The largest number of steps of a single instruction: iterations of a repeated string instruction.
const MAX_STEPS: u64 = 1 << 16;

/// A software CPU with its guest, which executes cases.
pub struct Soft {
    cpu: Cpu,
    template: CpuState,
    tables: u64,
    /// Number of extra steps after the instruction, because translated code runs whole blocks.
    more_steps: u64,
}

impl Soft {
    /// Creates a guest in user mode with the given FS base. `tier` executes the guest's code.
    pub fn new(fs_base: u64, tier: Tier) -> Soft {
        let ram = GuestRam::new(RAM_BYTES).expect("a few MiB of RAM");
        let mut cpu = Cpu::new(ram);
        cpu.set_tier(tier);
        let more_steps = if tier == Tier::Interpreter { 0 } else { 3 };
        let mut soft = Soft { cpu, template: user_state(fs_base), tables: FIRST_TABLE, more_steps };
        soft.build_tables();
        soft.build_kernel();
        soft
    }

    fn build_tables(&mut self) {
        self.cpu.ram().store_u64(PML4, PDPT | PRESENT | WRITABLE | USER);
        self.cpu.ram().store_u64(PDPT, DIRECTORY | PRESENT | WRITABLE | USER);
        self.map(CODE, CODE_RAM, CODE_BYTES, WRITABLE | USER);
        self.map(DATA, DATA_RAM, DATA_BYTES, WRITABLE | USER | NO_EXECUTE);
        self.map(READ_ONLY, DATA_RAM + DATA_BYTES, PAGE, USER | NO_EXECUTE);
        self.map(KERNEL, 0, FIRST_TABLE, WRITABLE);
    }

    fn map(&mut self, address: u64, offset: u64, bytes: u64, rights: u64) {
        for at in (0..bytes).step_by(PAGE as usize) {
            let linear = address + at;
            let entry = DIRECTORY + (linear >> 21 & 511) * 8;
            if self.cpu.ram().load_u64(entry) == 0 {
                self.cpu.ram().store_u64(entry, self.tables | PRESENT | WRITABLE | USER);
                self.tables += PAGE;
            }
            let table = self.cpu.ram().load_u64(entry) & !0xfff;
            self.cpu.ram().store_u64(table + (linear >> 12 & 511) * 8, (offset + at) | PRESENT | rights);
        }
    }

    fn build_kernel(&mut self) {
        for vector in 0..VECTORS {
            let handler = KERNEL + HANDLERS + vector * HANDLER_BYTES;
            // A 64-bit interrupt gate (SDM vol. 3, figure 6-8); user mode may call the gates of INT3 and INTO.
            let rights = if matches!(vector, 3 | 4) { 0xee } else { 0x8e };
            let low =
                handler & 0xffff | u64::from(KERNEL_CS) << 16 | rights << 40 | (handler >> 16 & 0xffff) << 48;
            self.cpu.ram().store_u64(IDT + vector * 16, low);
            self.cpu.ram().store_u64(IDT + vector * 16 + 8, handler >> 32);
            // The handler is a jump to itself, so it executes until the steps of the run are used up.
            self.cpu.ram().store_u16(HANDLERS + vector * HANDLER_BYTES, 0xfeeb);
        }
        self.cpu.ram().store_u64(GDT + u64::from(KERNEL_CS), 0x00af_9b00_0000_ffff);
        self.cpu.ram().store_u64(GDT + u64::from(USER_SS & !7), 0x00cf_f300_0000_ffff);
        self.cpu.ram().store_u64(GDT + u64::from(USER_CS & !7), 0x00af_fb00_0000_ffff);
        self.cpu.ram().store_u64(TSS + 4, KERNEL + STACK_TOP);
    }

    /// Drops everything that the CPU has cached from the code area, so that the slots can get new code.
    pub fn start_batch(&mut self) {
        self.cpu.set_state(&self.template);
    }

    /// Fills the read-only page.
    pub fn seal_read_only(&mut self, bytes: &[u8]) {
        self.cpu.ram().write_bytes(DATA_RAM + DATA_BYTES, bytes);
    }

    /// Writes code at an address in the code area. The batch must not have executed code at this address before.
    pub fn write_code(&mut self, address: u64, bytes: &[u8]) {
        self.cpu.ram().write_bytes(address - CODE + CODE_RAM, bytes);
    }

    /// Writes a jump to itself at the end of a slot's code. The CPU may execute this jump for any number of steps.
    pub fn write_exit(&mut self, address: u64) {
        self.write_code(address, &[0xeb, 0xfe]);
    }

    /// Writes bytes into the writable data.
    pub fn write_data(&mut self, address: u64, bytes: &[u8]) {
        self.cpu.ram().write_bytes(address - DATA + DATA_RAM, bytes);
    }

    /// Copies all writable data.
    pub fn read_data(&self, to: &mut [u8]) {
        self.cpu.ram().read_bytes(DATA_RAM, to);
    }

    /// Executes the instruction at `input.rip`. `steps` is how many iterations it may take (1 unless it is a
    /// repeated string instruction). If `fetch` is set, the CPU also fetches the next instruction, so that a branch
    /// to an unmapped address faults.
    pub fn run(&mut self, input: &Registers, steps: u64, fetch: bool, outcome: &mut Outcome) {
        self.load(input);
        let mut until = steps.clamp(1, MAX_STEPS) + self.more_steps;
        let mut stop = self.cpu.run(&mut EmptyBus::default(), until, u64::MAX);
        if fetch && stop == Stop::Budget && !in_handler(self.cpu.rip()) {
            until += 1;
            stop = self.cpu.run(&mut EmptyBus::default(), until, u64::MAX);
        }
        self.save(stop, outcome);
    }

    fn load(&mut self, input: &Registers) {
        let state = &mut self.template;
        state.gpr = input.gpr;
        state.rip = input.rip;
        state.rflags = input.rflags;
        load_fx(state, &input.fx);
        self.cpu.set_registers(state);
        self.cpu.set_counts(Counts::default());
    }

    fn save(&mut self, stop: Stop, outcome: &mut Outcome) {
        let state = self.cpu.state();
        let registers = &mut outcome.registers;
        registers.gpr = state.gpr;
        registers.rip = state.rip;
        registers.rflags = state.rflags;
        save_fx(&state, &mut registers.fx);
        outcome.fault = None;
        if stop == Stop::Shutdown {
            let exception = self.cpu.core().exception;
            outcome.fault = Some(Fault {
                vector: exception.vector,
                code: exception.error_code.unwrap_or(0),
                address: exception.cr2.unwrap_or(0),
            });
        } else if in_handler(state.rip) {
            let vector = ((state.rip - KERNEL - HANDLERS) / HANDLER_BYTES) as u8;
            let mut at = state.gpr[4] - KERNEL;
            let mut pop = || {
                at += 8;
                self.cpu.ram().load_u64(at - 8)
            };
            let has_code = matches!(vector, 8 | 10..=14 | 17);
            let code = if has_code { pop() as u32 } else { 0 };
            registers.rip = pop();
            pop();
            registers.rflags = pop();
            registers.gpr[4] = pop();
            let address = if vector == 14 { state.cr2 } else { 0 };
            outcome.fault = Some(Fault { vector, code, address });
        }
    }
}

fn in_handler(rip: u64) -> bool {
    (KERNEL + HANDLERS..KERNEL + HANDLERS + VECTORS * HANDLER_BYTES).contains(&rip)
}

fn segment(selector: u16, attributes: u16) -> Segment {
    Segment { selector, base: 0, limit: 0xffff_ffff, attributes }
}

fn user_state(fs_base: u64) -> CpuState {
    let mut state = CpuState::reset();
    let null = segment(0, 0);
    let code = segment(USER_CS, 0xa0fb);
    let stack = segment(USER_SS, 0xc0f3);
    state.segments = [null, code, stack, null, Segment { base: fs_base, ..null }, null];
    // PE, MP, ET, NE, WP, PG.
    state.cr0 = 0x8001_0033;
    state.cr3 = PML4;
    // PAE, OSFXSR, OSXMMEXCPT.
    state.cr4 = 0x620;
    // SCE, LME, LMA, NXE.
    state.msrs.efer = 0xd01;
    state.gdtr = TableRegister { base: KERNEL + GDT, limit: 0xfff };
    state.idtr = TableRegister { base: KERNEL + IDT, limit: (VECTORS * 16 - 1) as u16 };
    state.tr = Segment { selector: 0x40, base: KERNEL + TSS, limit: 0x67, attributes: 0x8b };
    // No local descriptor table, as in every process of Linux.
    state.ldtr = Segment { selector: 0, base: 0, limit: 0, attributes: 0 };
    state.rflags = 0x202;
    state
}

fn load_fx(state: &mut CpuState, fx: &FxImage) {
    let top = fx.top();
    for n in 0..8 {
        let physical = top + n & 7;
        state.fpu.mantissas[physical] = fx.mantissa(n);
        state.fpu.sign_exponents[physical] = fx.sign_exponent(n);
    }
    state.fpu.control = fx.control();
    state.fpu.status = fx.status();
    state.fpu.valid = fx.tags();
    state.fpu.opcode = fx.opcode();
    state.fpu.instruction_pointer = fx.instruction_pointer();
    state.fpu.data_pointer = fx.data_pointer();
    state.mxcsr = fx.mxcsr();
    for n in 0..16 {
        state.xmm[n] = fx.xmm(n);
    }
}

fn save_fx(state: &CpuState, fx: &mut FxImage) {
    let top = usize::from(state.fpu.status >> 11 & 7);
    for n in 0..8 {
        let physical = top + n & 7;
        fx.set_st(n, state.fpu.mantissas[physical], state.fpu.sign_exponents[physical]);
    }
    fx.set_control(state.fpu.control);
    fx.set_status(state.fpu.status);
    fx.set_tags(state.fpu.valid);
    fx.set_opcode(state.fpu.opcode);
    fx.set_instruction_pointer(state.fpu.instruction_pointer);
    fx.set_data_pointer(state.fpu.data_pointer);
    fx.set_mxcsr(state.mxcsr);
    for n in 0..16 {
        fx.set_xmm(n, state.xmm[n]);
    }
}
