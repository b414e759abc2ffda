//! One random test case: an instruction, and the contents of registers and memory before the instruction. The seed,
//! the batch and the number of a case determine the case completely.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
    UsedMemory,
};

use crate::catalogue::{Catalogue, Form, offered};
use crate::layout::{
    BATCH, CODE, CODE_BYTES, DATA, DATA_BYTES, PAD_AHEAD, PAD_BACK, PAGE, READ_ONLY, START_COUNT,
    START_FIRST, UNMAPPED, slot,
};
use crate::state::{FxImage, Registers};
use crate::values;
use seeded::Rng;

/// The length of the longest instruction in bytes.
const MAX_LENGTH: usize = 15;

/// A test case.
#[derive(Clone)]
pub struct Case {
    /// The tested instruction: [`Case::bytes`], decoded.
    pub instruction: Instruction,
    /// The bytes of the tested instruction.
    pub bytes: [u8; MAX_LENGTH],
    /// The address of the case's slot in the code area.
    pub slot: u64,
    /// Registers before the instruction; `rip` is the instruction's address.
    pub registers: Registers,
    /// The bytes that the test writes into memory before the instruction.
    pub writes: Vec<Write>,
    /// The number of iterations that a repeated string instruction may make; 1 for all other instructions.
    pub steps: u64,
}

/// Bytes to write at one address in the writable data.
#[derive(Clone)]
pub struct Write {
    /// The address in memory for the first byte of `bytes`.
    pub address: u64,
    /// The number of valid bytes in `bytes`.
    pub length: usize,
    /// The bytes, followed by zeros.
    pub bytes: [u8; 64],
}

impl Case {
    /// The instruction's bytes.
    pub fn code(&self) -> &[u8] {
        &self.bytes[..self.instruction.len()]
    }
}

/// Makes cases.
pub struct Generator<'a> {
    catalogue: &'a Catalogue,
    info: InstructionInfoFactory,
    seed: u64,
    fs_base: u64,
}

