//! The instructions that are translated, and their effect on the arithmetic flags.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::asm::Size;
use super::bits::Bits;
use super::forms::{Form, form_of};

/// Sets of arithmetic flags.
pub(super) mod set {
    pub const C: u8 = 1;
    pub const P: u8 = 2;
    pub const A: u8 = 4;
    pub const Z: u8 = 8;
    pub const S: u8 = 16;
    pub const O: u8 = 32;
    pub const ALL: u8 = 63;
}

/// The flags that a condition reads, by the condition's encoding.
pub(super) fn looked_at(cc: u8) -> u8 {
    match cc >> 1 {
        0 => set::O,
        1 => set::C,
        2 => set::Z,
        3 => set::C | set::Z,
        4 => set::S,
        5 => set::P,
        6 => set::S | set::O,
        _ => set::Z | set::S | set::O,
    }
}

/// The kind of a translated instruction. The interpreter executes all other instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// ADD to CMP by the `/n` of their encoding.
    Alu(u8),
    Test,
    Inc,
    Dec,
    Neg,
    Not,
    Mov,
    /// MOVZX (0xb6) and MOVSX (0xbe), MOVSXD (0x63).
    Extend(u8),
    Lea,
    XchgRegisters,
    XchgMemory,
    Xadd,
    Cmpxchg,
    Push,
    /// PUSHFQ.
    PushFlags,
    Pop,
    Leave,
    /// MOV of a segment register's selector, by the register's number, to a general register.
    MovSelector(u8),
    /// SHL, SHR or SAR by a non-zero count: the `/n` and the count.
    ShiftBy(u8, u8),
    /// SHL, SHR or SAR of a register by CL.
    ShiftByCl(u8),
    /// ROL and ROR of a register: the `/n` and the count.
    RotateBy(u8, u8),
    /// SHLD (0xa4) and SHRD (0xac) of a register: the opcode and the count.
    Double(u8, u8),
    /// MUL (false) and one-operand IMUL.
    Multiply(bool),
    /// IMUL into a register.
    MultiplyInto,
    Divide(bool),
    /// CBW, CWDE, CDQE.
    ExtendAccumulator,
    /// CWD, CDQ, CQO.
    SignToData,
    Bswap,
    /// BT, BTS, BTR, BTC, by the `/n` of the form with an immediate.
    BitTest(u8),
    /// BSF (0xbc) and BSR (0xbd).
    Scan(u8),
    /// POPCNT (0xb8), TZCNT (0xbc), LZCNT (0xbd).
    Count(u8),
    /// An instruction of BMI1 or BMI2 with a VEX prefix.
    Bits(Bits),
    Set(u8),
    Cmov(u8),
    Nothing,
    /// CLI (false) and STI.
    InterruptFlag(bool),
    /// CLAC (false) and STAC.
    AccessControl(bool),
    SwapGs,
    Jump,
    JumpIndirect,
    JumpIf(u8),
    Call,
    CallIndirect,
    Return,
    Vector(Form),
}

/// The effect of an instruction and its translation on the flags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// The flags that the instruction reads.
    pub reads: u8,
    /// The flags that the instruction sets regardless of their old values.
    pub kills: u8,
    /// Flags that are in the host's register afterwards.
    pub in_host: u8,
    /// Whether the instruction's translation leaves the host's flags unchanged.
    pub transparent: bool,
    /// Whether the translation can exit before the instruction completes.
    pub exits: bool,
}

/// Whether an operand is one of AH, CH, DH, BH, which no instruction can name together with registers 8 to 15.
pub(super) fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::CH | Register::DH | Register::BH)
}

/// A general register's number in instructions, for any part of the register.
pub(super) fn number_of(register: Register) -> usize {
    register.full_register().number()
}

/// The size of an operand.
pub(super) fn operand_size(instruction: &Instruction, n: u32) -> Option<Size> {
    match instruction.op_kind(n) {
        OpKind::Register => Size::of(instruction.op_register(n).size()),
        OpKind::Memory => Size::of(instruction.memory_size().size()),
        _ => None,
    }
}

