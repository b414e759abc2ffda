//! The bytes that an instruction moves. Each byte that an instruction writes has a source.
//!
//! The rules follow the SDM, volume 2, for instructions that copy bytes or write constants. All other written bytes
//! count as computed; iced-x86 says which registers an instruction writes. The rules use the values of registers
//! before the instruction only if the instruction may leave its destination unchanged.

use cpu::CpuState;
use iced_x86::{
    ConditionCode, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::cell::{Reg, number_of};
use shuffles::Byte;

mod shuffles;
#[cfg(test)]
mod tests;

/// Offset of XMM0 in the areas of FXSAVE and XSAVE (SDM vol. 1, 13.4.2).
const XMM_OFFSET: u64 = 160;
/// Offset of XSTATE_BV in the areas of XSAVE. Each bit says whether the area has a state (SDM vol. 1, 13.4.2).
const XSTATE_BV_OFFSET: u64 = 512;
/// The bit of SSE state in XCR0 and in the masks of XSAVE and XRSTOR.
const SSE_STATE: u64 = 2;

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;

/// One access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Linear address of the first byte.
    pub linear: u64,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// The loaded or stored bytes.
    pub bytes: Vec<u8>,
}

impl Access {
    pub fn of(linear: u64, physical: u64, bytes: &[u8]) -> Access {
        Access { linear, physical, bytes: bytes.to_vec() }
    }
}

/// An executed instruction.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    /// The decoded instruction.
    pub instruction: &'a Instruction,
    /// The processor before the instruction.
    pub before: &'a CpuState,
    /// The instruction's loads, in order. Empty if they are not known; the rules then only say which registers are
    /// written.
    pub loads: &'a [Access],
    /// The instruction's stores, in order.
    pub stores: &'a [Access],
}

/// The first of some bytes that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A byte of a register.
    Register(Reg, u8),
    /// The byte at a linear address.
    Memory(u64),
}

impl Place {
    /// The place that is `bytes` bytes after this place.
    pub fn plus(self, bytes: u8) -> Place {
        match self {
            Place::Register(register, first) => Place::Register(register, first.wrapping_add(bytes)),
            Place::Memory(address) => Place::Memory(address.wrapping_add(bytes.into())),
        }
    }

    /// The distance of `other` from this place, if `other` is one of `bytes` bytes from this place on.
    fn offset_of(self, other: Place, bytes: u8) -> Option<u8> {
        let offset = match (self, other) {
            (Place::Register(register, first), Place::Register(same, byte)) if register == same => {
                byte.checked_sub(first)?.into()
            }
            (Place::Memory(first), Place::Memory(address)) => address.wrapping_sub(first),
            _ => return None,
        };
        u8::try_from(offset).ok().filter(|offset| *offset < bytes)
    }
}

/// Where some written bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The written bytes are copied from the bytes at this place.
    Copy(Place),
    /// The written bytes are copied in reverse order from the bytes at this place.
    Reversed(Place),
    /// A constant: an immediate, a zeroing idiom or a return address.
    Constant(&'static str),
    /// Zeros that fill the rest of a register.
    Zeros,
    /// Copies of the sign bit of a value, which fill the bytes above this value.
    Signs,
    /// The instruction computed the written bytes.
    Computed,
    /// A port, the clock or another source outside of registers and memory.
    Outside(Outside),
    /// A register that is not followed, such as a segment register.
    Unfollowed(String),
    /// The instruction leaves the bytes unchanged.
    Kept,
}

/// A source outside of registers and memory that an instruction reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outside {
    /// A port.
    Port(u16),
    /// The processor itself, through an instruction such as RDTSC or CPUID.
    Processor(&'static str),
}

/// Consecutive bytes that an instruction writes, and their source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The first written byte.
    pub to: Place,
    /// The number of written bytes.
    pub bytes: u8,
    /// Where the bytes come from.
    pub from: Source,
}

/// The source of the byte at a place, from the first effect that writes this byte. `None` if no effect writes the
/// byte.
pub fn source_of(effects: &[Effect], place: Place) -> Option<Source> {
    effects.iter().find_map(|effect| {
        let offset = effect.to.offset_of(place, effect.bytes)?;
        Some(match &effect.from {
            Source::Copy(from) => Source::Copy(from.plus(offset)),
            Source::Reversed(from) => Source::Copy(from.plus(effect.bytes - 1 - offset)),
            other => other.clone(),
        })
    })
}

