//! For tests: inverts all results that the manuals leave undefined in the host's instructions. Processors of different
//! vendors give different values for such results. If such a bit reached the guest's state, a recording would replay on
//! one processor and not on another. The inversion comes right after the instruction. So a bit that
//! reaches the guest's state differs from the interpreter's bit on every processor: with the inversion, or without it.
//!
//! `iced_x86` knows the undefined flags from the manuals (SDM vol. 2). This module adds the cases that a count in CL or
//! a source of zero decides at run time.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register, RflagsBits};

/// PUSHFQ, POPFQ, PUSH RCX and POP RCX.
const PUSH_FLAGS: u8 = 0x9c;
const POP_FLAGS: u8 = 0x9d;
const PUSH_RCX: u8 = 0x51;
const POP_RCX: u8 = 0x59;

/// OF and AF in RFLAGS.
const OF: u32 = 1 << 11;
const AF: u32 = 1 << 4;

/// Code that inverts the results that an instruction leaves undefined, and changes nothing else. The code is
/// empty if no result is undefined.
pub(super) fn inverted_behind(code: &[u8]) -> Vec<u8> {
    let instruction = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
    assert_eq!(instruction.len(), code.len(), "one instruction");
    let undefined = undefined_flags(&instruction);
    if undefined == 0 {
        return Vec::new();
    }
    let mut inverted = vec![PUSH_FLAGS];
    if matches!(instruction.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) {
        // If the source was zero, the destination is undefined: JNE over a 64-bit MOV.
        let to = instruction.op0_register().full_register().number() as u8;
        inverted.extend([0x75, 10, 0x48 | to >> 3, 0xb8 | to & 7]);
        inverted.extend(0x5a5a_a5a5_c3c3_3c3c_u64.to_le_bytes());
    }
    if is_by_cl(&instruction) {
        inverted.extend(by_cl(&instruction, undefined));
    } else {
        inverted.extend(invert(0, undefined));
    }
    inverted.push(POP_FLAGS);
    inverted
}

/// XOR of the eight bytes on the stack at a displacement.
fn invert(disp: u8, bits: u32) -> Vec<u8> {
    let mut code = vec![0x48, 0x81, 0x74, 0x24, disp];
    code.extend(bits.to_le_bytes());
    code
}

/// Code for a shift by CL. A count of zero changes no flag, and a count of 1 defines OF.
fn by_cl(instruction: &Instruction, undefined: u32) -> Vec<u8> {
    let (always, unless_one) = (invert(8, undefined & !OF), invert(8, undefined & OF));
    let mask = if instruction.op0_register().is_gpr64() { 63 } else { 31 };
    let mut code = vec![PUSH_RCX, 0x80, 0xe1, mask]; // and cl, mask
    code.extend([0x74, (always.len() + 5 + unless_one.len()) as u8]); // je
    code.extend(&always);
    code.extend([0x80, 0xf9, 1, 0x74, unless_one.len() as u8]); // cmp cl, 1; je
    code.extend(&unless_one);
    code.push(POP_RCX);
    code
}

fn is_by_cl(instruction: &Instruction) -> bool {
    let n = instruction.op_count().wrapping_sub(1);
    n < 3 && instruction.op_kind(n) == OpKind::Register && {
        let shifts =
            matches!(instruction.mnemonic(), Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar);
        shifts && instruction.op_register(n) == Register::CL
    }
}

/// The arithmetic flags that an instruction leaves undefined, as RFLAGS bits.
fn undefined_flags(instruction: &Instruction) -> u32 {
    let undefined = instruction.rflags_undefined();
    let flags = [
        (RflagsBits::CF, 1),
        (RflagsBits::PF, 1 << 2),
        (RflagsBits::AF, AF),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::OF, OF),
    ];
    flags.into_iter().filter(|(bit, _)| undefined & bit != 0).map(|(_, flag)| flag).sum()
}

/// Panics if an instruction of finished code leaves an undefined result that is not inverted after it.
pub(super) fn assert_all_inverted(code: &[u8]) {
    let mut instructions = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter().peekable();
    let mut inverting = false;
    while let Some(instruction) = instructions.next() {
        let next = instructions.peek().map(Instruction::mnemonic);
        inverting = match instruction.mnemonic() {
            Mnemonic::Pushfq => true,
            Mnemonic::Popfq => false,
            _ => inverting,
        };
        let open = undefined_flags(&instruction) != 0 && next != Some(Mnemonic::Pushfq);
        assert!(inverting || !open, "what {instruction:?} leaves undefined is not inverted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags that are inverted after an instruction with a constant count.
    fn flags(code: &[u8]) -> Option<u32> {
        let inverted = inverted_behind(code);
        let at = inverted.len().checked_sub(5)?;
        Some(u32::from_le_bytes(inverted[at..at + 4].try_into().unwrap()))
    }

    #[test]
    fn what_is_undefined_is_what_the_manuals_say() {
        const ALL: u32 = 0x8d5;
        const CARRY_AND_OVERFLOW: u32 = 1 | OF;
        let cases: [(&[u8], Option<u32>); 12] = [
            (&[0x01, 0xc8], None),                                  // add eax, ecx
            (&[0x21, 0xc8], Some(AF)),                              // and eax, ecx
            (&[0x85, 0xc8], Some(AF)),                              // test eax, ecx
            (&[0xd1, 0xe0], Some(AF)),                              // shl eax, 1
            (&[0xc1, 0xe0, 5], Some(AF | OF)),                      // shl eax, 5
            (&[0xc1, 0xc0, 5], Some(OF)),                           // rol eax, 5
            (&[0xd1, 0xc0], None),                                  // rol eax, 1
            (&[0xf7, 0xe1], Some(ALL & !CARRY_AND_OVERFLOW)),       // mul ecx
            (&[0xf7, 0xf1], Some(ALL)),                             // div ecx
            (&[0x0f, 0xba, 0xe0, 5], Some(ALL & !(1 | 1 << 6))),    // bt eax, 5
            (&[0x0f, 0xbc, 0xc1], Some(ALL & !(1 << 6))),           // bsf eax, ecx
            (&[0xf3, 0x0f, 0xbc, 0xc1], Some(ALL & !(1 | 1 << 6))), // tzcnt eax, ecx
        ];
        for (code, expected) in cases {
            assert_eq!(flags(code), expected, "{code:x?}");
        }
    }

    #[test]
    fn what_decides_while_code_runs_is_asked_there() {
        let bsr = inverted_behind(&[0x4c, 0x0f, 0xbd, 0xc9]); // bsr r9, rcx
        assert_eq!(bsr[..5], [PUSH_FLAGS, 0x75, 10, 0x49, 0xb9]);
        let shift = inverted_behind(&[0x48, 0xd3, 0xe8]); // shr rax, cl
        assert_eq!(shift[..5], [PUSH_FLAGS, PUSH_RCX, 0x80, 0xe1, 63]);
        assert_all_inverted(&[&[0x48, 0xd3, 0xe8][..], &shift].concat());
    }

    #[test]
    #[should_panic(expected = "is not inverted")]
    fn an_instruction_that_was_forgotten_is_found() {
        assert_all_inverted(&[0x21, 0xc8, 0xc3]);
    }
}