pub(super) fn is_memory(instruction: &Instruction, n: u32) -> bool {
    n < instruction.op_count() && instruction.op_kind(n) == OpKind::Memory
}

fn is_register(instruction: &Instruction, n: u32) -> bool {
    n < instruction.op_count() && instruction.op_kind(n) == OpKind::Register
}

/// Whether the address of the memory operand, if any, is computed in 64 bits from general registers.
fn plain_address(instruction: &Instruction) -> bool {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if base == Register::None && index == Register::None {
        return instruction.memory_displ_size() == 8;
    }
    (base == Register::None || base == Register::RIP || base.is_gpr64())
        && (index == Register::None || index.is_gpr64())
}

/// Whether a 64-bit address is canonical for 48-bit linear addresses.
fn is_canonical(address: u64) -> bool {
    ((address as i64) << 16 >> 16) as u64 == address
}

/// The kind of an instruction; `None` if the interpreter must execute it.
pub(super) fn kind_of(instruction: &Instruction) -> Option<Kind> {
    let count = instruction.op_count();
    for n in 0..count {
        match instruction.op_kind(n) {
            OpKind::Register if is_high_byte(instruction.op_register(n)) => match instruction.mnemonic() {
                Mnemonic::Add
                | Mnemonic::Or
                | Mnemonic::And
                | Mnemonic::Sub
                | Mnemonic::Xor
                | Mnemonic::Cmp => {}
                Mnemonic::Test | Mnemonic::Mov | Mnemonic::Movzx => {}
                _ => return None,
            },
            OpKind::Memory if !plain_address(instruction) => return None,
            _ => {}
        }
    }
    if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        // On these instructions a repeat prefix is BND or a hint. On other instructions the prefix can be
        // part of a vector opcode.
        match instruction.mnemonic() {
            Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Nop | Mnemonic::Pause => {}
            _ => return form_of(instruction).map(Kind::Vector),
        }
    }
    selector(instruction).or_else(|| integer(instruction)).or_else(|| form_of(instruction).map(Kind::Vector))
}

fn selector(instruction: &Instruction) -> Option<Kind> {
    let moves =
        matches!(instruction.code(), Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg | Code::Mov_r64m16_Sreg);
    let from = || Kind::MovSelector(instruction.op1_register().number() as u8);
    (moves && is_register(instruction, 0)).then(from)
}