/// The effects of an instruction that completed. The effects of copies and constants come first. After them,
/// `Computed` effects cover everything else that the instruction writes.
pub fn effects(executed: &Executed<'_>) -> Vec<Effect> {
    let mut rules = Rules { executed, found: Vec::new() };
    if rules.is_empty_repetition() {
        return Vec::new();
    }
    rules.copies();
    rules.the_rest();
    rules.found
}

/// The effects of the delivery of an interrupt or exception. In 64-bit mode, the first effects are the fields of
/// the frame on the handler's stack (SDM vol. 3, 6.14.2). `rsp` is the stack pointer after the delivery.
pub fn of_delivery(rsp: u64, has_error_code: bool, is_64_bit: bool, stores: &[Access]) -> Vec<Effect> {
    let mut found = Vec::new();
    if is_64_bit {
        let frame = rsp.wrapping_add(if has_error_code { 8 } else { 0 });
        let slots = [
            (0, Source::Constant("the address at which the guest was interrupted")),
            (8, Source::Unfollowed("cs".to_string())),
            (16, Source::Unfollowed("rflags".to_string())),
            (24, Source::Copy(Place::Register(Reg::General(4), 0))),
            (32, Source::Unfollowed("ss".to_string())),
        ];
        for (offset, from) in slots {
            found.push(Effect { to: Place::Memory(frame.wrapping_add(offset)), bytes: 8, from });
        }
        if has_error_code {
            let from = Source::Constant("the error code of the exception");
            found.push(Effect { to: Place::Memory(rsp), bytes: 8, from });
        }
    }
    found.extend(stores.iter().map(computed));
    found.push(Effect { to: Place::Register(Reg::General(4), 0), bytes: 8, from: Source::Computed });
    found
}

fn computed(store: &Access) -> Effect {
    let bytes = u8::try_from(store.bytes.len()).unwrap_or(u8::MAX);
    Effect { to: Place::Memory(store.linear), bytes, from: Source::Computed }
}

/// The registers that an instruction may write, as iced-x86 says.
pub fn written_registers(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Vec<Register> {
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    let writes = |access| {
        use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
        matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
    };
    info.used_registers().iter().filter(|used| writes(used.access())).map(|used| used.register()).collect()
}

/// Whether an instruction loads XMM registers from an area of FXSAVE or XSAVE.
pub fn restores_vectors(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Fxrstor | M::Fxrstor64 | M::Xrstor | M::Xrstor64 | M::Xrstors | M::Xrstors64
    )
}

/// Whether an instruction stores XMM registers in an area of FXSAVE or XSAVE.
pub fn saves_vectors(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Fxsave
            | M::Fxsave64
            | M::Xsave
            | M::Xsave64
            | M::Xsavec
            | M::Xsavec64
            | M::Xsaveopt
            | M::Xsaveopt64
            | M::Xsaves
            | M::Xsaves64
    )
}

struct Rules<'a> {
    executed: &'a Executed<'a>,
    found: Vec<Effect>,
}

