//! The bytes of registers and memory that hold the followed value, and how a step changes this set.

use cpu::{AddressKind, Place as Range};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use rustc_hash::{FxHashMap, FxHashSet};

use super::passage::Kind;
use crate::cell::{Cell, Reg};
use crate::rules::{self, Effect, Place, Source};
use crate::seen::{Origin, Step};

/// The number of bits by which an address is shifted to get its page.
const PAGE_SHIFT: u32 = 12;
/// The number of general registers in a set of registers, which has one bit for each register.
const GENERAL_REGISTERS: u8 = 16;

/// A set of registers of one processor, with a bit for each register.
pub type Registers = u32;

/// The bytes that hold the value.
#[derive(Clone, Default)]
pub struct Followed {
    /// The value of each byte of memory. A device may overwrite the byte without a trace in the CPU.
    memory: FxHashMap<u64, u8>,
    /// The number of followed bytes in each page.
    pages: FxHashMap<u64, usize>,
    /// The bytes of each register, one bit for each byte.
    registers: FxHashMap<(usize, Reg), u16>,
}

/// How a step used followed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub kind: Kind,
    /// The followed bytes that the step read, with their values.
    pub from: Vec<(Cell, u8)>,
    /// The bytes that hold the value because of the step.
    pub to: Vec<Cell>,
}

/// The bit of a register in a set of registers.
pub fn register_bit(register: Reg) -> Registers {
    match register {
        Reg::General(number) => 1 << (number % GENERAL_REGISTERS),
        Reg::Vector(number) => 1 << (GENERAL_REGISTERS + number % 16),
    }
}

