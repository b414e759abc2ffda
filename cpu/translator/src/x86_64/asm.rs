//! Writes x86-64 machine code (SDM vol. 2, chapter 2): only the instructions that generated code needs.

use super::relocation::{Kind, Relocations};
use super::undefined::inverted_behind;
use crate::Undefined;

/// A register of the host by its number in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg(pub u8);

pub(super) const RAX: Reg = Reg(0);
pub(super) const RCX: Reg = Reg(1);
pub(super) const RDX: Reg = Reg(2);
pub(super) const RBX: Reg = Reg(3);
pub(super) const RSP: Reg = Reg(4);
pub(super) const RBP: Reg = Reg(5);
pub(super) const RSI: Reg = Reg(6);
pub(super) const RDI: Reg = Reg(7);
pub(super) const R15: Reg = Reg(15);

/// CH and DH, as byte registers.
pub(super) const CH: Reg = Reg(0x85);
pub(super) const DH: Reg = Reg(0x86);

/// Memory at `base + index << shift + disp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mem {
    pub base: Reg,
    pub index: Option<(Reg, u8)>,
    pub disp: i32,
}

/// Memory at the address in a register plus a displacement.
pub(super) fn at(base: Reg, disp: i32) -> Mem {
    Mem { base, index: None, disp }
}

/// An operand that can be a register or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Reg(Reg),
    Mem(Mem),
}

impl From<Reg> for Place {
    fn from(reg: Reg) -> Place {
        Place::Reg(reg)
    }
}

impl From<Mem> for Place {
    fn from(mem: Mem) -> Place {
        Place::Mem(mem)
    }
}

/// Operand sizes of integer instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    B1,
    B2,
    B4,
    B8,
}
pub(super) use Size::{B1, B2, B4, B8};

impl Size {
    /// The size with this number of bytes.
    pub fn of(bytes: usize) -> Option<Size> {
        Some(match bytes {
            1 => B1,
            2 => B2,
            4 => B4,
            8 => B8,
            _ => return None,
        })
    }

    pub fn bytes(self) -> i32 {
        1 << self as i32
    }
}

/// Conditions by their encoding (SDM vol. 2, appendix B.1.4.7).
pub(super) mod cc {
    pub const B: u8 = 2;
    pub const AE: u8 = 3;
    pub const E: u8 = 4;
    pub const NE: u8 = 5;
    pub const BE: u8 = 6;
    pub const S: u8 = 8;
}

/// The `/n` of the two-operand arithmetic instructions.
pub(super) mod alu {
    pub const ADD: u8 = 0;
    pub const OR: u8 = 1;
    pub const AND: u8 = 4;
    pub const SUB: u8 = 5;
    pub const XOR: u8 = 6;
    pub const CMP: u8 = 7;
}

/// The place, in the code, of a branch displacement that will be filled in later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fixup(usize);

impl Fixup {
    /// Offset of the displacement, which has four bytes.
    pub fn offset(self) -> usize {
        self.0
    }
}

/// An opcode and the fields of its VEX prefix (SDM vol. 2, section 2.3): the number of the opcode map,
/// and the encoded mandatory prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vex {
    pub map: u8,
    pub prefix: u8,
    pub opcode: u8,
}

/// RORX, which leaves the flags unchanged.
pub(super) const RORX: Vex = Vex { map: 3, prefix: 3, opcode: 0xf0 };

/// The fourth bits of the operands' register numbers, in the format of a REX prefix.
fn upper_bits(reg: u8, rm: Place) -> u8 {
    let (base, index) = match rm {
        Place::Reg(r) => (r.0, 0),
        Place::Mem(m) => (m.base.0, m.index.map_or(0, |(i, _)| i.0)),
    };
    (reg >> 3 & 1) << 2 | (index >> 3 & 1) << 1 | base >> 3 & 1
}

/// Code under construction.
pub(super) struct Asm {
    bytes: Vec<u8>,
    /// Offset of the last instruction that was encoded with operands.
    begun: usize,
    /// Whether results that an instruction leaves undefined are inverted after it.
    inverts: bool,
    /// The places in the code that change when it moves.
    relocations: Relocations,
}

impl Asm {
    /// An empty code buffer. `undefined` is the treatment of undefined results.
    pub fn new(undefined: Undefined) -> Asm {
        Asm::of_block_at(0, undefined)
    }

    /// As [`Asm::new`], for a guest block at an address.
    pub fn of_block_at(rip: u64, undefined: Undefined) -> Asm {
        let inverts = undefined == Undefined::Inverted;
        Asm { bytes: Vec::with_capacity(1024), begun: 0, inverts, relocations: Relocations::of_block_at(rip) }
    }