impl Rules<'_> {
    fn add(&mut self, to: Place, bytes: usize, from: Source) {
        if let Ok(bytes) = u8::try_from(bytes) {
            self.found.push(Effect { to, bytes, from });
        }
    }

    /// A write to one of the decoder's registers. A write of 32 bits of a general register clears the upper half.
    fn set_register(&mut self, register: Register, from: Source) {
        let Some((reg, first)) = Reg::of(register) else { return };
        self.add(Place::Register(reg, first), register.size().min(16), from);
        if register.is_gpr32() {
            self.add(Place::Register(reg, 4), 4, Source::Zeros);
        }
    }

    /// A write of less than a whole XMM register that clears the rest.
    fn set_vector(&mut self, register: Register, bytes: usize, from: Source) {
        let Some((reg @ Reg::Vector(_), _)) = Reg::of(register) else { return };
        self.add(Place::Register(reg, 0), bytes, from);
        self.add(Place::Register(reg, bytes as u8), 16_usize.saturating_sub(bytes), Source::Zeros);
    }

    fn first_load(&self) -> Place {
        Place::Memory(lowest(self.executed.loads))
    }

    fn first_store(&self) -> Place {
        Place::Memory(lowest(self.executed.stores))
    }

    /// The bytes of an operand that the instruction reads.
    fn operand(&self, index: u32) -> Source {
        let instruction = self.executed.instruction;
        match instruction.op_kind(index) {
            OpKind::Register => from_register(instruction.op_register(index)),
            OpKind::Memory => Source::Copy(self.first_load()),
            _ => Source::Constant("an immediate"),
        }
    }

    fn is_memory(&self, index: u32) -> bool {
        self.executed.instruction.op_kind(index) == OpKind::Memory
    }

    fn register(&self, index: u32) -> Register {
        self.executed.instruction.op_register(index)
    }

    fn operand_bytes(&self, index: u32) -> usize {
        let instruction = self.executed.instruction;
        match instruction.op_kind(index) {
            OpKind::Register => self.register(index).size(),
            _ => instruction.memory_size().size(),
        }
    }

    /// A write of a whole operand.
    fn set_operand(&mut self, index: u32, from: Source) {
        if self.is_memory(index) {
            let (to, bytes) = (self.first_store(), self.operand_bytes(index));
            self.add(to, bytes, from);
        } else {
            self.set_register(self.register(index), from);
        }
    }

    fn gpr(&self, register: Register) -> u64 {
        let full = register.full_register();
        self.executed.before.gpr.get(full.number()).copied().unwrap_or(0)
    }

    /// Whether a repeated string instruction has nothing to do, because its count is zero.
    fn is_empty_repetition(&self) -> bool {
        let instruction = self.executed.instruction;
        if !instruction.is_string_instruction()
            || !(instruction.has_rep_prefix() || instruction.has_repne_prefix())
        {
            return false;
        }
        let address_register = match instruction.op_kind(0) {
            OpKind::MemoryESDI | OpKind::MemorySegSI | OpKind::MemorySegDI => 2,
            OpKind::MemoryESEDI | OpKind::MemorySegESI | OpKind::MemorySegEDI => 4,
            _ => match instruction.op_kind(1) {
                OpKind::MemoryESDI | OpKind::MemorySegSI => 2,
                OpKind::MemoryESEDI | OpKind::MemorySegESI => 4,
                _ => 8,
            },
        };
        let count = self.gpr(Register::RCX);
        (if address_register == 8 { count } else { count & ((1 << (address_register * 8)) - 1) }) == 0
    }

    fn copies(&mut self) {
        use Mnemonic as M;
        let instruction = self.executed.instruction;
        if instruction.is_string_instruction() {
            return self.string();
        }
        if self.is_zeroing_idiom() {
            return self.set_operand(0, Source::Constant("a zeroing idiom"));
        }
        match instruction.mnemonic() {
            M::Mov | M::Movnti => self.set_operand(0, self.operand(1)),
            M::Movzx => self.extend(Source::Zeros),
            M::Movsx | M::Movsxd => self.extend(Source::Signs),
            M::Cbw | M::Cwde | M::Cdqe => self.extend_accumulator(),
            M::Push => {
                let (to, bytes) = (self.first_store(), stored_bytes(self.executed.stores));
                self.add(to, bytes, self.operand(0));
            }
            M::Pop => self.set_operand(0, Source::Copy(self.first_load())),
            M::Xchg => {
                let (first, second) = (self.operand(0), self.operand(1));
                self.set_operand(0, second);
                self.set_operand(1, first);
            }
            // If both operands are one register, the register gets the sum.
            M::Xadd if self.is_memory(0) || self.register(0) != self.register(1) => {
                let first = self.operand(0);
                self.set_operand(1, first);
            }
            M::Cmpxchg => self.compare_and_exchange(),
            M::Cmpxchg8b | M::Cmpxchg16b => self.compare_and_exchange_pair(),
            M::Bswap => {
                if let Some((reg, first)) = Reg::of(self.register(0)) {
                    self.set_register(self.register(0), Source::Reversed(Place::Register(reg, first)));
                }
            }
            M::Movbe => {
                let from = match self.operand(1) {
                    Source::Copy(place) => Source::Reversed(place),
                    other => other,
                };
                self.set_operand(0, from);
            }
            M::Call => {
                let (to, bytes) = (self.first_store(), stored_bytes(self.executed.stores));
                self.add(to, bytes, Source::Constant("a return address"));
            }
            M::Enter => {
                let (to, bytes) = (Place::Memory(first(self.executed.stores)), 8);
                self.add(to, bytes, Source::Copy(Place::Register(Reg::General(5), 0)));
            }
            M::Leave => self.leave(),
            M::Lea => self.address(),
            M::Iretq => {
                let rsp = self.gpr(Register::RSP);
                self.set_register(Register::RSP, Source::Copy(Place::Memory(rsp.wrapping_add(24))));
            }
            M::Syscall => {
                self.set_register(Register::RCX, Source::Constant("the address after SYSCALL"));
                self.set_register(Register::R11, Source::Unfollowed("rflags".to_string()));
            }
            M::Pushf | M::Pushfd | M::Pushfq => {
                let (to, bytes) = (self.first_store(), stored_bytes(self.executed.stores));
                self.add(to, bytes, Source::Unfollowed("rflags".to_string()));
            }
            _ if is_conditional_move(instruction) => self.conditional_move(),
            _ => self.vectors_and_others(),
        }
    }

    fn vectors_and_others(&mut self) {
        use Mnemonic as M;
        let processor = |name| Source::Outside(Outside::Processor(name));
        match self.executed.instruction.mnemonic() {
            M::Movaps
            | M::Movups
            | M::Movapd
            | M::Movupd
            | M::Movdqa
            | M::Movdqu
            | M::Lddqu
            | M::Movntdq
            | M::Movntps
            | M::Movntpd
            | M::Movntdqa => self.set_operand(0, self.operand(1)),
            M::Movd | M::Movq => self.move_quarter_or_half(),
            M::Movss | M::Movsd => self.move_scalar(),
            M::Movlps | M::Movlpd => self.move_half(0),
            M::Movhps | M::Movhpd => self.move_half(8),
            M::Movhlps => {
                self.vector_part(0, self.operand(1), 8, 8);
                self.keep_vector();
            }
            M::Movlhps => {
                self.vector_part(8, self.operand(1), 0, 8);
                self.keep_vector();
            }
            M::Pinsrb | M::Pinsrw | M::Pinsrd | M::Pinsrq => self.insert(),
            M::Pextrb | M::Pextrw | M::Pextrd | M::Pextrq => self.extract(),
            _ if restores_vectors(self.executed.instruction) => self.restore_vectors(),
            _ if saves_vectors(self.executed.instruction) => self.save_vectors(),
            M::In => {
                let port = match self.executed.instruction.op_kind(1) {
                    OpKind::Register => self.gpr(Register::RDX) as u16,
                    _ => u16::from(self.executed.instruction.immediate8()),
                };
                self.set_register(self.register(0), Source::Outside(Outside::Port(port)));
            }
            M::Rdtsc => self.set_registers(&[Register::EAX, Register::EDX], &processor("RDTSC")),
            M::Rdtscp => {
                self.set_registers(&[Register::EAX, Register::EDX, Register::ECX], &processor("RDTSCP"));
            }
            M::Rdpmc => self.set_registers(&[Register::EAX, Register::EDX], &processor("RDPMC")),
            M::Rdmsr => self.set_registers(&[Register::EAX, Register::EDX], &processor("RDMSR")),
            M::Xgetbv => self.set_registers(&[Register::EAX, Register::EDX], &processor("XGETBV")),
            M::Cpuid => {
                let all = [Register::EAX, Register::EBX, Register::ECX, Register::EDX];
                self.set_registers(&all, &processor("CPUID"));
            }
            M::Rdrand => self.set_registers(&[self.register(0)], &processor("RDRAND")),
            M::Rdseed => self.set_registers(&[self.register(0)], &processor("RDSEED")),
            M::Rdpid => self.set_registers(&[self.register(0)], &processor("RDPID")),
            M::Rdfsbase => {
                self.set_registers(&[self.register(0)], &Source::Unfollowed("the base of fs".into()))
            }
            M::Rdgsbase => {
                self.set_registers(&[self.register(0)], &Source::Unfollowed("the base of gs".into()))
            }
            _ => self.shuffle(),
        }
    }

    fn set_registers(&mut self, registers: &[Register], from: &Source) {
        registers.iter().for_each(|register| self.set_register(*register, from.clone()));
    }

    /// Whether the instruction's result does not depend on its operands.
    fn is_zeroing_idiom(&self) -> bool {
        use Mnemonic as M;
        let instruction = self.executed.instruction;
        let is_register = |index| instruction.op_kind(index) == OpKind::Register;
        let same = instruction.op_count() == 2
            && is_register(0)
            && is_register(1)
            && self.register(0) == self.register(1);
        match instruction.mnemonic() {
            M::Xor
            | M::Sub
            | M::Pxor
            | M::Xorps
            | M::Xorpd
            | M::Psubb
            | M::Psubw
            | M::Psubd
            | M::Psubq
            | M::Pcmpeqb
            | M::Pcmpeqw
            | M::Pcmpeqd
            | M::Pcmpeqq => same,
            M::And => is_immediate(instruction) && instruction.immediate(1) == 0,
            M::Or => {
                is_immediate(instruction) && is_all_ones(instruction.immediate(1), self.operand_bytes(0))
            }
            _ => false,
        }
    }

    /// MOVZX and MOVSX: the low bytes are a copy.
    fn extend(&mut self, upper: Source) {
        let (Some((reg, _)), from) = (Reg::of(self.register(0)), self.operand(1)) else { return };
        let (low, all) = (self.operand_bytes(1), self.register(0).size());
        self.add(Place::Register(reg, 0), low, from);
        self.add(Place::Register(reg, low as u8), all.saturating_sub(low), upper);
        if all == 4 {
            self.add(Place::Register(reg, 4), 4, Source::Zeros);
        }
    }

    /// CBW, CWDE and CDQE extend the low half of the accumulator in place, as MOVSX does with one register.
    fn extend_accumulator(&mut self) {
        let bytes = match self.executed.instruction.mnemonic() {
            Mnemonic::Cbw => 1,
            Mnemonic::Cwde => 2,
            _ => 4,
        };
        let accumulator = |byte| Place::Register(Reg::General(0), byte);
        self.add(accumulator(0), bytes, Source::Copy(accumulator(0)));
        self.add(accumulator(bytes as u8), bytes, Source::Signs);
        if bytes == 2 {
            self.add(accumulator(4), 4, Source::Zeros);
        }
        if bytes == 1 {
            self.add(accumulator(2), 6, Source::Kept);
        }
    }

    fn string(&mut self) {
        use Mnemonic as M;
        let (load, store) = (self.first_load(), self.first_store());
        let bytes = self.executed.instruction.memory_size().size();
        match self.executed.instruction.mnemonic() {
            M::Movsb | M::Movsw | M::Movsd | M::Movsq => self.add(store, bytes, Source::Copy(load)),
            M::Stosb | M::Stosw | M::Stosd | M::Stosq => {
                self.add(store, bytes, Source::Copy(Place::Register(Reg::General(0), 0)));
            }
            M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => {
                self.set_register(self.register(0), Source::Copy(load));
            }
            M::Insb | M::Insw | M::Insd => {
                let port = self.gpr(Register::RDX) as u16;
                self.add(store, bytes, Source::Outside(Outside::Port(port)));
            }
            _ => {}
        }
    }

    fn compare_and_exchange(&mut self) {
        let bytes = self.operand_bytes(0);
        let accumulator = self.gpr(Register::RAX);
        let destination = match self.operand(0) {
            Source::Copy(Place::Register(reg, first)) => {
                let read: Vec<u8> =
                    (first..8).take(bytes).map(|byte| reg.byte_in(self.executed.before, byte)).collect();
                Some(number_of(&read))
            }
            _ => self.loaded(bytes).map(|bytes| number_of(&bytes)),
        };
        // Without the loads, both the accumulator and the destination may be written.
        let Some(destination) = destination else { return };
        let mask = if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        if destination & mask == accumulator & mask {
            self.set_operand(0, self.operand(1));
            self.add(Place::Register(Reg::General(0), 0), 8, Source::Kept);
        } else {
            let register = match bytes {
                1 => Register::AL,
                2 => Register::AX,
                4 => Register::EAX,
                _ => Register::RAX,
            };
            self.set_register(register, self.operand(0));
            // The processor writes the old value back.
            self.keep(0);
        }
    }

    fn keep(&mut self, index: u32) {
        if self.is_memory(index) {
            self.add(self.first_store(), self.operand_bytes(index), Source::Kept);
        } else if let Some((reg, _)) = Reg::of(self.register(index)) {
            self.add(Place::Register(reg, 0), 8, Source::Kept);
        }
    }

    fn compare_and_exchange_pair(&mut self) {
        let half = if self.executed.instruction.mnemonic() == Mnemonic::Cmpxchg16b { 8 } else { 4 };
        let Some(loaded) = self.loaded(2 * half) else { return };
        let registers = |low, high| {
            let part = |register| self.gpr(register).to_le_bytes()[..half].to_vec();
            [part(low), part(high)].concat()
        };
        let is_equal = loaded == registers(Register::RAX, Register::RDX);
        let (load, store) = (self.first_load(), self.first_store());
        if is_equal {
            self.add(store, half, Source::Copy(Place::Register(Reg::General(3), 0)));
            self.add(store.plus(half as u8), half, Source::Copy(Place::Register(Reg::General(1), 0)));
            self.add(Place::Register(Reg::General(0), 0), 8, Source::Kept);
            self.add(Place::Register(Reg::General(2), 0), 8, Source::Kept);
        } else {
            let pair =
                if half == 8 { [Register::RAX, Register::RDX] } else { [Register::EAX, Register::EDX] };
            self.set_register(pair[0], Source::Copy(load));
            self.set_register(pair[1], Source::Copy(load.plus(half as u8)));
            self.add(store, 2 * half, Source::Kept);
        }
    }

    /// The bytes that the instruction loaded, from the lowest address on.
    fn loaded(&self, bytes: usize) -> Option<Vec<u8>> {
        let first = lowest(self.executed.loads);
        let byte = |at: u64| {
            let address = first.wrapping_add(at);
            self.executed.loads.iter().find_map(|load| {
                load.bytes.get(usize::try_from(address.wrapping_sub(load.linear)).ok()?).copied()
            })
        };
        (0..bytes as u64).map(byte).collect()
    }

    fn conditional_move(&mut self) {
        let register = self.register(0);
        if holds(self.executed.instruction.condition_code(), self.executed.before.rflags) {
            self.set_register(register, self.operand(1));
        } else {
            // A move of 32 bits clears the upper half in any case.
            let from = Source::Kept;
            self.set_register(register, from);
        }
    }

    /// LEAVE: RBP gets the word at the address that RBP had before.
    fn leave(&mut self) {
        let register = match stored_bytes(self.executed.loads) {
            2 => Register::BP,
            4 => Register::EBP,
            _ => Register::RBP,
        };
        self.set_register(register, Source::Copy(self.first_load()));
    }

    /// LEA is a copy if the address is only a base register, and a constant if the address has no register.
    fn address(&mut self) {
        let instruction = self.executed.instruction;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let has_no_index = index == Register::None;
        let from = match base {
            Register::None | Register::RIP | Register::EIP if has_no_index => {
                Source::Constant("an address in the instruction")
            }
            _ if has_no_index && instruction.memory_displacement64() == 0 => from_register(base),
            _ => Source::Computed,
        };
        if base.size() < self.register(0).size() && matches!(from, Source::Copy(_)) {
            return;
        }
        self.set_register(self.register(0), from);
    }

    fn move_quarter_or_half(&mut self) {
        let to = self.register(0);
        let bytes = match (self.is_memory(0), self.is_memory(1)) {
            (false, false) => {
                let general = [0, 1].map(|index| self.register(index)).into_iter().find(|r| r.is_gpr());
                general.map_or(8, Register::size)
            }
            _ => self.executed.instruction.memory_size().size(),
        };
        let from = self.operand(1);
        if self.is_memory(0) {
            self.add(self.first_store(), bytes, from);
        } else if to.is_gpr() {
            self.set_register(to, from);
        } else {
            self.set_vector(to, bytes, from);
        }
    }

    fn move_scalar(&mut self) {
        let bytes = if self.executed.instruction.mnemonic() == Mnemonic::Movss { 4 } else { 8 };
        let from = self.operand(1);
        if self.is_memory(0) {
            self.add(self.first_store(), bytes, from);
        } else if self.is_memory(1) {
            self.set_vector(self.register(0), bytes, from);
        } else {
            self.vector_part(0, from, 0, bytes as u8);
            self.keep_vector();
        }
    }

    /// MOVLPS and MOVHPS move eight bytes of an XMM register, from byte `first` on.
    fn move_half(&mut self, first: u8) {
        if self.is_memory(0) {
            let from = match self.operand(1) {
                Source::Copy(place) => Source::Copy(place.plus(first)),
                other => other,
            };
            self.add(self.first_store(), 8, from);
        } else {
            self.vector_part(first, self.operand(1), 0, 8);
        }
        self.keep_vector();
    }

    /// A part of the first operand, which is an XMM register, is a copy of a part of `from`.
    fn vector_part(&mut self, to: u8, from: Source, first: u8, bytes: u8) {
        let Some((reg @ Reg::Vector(_), _)) = Reg::of(self.register(0)) else { return };
        let Source::Copy(from) = from else { return };
        self.add(Place::Register(reg, to), bytes.into(), Source::Copy(from.plus(first)));
    }

    /// All bytes of the first operand, an XMM register, that no effect so far writes are kept.
    fn keep_vector(&mut self) {
        if self.is_memory(0) {
            return;
        }
        if let Some((reg @ Reg::Vector(_), _)) = Reg::of(self.register(0)) {
            self.add(Place::Register(reg, 0), 16, Source::Kept);
        }
    }

    fn shuffle(&mut self) {
        let Some(sources) = shuffles::sources(self.executed.instruction) else { return };
        let Some((reg @ Reg::Vector(_), _)) = Reg::of(self.register(0)) else { return };
        for (to, source) in (0..).zip(sources) {
            match source {
                Byte::Of(0, byte) if byte == to => self.add(Place::Register(reg, to), 1, Source::Kept),
                Byte::Of(operand, byte) => self.vector_part(to, self.operand(operand), byte, 1),
                Byte::Zero => self.add(Place::Register(reg, to), 1, Source::Zeros),
            }
        }
    }

    fn insert(&mut self) {
        let bytes = element_bytes(self.executed.instruction.mnemonic());
        let number = self.executed.instruction.immediate8() & (16 / bytes - 1);
        self.vector_part(number * bytes, self.operand(1), 0, bytes);
        self.keep_vector();
    }

    fn extract(&mut self) {
        let bytes = element_bytes(self.executed.instruction.mnemonic());
        let number = self.executed.instruction.immediate8() & (16 / bytes - 1);
        let Source::Copy(vector) = self.operand(1) else { return };
        let from = Source::Copy(vector.plus(number * bytes));
        if self.is_memory(0) {
            return self.add(self.first_store(), bytes.into(), from);
        }
        let Some((reg, _)) = Reg::of(self.register(0)) else { return };
        self.add(Place::Register(reg, 0), bytes.into(), from);
        self.add(Place::Register(reg, bytes), 8 - usize::from(bytes), Source::Zeros);
    }

    /// The address of an area of FXSAVE or XSAVE.
    fn area(&self) -> u64 {
        let before = self.executed.before;
        let value = |register: Register, _: usize, _: usize| {
            if register.is_segment_register() {
                let is_based = matches!(register, Register::FS | Register::GS);
                let number = register.number();
                return Some(if is_based { before.segments.get(number)?.base } else { 0 });
            }
            before.gpr.get(register.full_register().number()).copied()
        };
        self.executed.instruction.virtual_address(0, 0, value).unwrap_or(0)
    }

    fn is_xsave(&self) -> bool {
        use Mnemonic as M;
        let mnemonic = self.executed.instruction.mnemonic();
        !matches!(mnemonic, M::Fxrstor | M::Fxrstor64 | M::Fxsave | M::Fxsave64)
    }

    fn save_vectors(&mut self) {
        let area = self.area();
        for number in 0..16 {
            let to = Place::Memory(area.wrapping_add(XMM_OFFSET + 16 * u64::from(number)));
            self.add(to, 16, Source::Copy(Place::Register(Reg::Vector(number), 0)));
        }
    }

    /// Whether the header of an area says that the area has SSE state. Otherwise XRSTOR sets the initial state. Without
    /// the loads, the area may have SSE state.
    fn has_vectors(&self, area: u64) -> bool {
        let state = area.wrapping_add(XSTATE_BV_OFFSET);
        let byte =
            self.executed.loads.iter().find_map(|load| {
                load.bytes.get(usize::try_from(state.wrapping_sub(load.linear)).ok()?).copied()
            });
        byte.is_none_or(|byte| u64::from(byte) & SSE_STATE != 0)
    }

    fn restore_vectors(&mut self) {
        let area = self.area();
        let is_asked = !self.is_xsave() || self.gpr(Register::RAX) & SSE_STATE != 0;
        let is_in_area = !self.is_xsave() || self.has_vectors(area);
        for number in 0..16 {
            let from = area.wrapping_add(XMM_OFFSET + 16 * u64::from(number));
            let from = match (is_asked, is_in_area) {
                (false, _) => Source::Kept,
                (true, true) => Source::Copy(Place::Memory(from)),
                (true, false) => Source::Constant("the initial state of XRSTOR"),
            };
            self.add(Place::Register(Reg::Vector(number), 0), 16, from);
        }
    }

    /// Adds effects that mark everything else that the instruction writes as computed.
    fn the_rest(&mut self) {
        let mut factory = InstructionInfoFactory::new();
        let first = self.executed.instruction.op0_register();
        for register in written_registers(&mut factory, self.executed.instruction) {
            // iced-x86 says that a write of 32 bits writes the whole register.
            let is_half = first.is_gpr32() && first.full_register() == register;
            self.set_register(if is_half { first } else { register }, Source::Computed);
        }
        let stores = self.executed.stores.iter().map(computed);
        self.found.extend(stores);
    }
}