/// The registers that an instruction may read or write.
pub fn touched_registers(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Registers {
    // FXSAVE, XSAVE and their opposites move registers that are no operands.
    let areas = rules::saves_vectors(instruction) || rules::restores_vectors(instruction);
    let vectors = if areas { !0 << GENERAL_REGISTERS } else { 0 };
    let used = factory.info(instruction).used_registers();
    used.iter()
        .filter_map(|used| Reg::of(used.register()))
        .fold(vectors, |all, (register, _)| all | register_bit(register))
}

impl Followed {
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.registers.is_empty()
    }

    /// Whether a register of any processor holds bytes of the value.
    pub fn has_registers(&self) -> bool {
        !self.registers.is_empty()
    }

    /// The registers of a processor that hold bytes of the value.
    pub fn registers_of(&self, processor: usize) -> Registers {
        let of_processor = self.registers.keys().filter(|(number, _)| *number == processor);
        of_processor.fold(0, |all, (_, register)| all | register_bit(*register))
    }

    /// Whether an access of at most a page touches memory that holds bytes of the value.
    pub fn touches(&self, physical: u64, bytes: usize) -> bool {
        let last = physical.saturating_add(bytes.saturating_sub(1) as u64);
        [physical >> PAGE_SHIFT, last >> PAGE_SHIFT].iter().any(|page| self.pages.contains_key(page))
            && (physical..=last).any(|address| self.memory.contains_key(&address))
    }

    /// The bytes of memory, as ranges for an observer.
    pub fn ranges(&self) -> Vec<Range> {
        let addresses = self.memory.keys();
        addresses
            .map(|address| Range { space: AddressKind::Physical, addresses: *address..=*address })
            .collect()
    }

    /// All bytes, in order, with the values of those in memory.
    pub fn cells(&self) -> Vec<(Cell, Option<u8>)> {
        let memory = self.memory.iter().map(|(address, value)| (Cell::Memory(*address), Some(*value)));
        let registers = self.registers.iter().flat_map(|((processor, register), bytes)| {
            let (processor, register, bytes) = (*processor, *register, *bytes);
            let is_followed = move |byte: &u8| bytes >> byte & 1 != 0;
            (0..16).filter(is_followed).map(move |byte| (Cell::Register { processor, register, byte }, None))
        });
        let mut all: Vec<_> = memory.chain(registers).collect();
        all.sort();
        all
    }

    /// The addresses in a part of memory that hold bytes of the value, in order.
    pub fn memory_in(&self, physical: u64, bytes: u64) -> Vec<u64> {
        let is_in = |address: &u64| address.wrapping_sub(physical) < bytes;
        let mut found: Vec<u64> = self.memory.keys().copied().filter(is_in).collect();
        found.sort_unstable();
        found
    }

    pub fn holds(&self, cell: Cell) -> bool {
        match cell {
            Cell::Memory(address) => self.memory.contains_key(&address),
            Cell::Register { processor, register, byte } => {
                self.registers.get(&(processor, register)).is_some_and(|bytes| bytes >> byte & 1 != 0)
            }
        }
    }

    /// The value of a byte of memory.
    pub fn value_of(&self, cell: Cell) -> u8 {
        match cell {
            Cell::Memory(address) => self.memory.get(&address).copied().unwrap_or(0),
            Cell::Register { .. } => 0,
        }
    }

    pub fn add(&mut self, cell: Cell, value: u8) {
        match cell {
            Cell::Memory(address) => {
                if self.memory.insert(address, value).is_none() {
                    *self.pages.entry(address >> PAGE_SHIFT).or_default() += 1;
                }
            }
            Cell::Register { processor, register, byte } => {
                *self.registers.entry((processor, register)).or_default() |= 1 << byte;
            }
        }
    }

    pub fn remove(&mut self, cell: Cell) {
        match cell {
            Cell::Memory(address) => {
                if self.memory.remove(&address).is_none() {
                    return;
                }
                let page = address >> PAGE_SHIFT;
                if let Some(count) = self.pages.get_mut(&page) {
                    *count -= 1;
                    if *count == 0 {
                        self.pages.remove(&page);
                    }
                }
            }
            Cell::Register { processor, register, byte } => {
                let Some(bytes) = self.registers.get_mut(&(processor, register)) else { return };
                *bytes &= !(1 << byte);
                if *bytes == 0 {
                    self.registers.remove(&(processor, register));
                }
            }
        }
    }

    /// Follows the value through a step. Returns the uses of the value. If `through_computations`, the results of
    /// computations are followed too.
    pub fn pass(&mut self, step: &Step, through_computations: bool) -> Vec<Use> {
        self.forget_what_devices_wrote(step);
        let effects = step.effects();
        let read = self.read_by(step);
        let mut copied: Vec<((Cell, u8), Cell)> = Vec::new();
        let (mut computed, mut overwritten) = (Vec::new(), Vec::new());
        for cell in written(step, &effects) {
            match step.origin(&effects, cell) {
                Some(Origin::Rule(Source::Kept)) | None => continue,
                Some(Origin::Cell(from, value)) if self.holds(from) => copied.push(((from, value), cell)),
                Some(Origin::Rule(Source::Computed)) => computed.push(cell),
                _ => {}
            }
            overwritten.push(cell);
        }
        let is_copied = |cell: &Cell| copied.iter().any(|((from, _), _)| from == cell);
        let used: Vec<(Cell, u8)> = read.values.into_iter().filter(|(cell, _)| !is_copied(cell)).collect();
        let kind = if used.is_empty() { None } else { kind_of(step, !computed.is_empty()) };
        let results = if kind == Some(Kind::Computed) { computed } else { Vec::new() };
        overwritten.into_iter().for_each(|cell| self.remove(cell));
        copied.iter().for_each(|((_, value), to)| self.add(*to, *value));
        if through_computations {
            results.iter().for_each(|cell| self.add(*cell, step.stored_at(*cell).unwrap_or(0)));
        }
        let mut uses = Vec::new();
        if !copied.is_empty() {
            let (from, to) = copied.into_iter().unzip();
            uses.push(Use { kind: Kind::Copied, from, to });
        }
        uses.extend(kind.map(|kind| Use { kind, from: used, to: results }));
        if !read.addresses.is_empty() {
            uses.push(Use { kind: Kind::Address, from: read.addresses, to: Vec::new() });
        }
        uses
    }

    /// A followed byte that has another value when it is loaded was overwritten by a device.
    fn forget_what_devices_wrote(&mut self, step: &Step) {
        for load in &step.loads {
            for (address, value) in (load.physical..).zip(&load.bytes) {
                if self.memory.get(&address).is_some_and(|held| held != value) {
                    self.remove(Cell::Memory(address));
                }
            }
        }
    }

    fn read_by(&self, step: &Step) -> Read {
        let mut read = Read::default();
        let Some((instruction, before)) = step.executed.as_ref().filter(|_| step.delivery.is_none()) else {
            return read;
        };
        for load in &step.loads {
            let cells = (load.physical..).map(Cell::Memory).zip(load.bytes.iter().copied());
            read.values.extend(cells.filter(|(cell, _)| self.holds(*cell)));
        }
        for (register, access) in InstructionInfoFactory::new()
            .info(instruction)
            .used_registers()
            .iter()
            .map(|used| (used.register(), used.access()))
        {
            use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
            let Some((known, first)) = Reg::of(register) else { continue };
            if !matches!(access, CondRead | Read | ReadCondWrite | ReadWrite) {
                continue;
            }
            let is_address = is_address(instruction, register);
            for byte in first..first + register.size().min(16) as u8 {
                let cell = Cell::Register { processor: step.processor, register: known, byte };
                if self.holds(cell) {
                    let bytes = if is_address { &mut read.addresses } else { &mut read.values };
                    bytes.push((cell, known.byte_in(before, byte)));
                }
            }
        }
        read.values.sort_unstable();
        read.values.dedup();
        read
    }
}