impl<'a> Generator<'a> {
    /// Creates a generator that chooses instructions from a catalogue. `fs_base` is the base of FS on the processor
    /// and in the software CPU.
    pub fn new(catalogue: &'a Catalogue, seed: u64, fs_base: u64) -> Generator<'a> {
        Generator { catalogue, info: InstructionInfoFactory::new(), seed, fs_base }
    }

    /// Initial contents of the writable data in a batch.
    pub fn batch_data(&self, batch: u64) -> Vec<u8> {
        let mut data = vec![0; DATA_BYTES as usize];
        values::memory(&mut Rng::new(&[self.seed, batch, u64::MAX]), &mut data);
        data
    }

    /// Contents of the read-only page.
    pub fn read_only_data(&self) -> Vec<u8> {
        let mut data = vec![0; PAGE as usize];
        values::memory(&mut Rng::new(&[self.seed, u64::MAX]), &mut data);
        data
    }

    /// Writes case number `number` of a batch to `case`. `number` must be below [`BATCH`].
    pub fn case(&mut self, batch: u64, number: u64, case: &mut Case) {
        let mut rng = Rng::new(&[self.seed, batch, number]);
        let rng = &mut rng;
        case.slot = slot(number % BATCH);
        case.registers.rip = case.slot + START_FIRST + rng.below(START_COUNT);
        case.writes.clear();
        case.steps = 1;
        self.encode(rng, case);
        self.fill_registers(rng, case);
        let mut steering = Steering { fixed: [false; 16], fs_base: self.fs_base };
        let uses = self.info.info(&case.instruction).used_memory().to_vec();
        for used in &uses {
            let target = steering.aim(rng, case, used);
            write_operand(rng, case, target);
        }
        adjust(rng, case, &steering);
        let stack = &mut case.registers.gpr[4];
        if (CODE..CODE + CODE_BYTES).contains(stack) {
            // On the processor, each slot of the code area holds a jump to a stub. In the software CPU's guest, the
            // slot has other bytes. So RSP must not point into a slot.
            *stack = DATA + PAGE;
        }
    }

    /// Chooses an instruction with random operands. Each `Code` is equally likely.
    fn encode(&self, rng: &mut Rng, case: &mut Case) {
        let (code, forms) = &self.catalogue.entries[rng.below(self.catalogue.entries.len() as u64) as usize];
        loop {
            let form = &forms[rng.below(forms.len() as u64) as usize];
            let bytes = spell(rng, form);
            if place(rng, case, &bytes, *code, self.fs_base) {
                return;
            }
        }
    }

    fn fill_registers(&self, rng: &mut Rng, case: &mut Case) {
        let registers = &mut case.registers;
        for value in &mut registers.gpr {
            *value = values::integer(rng);
        }
        registers.gpr[4] = DATA + PAGE + (rng.below(PAGE) & !7);
        // Interrupts are enabled, as in every process.
        registers.rflags = rng.bits() & 0x8d5 | 0x202;
        if rng.percent(15) {
            registers.rflags |= 0x400;
        }
        values::fx_image(rng, &mut registers.fx);
    }
}

impl Default for Case {
    fn default() -> Case {
        Case {
            instruction: Instruction::default(),
            bytes: [0; MAX_LENGTH],
            slot: 0,
            registers: Registers { fx: FxImage::ZERO, gpr: [0; 16], rip: 0, rflags: 2 },
            writes: Vec::new(),
            steps: 1,
        }
    }
}

/// Returns the bytes of an instruction: a form with random REX or VEX fields, sometimes with additional prefixes,
/// and random bytes after it.
pub fn spell(rng: &mut Rng, form: &Form) -> [u8; 24] {
    let mut bytes = [0; 24];
    let mut at = 0;
    if rng.percent(15) {
        for _ in 0..=rng.below(2) {
            let common = [0x67, 0x65, 0x2e, 0x36, 0x3e, 0x26, 0x66, 0xf2, 0xf3, 0xf0, 0x64, 0x67];
            bytes[at] = rng.pick(&common);
            at += 1;
        }
    }
    let head = at;
    for (n, &byte) in form.bytes().iter().enumerate() {
        let fixed_prefix = matches!(byte, 0x66 | 0xf2 | 0xf3) && n == 0;
        if form.rex.is_none() && n == usize::from(fixed_prefix) && rng.percent(50) {
            bytes[at] = 0x40 | rng.below(8) as u8;
            at += 1;
        }
        bytes[at] = byte;
        at += 1;
    }
    if let Some(rex) = form.rex {
        let rex = head + usize::from(rex);
        if form.vex {
            bytes[rex] ^= rng.bits() as u8 & 0xe0;
            if rng.percent(90) {
                bytes[rex + 1] ^= rng.bits() as u8 & 0x78;
            }
        } else {
            bytes[rex] |= rng.below(8) as u8;
        }
    }
    for chunk in bytes[at..].chunks_mut(8) {
        chunk.copy_from_slice(&rng.bits().to_le_bytes()[..chunk.len()]);
    }
    if form.free && rng.percent(30) {
        bytes[at] |= 0xc0;
    }
    bytes
}

/// Decodes the bytes at the case's address, and gives immediates and displacements useful values. Returns false if the
/// result is not a usable case. Prefixes may have changed the instruction, so its `Code` may differ from `code`.
fn place(rng: &mut Rng, case: &mut Case, bytes: &[u8; 24], code: Code, fs_base: u64) -> bool {
    case.bytes.copy_from_slice(&bytes[..MAX_LENGTH]);
    let rip = case.registers.rip;
    let mut decoder = Decoder::with_ip(64, &case.bytes, rip, DecoderOptions::NONE);
    let first = decoder.decode();
    if first.is_invalid() || (first.code() != code && rng.percent(50)) || !offered(&first) {
        return false;
    }
    let places = decoder.get_constant_offsets(&first);
    if places.has_immediate() {
        let (at, size) = (places.immediate_offset(), places.immediate_size());
        if is_branch(&first) {
            let pad = case.slot + if rng.percent(50) { PAD_AHEAD } else { PAD_BACK };
            patch(&mut case.bytes, at, size, pad.wrapping_sub(rip + first.len() as u64));
        } else if rng.percent(50) {
            patch(&mut case.bytes, at, size, immediate(rng));
        }
    }
    if places.has_displacement() && is_absolute(&first) {
        let target = target(rng, &first, 0).wrapping_sub(segment_base(first.memory_segment(), fs_base));
        let relative = first.is_ip_rel_memory_operand();
        let value = if relative { target.wrapping_sub(rip + first.len() as u64) } else { target };
        patch(&mut case.bytes, places.displacement_offset(), places.displacement_size(), value);
    }
    case.instruction = Decoder::with_ip(64, &case.bytes, rip, DecoderOptions::NONE).decode();
    // With an FS prefix, a 32-bit or absolute address can only reach memory of this process itself. Such a case is
    // not usable.
    let own_memory = case.instruction.segment_prefix() == Register::FS
        && (case.bytes[..4].contains(&0x67) || is_absolute(&case.instruction));
    !own_memory && !is_odd_movbe(case) && !aims_itself(&case.instruction) && offered(&case.instruction)
}

/// Whether a bit test uses the same register for the address and for the bit offset. For such an instruction, no
/// register value can direct the access to a chosen address.
fn aims_itself(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let full = |register: Register| register.full_register();
    matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc)
        && instruction.op_kind(0) == OpKind::Memory
        && instruction.op_kind(1) == OpKind::Register
        && [instruction.memory_base(), instruction.memory_index()]
            .iter()
            .any(|&register| full(register) == full(instruction.op1_register()))
}