fn from_register(register: Register) -> Source {
    match Reg::of(register) {
        Some((reg, first)) => Source::Copy(Place::Register(reg, first)),
        None => Source::Unfollowed(format!("{register:?}").to_lowercase()),
    }
}

/// The lowest address of some accesses. An access that crosses pages is reported in parts.
fn lowest(accesses: &[Access]) -> u64 {
    accesses.iter().map(|access| access.linear).min().unwrap_or(0)
}

fn first(accesses: &[Access]) -> u64 {
    accesses.first().map_or(0, |access| access.linear)
}

fn stored_bytes(accesses: &[Access]) -> usize {
    accesses.iter().map(|access| access.bytes.len()).sum()
}

fn is_conditional_move(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovne
            | M::Cmovno
            | M::Cmovnp
            | M::Cmovns
            | M::Cmovo
            | M::Cmovp
            | M::Cmovs
    )
}

fn is_immediate(instruction: &Instruction) -> bool {
    use OpKind as K;
    instruction.op_count() == 2
        && matches!(
            instruction.op_kind(1),
            K::Immediate8
                | K::Immediate16
                | K::Immediate32
                | K::Immediate64
                | K::Immediate8to16
                | K::Immediate8to32
                | K::Immediate8to64
                | K::Immediate32to64
        )
}

