//! Instructions on XMM registers. The instructions run on the host's XMM registers, with operands and results
//! in the frame.

use iced_x86::Instruction;

use super::asm::{B8, Mem, RAX, RCX, at, cc};
use super::block::{BlockWriter, Cannot, vector_place};
use super::forms::{Form, Opcode};
use super::kind::is_memory;

/// Scratch XMM registers of the host.
const XMM0: u8 = 0;
const XMM1: u8 = 1;

impl BlockWriter<'_> {
    /// Writes the code of an instruction on XMM registers.
    pub fn vector(&mut self, instruction: &Instruction, form: Form) -> Result<(), Cannot> {
        self.leave_if_vectors_are_blocked();
        let register = |n: u32| instruction.op_register(n).number() as u8;
        let vector = |n: u32| vector_place(register(n));
        match form {
            Form::Two(opcode) => {
                let second = self.second(instruction)?;
                self.load_vector(XMM0, vector(0));
                self.vector_op(opcode, XMM0, second, instruction);
                self.store_vector(vector(0), XMM0);
            }
            Form::From(opcode) => {
                let second = self.second(instruction)?;
                self.vector_op(opcode, XMM0, second, instruction);
                self.store_vector(vector(0), XMM0);
            }
            Form::Shift(opcode, which) => {
                self.load_vector(XMM0, vector(0));
                self.asm.vector(Some(0x66), false, &[0x0f, opcode], which, super::asm::Reg(XMM0));
                self.asm.byte(instruction.immediate8());
                self.store_vector(vector(0), XMM0);
            }
            Form::Whole { aligned } => {
                if is_memory(instruction, 0) {
                    let place = self.vector_address(instruction, 16, true, aligned)?;
                    self.load_vector(XMM0, vector(1));
                    self.store_unaligned(place, XMM0);
                } else if is_memory(instruction, 1) {
                    let place = self.vector_address(instruction, 16, false, aligned)?;
                    self.load_unaligned(XMM0, place);
                    self.store_vector(vector(0), XMM0);
                } else {
                    self.load_vector(XMM0, vector(1));
                    self.store_vector(vector(0), XMM0);
                }
            }
            Form::Low(size) => {
                let from = if is_memory(instruction, 1) {
                    self.vector_address(instruction, size.bytes(), false, false)?
                } else {
                    vector(1)
                };
                // MOVD or MOVQ.
                self.asm.vector(Some(0x66), size == B8, &[0x0f, 0x6e], XMM0, from);
                self.store_vector(vector(0), XMM0);
            }
            Form::FromGeneral(size) => {
                let general = self.general(instruction.op_register(1));
                self.asm.vector(Some(0x66), size == B8, &[0x0f, 0x6e], XMM0, general);
                self.store_vector(vector(0), XMM0);
            }
            Form::StoreLow(size) => {
                if is_memory(instruction, 0) {
                    let place = self.vector_address(instruction, size.bytes(), true, false)?;
                    self.asm.load(size, RCX, vector(1));
                    self.asm.store(size, place, RCX);
                } else {
                    self.asm.load(size, RCX, vector(1));
                    self.set_general(instruction.op_register(0), RCX);
                }
            }
            Form::Merge(size) => {
                self.asm.load(size, RCX, vector(1));
                self.asm.store(size, vector(0), RCX);
            }
            Form::LoadHigh | Form::LoadHalf => {
                let place = self.vector_address(instruction, 8, false, false)?;
                self.asm.load(B8, RCX, place);
                let half = if form == Form::LoadHigh { 8 } else { 0 };
                let to = vector(0);
                self.asm.store(B8, Mem { disp: to.disp + half, ..to }, RCX);
            }
            Form::StoreHigh => {
                let place = self.vector_address(instruction, 8, true, false)?;
                let from = vector(1);
                self.asm.load(B8, RCX, Mem { disp: from.disp + 8, ..from });
                self.asm.store(B8, place, RCX);
            }
            Form::Mask => {
                self.load_vector(XMM0, vector(1));
                self.asm.vector(Some(0x66), false, &[0x0f, 0xd7], RCX.0, super::asm::Reg(XMM0));
                self.set_general(instruction.op_register(0), RCX);
            }
        }
        Ok(())
    }

    /// Loads the second operand into XMM1, and returns that register.
    fn second(&mut self, instruction: &Instruction) -> Result<u8, Cannot> {
        if is_memory(instruction, 1) {
            let place = self.vector_address(instruction, 16, false, true)?;
            self.load_unaligned(XMM1, place);
        } else {
            self.load_vector(XMM1, vector_place(instruction.op_register(1).number() as u8));
        }
        Ok(XMM1)
    }

    fn vector_op(&mut self, opcode: Opcode, to: u8, from: u8, instruction: &Instruction) {
        let prefix = (opcode.prefix != 0).then_some(opcode.prefix);
        let bytes = [0x0f, opcode.map, opcode.number];
        let bytes = if opcode.map == 0 { &[0x0f, opcode.number][..] } else { &bytes[..] };
        self.asm.vector(prefix, false, bytes, to, super::asm::Reg(from));
        if opcode.immediate {
            self.asm.byte(instruction.immediate8());
        }
    }

    /// The memory operand, as from [`BlockWriter::operand`].
    fn vector_address(
        &mut self,
        instruction: &Instruction,
        bytes: i32,
        write: bool,
        aligned: bool,
    ) -> Result<Mem, Cannot> {
        let place = self.operand_of(instruction, bytes, write)?;
        if aligned {
            self.asm.lea(B8, RAX, place);
            self.asm.test_imm(super::asm::B1, RAX, 15);
            self.leave_if(cc::NE);
            return Ok(at(RAX, 0));
        }
        Ok(place)
    }

    fn load_vector(&mut self, to: u8, from: Mem) {
        self.asm.vector(None, false, &[0x0f, 0x28], to, from);
    }

    fn store_vector(&mut self, to: Mem, from: u8) {
        self.asm.vector(None, false, &[0x0f, 0x29], from, to);
    }

    fn load_unaligned(&mut self, to: u8, from: Mem) {
        self.asm.vector(None, false, &[0x0f, 0x10], to, from);
    }

    fn store_unaligned(&mut self, to: Mem, from: u8) {
        self.asm.vector(None, false, &[0x0f, 0x11], from, to);
    }
}
