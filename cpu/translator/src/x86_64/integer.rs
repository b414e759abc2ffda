//! Integer instructions. An instruction changes state only after its last memory access, so that it can exit to the
//! interpreter until then.

use iced_x86::{Instruction, OpKind};

use super::asm::{B1, B2, B4, B8, CH, DH, Mem, Place, RAX, RCX, RDX, Reg, Size, alu, at, cc};
use super::bits::{Bits, Operands};
use super::block::{BlockWriter, Cannot, SYSTEM_FLAGS, selector};
use super::exits::{EDGE_ON, EDGE_TAKEN};
use super::kind::{Effect, Kind, is_high_byte, is_memory, number_of, operand_size, set};
use super::relocation;

const GUEST_RAX: usize = 0;
const GUEST_RCX: usize = 1;
const GUEST_RDX: usize = 2;
const GUEST_RSP: usize = 4;
const GUEST_RBP: usize = 5;

/// The opcode of IMUL of two registers.
const IMUL: u8 = 0xaf;

/// Whether an operand is one of AH to BH.
fn has_high_byte(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && is_high_byte(i.op_register(n)))
}

impl BlockWriter<'_> {
    /// Writes the host's code for an instruction of the guest.
    pub fn instruction(&mut self, i: &Instruction, kind: Kind, effect: Effect) -> Result<(), Cannot> {
        match kind {
            Kind::Alu(which) => self.arithmetic(i, which, &effect),
            Kind::Test => self.test(i, &effect),
            Kind::Inc | Kind::Dec => {
                let one = if kind == Kind::Inc { 0 } else { 1 };
                // The instruction does not change CF. If later code needs CF, the host's flags must have CF, because
                // all flags are written to the frame.
                let carry = self.needed() & set::C != 0;
                self.one_operand(i, 0xff, one, carry)?;
                self.flags_set(&effect);
                Ok(())
            }
            Kind::Neg => {
                self.one_operand(i, 0xf7, 3, false)?;
                self.flags_set(&effect);
                Ok(())
            }
            Kind::Not => self.one_operand(i, 0xf7, 2, false),
            Kind::Mov => self.mov(i),
            Kind::MovSelector(register) => self.mov_selector(i, register),
            Kind::Extend(opcode) => self.extend(i, opcode),
            Kind::Lea => self.lea(i),
            Kind::XchgRegisters => self.exchange_registers(i),
            Kind::XchgMemory => self.exchange_memory(i),
            Kind::Xadd => self.exchange_and_add(i, &effect),
            Kind::Cmpxchg => self.compare_and_exchange(i, &effect),
            Kind::Push => self.push(i),
            Kind::PushFlags => self.push_flags(),
            Kind::Pop => self.pop(i),
            Kind::Leave => self.leave_frame(),
            Kind::ShiftBy(which, count) => self.shift(i, which, count, &effect),
            Kind::ShiftByCl(which) => self.shift_by_cl(i, which),
            Kind::RotateBy(which, count) => self.rotate(i, which, count, &effect),
            Kind::Double(opcode, count) => self.double(i, opcode, count, &effect),
            Kind::Multiply(signed) => self.multiply(i, signed, &effect),
            Kind::MultiplyInto => self.multiply_into(i, &effect),
            Kind::Divide(signed) => self.divide(i, signed),
            Kind::ExtendAccumulator => self.extend_accumulator(i),
            Kind::SignToData => self.sign_to_data(i),
            Kind::Bswap => self.byte_swap(i),
            Kind::BitTest(which) => self.bit_test(i, which, &effect),
            Kind::Scan(opcode) => self.scan(i, opcode, &effect),
            Kind::Count(opcode) => self.count(i, opcode, &effect),
            Kind::Bits(bits) => self.bits(i, bits, &effect),
            Kind::Set(cc) => self.set_on_condition(i, cc),
            Kind::Cmov(cc) => self.move_on_condition(i, cc),
            Kind::Nothing => Ok(()),
            Kind::InterruptFlag(set) => {
                if set {
                    self.allow_interrupts()
                } else {
                    self.forbid_interrupts()
                }
                Ok(())
            }
            Kind::AccessControl(allowed) => {
                self.set_access_control(allowed);
                Ok(())
            }
            Kind::SwapGs => {
                self.swap_gs();
                Ok(())
            }
            Kind::Jump => {
                let jump = self.asm.jmp();
                self.edge(EDGE_TAKEN, i.near_branch64(), jump);
                self.ends();
                Ok(())
            }
            Kind::JumpIf(cc) => {
                let cc = self.condition(cc);
                let taken = self.asm.jcc(cc);
                self.edge(EDGE_TAKEN, i.near_branch64(), taken);
                let on = self.asm.jmp();
                self.edge(EDGE_ON, i.next_ip(), on);
                self.ends();
                Ok(())
            }
            Kind::JumpIndirect => {
                self.target(i)?;
                self.asm.load(B8, RAX, RCX);
                self.jump_to_rax(|_| {});
                Ok(())
            }
            Kind::Call => {
                let top = self.stack_operand(GUEST_RSP, -8, true)?;
                self.store_return_address(i, top);
                self.move_stack(-8);
                let jump = self.asm.jmp();
                self.edge(EDGE_TAKEN, i.near_branch64(), jump);
                self.ends();
                Ok(())
            }
            Kind::CallIndirect => self.call_indirect(i),
            Kind::Return => self.near_return(i),
            Kind::Vector(form) => {
                self.vector(i, form)?;
                self.clobbered();
                Ok(())
            }
        }
    }

    fn register(&self, i: &Instruction, n: u32) -> usize {
        number_of(i.op_register(n))
    }

    fn size(&self, i: &Instruction, n: u32) -> Result<Size, Cannot> {
        operand_size(i, n).ok_or(Cannot)
    }

    fn is_immediate(i: &Instruction, n: u32) -> bool {
        !matches!(i.op_kind(n), OpKind::Register | OpKind::Memory)
    }

    fn immediate(i: &Instruction, n: u32, size: Size) -> Result<i32, Cannot> {
        let value = i.try_immediate(n).map_err(|_| Cannot)?;
        Ok(match size {
            B1 => i32::from(value as i8),
            B2 => i32::from(value as i16),
            B4 => value as i32,
            B8 => i32::try_from(value as i64).map_err(|_| Cannot)?,
        })
    }

    /// Writes ADD, OR, ADC, SBB, AND, SUB, XOR or CMP, by `which` from 0 to 7.
    fn arithmetic(&mut self, i: &Instruction, which: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let keeps = which != alu::CMP;
        let carries = matches!(which, 2 | 3);
        if is_memory(i, 0) {
            let place = self.operand(i, size, keeps)?;
            if carries {
                self.need_carry();
            }
            if Self::is_immediate(i, 1) {
                self.asm.alu_imm(size, which, place, Self::immediate(i, 1, size)?);
            } else {
                let from = self.operand_register(i.op_register(1), false, false);
                self.asm.alu_to(size, which, place, from);
            }
        } else {
            let memory = if is_memory(i, 1) { Some(self.operand(i, size, false)?) } else { None };
            if carries {
                self.need_carry();
            }
            let high = has_high_byte(i);
            let to = self.operand_register(i.op_register(0), true, high);
            if let Some(place) = memory {
                self.asm.alu(size, which, to, place);
            } else if Self::is_immediate(i, 1) {
                self.asm.alu_imm(size, which, to, Self::immediate(i, 1, size)?);
            } else if high {
                let from = self.operand_register(i.op_register(1), false, high);
                self.asm.alu(size, which, to, from);
            } else {
                self.asm.alu(size, which, to, Self::place(self.register(i, 1)));
            }
            if keeps && high && to != DH {
                // The instruction changes only the low byte.
                self.set_sized(B1, self.register(i, 0), RDX);
            } else if keeps {
                self.write_back(i.op_register(0), to);
            }
        }
        self.flags_set(effect);
        Ok(())
    }

    fn test(&mut self, i: &Instruction, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let first = if is_memory(i, 0) {
            Place::Mem(self.operand(i, size, false)?)
        } else if has_high_byte(i) {
            Place::Reg(self.operand_register(i.op_register(0), true, true))
        } else {
            Self::place(self.register(i, 0))
        };
        if Self::is_immediate(i, 1) {
            self.asm.test_imm(size, first, Self::immediate(i, 1, size)?);
        } else {
            let second = self.operand_register(i.op_register(1), false, has_high_byte(i));
            self.asm.sized(size, 0x85, second.0, first, true);
        }
        self.flags_set(effect);
        Ok(())
    }

    /// INC, DEC, NEG and NOT by opcode and `/n`. `carry` first loads CF into the host's register.
    fn one_operand(&mut self, i: &Instruction, opcode: u8, which: u8, carry: bool) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let memory = if is_memory(i, 0) { Some(self.operand(i, size, true)?) } else { None };
        if carry {
            self.need_carry();
        }
        if let Some(place) = memory {
            self.asm.sized(size, opcode, which, place, false);
        } else {
            let to = self.in_register(self.register(i, 0), RDX);
            self.asm.sized(size, opcode, which, to, false);
            self.set_all(self.register(i, 0), to);
        }
        Ok(())
    }

    fn mov(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        if is_memory(i, 0) {
            let place = self.operand(i, size, true)?;
            if Self::is_immediate(i, 1) {
                self.asm.store_imm(size, place, Self::immediate(i, 1, size)?);
            } else {
                let from = self.operand_register(i.op_register(1), false, false);
                self.asm.store(size, place, from);
            }
            return Ok(());
        }
        if has_high_byte(i) {
            return self.mov_high_byte(i);
        }
        let to = self.register(i, 0);
        if is_memory(i, 1) {
            let place = self.operand(i, size, false)?;
            return self.load_into(size, to, place.into());
        }
        if Self::is_immediate(i, 1) {
            let value = i.try_immediate(1).map_err(|_| Cannot)?;
            if size < B4 {
                self.asm.store_imm(size, Self::place(to), value as i32);
                return Ok(());
            }
            let value = if size == B4 { value & 0xffff_ffff } else { value };
            return self.set_constant(to, value);
        }
        self.load_into(size, to, Self::place(self.register(i, 1)))
    }

    /// MOV of a segment register's selector, which is zero-extended.
    fn mov_selector(&mut self, i: &Instruction, register: u8) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        self.asm.extend(0xb6, B4, RCX, B2, selector(register));
        if size == B2 {
            self.set_sized(B2, self.register(i, 0), RCX);
        } else {
            self.set_all(self.register(i, 0), RCX);
        }
        Ok(())
    }

    /// MOV to or from one of AH to BH, with any other operand.
    fn mov_high_byte(&mut self, i: &Instruction) -> Result<(), Cannot> {
        if is_memory(i, 1) {
            let place = self.operand(i, B1, false)?;
            self.asm.load(B1, RCX, place);
        } else if Self::is_immediate(i, 1) {
            self.asm.constant(RCX, i.immediate8().into());
        } else {
            let from = self.operand_register(i.op_register(1), false, true);
            if from == CH {
                self.asm.load(B1, RCX, CH);
            }
        }
        if !is_high_byte(i.op_register(0)) {
            self.set_sized(B1, self.register(i, 0), RCX);
            return Ok(());
        }
        let to = self.operand_register(i.op_register(0), true, true);
        self.asm.load(B1, to, RCX);
        self.write_back(i.op_register(0), to);
        Ok(())
    }

    /// Sets a guest's register to a constant.
    fn set_constant(&mut self, to: usize, value: u64) -> Result<(), Cannot> {
        match Self::place(to) {
            Place::Reg(reg) => self.asm.constant(reg, value),
            Place::Mem(mem) => match i32::try_from(value as i64) {
                Ok(short) => self.asm.store_imm(B8, mem, short),
                Err(_) => {
                    self.asm.constant(RAX, value);
                    self.asm.store(B8, mem, RAX);
                }
            },
        }
        Ok(())
    }

    /// MOV into a guest's register.
    fn load_into(&mut self, size: Size, to: usize, from: Place) -> Result<(), Cannot> {
        match (Self::place(to), from) {
            (Place::Reg(reg), from) => self.asm.load(size, reg, from),
            (to @ Place::Mem(_), Place::Reg(from)) if size != B4 => self.asm.store(size, to, from),
            (mem, from) => {
                self.asm.load(size, RCX, from);
                self.asm.store(if size == B4 { B8 } else { size }, mem, RCX);
            }
        }
        Ok(())
    }

    /// MOVZX, MOVSX, MOVSXD.
    fn extend(&mut self, i: &Instruction, opcode: u8) -> Result<(), Cannot> {
        let (size, from_size) = (self.size(i, 0)?, self.size(i, 1)?);
        let from = if is_memory(i, 1) {
            Place::Mem(self.operand(i, from_size, false)?)
        } else if has_high_byte(i) {
            let from = self.operand_register(i.op_register(1), false, true);
            self.asm.load(B1, RCX, from);
            Place::Reg(RCX)
        } else {
            Self::place(self.register(i, 1))
        };
        let to = self.register(i, 0);
        let reg = match Self::place(to) {
            Place::Reg(reg) => reg,
            Place::Mem(_) => RCX,
        };
        if opcode == 0x63 {
            self.asm.sized(B8, 0x63, reg.0, from, true);
        } else {
            self.asm.extend(opcode, size, reg, from_size, from);
        }
        if Self::place(to) != Place::Reg(reg) {
            self.asm.store(if size == B4 { B8 } else { size }, Self::place(to), reg);
        }
        Ok(())
    }

    fn lea(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let to = self.register(i, 0);
        match Self::place(to) {
            Place::Reg(reg) => {
                self.effective(i, reg)?;
                if size == B4 {
                    self.asm.load(B4, reg, reg);
                }
            }
            Place::Mem(mem) => {
                self.effective(i, RAX)?;
                if size == B4 {
                    self.asm.load(B4, RAX, RAX);
                }
                self.asm.store(B8, mem, RAX);
            }
        }
        Ok(())
    }

    fn exchange_registers(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let (a, b) = (self.register(i, 0), self.register(i, 1));
        self.asm.load(B8, RCX, Self::place(a));
        self.asm.load(B8, RDX, Self::place(b));
        self.set_sized(size, a, RDX);
        self.set_sized(size, b, RCX);
        Ok(())
    }

    fn exchange_memory(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let register = if is_memory(i, 0) { 1 } else { 0 };
        let size = self.size(i, register)?;
        let register = self.register(i, register);
        let place = self.operand(i, size, true)?;
        self.asm.load(size, RCX, place);
        let new = self.in_register(register, RDX);
        self.asm.store(size, place, new);
        self.set_sized(size, register, RCX);
        Ok(())
    }

    fn exchange_and_add(&mut self, i: &Instruction, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 1)?;
        let register = self.register(i, 1);
        let place = self.operand(i, size, true)?;
        self.asm.load(size, RCX, place);
        self.asm.load(B8, RDX, Self::place(register));
        self.asm.alu(size, alu::ADD, RDX, RCX);
        self.asm.store(size, place, RDX);
        self.set_sized(size, register, RCX);
        self.flags_set(effect);
        Ok(())
    }

    fn compare_and_exchange(&mut self, i: &Instruction, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 1)?;
        let place = self.operand(i, size, true)?;
        self.asm.load(size, RCX, place);
        let accumulator = self.in_register(GUEST_RAX, RDX);
        self.asm.alu(size, alu::CMP, accumulator, RCX);
        let differs = self.asm.jcc(cc::NE);
        let new = self.in_register(self.register(i, 1), RDX);
        self.asm.store(size, place, new);
        let done = self.asm.jmp();
        self.asm.land(differs);
        self.set_sized(size, GUEST_RAX, RCX);
        self.asm.land(done);
        self.flags_set(effect);
        Ok(())
    }

    // Stack instructions.

    /// Computes the stack pointer plus `bytes` in RAX.
    fn stack_address(&mut self, bytes: i32) {
        let rsp = self.in_register(GUEST_RSP, RAX);
        if bytes == 0 {
            self.asm.load(B8, RAX, rsp);
        } else {
            self.asm.lea(B8, RAX, at(rsp, bytes));
        }
    }

    /// Moves the stack pointer. Leaves the flags unchanged.
    fn move_stack(&mut self, bytes: i32) {
        let rsp = self.in_register(GUEST_RSP, RDX);
        self.asm.lea(B8, rsp, at(rsp, bytes));
        self.set_all(GUEST_RSP, rsp);
    }

    fn push(&mut self, i: &Instruction) -> Result<(), Cannot> {
        if is_memory(i, 0) {
            let place = self.operand(i, B8, false)?;
            self.asm.load(B8, RCX, place);
            self.keep();
            self.stack_address(-8);
            self.check(8, true);
            self.kept(RCX);
            self.asm.store(B8, at(RAX, 0), RCX);
        } else {
            let top = self.stack_operand(GUEST_RSP, -8, true)?;
            if Self::is_immediate(i, 0) {
                self.asm.store_imm(B8, top, Self::immediate(i, 0, B8)?);
            } else {
                let from = self.in_register(self.register(i, 0), RCX);
                self.asm.store(B8, top, from);
            }
        }
        self.move_stack(-8);
        Ok(())
    }

    /// PUSHFQ: combines RFLAGS from the arithmetic flags and the other bits. RF and VM are pushed as zero.
    fn push_flags(&mut self) -> Result<(), Cannot> {
        const RF_AND_VM: i32 = 3 << 16;
        let top = self.stack_operand(GUEST_RSP, -8, true)?;
        self.flags_as_in_rflags();
        self.asm.load(B4, RCX, SYSTEM_FLAGS);
        self.asm.alu_imm(B4, alu::AND, RCX, !RF_AND_VM);
        self.asm.alu(B4, alu::OR, RDX, RCX);
        self.asm.store(B8, top, RDX);
        self.move_stack(-8);
        self.clobbered();
        Ok(())
    }

    fn pop(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let top = self.stack_operand(GUEST_RSP, 0, false)?;
        self.asm.load(B8, RCX, top);
        self.move_stack(8);
        self.set_all(self.register(i, 0), RCX);
        Ok(())
    }

    fn leave_frame(&mut self) -> Result<(), Cannot> {
        let top = self.stack_operand(GUEST_RBP, 0, false)?;
        self.asm.load(B8, RCX, top);
        let rbp = self.in_register(GUEST_RBP, RAX);
        self.asm.lea(B8, RDX, at(rbp, 8));
        self.set_all(GUEST_RSP, RDX);
        self.set_all(GUEST_RBP, RCX);
        Ok(())
    }

    // Branches.

    /// Loads the target of an indirect branch into RCX.
    fn target(&mut self, i: &Instruction) -> Result<(), Cannot> {
        if is_memory(i, 0) {
            let place = self.operand(i, B8, false)?;
            self.asm.load(B8, RCX, place);
        } else {
            self.asm.load(B8, RCX, Self::place(self.register(i, 0)));
        }
        Ok(())
    }

    /// Stores the return address. Clobbers RDX.
    fn store_return_address(&mut self, i: &Instruction, to: Mem) {
        match i32::try_from(i.next_ip() as i64) {
            Ok(short) => {
                self.asm.store_imm(B8, to, short);
                self.asm.relocate_address(relocation::Kind::Address32, i.next_ip());
            }
            Err(_) => {
                self.asm.address(RDX, i.next_ip());
                self.asm.store(B8, to, RDX);
            }
        }
    }

    fn call_indirect(&mut self, i: &Instruction) -> Result<(), Cannot> {
        self.target(i)?;
        self.keep();
        // Check first that the stack can be written, then that the target is known. Only then store.
        self.stack_address(-8);
        self.check(8, true);
        self.load_kept_keep_rax();
        self.jump_to_rax(|writer| {
            writer.kept(RAX);
            writer.store_return_address(i, at(RAX, 0));
            writer.move_stack(-8);
        });
        Ok(())
    }

    fn near_return(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let top = self.stack_operand(GUEST_RSP, 0, false)?;
        self.asm.load(B8, RAX, top);
        let arguments = if i.op_count() == 1 { i.immediate16() } else { 0 };
        self.jump_to_rax(|writer| writer.move_stack(8 + i32::from(arguments)));
        Ok(())
    }

    // Shifts.

    /// SHL, SHR, SAR by a count that is not zero. OF has the value of a shift by one, for any count.
    fn shift(&mut self, i: &Instruction, which: u8, count: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let memory = if is_memory(i, 0) { Some(self.operand(i, size, true)?) } else { None };
        if let Some(place) = memory {
            self.asm.load(size, RCX, place);
        }
        let to = if memory.is_some() { RCX } else { self.in_register(self.register(i, 0), RCX) };
        self.keep_for_recipe(to);
        let wanted = self.needed() & effect.kills != 0;
        // RAX holds the address of a memory operand, so OF goes to DL.
        let overflow = if memory.is_some() { RDX } else { RAX };
        if wanted && count != 1 {
            if which == 7 {
                self.asm.constant(overflow, 0);
            } else {
                self.asm.load(size, RDX, to);
                self.asm.shift_imm(size, which, RDX, 1);
                self.asm.setcc(0, overflow);
            }
        }
        self.asm.shift_imm(size, which, to, count);
        if wanted && count == 1 {
            self.asm.setcc(0, overflow);
        }
        if let Some(place) = memory {
            self.asm.store(size, place, RCX);
            if wanted {
                self.asm.load(B4, RAX, RDX);
            }
        } else {
            self.set_all(self.register(i, 0), to);
        }
        self.shift_flags_set(effect);
        Ok(())
    }

    /// SHL, SHR, SAR of a register by CL. A count of zero changes no flag.
    fn shift_by_cl(&mut self, i: &Instruction, which: u8) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        self.asm.load(B4, RCX, Self::place(GUEST_RCX));
        let to = self.in_register(register, RDX);
        if self.needed() == 0 {
            self.asm.shift_cl(size, which, to);
            self.set_all(register, to);
            self.clobbered();
            return Ok(());
        }
        self.asm.test_imm(B1, RCX, if size == B8 { 63 } else { 31 });
        let nothing = self.asm.jcc(cc::E);
        self.asm.load(size, RAX, to);
        self.asm.shift_imm(size, which, RAX, 1);
        // OF becomes the OF of a shift by one, whatever the count. SAR leaves OF clear.
        self.asm.setcc(0, RAX);
        self.asm.shift_cl(size, which, to);
        self.asm.byte(0x9f);
        self.asm.lea(B4, RAX, at(RAX, 2));
        self.flags_from_eax();
        self.asm.land(nothing);
        // A shift of 32 bits by zero still clears the upper half.
        if size == B4 {
            self.asm.load(B4, to, to);
        }
        self.set_all(register, to);
        self.clobbered();
        Ok(())
    }

    /// ROL and ROR of a register. An immediate other than 1 leaves OF unchanged.
    fn rotate(&mut self, i: &Instruction, which: u8, count: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let to = self.in_register(register, RDX);
        self.asm.shift_imm(size, which, to, count);
        self.set_all(register, to);
        if self.needed() & effect.kills == 0 {
            self.flags_lost(effect.kills);
        } else if count == 1 {
            self.carry_and_overflow_to_frame();
        } else {
            self.carry_to_frame();
        }
        Ok(())
    }

    /// SHLD and SHRD of a register, if nothing reads the flags.
    fn double(&mut self, i: &Instruction, opcode: u8, count: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let to = self.in_register(register, RDX);
        let filler = self.in_register(self.register(i, 1), RCX);
        self.asm.two_imm(size, opcode, filler, to, count);
        self.set_all(register, to);
        self.flags_lost(effect.kills);
        Ok(())
    }

    // Multiplication and division.

    /// Writes the flags of a multiplication whose low half is in a register. CF and OF come from the host, SF and PF
    /// from the low half; ZF and AF are clear. Clobbers RAX and RCX.
    fn product_flags(&mut self, size: Size, low: Reg, effect: &Effect) {
        if self.needed() & effect.kills == 0 {
            return self.flags_lost(effect.kills);
        }
        self.asm.setcc(0, RCX);
        self.asm.sized(size, 0x85, low.0, low, true);
        self.asm.byte(0x9f);
        // AH keeps SF and PF and also gets CF, and AL gets OF.
        self.asm.alu_imm(B4, alu::AND, RAX, 0x8400);
        self.asm.extend(0xb6, B4, RCX, B1, RCX);
        self.asm.alu(B4, alu::OR, RAX, RCX);
        self.asm.shift_imm(B4, 4, RCX, 8);
        self.asm.alu(B4, alu::OR, RAX, RCX);
        self.flags_from_eax();
    }

    fn multiply(&mut self, i: &Instruction, signed: bool, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let from = self.factor(i, 0, size)?;
        self.asm.load(B8, RAX, Self::place(GUEST_RAX));
        self.asm.sized(size, 0xf7, if signed { 5 } else { 4 }, from, false);
        self.set_all(GUEST_RAX, RAX);
        self.set_all(GUEST_RDX, RDX);
        // The code for the flags overwrites RAX, so it gets the low half of the product in RDX.
        self.asm.load(B8, RDX, RAX);
        self.product_flags(size, RDX, effect);
        Ok(())
    }

    /// The place of the operand that a multiplication or division reads. The operand is never in RAX or RDX.
    fn factor(&mut self, i: &Instruction, n: u32, size: Size) -> Result<Place, Cannot> {
        if !is_memory(i, n) {
            return Ok(Self::place(self.register(i, n)));
        }
        let place = self.operand(i, size, false)?;
        self.asm.load(size, RCX, place);
        Ok(RCX.into())
    }

    fn multiply_into(&mut self, i: &Instruction, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let from = self.factor(i, 1, size)?;
        let to = match Self::place(register) {
            Place::Reg(home) => home,
            Place::Mem(_) => RDX,
        };
        if i.op_count() == 3 {
            self.asm.imul_imm(size, to, from, Self::immediate(i, 2, size)?);
        } else {
            if to == RDX {
                self.asm.load(B8, RDX, Self::place(register));
            }
            self.asm.two(size, IMUL, to, from);
        }
        self.set_all(register, to);
        self.product_flags(size, to, effect);
        Ok(())
    }

    /// DIV and IDIV if the quotient certainly fits. Otherwise the interpreter executes the instruction and may raise
    /// the fault.
    fn divide(&mut self, i: &Instruction, signed: bool) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        match self.factor(i, 0, size)? {
            Place::Reg(RCX) => {}
            place => self.asm.load(size, RCX, place),
        }
        self.asm.load(B8, RDX, Self::place(GUEST_RDX));
        if signed {
            // The dividend must be the sign-extended low half, and the divisor neither 0 nor -1.
            self.asm.load(size, RAX, Self::place(GUEST_RAX));
            self.asm.shift_imm(size, 7, RAX, (8 * size.bytes() - 1) as u8);
            self.asm.alu(size, alu::CMP, RAX, RDX);
            self.leave_if(cc::NE);
            self.asm.lea(B8, RAX, at(RCX, 1));
            self.asm.alu_imm(size, alu::CMP, RAX, 1);
            self.leave_if(cc::BE);
        } else {
            self.asm.alu(size, alu::CMP, RDX, RCX);
            self.leave_if(cc::AE);
        }
        self.asm.load(B8, RAX, Self::place(GUEST_RAX));
        self.asm.sized(size, 0xf7, if signed { 7 } else { 6 }, RCX, false);
        self.set_all(GUEST_RAX, RAX);
        self.set_all(GUEST_RDX, RDX);
        self.clobbered();
        Ok(())
    }

    fn extend_accumulator(&mut self, i: &Instruction) -> Result<(), Cannot> {
        use iced_x86::Mnemonic;
        let (size, from) = match i.mnemonic() {
            Mnemonic::Cbw => (B2, B1),
            Mnemonic::Cwde => (B4, B2),
            _ => (B8, B4),
        };
        if from == B4 {
            self.asm.sized(B8, 0x63, RCX.0, Self::place(GUEST_RAX), true);
        } else {
            self.asm.extend(0xbe, size, RCX, from, Self::place(GUEST_RAX));
        }
        self.set_sized(size, GUEST_RAX, RCX);
        Ok(())
    }

    /// CDQ, CQO.
    fn sign_to_data(&mut self, i: &Instruction) -> Result<(), Cannot> {
        self.asm.load(B8, RAX, Self::place(GUEST_RAX));
        self.asm.raw(if i.mnemonic() == iced_x86::Mnemonic::Cqo { &[0x48, 0x99] } else { &[0x99] });
        self.set_all(GUEST_RDX, RDX);
        Ok(())
    }

    fn byte_swap(&mut self, i: &Instruction) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        self.asm.load(size, RCX, Self::place(register));
        self.asm.raw(if size == B8 { &[0x48, 0x0f, 0xc9] } else { &[0x0f, 0xc9] });
        self.set_all(register, RCX);
        Ok(())
    }

    // Bit instructions.

    /// BT, BTS, BTR and BTC, which change only CF.
    fn bit_test(&mut self, i: &Instruction, which: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let writes = which != 4;
        let memory = if is_memory(i, 0) { Some(self.operand(i, size, writes)?) } else { None };
        let to = if let Some(place) = memory {
            self.asm.load(size, RDX, place);
            RDX
        } else {
            self.in_register(self.register(i, 0), RDX)
        };
        if Self::is_immediate(i, 1) {
            let bit = i.immediate8() & if size == B8 { 63 } else { 31 };
            self.asm.two_imm(size, 0xba, Reg(which), to, bit);
        } else {
            let bit = self.in_register(self.register(i, 1), RCX);
            self.asm.two(size, which << 3 | 0x83, bit, to);
        }
        if let (Some(place), true) = (memory, writes) {
            self.asm.store(size, place, RDX);
        } else if writes {
            self.set_all(self.register(i, 0), to);
        }
        self.some_flags_set(effect);
        if self.needed() & set::C != 0 {
            self.carry_to_frame();
        }
        Ok(())
    }

    /// BSF and BSR. A zero source leaves the destination unchanged and sets ZF and PF. Otherwise PF follows
    /// the result, and the other flags are clear.
    fn scan(&mut self, i: &Instruction, opcode: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let from = self.factor(i, 1, size)?;
        self.asm.load(size, RDX, from);
        self.asm.constant(RCX, 0);
        self.asm.two(size, opcode, RAX, RDX);
        self.asm.cmov(B8, cc::NE, RCX, RAX);
        let to = match Self::place(register) {
            Place::Reg(reg) => reg,
            Place::Mem(mem) => {
                // The load does not change the flags.
                self.asm.load(B8, RDX, mem);
                RDX
            }
        };
        self.asm.cmov(B8, cc::NE, to, RCX);
        self.set_all(register, to);
        if self.needed() & effect.kills == 0 {
            self.some_flags_set(effect);
            return Ok(());
        }
        self.asm.setcc(cc::E, RDX);
        self.asm.sized(B1, 0x85, RCX.0, RCX, true);
        self.asm.byte(0x9f);
        self.asm.alu_imm(B4, alu::AND, RAX, 0x400);
        self.asm.extend(0xb6, B4, RDX, B1, RDX);
        self.asm.shift_imm(B4, 4, RDX, 8 + 6);
        self.asm.alu(B4, alu::OR, RAX, RDX);
        self.flags_from_eax();
        Ok(())
    }

    /// POPCNT, TZCNT, LZCNT. ZF, and CF of TZCNT and LZCNT, are as on the host. The other flags are clear.
    fn count(&mut self, i: &Instruction, opcode: u8, effect: &Effect) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let from = self.factor(i, 1, size)?;
        self.asm.prefixed(0xf3, size, opcode, RDX, from);
        self.set_all(register, RDX);
        if self.needed() & effect.kills == 0 {
            self.flags_lost(effect.kills);
            return Ok(());
        }
        self.asm.byte(0x9f);
        self.asm.alu_imm(B4, alu::AND, RAX, 0x4100);
        self.flags_from_eax();
        Ok(())
    }

    /// An instruction of BMI1 or BMI2. Except for the code that writes its flags, the written code changes no flags.
    fn bits(&mut self, i: &Instruction, bits: Bits, effect: &Effect) -> Result<(), Cannot> {
        let Bits { vex, operands, flags } = bits;
        let size = self.size(i, 0)?;
        let (source, register) = match operands {
            Operands::SourceAndRegister => (1, Some(2)),
            Operands::RegisterAndSource => (2, Some(1)),
            Operands::SourceAndImmediate | Operands::Source(_) => (1, None),
            Operands::Product => (2, None),
        };
        let from = if is_memory(i, source) {
            Place::Mem(self.operand(i, size, false)?)
        } else {
            Self::place(self.register(i, source))
        };
        let destination = self.register(i, 0);
        let to = match Self::place(destination) {
            Place::Reg(home) => home,
            Place::Mem(_) => RDX,
        };
        let register = register.map(|n| self.in_register(self.register(i, n), RCX));
        match operands {
            Operands::SourceAndRegister | Operands::RegisterAndSource => {
                self.asm.vex(size, vex, to.0, register, from);
            }
            Operands::Source(digit) => self.asm.vex(size, vex, digit, Some(to), from),
            Operands::SourceAndImmediate => self.asm.vex_imm(size, vex, to.0, from, i.immediate8()),
            Operands::Product => {
                self.asm.load(size, RDX, Self::place(GUEST_RDX));
                self.asm.vex(size, vex, RCX.0, Some(RAX), from);
                // If both halves go to one register, that register holds the high half.
                self.set_all(self.register(i, 1), RAX);
                self.set_all(destination, RCX);
                return Ok(());
            }
        }
        self.set_all(destination, to);
        if bits.keeps_flags() {
            return Ok(());
        }
        if self.needed() & effect.kills == 0 {
            self.flags_lost(effect.kills);
            return Ok(());
        }
        self.asm.byte(0x9f);
        // OF, in AL, is clear.
        self.asm.alu_imm(B4, alu::AND, RAX, i32::from(flags) << 8);
        self.flags_from_eax();
        Ok(())
    }

    // Conditions.

    fn set_on_condition(&mut self, i: &Instruction, cc: u8) -> Result<(), Cannot> {
        if is_memory(i, 0) {
            let place = self.operand(i, B1, true)?;
            self.asm.lea(B8, RCX, place);
            let cc = self.condition(cc);
            self.asm.setcc(cc, at(RCX, 0));
        } else {
            let cc = self.condition(cc);
            self.asm.setcc(cc, Self::place(self.register(i, 0)));
        }
        Ok(())
    }

    /// CMOVcc. The source is read, and a 32-bit destination is zero-extended, even if the condition is false.
    fn move_on_condition(&mut self, i: &Instruction, cc: u8) -> Result<(), Cannot> {
        let size = self.size(i, 0)?;
        let register = self.register(i, 0);
        let from = if is_memory(i, 1) {
            let place = self.operand(i, size, false)?;
            self.asm.load(size, RCX, place);
            RCX.into()
        } else {
            Self::place(self.register(i, 1))
        };
        let cc = self.condition(cc);
        let to = self.in_register(register, RDX);
        self.asm.cmov(size, cc, to, from);
        self.set_all(register, to);
        Ok(())
    }
}