fn is_all_ones(number: u64, bytes: usize) -> bool {
    let mask = if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
    number & mask == mask
}

fn element_bytes(mnemonic: Mnemonic) -> u8 {
    match mnemonic {
        Mnemonic::Pinsrb | Mnemonic::Pextrb => 1,
        Mnemonic::Pinsrw | Mnemonic::Pextrw => 2,
        Mnemonic::Pinsrd | Mnemonic::Pextrd => 4,
        _ => 8,
    }
}

/// Whether a condition is true of these flags (SDM vol. 1, appendix B).
fn holds(condition: ConditionCode, rflags: u64) -> bool {
    use ConditionCode as C;
    let is = |flag| rflags & flag != 0;
    match condition {
        C::None => true,
        C::o => is(OVERFLOW),
        C::no => !is(OVERFLOW),
        C::b => is(CARRY),
        C::ae => !is(CARRY),
        C::e => is(ZERO),
        C::ne => !is(ZERO),
        C::be => is(CARRY) || is(ZERO),
        C::a => !is(CARRY) && !is(ZERO),
        C::s => is(SIGN),
        C::ns => !is(SIGN),
        C::p => is(PARITY),
        C::np => !is(PARITY),
        C::l => is(SIGN) != is(OVERFLOW),
        C::ge => is(SIGN) == is(OVERFLOW),
        C::le => is(ZERO) || is(SIGN) != is(OVERFLOW),
        C::g => !is(ZERO) && is(SIGN) == is(OVERFLOW),
    }
}