fn integer(instruction: &Instruction) -> Option<Kind> {
    let near_branch = instruction.op_count() == 1 && instruction.op_kind(0) == OpKind::NearBranch64;
    if near_branch && !is_canonical(instruction.near_branch64()) {
        // A near branch to a non-canonical address faults at the branch itself.
        return None;
    }
    let memory = |n| is_memory(instruction, n);
    let width = if instruction.op_count() > 0 { operand_size(instruction, 0) } else { None };
    let general = |n: u32| {
        instruction.op_kind(n) != OpKind::Register || {
            let r = instruction.op_register(n);
            r.is_gpr()
        }
    };
    if (0..instruction.op_count()).any(|n| !general(n)) {
        return None;
    }
    Some(match instruction.mnemonic() {
        Mnemonic::Add => Kind::Alu(0),
        Mnemonic::Or => Kind::Alu(1),
        Mnemonic::Adc => Kind::Alu(2),
        Mnemonic::Sbb => Kind::Alu(3),
        Mnemonic::And => Kind::Alu(4),
        Mnemonic::Sub => Kind::Alu(5),
        Mnemonic::Xor => Kind::Alu(6),
        Mnemonic::Cmp => Kind::Alu(7),
        Mnemonic::Test => Kind::Test,
        Mnemonic::Inc => Kind::Inc,
        Mnemonic::Dec => Kind::Dec,
        Mnemonic::Neg => Kind::Neg,
        Mnemonic::Not => Kind::Not,
        Mnemonic::Mov => Kind::Mov,
        Mnemonic::Movzx => Kind::Extend(0xb6),
        Mnemonic::Movsx => Kind::Extend(0xbe),
        Mnemonic::Movsxd if operand_size(instruction, 0)? == Size::B8 => Kind::Extend(0x63),
        Mnemonic::Lea if width? >= Size::B4 => Kind::Lea,
        Mnemonic::Xchg if memory(0) || memory(1) => Kind::XchgMemory,
        Mnemonic::Xchg => Kind::XchgRegisters,
        Mnemonic::Xadd if memory(0) => Kind::Xadd,
        Mnemonic::Cmpxchg if memory(0) => Kind::Cmpxchg,
        Mnemonic::Push => match instruction.code() {
            Code::Push_r64 | Code::Push_rm64 | Code::Pushq_imm8 | Code::Pushq_imm32 => Kind::Push,
            _ => return None,
        },
        Mnemonic::Pushfq => Kind::PushFlags,
        Mnemonic::Pop if instruction.code() == Code::Pop_r64 => Kind::Pop,
        Mnemonic::Leave if instruction.code() == Code::Leaveq => Kind::Leave,
        Mnemonic::Shl | Mnemonic::Sal => shift(instruction, 4)?,
        Mnemonic::Shr => shift(instruction, 5)?,
        Mnemonic::Sar => shift(instruction, 7)?,
        Mnemonic::Rol => rotate(instruction, 0)?,
        Mnemonic::Ror => rotate(instruction, 1)?,
        Mnemonic::Shld => double(instruction, 0xa4)?,
        Mnemonic::Shrd => double(instruction, 0xac)?,
        Mnemonic::Mul if width? >= Size::B4 => Kind::Multiply(false),
        Mnemonic::Imul if instruction.op_count() == 1 && width? >= Size::B4 => Kind::Multiply(true),
        Mnemonic::Imul if instruction.op_count() > 1 && width? >= Size::B4 => Kind::MultiplyInto,
        Mnemonic::Div if width? >= Size::B4 => Kind::Divide(false),
        Mnemonic::Idiv if width? >= Size::B4 => Kind::Divide(true),
        Mnemonic::Cbw | Mnemonic::Cwde | Mnemonic::Cdqe => Kind::ExtendAccumulator,
        Mnemonic::Cdq | Mnemonic::Cqo => Kind::SignToData,
        Mnemonic::Bswap if width? >= Size::B4 => Kind::Bswap,
        Mnemonic::Bt => bit_test(instruction, 4)?,
        Mnemonic::Bts => bit_test(instruction, 5)?,
        Mnemonic::Btr => bit_test(instruction, 6)?,
        Mnemonic::Btc => bit_test(instruction, 7)?,
        Mnemonic::Bsf if width? >= Size::B4 => Kind::Scan(0xbc),
        Mnemonic::Bsr if width? >= Size::B4 => Kind::Scan(0xbd),
        Mnemonic::Popcnt if width? >= Size::B4 && is_x86_feature_detected!("popcnt") => Kind::Count(0xb8),
        Mnemonic::Tzcnt if width? >= Size::B4 && is_x86_feature_detected!("bmi1") => Kind::Count(0xbc),
        Mnemonic::Lzcnt if width? >= Size::B4 && is_x86_feature_detected!("lzcnt") => Kind::Count(0xbd),
        Mnemonic::Nop | Mnemonic::Endbr32 | Mnemonic::Endbr64 | Mnemonic::Pause => Kind::Nothing,
        Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Sfence => Kind::Nothing,
        Mnemonic::Prefetch
        | Mnemonic::Prefetchw
        | Mnemonic::Prefetchwt1
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2 => Kind::Nothing,
        Mnemonic::Cli => Kind::InterruptFlag(false),
        Mnemonic::Sti => Kind::InterruptFlag(true),
        Mnemonic::Clac => Kind::AccessControl(false),
        Mnemonic::Stac => Kind::AccessControl(true),
        Mnemonic::Swapgs => Kind::SwapGs,
        Mnemonic::Jmp => match instruction.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Kind::Jump,
            Code::Jmp_rm64 => Kind::JumpIndirect,
            _ => return None,
        },
        Mnemonic::Call => match instruction.code() {
            Code::Call_rel32_64 => Kind::Call,
            Code::Call_rm64 => Kind::CallIndirect,
            _ => return None,
        },
        Mnemonic::Ret => match instruction.code() {
            Code::Retnq | Code::Retnq_imm16 => Kind::Return,
            _ => return None,
        },
        _ => return Bits::of(instruction).map(Kind::Bits).or_else(|| conditional(instruction)),
    })
}

