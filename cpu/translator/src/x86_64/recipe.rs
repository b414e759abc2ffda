//! Recipes compute the arithmetic flags from registers. Flags that no instruction reads need not be written, as long as
//! the registers still hold the values that the flags come from. At an exit the frame gets the recipe's number in place
//! of the flags, and [`super::Translator`] computes the flags from the recipe.

use std::collections::BTreeMap;

use iced_x86::{Instruction, OpKind};

use super::asm::{Size, alu};
use super::kind::{Kind, is_high_byte, number_of, operand_size};
use crate::frame::{FlagImage, KEPT};

/// The bit that marks a recipe in the frame; no [`FlagImage`] has it. The recipe's number is in the bits
/// above.
pub(super) const IS_RECIPE: u32 = 1 << 2;
const NUMBER_SHIFT: u32 = 3;
/// Limit for the number of recipes, because a guest can cause any number. At the limit, all recipes and all code are
/// dropped.
const MANY: usize = 1 << 16;

/// The operation that gives the flags, in terms of register values after the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// The second operand was added to the first, which now holds the sum.
    Sum,
    /// The second operand was subtracted from the first, which now holds the difference.
    Difference,
    /// The second operand is compared with the first.
    Comparison,
    /// AND, OR, XOR or TEST. The flags follow from `first & second`. After AND, OR and XOR, both operands of the recipe
    /// are the register with the result.
    Logic,
    /// SHL, SHR or SAR, by its `/n`, of the saved first operand by the second. All blocks save to the same place, so
    /// only the block itself knows how long the operand stays there.
    Shift(u8),
}

/// The second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Second {
    Register(u8),
    Immediate(i32),
}

/// A rule that computes the flags from the guest's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Recipe {
    pub operation: Operation,
    pub size: Size,
    pub first: u8,
    pub second: Second,
}

impl Recipe {
    /// The recipe of the flags that an instruction sets, from the registers after it.
    pub fn of(i: &Instruction, kind: Kind) -> Option<Recipe> {
        let register = |n: u32| {
            (i.op_kind(n) == OpKind::Register && !is_high_byte(i.op_register(n)))
                .then(|| number_of(i.op_register(n)) as u8)
        };
        if let (Kind::ShiftBy(which, count), Some(_)) = (kind, register(0)) {
            let (operation, second) = (Operation::Shift(which), Second::Immediate(count.into()));
            return Some(Recipe { operation, size: operand_size(i, 0)?, first: KEPT, second });
        }
        let operation = match kind {
            Kind::Alu(alu::ADD) => Operation::Sum,
            Kind::Alu(alu::SUB) => Operation::Difference,
            Kind::Alu(alu::CMP) => Operation::Comparison,
            Kind::Alu(alu::OR | alu::AND | alu::XOR) | Kind::Test => Operation::Logic,
            _ => return None,
        };
        let (size, first) = (operand_size(i, 0)?, register(0)?);
        let second = match i.op_kind(1) {
            // The first operand holds the result. The flags of `result & result` are the flags of the result.
            _ if operation == Operation::Logic && kind != Kind::Test => Second::Register(first),
            OpKind::Register => Second::Register(register(1)?),
            OpKind::Memory => return None,
            _ => Second::Immediate(match size {
                Size::B1 => i32::from(i.immediate(1) as i8),
                Size::B2 => i32::from(i.immediate(1) as i16),
                Size::B4 => i.immediate(1) as i32,
                Size::B8 => i32::try_from(i.immediate(1) as i64).ok()?,
            }),
        };
        let changed = matches!(operation, Operation::Sum | Operation::Difference);
        // An operand that was added to or subtracted from itself is lost.
        let lost = changed && second == Second::Register(first);
        (!lost).then_some(Recipe { operation, size, first, second })
    }

    /// The registers that the recipe needs, as bits.
    pub fn registers(&self) -> u16 {
        let second = match self.second {
            Second::Register(n) => 1 << n,
            Second::Immediate(_) => 0,
        };
        if self.is_kept() { 0 } else { 1 << self.first | second }
    }

    /// Whether the recipe needs a saved operand.
    pub fn is_kept(&self) -> bool {
        self.first == KEPT
    }

