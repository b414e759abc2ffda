//! The arithmetic flags: in the host's register, in the frame, or in both.

use super::{BlockWriter, FLAGS, FLAGS_HIGH};
use crate::frame::KEPT;
use crate::x86_64::asm::{B1, B4, B8, RAX, RCX, RDX, Reg, alu, at, cc};
use crate::x86_64::kind::{Effect, looked_at, set};
use crate::x86_64::recipe::{Operation, Recipe, Second};

impl BlockWriter<'_> {
    /// The flags that may be read after the current instruction.
    pub fn needed(&self) -> u8 {
        self.needed
    }

    /// Notes that the written code has clobbered the host's flags.
    pub fn clobbered(&mut self) {
        self.in_host = 0;
    }

    /// Notes that the instruction has set flags in the host's register. If later code needs these flags in the frame,
    /// writes them to the frame.
    pub fn flags_set(&mut self, effect: &Effect) {
        self.some_flags_set(effect);
        if self.needed & effect.kills == 0 {
            return;
        }
        self.asm.byte(0x9f);
        if effect.in_host == set::ALL {
            self.asm.setcc(0, RAX);
        } else {
            // mov al, 2: OF and AF of the image are zero, as after all instructions that reach this code (`FlagImage`).
            self.asm.raw(&[0xb0, 2]);
        }
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame = set::ALL;
    }

    /// As [`BlockWriter::flags_set`], for a shift. AL must hold OF.
    pub fn shift_flags_set(&mut self, effect: &Effect) {
        self.some_flags_set(effect);
        if self.needed & effect.kills == 0 {
            return;
        }
        self.asm.byte(0x9f);
        self.asm.lea(B4, RAX, at(RAX, 2));
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame = set::ALL;
    }

    /// Writes the flags in AH and AL to the frame. The host's flags are not valid any more.
    pub fn flags_from_eax(&mut self) {
        self.asm.store(B4, FLAGS, RAX);
        (self.in_host, self.in_frame) = (0, set::ALL);
    }

    /// Sets EDX to the frame's arithmetic flags in the format of RFLAGS. Clobbers ECX and the host's flags.
    pub fn flags_as_in_rflags(&mut self) {
        debug_assert_eq!(self.in_frame, set::ALL, "flags are lost");
        self.asm.load(B4, RCX, FLAGS);
        self.asm.load(B4, RDX, RCX);
        self.asm.shift_imm(B4, 5, RDX, 8);
        self.asm.alu_imm(B4, alu::AND, RDX, 0xd5);
        self.asm.test_imm(B1, RCX, 2);
        let adjust = self.asm.jcc(cc::E);
        self.asm.alu_imm(B4, alu::AND, RDX, !0x10);
        self.asm.land(adjust);
        self.asm.alu_imm(B4, alu::AND, RCX, 1);
        self.asm.shift_imm(B4, 4, RCX, 11);
        self.asm.alu(B4, alu::OR, RDX, RCX);
    }

    /// Stores a recipe's number in the frame in place of the flags.
    pub fn name_recipe(&mut self, recipe: Recipe) {
        let name = self.recipes.name(recipe);
        self.asm.store_imm(B4, FLAGS, name as i32);
    }

    /// Computes the flags by a recipe and stores them in the frame. Clobbers RAX and RDX.
    pub fn follow_recipe(&mut self, recipe: Recipe) {
        let Recipe { operation, size, first, second } = recipe;
        self.asm.load(B8, RDX, Self::place(first.into()));
        let mut apply = |which| match second {
            Second::Register(n) => self.asm.alu(size, which, RDX, Self::place(n.into())),
            Second::Immediate(value) => self.asm.alu_imm(size, which, RDX, value),
        };
        match operation {
            Operation::Sum => [alu::SUB, alu::ADD].into_iter().for_each(apply),
            Operation::Difference => [alu::ADD, alu::SUB].into_iter().for_each(apply),
            Operation::Comparison => apply(alu::CMP),
            Operation::Logic => apply(alu::AND),
            Operation::Shift(_) => unreachable!("what a shift keeps is not there at the block's end"),
        }
        self.asm.byte(0x9f);
        if operation == Operation::Logic {
            // mov al, 2: OF and AF of the image are zero, as after every logical instruction (`FlagImage`).
            self.asm.raw(&[0xb0, 2]);
        } else {
            self.asm.setcc(0, RAX);
        }
        self.asm.store(B4, FLAGS, RAX);
    }

    /// Saves a register's value, if the recipe of the current instruction needs it. Leaves the flags unchanged.
    pub fn keep_for_recipe(&mut self, operand: Reg) {
        if self.keeps {
            self.asm.store(B8, super::in_frame(KEPT.into()), operand);
        }
    }

    /// Notes that the instruction has set flags in the host's register, so the frame's values of these flags are old.
    pub fn some_flags_set(&mut self, effect: &Effect) {
        self.in_frame &= !effect.kills;
        self.in_host = effect.in_host;
    }

    /// Notes that the frame has wrong values of some flags, which nothing will read.
    pub fn flags_lost(&mut self, kills: u8) {
        self.in_frame &= !kills;
        self.in_host = 0;
    }

    /// Writes CF from the host's register to the frame, and leaves the frame's other flags unchanged. Clobbers RAX and
    /// RCX.
    pub fn carry_to_frame(&mut self) {
        self.asm.setcc(cc::B, RCX);
        self.asm.load(B4, RAX, FLAGS);
        self.asm.alu_imm(B4, alu::AND, RAX, !0x100);
        self.asm.extend(0xb6, B4, RCX, B1, RCX);
        self.asm.shift_imm(B4, 4, RCX, 8);
        self.asm.alu(B4, alu::OR, RAX, RCX);
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame |= set::C;
        self.in_host = 0;
    }

    /// Writes CF and OF from the host's register to the frame. Clobbers RAX, RCX and RDX.
    pub fn carry_and_overflow_to_frame(&mut self) {
        self.asm.setcc(0, RDX);
        self.carry_to_frame();
        self.asm.alu_imm(B4, alu::AND, RAX, !1);
        self.asm.extend(0xb6, B4, RDX, B1, RDX);
        self.asm.alu(B4, alu::OR, RAX, RDX);
        self.asm.store(B4, FLAGS, RAX);
        self.in_frame |= set::O;
    }

    /// Loads CF into the host's register.
    pub fn need_carry(&mut self) {
        if self.in_host & set::C == 0 {
            debug_assert_ne!(self.in_frame & set::C, 0, "the carry is lost");
            self.asm.bit_test(FLAGS, 8);
        }
    }

    /// Sets the host's flags as the guest's condition needs them, and returns the host's condition to test. Clobbers
    /// RAX.
    pub fn condition(&mut self, cc: u8) -> u8 {
        let flags = looked_at(cc);
        if self.in_host & flags == flags {
            return cc;
        }
        debug_assert_eq!(self.in_frame & flags, flags, "a condition's flags are lost");
        self.in_host = 0;
        let negated = cc & 1;
        let mask = match cc >> 1 {
            0 => {
                self.asm.test_imm(B1, FLAGS, 1);
                return cc::NE ^ negated;
            }
            1 => 0x01,
            2 => 0x40,
            3 => 0x41,
            4 => 0x80,
            5 => 0x04,
            _ => {
                self.asm.load(B4, RAX, FLAGS);
                self.asm.alu_imm(B1, alu::AND, RAX, 1);
                self.asm.alu_imm(B1, alu::ADD, RAX, 0x7f);
                self.asm.byte(0x9e);
                return cc;
            }
        };
        self.asm.test_imm(B1, FLAGS_HIGH, mask);
        cc::NE ^ negated
    }
}
