//! Where to stop a guest that makes no exits.
//!
//! A kick stops it anywhere. From there the code is read ahead for a place that is easy to come back to: right behind an
//! instruction that leaves all arithmetic flags defined, so that what an interrupt pushes there is the same on every
//! processor; never inside a repeated string instruction, never in an interrupt shadow. The guest then runs to it with a
//! hardware breakpoint, which it cannot see.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, RflagsBits};

/// How far to read ahead.
const INSTRUCTIONS: usize = 48;

/// Where to stop a guest that stands at `rip`, which may be `rip` itself. `bits` is the width of its code segment, whose
/// base is zero; `read` reads code and gives how many bytes it could.
///
/// Behind a loop is better than in it, because whoever looks for the place again has to look at each time that it is
/// passed. But loops may be long: `leave_loops` is for the first attempt.
pub(crate) fn choose(rip: u64, bits: u32, leave_loops: bool, read: impl Fn(u64, &mut [u8]) -> usize) -> u64 {
    let mut at = rip;
    let (mut best, mut second_best) = (None, None);
    for _ in 0..INSTRUCTIONS {
        let Some(instruction) = decode(at, bits, &read) else { break };
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next if shadows(&instruction) => break,
            FlowControl::Next => {}
            FlowControl::ConditionalBranch if leave_loops && instruction.near_branch_target() <= rip => {
                // The branch leaves the flags as they are.
                (best, second_best) = (best.and(Some(next)), second_best.and(Some(next)));
                at = next;
                continue;
            }
            FlowControl::UnconditionalBranch if instruction.is_jmp_short_or_near() => {
                at = instruction.near_branch_target();
                continue;
            }
            FlowControl::Call if instruction.is_call_near() => {
                at = instruction.near_branch_target();
                continue;
            }
            _ => break,
        }
        match defined_flags(&instruction) {
            flags if flags & ALL == ALL && !leave_loops => return next,
            flags if flags & ALL == ALL => {
                best.get_or_insert(next);
            }
            flags if flags & (ALL & !RflagsBits::CF) == ALL & !RflagsBits::CF => {
                second_best.get_or_insert(next);
            }
            _ => {}
        }
        at = next;
    }
    best.or(second_best).unwrap_or(at)
}

/// AF is cleared by logical instructions on every processor, whatever the manuals say.
const ALL: u32 = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::CF | RflagsBits::PF;

fn defined_flags(instruction: &Instruction) -> u32 {
    let defined = instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    // A shift by zero leaves the flags, and by how much is not known here; POPF is not worth the thought.
    match instruction.mnemonic() {
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => 0,
        _ if instruction.rflags_undefined() & ALL != 0 => 0,
        _ => defined,
    }
}

/// Instructions after which interrupts, or debug traps, wait for one more.
fn shadows(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Sti => true,
        Mnemonic::Mov | Mnemonic::Pop => instruction.op0_register() == iced_x86::Register::SS,
        _ => false,
    }
}

fn decode(at: u64, bits: u32, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<Instruction> {
    let mut bytes = [0; 15];
    let length = read(at, &mut bytes);
    let mut decoder = Decoder::with_ip(bits, &bytes[..length], at, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(code: &[u8]) -> u64 {
        chosen_with(code, false)
    }

    fn chosen_with(code: &[u8], leave_loops: bool) -> u64 {
        let read = |at: u64, to: &mut [u8]| {
            let from = &code[(at - 0x1000) as usize..];
            let count = from.len().min(to.len());
            to[..count].copy_from_slice(&from[..count]);
            count
        };
        choose(0x1000, 64, leave_loops, read) - 0x1000
    }

    #[test]
    fn the_place_is_behind_an_instruction_that_defines_the_flags() {
        for (what, code, expected) in [
            ("nop; cmp eax, ebx; jz", &[0x90, 0x39, 0xd8, 0x74, 0xfb][..], 3),
            ("imul eax, ebx; test eax, eax", &[0x0f, 0xaf, 0xc3, 0x85, 0xc0, 0x90], 5),
            ("rep movsb; add eax, 1", &[0xf3, 0xa4, 0x83, 0xc0, 1, 0x90], 5),
            ("dec rax; jnz -5: better than nothing", &[0x48, 0xff, 0xc8, 0x75, 0xfb], 3),
            ("dec eax; cmp eax, ebx: better", &[0xff, 0xc8, 0x39, 0xd8, 0x90], 4),
            ("jmp +2; ud2; cmp eax, ebx", &[0xeb, 2, 0x0f, 0x0b, 0x39, 0xd8, 0x90], 6),
            ("call +1; int3; sub eax, ebx", &[0xe8, 1, 0, 0, 0, 0xcc, 0x29, 0xd8, 0x90], 8),
            ("shl eax, cl; ret", &[0xd3, 0xe0, 0xc3], 2),
            ("jmp rax", &[0xff, 0xe0], 0),
            ("sti; cmp: not in the shadow", &[0x90, 0xfb, 0x39, 0xd8], 1),
            ("a page that cannot be read", &[0x90], 1),
            ("a loop of nothing", &[0xeb, 0xfe], 0),
        ] {
            assert_eq!(chosen(code), expected, "{what}");
        }
    }
    #[test]
    fn the_first_attempt_is_behind_a_loop() {
        for (what, code, expected) in [
            ("dec eax; jnz -2; xor eax, eax", &[0xff, 0xc8, 0x75, 0xfc, 0x31, 0xc0, 0x90][..], 6),
            ("cmp eax, ebx; jz -2; mov eax, ebx; ret", &[0x39, 0xd8, 0x74, 0xfc, 0x89, 0xd8, 0xc3], 4),
            ("add eax, 1; cmp eax, ebx; jz -5", &[0x83, 0xc0, 1, 0x39, 0xd8, 0x74, 0xf9, 0xc3], 7),
            ("cmp; no loop: jz +2", &[0x39, 0xd8, 0x74, 2, 0x90, 0x90], 2),
        ] {
            assert_eq!(chosen_with(code, true), expected, "{what}");
        }
    }
}