/// Whether the instruction is a 64-bit MOVBE with a redundant 66 prefix. Intel's processors split such a MOVBE into two
/// accesses. These processors also use the last segment prefix, even a prefix that 64-bit mode ignores. No compiler
/// makes such a MOVBE.
fn is_odd_movbe(case: &Case) -> bool {
    let (instruction, prefixes) = (&case.instruction, &case.bytes[..6]);
    instruction.mnemonic() == Mnemonic::Movbe
        && instruction.memory_size().size() == 8
        && prefixes.contains(&0x66)
}

fn is_branch(instruction: &Instruction) -> bool {
    instruction.op_count() == 1
        && matches!(
            instruction.op_kind(0),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        )
}

fn is_absolute(instruction: &Instruction) -> bool {
    instruction.is_ip_rel_memory_operand()
        || instruction.memory_base() == Register::None && instruction.memory_index() == Register::None
}

fn patch(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

fn immediate(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(70),
        1 => rng.pick(&[0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x7f, 0x80, 0xff]),
        2 => rng.below(256),
        _ => values::integer(rng),
    }
}

/// Chooses the address of a memory operand. Most operands are inside the data, and aligned as the instruction
/// requires. Some operands cross a page, or are on the read-only page, on the unmapped page or at any other
/// unmapped address.
fn target(rng: &mut Rng, instruction: &Instruction, bytes: u64) -> u64 {
    let room = if bytes > 64 { bytes } else { 64 };
    let inside = DATA + room + rng.below(DATA_BYTES - 2 * room);
    let big = instruction.memory_size().size() >= 16;
    match rng.below(100) {
        0..=84 if big && rng.percent(92) => inside & !15,
        0..=59 => inside & !15,
        60..=84 => inside,
        85..=92 => DATA + PAGE * (1 + rng.below(2)) - 1 - rng.below(room.min(32)),
        93 => READ_ONLY - 1 - rng.below(20),
        94 => READ_ONLY + rng.below(PAGE),
        95 => UNMAPPED - 1 - rng.below(20),
        96 => UNMAPPED + rng.below(PAGE),
        97 => DATA - 1 - rng.below(20),
        98 => 0x8000_0000_0000 - 16 + rng.below(32),
        _ if rng.percent(50) => rng.bits() | 1 << 62,
        _ => inside,
    }
}

fn segment_base(segment: Register, fs_base: u64) -> u64 {
    if segment == Register::FS { fs_base } else { 0 }
}

/// Chooses register values so that each memory operand has the chosen address.
struct Steering {
    /// For each register, whether its value has been chosen and must not change any more.
    fixed: [bool; 16],
    fs_base: u64,
}

impl Steering {
    /// Sets registers so that one memory operand has a chosen address, and returns this address.
    fn aim(&mut self, rng: &mut Rng, case: &mut Case, used: &UsedMemory) -> u64 {
        let bytes = used.memory_size().size() as u64;
        let wanted = target(rng, &case.instruction, bytes);
        let (base, index) = (general(used.base()), general(used.index()));
        let narrow = used.base().is_gpr32() || used.index().is_gpr32();
        let scale = u64::from(used.scale());
        let offset =
            wanted.wrapping_sub(segment_base(used.segment(), self.fs_base)).wrapping_sub(used.displacement());
        match (base, index) {
            (Some(base), Some(index)) if base == index => {
                let value = divide(rng, offset, scale + 1);
                self.settle(rng, case, base, value, narrow);
            }
            (Some(base), Some(index)) => {
                if !self.fixed[index] && rng.percent(50) {
                    case.registers.gpr[index] = rng.bits() >> rng.below(64);
                }
                let part = register_value(case, used.index()).wrapping_mul(scale);
                if self.fixed[base] && !self.fixed[index] {
                    let rest = offset.wrapping_sub(case.registers.gpr[base]);
                    let value = divide(rng, rest, scale);
                    self.settle(rng, case, index, value, narrow);
                } else {
                    self.settle(rng, case, base, offset.wrapping_sub(part), narrow);
                }
                self.fixed[index] = true;
            }
            (Some(base), None) => self.settle(rng, case, base, offset, narrow),
            (None, Some(index)) => {
                let value = divide(rng, offset, scale);
                self.settle(rng, case, index, value, narrow);
            }
            (None, None) => {}
        }
        self.address(case, used)
    }