fn conditional(instruction: &Instruction) -> Option<Kind> {
    let cc = condition(instruction)?;
    if instruction.is_loopcc() {
        return None;
    }
    if instruction.is_jcc_short_or_near() {
        return (instruction.op_kind(0) == OpKind::NearBranch64).then_some(Kind::JumpIf(cc));
    }
    match instruction.op_count() {
        1 if operand_size(instruction, 0) == Some(Size::B1) => Some(Kind::Set(cc)),
        2 if operand_size(instruction, 0)? >= Size::B4 => Some(Kind::Cmov(cc)),
        _ => None,
    }
}

/// A condition by its encoding.
fn condition(instruction: &Instruction) -> Option<u8> {
    use iced_x86::ConditionCode as Cc;
    Some(match instruction.condition_code() {
        Cc::None => return None,
        Cc::o => 0,
        Cc::no => 1,
        Cc::b => 2,
        Cc::ae => 3,
        Cc::e => 4,
        Cc::ne => 5,
        Cc::be => 6,
        Cc::a => 7,
        Cc::s => 8,
        Cc::ns => 9,
        Cc::p => 10,
        Cc::np => 11,
        Cc::l => 12,
        Cc::ge => 13,
        Cc::le => 14,
        Cc::g => 15,
    })
}

fn shift(instruction: &Instruction, which: u8) -> Option<Kind> {
    let size = operand_size(instruction, 0)?;
    if is_register(instruction, 1) {
        return (is_register(instruction, 0) && size >= Size::B4).then_some(Kind::ShiftByCl(which));
    }
    let count = masked_count(instruction, 1, size)?;
    // A shift by at least the width of an 8-bit or 16-bit operand has special flags, so the interpreter executes it.
    (i32::from(count) < 8 * size.bytes()).then_some(Kind::ShiftBy(which, count))
}

fn rotate(instruction: &Instruction, which: u8) -> Option<Kind> {
    let size = operand_size(instruction, 0)?;
    if !is_register(instruction, 0) || is_register(instruction, 1) || size < Size::B4 {
        return None;
    }
    Some(Kind::RotateBy(which, masked_count(instruction, 1, size)?))
}

fn double(instruction: &Instruction, opcode: u8) -> Option<Kind> {
    let size = operand_size(instruction, 0)?;
    if !is_register(instruction, 0) || is_register(instruction, 2) || size < Size::B4 {
        return None;
    }
    Some(Kind::Double(opcode, masked_count(instruction, 2, size)?))
}

/// The count of a shift by an immediate; `None` if it is zero, so that the shift changes nothing.
fn masked_count(instruction: &Instruction, n: u32, size: Size) -> Option<u8> {
    let mask = if size == Size::B8 { 63 } else { 31 };
    let count = instruction.immediate(n) as u8 & mask;
    (count != 0).then_some(count)
}

/// BT and similar instructions. A memory operand with a bit number in a register goes to the interpreter, because the
/// number can reach beyond the operand.
fn bit_test(instruction: &Instruction, which: u8) -> Option<Kind> {
    let size = operand_size(instruction, 0)?;
    let plain = is_register(instruction, 0) || !is_register(instruction, 1);
    (plain && size >= Size::B4).then_some(Kind::BitTest(which))
}

impl Kind {
    /// Whether the instruction's first access can fail only because of a page. If so, the instruction can be tried
    /// again once the TLB has the page. An access of an instruction on XMM registers may also have to be aligned.
    pub fn begins_with_its_access(self) -> bool {
        !matches!(self, Kind::Vector(_))
    }

    /// Whether the instruction's translation may read flags in the host's register.
    pub fn may_use_flags(self) -> bool {
        matches!(
            self,
            Kind::Alu(2 | 3)
                | Kind::Inc
                | Kind::Dec
                | Kind::Set(_)
                | Kind::Cmov(_)
                | Kind::JumpIf(_)
                | Kind::BitTest(_)
        )
    }