    /// Ends an instruction. If `inverts` is set, writes code that inverts the results that the instruction leaves
    /// undefined.
    fn ended(&mut self) {
        if self.inverts {
            let inverted = inverted_behind(&self.bytes[self.begun..]);
            self.bytes.extend(inverted);
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The code and its relocations.
    pub fn finish(self) -> (Vec<u8>, Relocations) {
        (self.bytes, self.relocations)
    }

    /// Records that the bytes just written change when the code moves; `kind` says how.
    pub fn relocate(&mut self, kind: Kind) {
        self.relocations.note(kind, self.bytes.len());
    }

    /// Records that the bytes just written are a guest address that moves with the guest's code.
    pub fn relocate_address(&mut self, kind: Kind, address: u64) {
        self.relocate(kind);
        self.relocations.note_address(address);
    }

    /// Offset of the next byte.
    pub fn here(&self) -> usize {
        self.bytes.len()
    }

    fn imm32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes prefixes, opcode, ModRM, SIB and displacement. `byte_reg` and `byte_rm` say which operands are byte
    /// registers: SPL to DIL need an otherwise empty REX prefix.
    fn encode(
        &mut self,
        prefix: Option<u8>,
        wide: bool,
        opcode: &[u8],
        (reg, byte_reg): (u8, bool),
        (rm, byte_rm): (Place, bool),
    ) {
        self.begun = self.bytes.len();
        self.bytes.extend(prefix);
        let mut rex = u8::from(wide) << 3 | upper_bits(reg, rm);
        let needs = |register: u8| (4..0x80).contains(&register);
        let byte_rm_needs = byte_rm && matches!(rm, Place::Reg(r) if needs(r.0));
        if rex != 0 || byte_reg && needs(reg) || byte_rm_needs {
            let high = |register: u8| register >= 0x80;
            debug_assert!(
                !high(reg) && !matches!(rm, Place::Reg(r) if high(r.0)),
                "no REX prefix beside CH and DH"
            );
            rex |= 0x40;
            self.bytes.push(rex);
        }
        self.bytes.extend_from_slice(opcode);
        self.modrm(reg, rm);
    }

    /// Writes ModRM, SIB and displacement.
    fn modrm(&mut self, reg: u8, rm: Place) {
        let reg = (reg & 7) << 3;
        let m = match rm {
            Place::Reg(r) => return self.bytes.push(0xc0 | reg | r.0 & 7),
            Place::Mem(m) => m,
        };
        let (mode, short) = match i8::try_from(m.disp) {
            Ok(0) if m.base.0 & 7 != 5 => (0, None),
            Ok(disp) => (0x40, Some(disp)),
            Err(_) => (0x80, None),
        };
        match m.index {
            None if m.base.0 & 7 != 4 => self.bytes.push(mode | reg | m.base.0 & 7),
            index => {
                let (index, shift) = index.unwrap_or((RSP, 0));
                debug_assert!(m.index.is_none() || index != RSP, "RSP cannot be an index");
                self.bytes.push(mode | reg | 4);
                self.bytes.push(shift << 6 | (index.0 & 7) << 3 | m.base.0 & 7);
            }
        }
        match (mode, short) {
            (0x40, Some(disp)) => self.bytes.push(disp as u8),
            (0x80, _) => self.imm32(m.disp),
            _ => {}
        }
    }

    /// An integer instruction with ModRM. The lowest bit of its opcode distinguishes bytes from larger operands.
    pub fn sized(&mut self, size: Size, opcode: u8, reg: u8, rm: impl Into<Place>, reg_is_register: bool) {
        self.begin_sized(size, opcode, reg, rm, reg_is_register);
        self.ended();
    }

    /// As [`Asm::sized`], but without the immediate, which the caller writes.
    fn begin_sized(&mut self, size: Size, opcode: u8, reg: u8, rm: impl Into<Place>, reg_is_register: bool) {
        let prefix = (size == B2).then_some(0x66);
        let opcode = if size == B1 { opcode & !1 } else { opcode | 1 };
        let byte = size == B1;
        self.encode(prefix, size == B8, &[opcode], (reg, byte && reg_is_register), (rm.into(), byte));
    }

    /// As [`Asm::sized`], but in the second opcode map. The lowest bit of these opcodes does not distinguish bytes
    /// from larger operands.
    pub fn two(&mut self, size: Size, opcode: u8, reg: Reg, rm: impl Into<Place>) {
        self.begin_two(size, opcode, reg, rm);
        self.ended();
    }

    /// As [`Asm::two`], followed by an immediate byte.
    pub fn two_imm(&mut self, size: Size, opcode: u8, reg: Reg, rm: impl Into<Place>, value: u8) {
        self.begin_two(size, opcode, reg, rm);
        self.bytes.push(value);
        self.ended();
    }

    fn begin_two(&mut self, size: Size, opcode: u8, reg: Reg, rm: impl Into<Place>) {
        let prefix = (size == B2).then_some(0x66);
        self.encode(prefix, size == B8, &[0x0f, opcode], (reg.0, false), (rm.into(), false));
    }

    /// As [`Asm::two`], with a mandatory prefix.
    pub fn prefixed(&mut self, prefix: u8, size: Size, opcode: u8, reg: Reg, rm: impl Into<Place>) {
        debug_assert!(size >= B4, "there would be two prefixes");
        self.encode(Some(prefix), size == B8, &[0x0f, opcode], (reg.0, false), (rm.into(), false));
        self.ended();
    }

    /// MOV into a register.
    pub fn load(&mut self, size: Size, to: Reg, from: impl Into<Place>) {
        self.sized(size, 0x8b, to.0, from, true);
    }

    pub fn store(&mut self, size: Size, to: impl Into<Place>, from: Reg) {
        self.sized(size, 0x89, from.0, to, true);
    }

    /// MOV of an immediate that is sign-extended to the operand's size.
    pub fn store_imm(&mut self, size: Size, to: impl Into<Place>, value: i32) {
        self.begin_sized(size, 0xc7, 0, to, false);
        self.immediate(size, value);
    }

    fn immediate(&mut self, size: Size, value: i32) {
        match size {
            B1 => self.bytes.push(value as u8),
            B2 => self.bytes.extend_from_slice(&(value as i16).to_le_bytes()),
            _ => self.imm32(value),
        }
    }

    /// Loads a constant with the shortest encoding. Leaves the flags unchanged.
    pub fn constant(&mut self, to: Reg, value: u64) {
        self.shortest(to, value);
    }

    /// As [`Asm::constant`], for an address that moves with the guest's code.
    pub fn address(&mut self, to: Reg, address: u64) {
        let kind = self.shortest(to, address);
        self.relocate_address(kind, address);
    }

    /// Loads a constant. Returns the kind of the last bytes written, which hold the constant.
    fn shortest(&mut self, to: Reg, value: u64) -> Kind {
        if u32::try_from(value).is_ok() {
            if to.0 >= 8 {
                self.bytes.push(0x41);
            }
            self.bytes.push(0xb8 | to.0 & 7);
            self.imm32(value as u32 as i32);
            Kind::Address32
        } else if i32::try_from(value as i64).is_ok() {
            self.store_imm(B8, to, value as i32);
            Kind::Address32
        } else {
            self.bytes.push(0x48 | to.0 >> 3);
            self.bytes.push(0xb8 | to.0 & 7);
            self.bytes.extend_from_slice(&value.to_le_bytes());
            Kind::Address64
        }
    }

    /// Compares a register with a part of a TLB slot whose number moves with the guest's code.
    pub fn compare_slot(&mut self, with: Reg, part: Mem) {
        debug_assert!(
            part.index.is_none() && i8::try_from(part.disp).is_err(),
            "its place has other than four bytes"
        );
        self.encode(None, true, &[alu::CMP << 3 | 3], (with.0, false), (part.into(), false));
        self.relocate(Kind::Slot);
        self.ended();
    }

    pub fn lea(&mut self, size: Size, to: Reg, from: Mem) {
        self.sized(size, 0x8d, to.0, from, true);
    }

    /// An arithmetic instruction ([`alu`]) with a register as destination.
    pub fn alu(&mut self, size: Size, which: u8, to: Reg, from: impl Into<Place>) {
        self.sized(size, which << 3 | 3, to.0, from, true);
    }

    /// As [`Asm::alu`], with a register as source.
    pub fn alu_to(&mut self, size: Size, which: u8, to: impl Into<Place>, from: Reg) {
        self.sized(size, which << 3 | 1, from.0, to, true);
    }

    /// As [`Asm::alu`], with an immediate.
    pub fn alu_imm(&mut self, size: Size, which: u8, to: impl Into<Place>, value: i32) {
        match i8::try_from(value) {
            Ok(short) if size != B1 => {
                let prefix = (size == B2).then_some(0x66);
                self.encode(prefix, size == B8, &[0x83], (which, false), (to.into(), false));
                self.bytes.push(short as u8);
            }
            _ => {
                self.begin_sized(size, 0x81, which, to, false);
                self.immediate(size, value);
            }
        }
        self.ended();
    }

    pub fn test_imm(&mut self, size: Size, place: impl Into<Place>, value: i32) {
        self.begin_sized(size, 0xf7, 0, place, false);
        self.immediate(size, value);
        self.ended();
    }

    /// IMUL of three operands.
    pub fn imul_imm(&mut self, size: Size, to: Reg, from: impl Into<Place>, value: i32) {
        self.begin_sized(size, 0x69, to.0, from, true);
        self.immediate(size, value);
        self.ended();
    }

    /// A shift or rotate by a constant; `which` is the `/n`.
    pub fn shift_imm(&mut self, size: Size, which: u8, place: impl Into<Place>, count: u8) {
        if count == 1 {
            return self.sized(size, 0xd1, which, place, false);
        }
        self.begin_sized(size, 0xc1, which, place, false);
        self.bytes.push(count);
        self.ended();
    }

    /// An instruction on general registers with a VEX prefix. `second` is the register in the prefix, if any.
    pub fn vex(&mut self, size: Size, vex: Vex, reg: u8, second: Option<Reg>, rm: impl Into<Place>) {
        self.begin_vex(size, vex, reg, second, rm.into());
        self.ended();
    }

    fn begin_vex(&mut self, size: Size, vex: Vex, reg: u8, second: Option<Reg>, rm: Place) {
        self.begun = self.bytes.len();
        let upper = !upper_bits(reg, rm) << 5;
        let second = !second.map_or(0, |second| second.0) & 15;
        self.bytes.extend([0xc4, upper | vex.map, u8::from(size == B8) << 7 | second << 3 | vex.prefix]);
        self.bytes.push(vex.opcode);
        self.modrm(reg, rm);
    }

    /// As [`Asm::vex`], followed by an immediate byte.
    pub fn vex_imm(&mut self, size: Size, vex: Vex, reg: u8, rm: impl Into<Place>, value: u8) {
        self.begin_vex(size, vex, reg, None, rm.into());
        self.bytes.push(value);
        self.ended();
    }

    /// A shift or rotate by CL.
    pub fn shift_cl(&mut self, size: Size, which: u8, place: impl Into<Place>) {
        self.sized(size, 0xd3, which, place, false);
    }

    /// BT of a word in memory.
    pub fn bit_test(&mut self, place: Mem, bit: u8) {
        self.encode(Some(0x66), false, &[0x0f, 0xba], (4, false), (place.into(), false));
        self.byte(bit);
        self.ended();
    }

    pub fn setcc(&mut self, cc: u8, place: impl Into<Place>) {
        self.encode(None, false, &[0x0f, 0x90 | cc], (0, false), (place.into(), true));
    }

    pub fn cmov(&mut self, size: Size, cc: u8, to: Reg, from: impl Into<Place>) {
        self.two(size, 0x40 | cc, to, from);
    }

    /// MOVZX (0xb6) or MOVSX (0xbe) from a byte or a word.
    pub fn extend(&mut self, opcode: u8, to_size: Size, to: Reg, from_size: Size, from: impl Into<Place>) {
        let prefix = (to_size == B2).then_some(0x66);
        let opcode = opcode | u8::from(from_size == B2);
        self.encode(prefix, to_size == B8, &[0x0f, opcode], (to.0, false), (from.into(), from_size == B1));
    }

    /// Writes the given bytes, which encode instructions without operands.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An instruction on an XMM register.
    pub fn vector(&mut self, prefix: Option<u8>, wide: bool, opcode: &[u8], reg: u8, rm: impl Into<Place>) {
        self.encode(prefix, wide, opcode, (reg, false), (rm.into(), false));
    }

    pub fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// A conditional jump to a place that will be filled in later.
    pub fn jcc(&mut self, cc: u8) -> Fixup {
        self.raw(&[0x0f, 0x80 | cc]);
        self.displacement()
    }

    /// A jump to a place that will be filled in later.
    pub fn jmp(&mut self) -> Fixup {
        self.byte(0xe9);
        self.displacement()
    }

    fn displacement(&mut self) -> Fixup {
        self.imm32(0);
        Fixup(self.bytes.len() - 4)
    }

    /// Makes a jump lead to the end of the code written so far.
    pub fn land(&mut self, from: Fixup) {
        self.lead_to(from, self.here());
    }

    /// Makes a jump lead to an offset.
    pub fn lead_to(&mut self, from: Fixup, to: usize) {
        let distance = (to as i64 - (from.0 as i64 + 4)) as i32;
        self.bytes[from.0..from.0 + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// JMP to the address in a register or in memory.
    pub fn jmp_to(&mut self, place: impl Into<Place>) {
        self.encode(None, false, &[0xff], (4, false), (place.into(), false));
    }

    /// Loads RAX with a constant that is filled in later. Returns the offset of the constant's eight bytes.
    pub fn constant_told_later(&mut self) -> usize {
        self.raw(&[0x48, 0xb8]);
        self.raw(&[0; 8]);
        self.bytes.len() - 8
    }

    /// Multiplies by a constant and keeps the low half of the product.
    pub fn multiply(&mut self, to: Reg, from: Reg, factor: u32) {
        self.encode(None, false, &[0x69], (to.0, false), (from.into(), false));
        self.imm32(factor as i32);
        self.ended();
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    use super::*;
    use crate::x86_64::undefined::assert_all_inverted;

    #[test]
    fn what_an_instruction_leaves_undefined_is_inverted_behind_it() {
        let mut asm = Asm::new(Undefined::Inverted);
        asm.alu_imm(B8, alu::AND, RAX, -4096);
        asm.alu(B4, alu::ADD, RAX, RCX);
        asm.two_imm(B4, 0xba, Reg(4), RDX, 3);
        assert_all_inverted(asm.bytes());
        let (start, end) =
            ("and rax,0FFFFFFFFFFFFF000h; pushfq; xor qword ptr [rsp],10h; popfq; add eax,ecx; ", "popfq");
        let text = text(&asm);
        assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    }

    fn text(asm: &Asm) -> String {
        let mut formatter = IntelFormatter::new();
        let mut lines = Vec::new();
        for instruction in &mut Decoder::with_ip(64, asm.bytes(), 0, DecoderOptions::NONE) {
            let mut line = String::new();
            formatter.format(&instruction, &mut line);
            lines.push(line);
        }
        lines.join("; ")
    }

    #[test]
    fn what_it_writes_is_what_a_decoder_reads() {
        let mut asm = Asm::new(Undefined::AsOnTheHost);
        asm.load(B8, Reg(12), at(RBP, -8));
        asm.load(B4, RAX, at(Reg(12), 0));
        asm.load(B8, RAX, at(Reg(13), 0));
        asm.store(B1, at(RAX, 0), RSI);
        asm.store(B1, RBX, RCX);
        asm.lea(B8, RAX, Mem { base: Reg(9), index: Some((Reg(13), 3)), disp: 0x1234 });
        asm.alu_imm(B8, alu::SUB, R15, 0x1000_0000);
        asm.alu_imm(B2, alu::CMP, at(RAX, 0), -3);
        asm.alu_imm(B1, alu::AND, RDI, 0x7f);
        asm.constant(Reg(10), 0xffff_ffff_8000_0000);
        asm.constant(Reg(10), 0x1_0000_0000);
        asm.setcc(cc::NE, RDI);
        asm.extend(0xb6, B4, RAX, B1, RSI);
        asm.shift_imm(B4, 5, RCX, 7);
        asm.test_imm(B1, at(RBP, 9), 0x40);
        asm.vex_imm(B4, RORX, RCX.0, RAX, 8);
        asm.vex_imm(B8, RORX, 9, at(Reg(12), 0x40), 63);
        let shrx = Vex { map: 2, prefix: 3, opcode: 0xf7 };
        asm.vex(B8, shrx, 11, Some(Reg(8)), Mem { base: RAX, index: Some((Reg(14), 2)), disp: 0x100 });
        asm.vex(B4, shrx, 2, Some(RCX), Reg(13));
        assert_eq!(
            text(&asm),
            "mov r12,[rbp-8]; mov eax,[r12]; mov rax,[r13]; mov [rax],sil; mov bl,cl; lea rax,[r9+r13*8+1234h]; \
             sub r15,10000000h; cmp word ptr [rax],0FFFDh; and dil,7Fh; mov r10,0FFFFFFFF80000000h; \
             mov r10,100000000h; setne dil; movzx eax,sil; shr ecx,7; test byte ptr [rbp+9],40h; \
             rorx ecx,eax,8; rorx r9,[r12+40h],3Fh; shrx r11,[rax+r14*4+100h],r8; shrx edx,r13d,ecx"
        );
    }
}