    /// Computes the flags.
    pub fn flags(&self, registers: &[u64]) -> FlagImage {
        let bits = 8 * self.size.bytes() as u32;
        let mask = u64::MAX >> (64 - bits);
        let first = registers[usize::from(self.first)] & mask;
        let second = mask
            & match self.second {
                Second::Register(n) => registers[usize::from(n)],
                Second::Immediate(value) => i64::from(value) as u64,
            };
        let top = |value: u64| value >> (bits - 1) & 1;
        // The first operand before the operation, and the result. The flags of a logical operation need no operand.
        let (a, result) = match self.operation {
            Operation::Sum => (first.wrapping_sub(second) & mask, first),
            Operation::Difference => (first.wrapping_add(second) & mask, first),
            Operation::Comparison => (first, first.wrapping_sub(second) & mask),
            Operation::Logic => (0, first & second),
            Operation::Shift(4) => (first, first << second & mask),
            Operation::Shift(5) => (first, first >> second),
            Operation::Shift(_) => (first, (sign_extended(first, bits) >> second) as u64 & mask),
        };
        let (carry, adjust, overflow) = match self.operation {
            Operation::Logic => (0, 0, 0),
            Operation::Sum => {
                (u64::from(result < a), (a ^ second ^ result) >> 4 & 1, top((a ^ result) & (second ^ result)))
            }
            Operation::Difference | Operation::Comparison => {
                (u64::from(a < second), (a ^ second ^ result) >> 4 & 1, top((a ^ second) & (a ^ result)))
            }
            // OF has the value of a shift by one, for any count.
            Operation::Shift(4) => (a >> (u64::from(bits) - second) & 1, 0, top(a ^ a << 1)),
            Operation::Shift(5) => (a >> (second - 1) & 1, 0, top(a)),
            Operation::Shift(_) => (sign_extended(a, bits) as u64 >> (second - 1) & 1, 0, 0),
        };
        let parity = u64::from((result as u8).count_ones().is_multiple_of(2));
        let zero = u64::from(result == 0);
        FlagImage::from_rflags(
            carry | parity << 2 | adjust << 4 | zero << 6 | top(result) << 7 | overflow << 11,
        )
    }
}

/// Sign-extends a value of `bits` bits.
fn sign_extended(value: u64, bits: u32) -> i64 {
    (value << (64 - bits)) as i64 >> (64 - bits)
}

/// The recipes of all blocks, each with a number.
#[derive(Default)]
pub(super) struct Recipes {
    list: Vec<Recipe>,
    numbers: BTreeMap<Recipe, u32>,
}

impl Recipes {
    /// The value that stands for a recipe in the frame, in place of the flags.
    pub fn name(&mut self, recipe: Recipe) -> u32 {
        let list = &mut self.list;
        let number = *self.numbers.entry(recipe).or_insert_with(|| {
            list.push(recipe);
            list.len() as u32 - 1
        });
        assert!(number < 1 << (32 - NUMBER_SHIFT), "there is no room for so many");
        IS_RECIPE | number << NUMBER_SHIFT
    }

    /// The flags, from the frame or from the recipe in the frame.
    #[inline]
    pub fn flags(&self, in_frame: u32, registers: &[u64]) -> FlagImage {
        if in_frame & IS_RECIPE == 0 {
            return FlagImage(in_frame);
        }
        self.list[(in_frame >> NUMBER_SHIFT) as usize].flags(registers)
    }

    /// Whether the limit is reached, so that all recipes and all code must be dropped.
    pub fn are_many(&self) -> bool {
        self.list.len() >= MANY
    }