/// The followed bytes that an instruction reads.
#[derive(Default)]
struct Read {
    values: Vec<(Cell, u8)>,
    /// The bytes that give the address of the instruction's operand in memory.
    addresses: Vec<(Cell, u8)>,
}

/// Whether an instruction uses a register only for the address of its operand in memory.
fn is_address(instruction: &Instruction, register: Register) -> bool {
    let full = register.full_register();
    let operands = || (0..instruction.op_count()).map(|index| (index, instruction.op_kind(index)));
    let is_operand = operands().any(|(index, kind)| {
        kind == OpKind::Register && instruction.op_register(index).full_register() == full
    });
    let is_in_address = [instruction.memory_base(), instruction.memory_index()]
        .iter()
        .any(|part| part.full_register() == full);
    let is_string =
        instruction.is_string_instruction() && matches!(full, Register::RSI | Register::RDI | Register::RCX);
    !is_operand && (is_string || is_in_address && instruction.mnemonic() != Mnemonic::Lea)
}

/// The bytes that a step writes.
fn written(step: &Step, effects: &[Effect]) -> Vec<Cell> {
    let places = effects.iter().flat_map(|effect| (0..effect.bytes).map(|byte| effect.to.plus(byte)));
    let cell = |place| match place {
        Place::Register(register, byte) => Some(Cell::Register { processor: step.processor, register, byte }),
        Place::Memory(linear) => step.physical_of_store(linear).map(Cell::Memory),
    };
    let mut seen = FxHashSet::default();
    places.filter_map(cell).filter(|cell| seen.insert(*cell)).collect()
}

/// How an instruction uses a value that it does not copy.
fn kind_of(step: &Step, computes: bool) -> Option<Kind> {
    use Mnemonic as M;
    let (instruction, _) = step.executed.as_ref()?;
    Some(match instruction.mnemonic() {
        M::Out | M::Outsb | M::Outsw | M::Outsd => Kind::Sent,
        M::Cmp | M::Test | M::Bt | M::Scasb | M::Scasw | M::Scasd | M::Scasq => Kind::Compared,
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq if instruction.is_string_instruction() => Kind::Compared,
        M::Ptest | M::Comiss | M::Comisd | M::Ucomiss | M::Ucomisd => Kind::Compared,
        M::Pcmpistri | M::Pcmpestri => Kind::Compared,
        M::Jmp | M::Call | M::Ret => Kind::Jumped,
        _ if computes => Kind::Computed,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
