//! A small machine around our CPU: flat 32-bit protected mode or real mode, and RAM.

use cpu::{Cpu, CpuState, EmptyBus, FpuState, Segment, Stop};
use guest_ram::GuestRam;

use crate::machine::{ARITHMETIC, MEMORY_BYTES, Machine, POINTER_TO_CODE, POINTER_TO_DATA};

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const HANDLERS: u64 = 0x3000;
const STACK: u64 = 0x5000;
/// Address of the instruction under test.
pub const CODE: u64 = 0x6000;
/// Address of the memory operand.
pub const DATA: u64 = 0x7000;

/// Our CPU and its RAM.
pub struct Guest {
    cpu: Cpu,
}

impl Guest {
    pub fn new() -> Guest {
        let ram = GuestRam::new(1 << 20).expect("RAM");
        ram.store_u64(GDT + 8, 0x00cf_9b00_0000_ffff);
        ram.store_u64(GDT + 16, 0x00cf_9300_0000_ffff);
        for vector in 0..32 {
            let handler = HANDLERS + 16 * vector;
            ram.store_u64(IDT + 8 * vector, handler | 8 << 16 | 0x8e00 << 32);
        }
        Guest { cpu: Cpu::new(ram) }
    }

    /// The initial state of runs: flat 32-bit protected mode, NE set, and ECX pointing to the memory operand.
    pub fn initial() -> CpuState {
        let mut state = CpuState::reset();
        let flat = |selector, attributes| Segment { selector, base: 0, limit: u32::MAX, attributes };
        state.segments = [flat(16, 0xc093); 6];
        state.segments[1] = flat(8, 0xc09b);
        (state.gdtr.base, state.gdtr.limit) = (GDT, 23);
        (state.idtr.base, state.idtr.limit) = (IDT, 255);
        state.cr0 = 0x31;
        state.gpr[1] = DATA;
        state.gpr[4] = STACK;
        state.rip = CODE;
        state
    }

    /// Executes one instruction. Returns the new state, and the vector if it raised an exception.
    pub fn run(&mut self, state: &CpuState, instruction: &[u8]) -> (CpuState, Option<u8>) {
        self.cpu.ram().write_bytes(state.segments[1].base + state.rip, instruction);
        self.cpu.set_state(state);
        let steps = self.cpu.steps();
        let stop = self.cpu.run(&mut EmptyBus::default(), steps + 1, steps);
        let after = self.cpu.state();
        let vector = match after.rip.wrapping_sub(HANDLERS) {
            distance if distance < 512 => Some((distance / 16) as u8),
            _ if stop == Stop::Shutdown => Some(self.cpu.core().exception.vector),
            _ => None,
        };
        (after, vector)
    }

    /// As [`Guest::run`], but with a [`Machine`], the form of state that our CPU and the processor share.
    pub fn run_machine(&mut self, machine: &Machine, instruction: &[u8]) -> (Machine, Option<u8>) {
        self.write_data(&machine.memory);
        let mut state = Guest::initial();
        state.rflags |= machine.flags;
        state.gpr[0] = u64::from(machine.ax);
        state.fpu = fpu_state(machine);
        let (after, vector) = self.run(&state, instruction);
        (self.machine(&after), vector)
    }

    /// Writes the memory operand.
    pub fn write_data(&self, bytes: &[u8]) {
        self.cpu.ram().write_bytes(DATA, bytes);
    }

    /// Reads the memory operand.
    pub fn read_data(&self, bytes: &mut [u8]) {
        self.cpu.ram().read_bytes(DATA, bytes);
    }

    fn machine(&self, state: &CpuState) -> Machine {
        let fpu = &state.fpu;
        let known = |pointer, address, name| if pointer == address { name } else { pointer };
        let mut memory = [0; MEMORY_BYTES];
        self.read_data(&mut memory);
        let physical = |st: usize| (usize::from(fpu.status >> 11 & 7) + st) & 7;
        Machine {
            control: fpu.control,
            status: fpu.status,
            valid: fpu.valid,
            opcode: fpu.opcode,
            instruction_pointer: known(fpu.instruction_pointer, CODE, POINTER_TO_CODE),
            data_pointer: known(fpu.data_pointer, DATA, POINTER_TO_DATA),
            registers: std::array::from_fn(|st| {
                (fpu.mantissas[physical(st)], fpu.sign_exponents[physical(st)])
            }),
            flags: state.rflags & ARITHMETIC,
            ax: state.gpr[0] as u16,
            memory,
        }
    }
}

fn fpu_state(machine: &Machine) -> FpuState {
    let st = |physical: usize| machine.registers[(physical + 8 - usize::from(machine.status >> 11 & 7)) & 7];
    FpuState {
        mantissas: std::array::from_fn(|physical| st(physical).0),
        sign_exponents: std::array::from_fn(|physical| st(physical).1),
        control: machine.control,
        status: machine.status,
        valid: machine.valid,
        opcode: machine.opcode,
        instruction_pointer: machine.instruction_pointer,
        data_pointer: machine.data_pointer,
        instruction_selector: 0,
        data_selector: 0,
    }
}