    /// Drops all recipes.
    pub fn clear(&mut self) {
        self.list.clear();
        self.numbers.clear();
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::super::kind::kind_of;
    use super::*;

    const CF: u64 = 1;
    const PF: u64 = 1 << 2;
    const AF: u64 = 1 << 4;
    const ZF: u64 = 1 << 6;
    const SF: u64 = 1 << 7;
    const OF: u64 = 1 << 11;

    fn recipe(code: &[u8]) -> Option<Recipe> {
        let instruction = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), code.len());
        Recipe::of(&instruction, kind_of(&instruction).expect("it is translated"))
    }

    /// The flags that an instruction's recipe computes from values of RAX and RCX.
    fn flags(code: &[u8], rax: u64, rcx: u64) -> u64 {
        recipe(code).expect("there is a recipe").flags(&[rax, rcx]).rflags()
    }

    #[test]
    fn the_operands_of_an_addition_follow_from_its_sum() {
        let add = [0x01, 0xc8]; // add eax, ecx
        assert_eq!(flags(&add, 0, 0), PF | ZF);
        assert_eq!(flags(&add, 0, 1), CF | PF | AF | ZF); // 0xffff_ffff + 1
        assert_eq!(flags(&add, 0x8000_0000, 1), PF | AF | SF | OF); // 0x7fff_ffff + 1
        assert_eq!(flags(&[0x48, 0x01, 0xc8], 0x8000_0000, 1), PF | AF);
        assert_eq!(flags(&[0x83, 0xc0, 0xff], 0xffff_ffff, 0), PF | SF); // 0 + -1
        assert_eq!(flags(&[0x04, 0x80], 0x7f, 0), CF | OF); // 0xff + 0x80
    }

    #[test]
    fn the_operands_of_a_subtraction_follow_from_its_difference() {
        let sub = [0x29, 0xc8]; // sub eax, ecx
        assert_eq!(flags(&sub, 0, 5), PF | ZF);
        assert_eq!(flags(&sub, 0xffff_ffff, 1), CF | PF | AF | SF); // 0 - 1
        assert_eq!(flags(&sub, 0x7fff_ffff, 1), PF | AF | OF); // 0x8000_0000 - 1
        assert_eq!(flags(&[0x66, 0x83, 0xe8, 1], 0x1_7fff, 0), PF | AF | OF);
    }

    #[test]
    fn a_comparison_and_a_logical_result() {
        let cmp = [0x39, 0xc8]; // cmp eax, ecx
        assert_eq!(flags(&cmp, 1, 2), CF | PF | AF | SF);
        assert_eq!(flags(&cmp, 0x1_0000_0002, 2), PF | ZF);
        assert_eq!(flags(&cmp, 0x8000_0000, 1), PF | AF | OF);
        // cmp rax, -1; test eax, 0x80000000; xor eax, [rcx]
        assert_eq!(flags(&[0x48, 0x83, 0xf8, 0xff], u64::MAX, 0), PF | ZF);
        assert_eq!(flags(&[0xa9, 0, 0, 0, 0x80], u64::MAX, 0), PF | SF);
        assert_eq!(flags(&[0x33, 0x01], 0x1_0000_0000, 77), PF | ZF);
        assert_eq!(flags(&[0x84, 0xc9], 0, 0x180), SF);
    }

    /// The flags of a shift's recipe for a saved operand.
    fn shifted(code: &[u8], operand: u64) -> u64 {
        let recipe = recipe(code).expect("there is a recipe");
        assert!(recipe.is_kept() && recipe.registers() == 0);
        let mut registers = [0; 32];
        registers[usize::from(KEPT)] = operand;
        recipe.flags(&registers).rflags()
    }

    #[test]
    fn the_operand_of_a_shift_is_kept() {
        let [shl, shr, sar] = [0xe0, 0xe8, 0xf8].map(|modrm| [0xc1, modrm, 4]); // of eax by 4
        assert_eq!(shifted(&shl, 0x1_1000_0003), CF | PF);
        assert_eq!(shifted(&shl, 0x4800_0000), SF | PF | OF);
        assert_eq!(shifted(&shl, 0xc000_0000), PF | ZF);
        assert_eq!(shifted(&shr, 0x1_8000_0008), CF | PF | OF);
        assert_eq!(shifted(&shr, 7), PF | ZF);
        assert_eq!(shifted(&sar, 0x8000_0008), CF | PF | SF);
        assert_eq!(shifted(&sar, 0x7000_0010), 0);
        assert_eq!(shifted(&[0xd1, 0xe8], 0x8000_0001), CF | PF | OF);
        assert_eq!(shifted(&[0xc0, 0xe8, 7], 0x180), OF);
        assert_eq!(shifted(&[0x48, 0xc1, 0xe0, 63], 2), CF | PF | ZF);
    }

    #[test]
    fn what_has_no_recipe() {
        let none: [&[u8]; 10] = [
            &[0x01, 0xc0],    // add eax, eax
            &[0x29, 0xc0],    // sub eax, eax
            &[0x03, 0x01],    // add eax, [rcx]
            &[0x3b, 0x01],    // cmp eax, [rcx]
            &[0x01, 0x01],    // add [rcx], eax
            &[0x11, 0xc8],    // adc eax, ecx
            &[0xff, 0xc0],    // inc eax
            &[0xf7, 0xd8],    // neg eax
            &[0x80, 0xfc, 1], // cmp ah, 1
            &[0x00, 0xe0],    // add al, ah
        ];
        for code in none {
            assert_eq!(recipe(code), None, "{code:x?}");
        }
        assert_eq!(recipe(&[0x39, 0xc8]).map(|recipe| recipe.registers()), Some(3));
        assert_eq!(recipe(&[0x83, 0xf9, 4]).map(|recipe| recipe.registers()), Some(2));
    }

    #[test]
    fn a_name_is_no_image_of_flags() {
        let mut recipes = Recipes::default();
        let [first, second] = [[0x39, 0xc8], [0x29, 0xc8]].map(|code| recipe(&code).expect("it has one"));
        let names = [first, second, first].map(|recipe| recipes.name(recipe));
        assert!(names[0] == names[2] && names[0] != names[1]);
        assert_eq!(recipes.flags(names[0], &[1, 2]), first.flags(&[1, 2]));
        // The bits above the byte from LAHF are old bits of EAX.
        assert_eq!(recipes.flags(0xffff_ff03, &[1, 2]), FlagImage(0xffff_ff03));
    }
}