    fn settle(&mut self, rng: &mut Rng, case: &mut Case, register: usize, value: u64, narrow: bool) {
        if self.fixed[register] {
            return;
        }
        // The CPU ignores a register's upper half in a 32-bit address, so fill the upper half with random bits.
        let garbage = if narrow { rng.bits() << 32 } else { 0 };
        case.registers.gpr[register] = if narrow { value & 0xffff_ffff | garbage } else { value };
        self.fixed[register] = true;
    }

    fn address(&self, case: &Case, used: &UsedMemory) -> u64 {
        let base = register_value(case, used.base());
        let index = register_value(case, used.index()).wrapping_mul(u64::from(used.scale()));
        let sum = base.wrapping_add(index).wrapping_add(used.displacement());
        let narrow = used.base().is_gpr32() || used.index().is_gpr32();
        let offset = if narrow { sum & 0xffff_ffff } else { sum };
        offset.wrapping_add(segment_base(used.segment(), self.fs_base))
    }
}

/// Solves `x * factor = value`, as nearly as integers allow.
fn divide(rng: &mut Rng, value: u64, factor: u64) -> u64 {
    if factor.is_power_of_two() {
        let high = if factor == 1 { 0 } else { rng.bits() << (64 - factor.trailing_zeros()) };
        return value >> factor.trailing_zeros() | high;
    }
    // Each step of Newton's iteration for the inverse modulo 2^64 doubles the number of correct bits.
    let inverse = (0..6).fold(factor, |x, _| x.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(x))));
    value.wrapping_mul(inverse)
}

