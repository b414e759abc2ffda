//! The places of an instruction's operands: the guest's registers, and memory that is reached through the TLB.

use std::mem::offset_of;

use iced_x86::{Instruction, OpKind, Register};

use super::{BlockWriter, Cannot, HOMES, SPARE, Way, addend, expected, field, in_frame, slot_address};
use crate::Part;
use crate::frame::{Frame, TlbSlot, TlbSlots};
use crate::jumps::JUMP_FACTOR;
use crate::x86_64::asm::{B4, B8, CH, DH, Mem, Place, RAX, RCX, RDX, Reg, Size, alu, at, cc};
use crate::x86_64::groups::Role;
use crate::x86_64::kind::{is_high_byte, number_of, set};

impl BlockWriter<'_> {
    /// The place of a guest's register.
    pub fn place(n: usize) -> Place {
        HOMES[n].map_or_else(|| in_frame(n).into(), Place::Reg)
    }

    /// The place of a guest's register, by its name.
    pub fn general(&self, register: Register) -> Place {
        Self::place(number_of(register))
    }

    /// Returns a host register with the value of a guest register. If the guest register has no host register,
    /// loads the value into `scratch` and returns `scratch`.
    pub fn in_register(&mut self, n: usize, scratch: Reg) -> Reg {
        match Self::place(n) {
            Place::Reg(reg) => reg,
            Place::Mem(mem) => {
                self.asm.load(B8, scratch, mem);
                scratch
            }
        }
    }

    /// The host register with the value of an operand's register: the guest register's own, or a scratch register. The
    /// scratch register is RDX for the `first` operand and RCX for others. For AH, BH, CH or DH, the result is DH or CH
    /// of the scratch register. The other operand of an instruction with such a register can only be one of RAX to RDX.
    /// `beside_high` says that the other operand is one of AH to BH.
    pub fn operand_register(&mut self, register: Register, first: bool, beside_high: bool) -> Reg {
        let scratch = if first { RDX } else { RCX };
        let n = number_of(register);
        if is_high_byte(register) {
            self.asm.load(B8, scratch, Self::place(n));
            return if first { DH } else { CH };
        }
        if beside_high {
            self.asm.load(B8, scratch, Self::place(n));
            return scratch;
        }
        self.in_register(n, scratch)
    }

    /// Writes the first operand's value, which is in the host register that [`BlockWriter::operand_register`]
    /// returned, to the guest's register.
    pub fn write_back(&mut self, register: Register, from: Reg) {
        self.set_all(number_of(register), if from == DH { RDX } else { from });
    }

    /// Sets all 64 bits of a guest's register.
    pub fn set_all(&mut self, n: usize, from: Reg) {
        if Self::place(n) != Place::Reg(from) {
            self.asm.store(B8, Self::place(n), from);
        }
    }

    /// Sets a guest's register as the architecture does: a 32-bit write clears the upper half, a narrower write keeps
    /// the other bits.
    pub fn set_sized(&mut self, size: Size, n: usize, from: Reg) {
        match (size, Self::place(n)) {
            (B4, Place::Mem(mem)) => {
                self.asm.load(B4, RAX, from);
                self.asm.store(B8, mem, RAX);
            }
            (_, place) => self.asm.store(size, place, from),
        }
    }

    /// Sets a guest's register by its name.
    pub fn set_general(&mut self, register: Register, from: Reg) {
        let size = Size::of(register.size()).unwrap_or(B8);
        self.set_sized(size, number_of(register), from);
    }

    /// Computes the linear address of the memory operand in RAX.
    pub fn linear(&mut self, instruction: &Instruction) -> Result<(), Cannot> {
        self.effective(instruction, RAX)?;
        let base = match instruction.memory_segment() {
            Register::FS => 4,
            Register::GS => 5,
            _ => return Ok(()),
        };
        self.asm.alu(B8, alu::ADD, RAX, field(offset_of!(Frame, seg_base) + 8 * base));
        self.in_host = 0;
        Ok(())
    }

    /// Writes code that computes the memory operand's effective address into the register `to`. Clobbers RAX and RCX.
    /// Leaves the flags unchanged.
    pub fn effective(&mut self, instruction: &Instruction, to: Reg) -> Result<(), Cannot> {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let displacement = instruction.memory_displacement64();
        if base == Register::RIP {
            self.asm.address(to, displacement);
            return Ok(());
        }
        if base == Register::None && index == Register::None {
            self.asm.constant(to, displacement);
            return Ok(());
        }
        let disp = i32::try_from(displacement as i64).map_err(|_| Cannot)?;
        let shift = instruction.memory_index_scale().trailing_zeros() as u8;
        if base == Register::None {
            // An index without a base would need a displacement of four bytes, so shift instead.
            let index = self.in_register(number_of(index), RCX);
            if shift == 0 {
                self.asm.lea(B8, to, at(index, disp));
            } else {
                self.asm.constant(RAX, disp as i64 as u64);
                self.asm.lea(B8, to, Mem { base: RAX, index: Some((index, shift)), disp: 0 });
            }
            return Ok(());
        }
        let base = self.in_register(number_of(base), RAX);
        let index = match index {
            Register::None => None,
            index => Some((self.in_register(number_of(index), RCX), shift)),
        };
        if index.is_none() && disp == 0 {
            if base != to {
                self.asm.load(B8, to, base);
            }
            return Ok(());
        }
        self.asm.lea(B8, to, Mem { base, index, disp });
        Ok(())
    }

    /// Converts the linear address in RAX to a host address, or exits to the interpreter. Clobbers RCX and RDX.
    pub fn check(&mut self, bytes: i32, write: bool) {
        let slots = self.check_page(bytes, write);
        if self.expects(write) {
            self.load_addend(slots, write);
            self.asm.alu(B8, alu::ADD, RAX, RDX);
        } else {
            self.asm.alu(B8, alu::ADD, RAX, at(RCX, slots + TlbSlot::ADDEND));
        }
        self.in_host = 0;
    }

    /// Exits to the interpreter if the TLB does not map the page of `bytes` bytes at the linear address in RAX.
    /// Otherwise the slot is at RCX plus the returned offset. Clobbers RDX.
    fn check_page(&mut self, bytes: i32, write: bool) -> i32 {
        let slots = self.compare_page(bytes, write);
        let other = self.asm.jcc(cc::NE);
        let way = Way::SecondPage { slots, found: self.asm.here(), instruction: self.number_in_block, write };
        self.way(way, vec![other]);
        self.leaves_later = true;
        self.in_host = 0;
        slots
    }

    /// The memory operand in terms of host registers, if its base and index are in host registers.
    fn registers_of(&self, i: &Instruction) -> Option<Mem> {
        if !i.memory_base().is_gpr64() || matches!(i.memory_segment(), Register::FS | Register::GS) {
            return None;
        }
        let in_host = |register| match self.general(register) {
            Place::Reg(reg) => Some(reg),
            Place::Mem(_) => None,
        };
        let index = match i.memory_index() {
            Register::None => None,
            index => Some((in_host(index)?, i.memory_index_scale().trailing_zeros() as u8)),
        };
        let disp = i32::try_from(i.memory_displacement64() as i64).ok()?;
        Some(Mem { base: in_host(i.memory_base())?, index, disp })
    }

    /// The memory operand for `bytes` bytes at the linear address in RAX. `place` is the same address, computed from
    /// registers. The expected addend is added to the base, so that the load does not wait for the check.
    fn access_at_expected(&mut self, bytes: i32, place: Mem) -> Mem {
        let slots = self.check_page(bytes, false);
        self.load_addend(slots, false);
        match place.index {
            Some(_) => {
                self.asm.lea(B8, RAX, Mem { base: RDX, index: Some((place.base, 0)), disp: 0 });
                Mem { base: RAX, ..place }
            }
            None => {
                self.asm.load(B8, RAX, RDX);
                Mem { base: RAX, index: Some((place.base, 0)), ..place }
            }
        }
    }

    /// Whether an access should use an expected addend. Only loads in a loop of one block in user space use one.
    /// The address of such a load may depend on a load of the previous round. The expected addend gives the address
    /// before the TLB slot is read.
    fn expects(&self, write: bool) -> bool {
        let rip = self.source.rip;
        let loops = |last: &Instruction| last.is_jcc_short_or_near() && last.near_branch64() == rip;
        let may_expect = self.site.parts.has(Part::ExpectedAddends);
        may_expect
            && !write
            && !self.twin
            && rip >> 47 == 0
            && self.source.instructions.last().is_some_and(loops)
    }

    /// Sets RDX to the addend in the slot at RCX plus an offset. Clobbers flags.
    fn load_addend(&mut self, slots: i32, write: bool) {
        let found = at(RCX, slots + TlbSlot::ADDEND);
        if !self.expects(write) {
            return self.asm.load(B8, RDX, found);
        }
        // A block may have more loads with an expected addend than [`Frame::expected`] has entries.
        let spread = (self.source.rip as u32 & 0xfff).wrapping_mul(JUMP_FACTOR) >> 16;
        let place = expected(spread as usize + self.expecting);
        self.expecting += 1;
        self.asm.load(B8, RDX, place);
        self.asm.alu(B8, alu::CMP, RDX, found);
        let other = self.asm.jcc(cc::NE);
        self.way(Way::OtherAddend { slots, place, back: self.asm.here() }, vec![other]);
    }

    /// Compares the page of `bytes` bytes at the linear address in RAX with the TLB. The slot that may hold the page is
    /// at RCX plus the returned offset, and RDX is the page. The host's flags hold the result.
    fn compare_page(&mut self, bytes: i32, write: bool) -> i32 {
        debug_assert!(self.can_be_left(), "flags are lost where the block is left");
        slot_address(&mut self.asm, RCX);
        // Compare the page of the last byte: if the first byte is in another page, the slot has another tag.
        if bytes == 1 {
            self.asm.load(B8, RDX, RAX);
        } else {
            self.asm.lea(B8, RDX, at(RAX, bytes - 1));
        }
        self.asm.alu_imm(B8, alu::AND, RDX, -4096);
        let slots = if write { TlbSlots::WRITE } else { TlbSlots::READ };
        self.asm.alu(B8, alu::CMP, RDX, at(RCX, slots + TlbSlot::PAGE));
        slots
    }

    /// Checks the memory operand, and returns it in terms of host registers. The returned operand may use RAX and other
    /// registers, but not RCX and RDX. Clobbers RCX and RDX.
    pub fn operand(&mut self, i: &Instruction, size: Size, write: bool) -> Result<Mem, Cannot> {
        self.operand_of(i, size.bytes(), write)
    }

    /// As [`BlockWriter::operand`], for `bytes` bytes.
    pub fn operand_of(&mut self, i: &Instruction, bytes: i32, write: bool) -> Result<Mem, Cannot> {
        let has_high_byte =
            (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && is_high_byte(i.op_register(n)));
        let Some(addend) = self.checked(bytes, write)? else {
            self.linear(i)?;
            return match self.registers_of(i) {
                Some(place) if self.role == Role::Alone && self.expects(write) && !has_high_byte => {
                    Ok(self.access_at_expected(bytes, place))
                }
                _ => self.access(bytes, write),
            };
        };
        let disp = i32::try_from(i.memory_displacement64() as i64);
        if i.memory_base().is_gpr64()
            && i.memory_index() == Register::None
            && !has_high_byte
            && let (Place::Reg(base), Ok(disp)) = (self.general(i.memory_base()), disp)
        {
            self.asm.load(B8, RAX, addend);
            return Ok(Mem { base: RAX, index: Some((base, 0)), disp });
        }
        self.effective(i, RAX)?;
        self.asm.load(B8, RCX, addend);
        self.asm.lea(B8, RAX, Mem { base: RAX, index: Some((RCX, 0)), disp: 0 });
        Ok(at(RAX, 0))
    }

    /// As [`BlockWriter::operand_of`], for eight bytes on the stack at a guest register's address plus a displacement.
    pub fn stack_operand(&mut self, register: usize, disp: i32, write: bool) -> Result<Mem, Cannot> {
        let addend = self.checked(8, write)?;
        let base = self.in_register(register, RCX);
        if let Some(addend) = addend {
            self.asm.load(B8, RAX, addend);
            let host = Mem { base: RAX, index: Some((base, 0)), disp };
            if base != RCX {
                return Ok(host);
            }
            self.asm.lea(B8, RAX, host);
            return Ok(at(RAX, 0));
        }
        if disp == 0 {
            self.asm.load(B8, RAX, base);
        } else {
            self.asm.lea(B8, RAX, at(base, disp));
        }
        self.access(8, write)
    }

    /// The frame's field with the addend of an access that an earlier access of its group has checked. `None` if the
    /// access needs a check.
    fn checked(&self, bytes: i32, write: bool) -> Result<Option<Mem>, Cannot> {
        match self.role {
            Role::Later { slot, bytes: checked, write: writable } => {
                // Never access more than the check covered.
                if bytes > checked || write && !writable {
                    return Err(Cannot);
                }
                Ok(Some(addend(slot)))
            }
            _ => Ok(None),
        }
    }

    /// The memory at the linear address in RAX, after a check for the access or its group.
    fn access(&mut self, bytes: i32, write: bool) -> Result<Mem, Cannot> {
        let Role::First { slot, below, bytes: of_group, write: group_writes } = self.role else {
            self.check(bytes, write);
            return Ok(at(RAX, 0));
        };
        if bytes + below > of_group || write && !group_writes {
            return Err(Cannot);
        }
        if below != 0 {
            self.asm.lea(B8, RAX, at(RAX, -below));
        }
        let slots = self.compare_page(of_group, group_writes);
        let other = self.asm.jcc(cc::NE);
        let instruction = self.number_in_block;
        debug_assert_eq!(self.in_frame, set::ALL, "the twin has no flags");
        self.way(Way::SecondPageOfGroup { slots, found: self.asm.here(), instruction }, vec![other]);
        self.load_addend(slots, group_writes);
        self.asm.store(B8, addend(slot), RDX);
        self.asm.alu(B8, alu::ADD, RAX, RDX);
        self.in_host = 0;
        Ok(at(RAX, below))
    }

    /// Saves RCX in the frame, because the next access overwrites RCX.
    pub fn keep(&mut self) {
        self.asm.store(B8, SPARE, RCX);
    }

    /// Loads the saved value.
    pub fn kept(&mut self, to: Reg) {
        self.asm.load(B8, to, SPARE);
    }

    /// Loads the saved value into RAX, and saves the old RAX. Clobbers RDX.
    pub fn load_kept_keep_rax(&mut self) {
        self.asm.load(B8, RDX, SPARE);
        self.asm.store(B8, SPARE, RAX);
        self.asm.load(B8, RAX, RDX);
    }
}