    /// Whether the instruction may change the arithmetic flags.
    pub fn may_set_flags(self, instruction: &Instruction) -> bool {
        matches!(self, Kind::ShiftByCl(_))
            || self.effect(instruction, 0, true).is_none_or(|effect| effect.kills != 0)
    }

    /// Whether the instruction may follow STI in a block: it does not end the block or affect interrupts.
    pub fn follows_sti(self) -> bool {
        !matches!(
            self,
            Kind::InterruptFlag(_)
                | Kind::AccessControl(_)
                | Kind::SwapGs
                | Kind::Jump
                | Kind::JumpIf(_)
                | Kind::JumpIndirect
                | Kind::Call
                | Kind::CallIndirect
                | Kind::Return
        )
    }

    /// The instruction's effect on the flags, if later code may read the flags in `needed`. `checked` says
    /// that the instruction's access needs no check. `None` if the interpreter must then execute the
    /// instruction.
    pub fn effect(self, instruction: &Instruction, needed: u8, checked: bool) -> Option<Effect> {
        use set::{A, ALL, C, O, Z};
        let memory =
            (0..instruction.op_count()).any(|n| is_memory(instruction, n)) && self != Kind::Lea && !checked;
        let quiet = Effect { transparent: !memory, exits: memory, ..Effect::default() };
        let kills = |kills, in_host| Effect { kills, in_host, exits: memory, ..Effect::default() };
        Some(match self {
            Kind::Alu(0 | 5 | 7) | Kind::Neg | Kind::Xadd | Kind::Cmpxchg => kills(ALL, ALL),
            Kind::Alu(2 | 3) => Effect { reads: C, ..kills(ALL, ALL) },
            Kind::Alu(_) | Kind::Test => kills(ALL, ALL & !A),
            Kind::Inc | Kind::Dec => kills(ALL & !C, ALL),
            Kind::Not
            | Kind::Mov
            | Kind::MovSelector(_)
            | Kind::Extend(_)
            | Kind::Lea
            | Kind::XchgRegisters
            | Kind::XchgMemory
            | Kind::ExtendAccumulator
            | Kind::SignToData
            | Kind::Bswap => quiet,
            Kind::Nothing => Effect { transparent: true, ..Effect::default() },
            Kind::Push | Kind::Pop | Kind::Leave | Kind::Call if checked => quiet,
            Kind::PushFlags => Effect { reads: ALL, exits: true, ..Effect::default() },
            Kind::Push
            | Kind::Pop
            | Kind::Leave
            | Kind::Call
            | Kind::CallIndirect
            | Kind::Return
            | Kind::JumpIndirect
            | Kind::InterruptFlag(_)
            | Kind::AccessControl(_)
            | Kind::SwapGs => Effect { exits: true, ..Effect::default() },
            Kind::ShiftBy(_, 1) => kills(ALL, ALL & !A),
            Kind::ShiftBy(..) => kills(ALL, ALL & !(A | O)),
            Kind::ShiftByCl(_) => Effect::default(),
            Kind::RotateBy(_, 1) => kills(C | O, 0),
            Kind::RotateBy(..) => kills(C, 0),
            Kind::Double(..) if needed == 0 => kills(ALL, 0),
            Kind::Double(..) => return None,
            Kind::Multiply(_) | Kind::MultiplyInto | Kind::Count(_) => kills(ALL, 0),
            Kind::Bits(bits) if bits.keeps_flags() => quiet,
            Kind::Bits(_) => kills(ALL, 0),
            Kind::Scan(_) => kills(ALL, Z),
            Kind::Divide(_) => Effect { exits: true, ..Effect::default() },
            Kind::BitTest(_) => kills(C, C),
            Kind::Set(cc) | Kind::Cmov(cc) | Kind::JumpIf(cc) => Effect { reads: looked_at(cc), ..quiet },
            Kind::Jump => Effect { transparent: true, ..Effect::default() },
            // The instruction exits if XMM registers are blocked.
            Kind::Vector(_) => Effect { exits: true, ..Effect::default() },
        })
    }
}