fn general(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

fn register_value(case: &Case, register: Register) -> u64 {
    let Some(number) = general(register) else { return 0 };
    let value = case.registers.gpr[number];
    match register.size() {
        1 => value & 0xff,
        4 => value & 0xffff_ffff,
        _ => value,
    }
}

/// Gives the operand at `target` interesting contents, if it lies in the writable data.
fn write_operand(rng: &mut Rng, case: &mut Case, target: u64) {
    if !(DATA..READ_ONLY).contains(&target) {
        return;
    }
    let length = 64.min(READ_ONLY - target) as usize;
    let mut write = Write { address: target, length, bytes: [0; 64] };
    values::memory(rng, &mut write.bytes);
    case.writes.push(write);
}

/// Sets special values that some instructions need for an interesting result.
fn adjust(rng: &mut Rng, case: &mut Case, steering: &Steering) {
    use Mnemonic::*;
    let instruction = case.instruction;
    if instruction.is_string_instruction() {
        return adjust_string(rng, case);
    }
    match instruction.mnemonic() {
        Div | Idiv => adjust_division(rng, case),
        Bt | Bts | Btr | Btc if instruction.op_kind(0) == OpKind::Memory => {
            adjust_bit_offset(rng, case, steering);
        }
        Cmpxchg | Cmpxchg8b | Cmpxchg16b if rng.percent(50) => make_equal(case),
        Ldmxcsr => patch_memory(case, 0, &(rng.bits() as u32 & 0xffff | 0x1f00).to_le_bytes()),
        Fxrstor | Fxrstor64 => adjust_image(rng, case),
        Ret => point_at_pad(rng, case),
        Jmp | Call if instruction.op_kind(0) == OpKind::Memory => point_at_pad(rng, case),
        Jmp | Call if instruction.op_kind(0) == OpKind::Register => {
            if let Some(register) = general(instruction.op_register(0)) {
                case.registers.gpr[register] = landing(rng, case);
            }
        }
        _ if shifts_by_cl(&instruction) && !steering.fixed[1] && rng.percent(50) => {
            case.registers.gpr[1] = case.registers.gpr[1] & !0xff | immediate(rng) & 0xff;
        }
        _ => {}
    }
}

fn shifts_by_cl(instruction: &Instruction) -> bool {
    (1..instruction.op_count())
        .any(|n| instruction.op_kind(n) == OpKind::Register && instruction.op_register(n) == Register::CL)
}

fn adjust_string(rng: &mut Rng, case: &mut Case) {
    let instruction = &case.instruction;
    if !instruction.has_rep_prefix() && !instruction.has_repne_prefix() {
        return;
    }
    let narrow = (0..instruction.op_count()).any(|n| {
        use OpKind::*;
        matches!(instruction.op_kind(n), MemorySegESI | MemorySegEDI | MemoryESEDI)
    });
    let count = match rng.below(10) {
        0 => 0,
        1 => rng.below(600),
        2 => 1,
        _ => rng.below(40),
    };
    case.registers.gpr[1] = if narrow { count | rng.bits() << 32 } else { count };
    case.steps = count.max(1);
    // For instructions that compare, make runs of equal elements.
    if rng.percent(60) {
        let value = rng.below(256) as u8;
        case.writes.iter_mut().for_each(|write| write.bytes[..48].fill(value));
        if rng.percent(70) {
            case.registers.gpr[0] = u64::from_le_bytes([value; 8]);
        }
    }
}

/// Keeps most quotients in range: the upper half of the dividend becomes small or a sign extension.
fn adjust_division(rng: &mut Rng, case: &mut Case) {
    if rng.percent(25) {
        return;
    }
    let size = match case.instruction.op_kind(0) {
        OpKind::Register => case.instruction.op_register(0).size(),
        _ => case.instruction.memory_size().size(),
    };
    let gpr = &mut case.registers.gpr;
    let high = if rng.percent(50) { 0 } else { u64::MAX };
    if size == 1 {
        gpr[0] = gpr[0] & !0xff00 | (high & 1) * 0xff00;
    } else if general(case.instruction.memory_base()) != Some(2)
        && general(case.instruction.memory_index()) != Some(2)
    {
        gpr[2] = if rng.percent(30) { rng.below(5) } else { high };
    }
}

/// Limits a bit offset in a register so that the access stays within the data. The offset can reach memory on both
/// sides of the operand.
fn adjust_bit_offset(rng: &mut Rng, case: &mut Case, steering: &Steering) {
    let Some(register) = (case.instruction.op_kind(1) == OpKind::Register)
        .then(|| general(case.instruction.op_register(1)))
        .flatten()
    else {
        return;
    };
    if steering.fixed[register] {
        // The register with the bit offset is also part of the address. So make an address that is not mapped.
        case.registers.gpr[register] |= 1 << 62;
    } else {
        let offset = (rng.bits() as i64 >> 51) as u64;
        case.registers.gpr[register] = match case.instruction.op_register(1).size() {
            8 => offset,
            size => offset & ((1 << (8 * size)) - 1) | rng.bits() << (8 * size),
        };
    }
}

/// Makes the comparison of a compare-and-exchange instruction succeed.
fn make_equal(case: &mut Case) {
    let instruction = &case.instruction;
    let gpr = &mut case.registers.gpr;
    if instruction.op_kind(0) == OpKind::Register {
        if let Some(register) = general(instruction.op_register(0)) {
            gpr[0] = gpr[register];
        }
        return;
    }
    let bytes = match instruction.mnemonic() {
        Mnemonic::Cmpxchg8b => {
            let value = (gpr[2] as u32 as u128) << 32 | u128::from(gpr[0] as u32);
            value.to_le_bytes()
        }
        _ => (u128::from(gpr[2]) << 64 | u128::from(gpr[0])).to_le_bytes(),
    };
    patch_memory(case, 0, &bytes);
}

/// Overwrites part of the first memory operand's contents.
fn patch_memory(case: &mut Case, at: usize, bytes: &[u8]) {
    if let Some(write) = case.writes.first_mut() {
        let end = (at + bytes.len()).min(write.length);
        write.bytes[at.min(end)..end].copy_from_slice(&bytes[..end - at.min(end)]);
    }
}

/// Makes an FXRSTOR operand that mostly loads without a fault.
fn adjust_image(rng: &mut Rng, case: &mut Case) {
    let Some(address) = case.writes.first().map(|write| write.address) else { return };
    if address + 512 > READ_ONLY {
        return;
    }
    let mut image = FxImage::ZERO;
    values::fx_image(rng, &mut image);
    case.writes.clear();
    for (n, part) in image.0.chunks(64).enumerate() {
        let bytes = part.try_into().expect("chunks of 64 bytes");
        case.writes.push(Write { address: address + 64 * n as u64, length: 64, bytes });
    }
}

/// A branch target: one of the case's landing pads, or sometimes an unmapped address.
fn landing(rng: &mut Rng, case: &Case) -> u64 {
    match rng.below(20) {
        0 => UNMAPPED + rng.below(PAGE),
        1 => DATA + rng.below(PAGE),
        2 => rng.bits() | 1 << 62,
        n if n & 1 == 0 => case.slot + PAD_AHEAD,
        _ => case.slot + PAD_BACK,
    }
}

fn point_at_pad(rng: &mut Rng, case: &mut Case) {
    let target = landing(rng, case);
    // Keep only the first write, because a write to the stack could overwrite the branch target.
    case.writes.truncate(1);
    patch_memory(case, 0, &target.to_le_bytes());
}
