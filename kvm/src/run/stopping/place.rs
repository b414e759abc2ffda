//! Finds places that are easy to return to.
//!
//! A kick stops a guest anywhere. This module decodes the code ahead of the guest, to find a place right
//! after an instruction that leaves all arithmetic flags defined. An interrupt there pushes the same flags on
//! every processor. The place is never inside a repeated string instruction or in an interrupt shadow. The
//! guest then runs to the place with a hardware breakpoint, which it cannot see.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};

/// Number of instructions to decode ahead.
const INSTRUCTIONS: usize = 48;

/// The place to stop a guest that stands at `rip`, possibly `rip` itself. `bits` is the width of its code segment,
/// whose base is zero. `read` reads code and returns the number of bytes read.
///
/// A place after a loop is better than a place inside the loop, because a replay stops each time that the guest
/// passes the place. But loops may be long, so callers set `leave_loops` only in the first attempt.
pub(super) fn choose(rip: u64, bits: u32, leave_loops: bool, read: impl Fn(u64, &mut [u8]) -> usize) -> u64 {
    let mut at = rip;
    let (mut best, mut second_best) = (None, None);
    for _ in 0..INSTRUCTIONS {
        let Some(instruction) = decode(at, bits, &read) else { break };
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next if shadows(&instruction) => break,
            FlowControl::Next => {}
            FlowControl::ConditionalBranch if leave_loops && instruction.near_branch_target() <= rip => {
                // The branch does not change the flags, so the place after it is as good as the place before it.
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

/// If the guest at `rip` is in a loop that only counts a register down: the place after the loop. Kernels
/// wait in such delay loops.
pub(super) fn behind_delay(rip: u64, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<u64> {
    let at = |rip| decode(rip, 64, &read);
    let first = at(rip)?;
    let (count, branch) = match first.mnemonic() {
        Mnemonic::Jne => (at(first.near_branch_target())?, first),
        _ => (first, at(first.next_ip())?),
    };
    let is_delay = count.mnemonic() == Mnemonic::Dec
        && count.op0_kind() == OpKind::Register
        && branch.mnemonic() == Mnemonic::Jne
        && count.next_ip() == branch.ip()
        && branch.near_branch_target() == count.ip();
    is_delay.then(|| branch.next_ip())
}

/// Number of words on the stack to search for return addresses.
const STACK_WORDS: u64 = 128;
/// Assumed limit for the length of a called function.
const FUNCTION_BYTES: u64 = 64 << 10;

/// The return sites of the functions that the guest is in, innermost first, for 64-bit code at `rip`. A return site is
/// a word on the stack that points right after a call. A direct call must lead to the previous function; a call through
/// a pointer always counts. Some results may be left-overs of earlier calls, and some sites may be missing.
pub(super) fn return_sites(
    rip: u64,
    rsp: u64,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> impl Iterator<Item = u64> {
    let mut inner = rip;
    (0..STACK_WORDS).filter_map(move |number| {
        let mut word = [0; 8];
        if read(rsp.wrapping_add(number * 8), &mut word) != word.len() {
            return None;
        }
        let site = u64::from_le_bytes(word);
        let mut before = [0; 7];
        if read(site.wrapping_sub(before.len() as u64), &mut before) != before.len() {
            return None;
        }
        let calls_inner = match before {
            [_, _, 0xe8, offset @ ..] => {
                let function = site.wrapping_add_signed(i64::from(i32::from_le_bytes(offset)));
                inner.wrapping_sub(function) < FUNCTION_BYTES
            }
            // CALL through a register or memory, without a displacement, with one byte, or with four.
            [.., 0xff, modrm] | [.., 0xff, modrm, _] | [_, 0xff, modrm, _, _, _, _] => modrm >> 3 & 7 == 2,
            _ => false,
        };
        calls_inner.then(|| {
            inner = site;
            site
        })
    })
}

/// The arithmetic flags without AF. Logical instructions clear AF on every processor, although the manuals leave AF
/// undefined.
const ALL: u32 = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::CF | RflagsBits::PF;

fn defined_flags(instruction: &Instruction) -> u32 {
    let defined = instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    // A shift by zero keeps the flags, and this code does not know the count of a shift. POPF is too rare to
    // matter.
    match instruction.mnemonic() {
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => 0,
        _ if instruction.rflags_undefined() & ALL != 0 => 0,
        _ => defined,
    }
}

/// Whether interrupts, or debug traps, wait for one more instruction after this one.
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

    #[test]
    fn a_delay_is_a_loop_that_counts_down() {
        for (what, code, from, expected) in [
            ("dec rax; jnz -5", &[0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3][..], 0, Some(5)),
            ("at its jnz", &[0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3], 3, Some(5)),
            ("dec rax; jnz elsewhere", &[0x48, 0xff, 0xc8, 0x75, 0x10, 0xc3], 0, None),
            ("dec [rax]; jnz -4", &[0xff, 0x08, 0x75, 0xfc, 0xc3], 0, None),
            ("nop; dec eax; jnz -5", &[0x90, 0xff, 0xc8, 0x75, 0xfb, 0xc3], 3, None),
        ] {
            let read = |at: u64, to: &mut [u8]| {
                let from = code.get((at - 0x1000) as usize..).unwrap_or_default();
                let count = from.len().min(to.len());
                to[..count].copy_from_slice(&from[..count]);
                count
            };
            assert_eq!(behind_delay(0x1000 + from, read), expected.map(|at: u64| 0x1000 + at), "{what}");
        }
    }

    #[test]
    fn return_addresses_are_found_on_the_stack() {
        // The guest is at 0x2010, in a function that the instruction at 0x1100 calls. The instruction at 0x3000,
        // `call rax`, called the code at 0x1100.
        let memory = |at: u64| -> u8 {
            let stack = [7_u64, 0x1200, 0x1105, 0xdead_0000, 0x1105, 0x3002, 0x2010];
            match at {
                0x8000..0x8038 => stack[(at - 0x8000) as usize / 8].to_le_bytes()[at as usize % 8],
                0x1100..0x1105 => [0xe8, 0xfb, 0x0e, 0, 0][(at - 0x1100) as usize],
                0x3000..0x3002 => [0xff, 0xd0][(at - 0x3000) as usize],
                // There is a call before 0x1200 too, but it calls another function.
                0x11fb..0x1200 => [0xe8, 0, 0x10, 0x10, 0][(at - 0x11fb) as usize],
                _ => 0x90,
            }
        };
        let read = |at: u64, to: &mut [u8]| {
            if at >= 0x9000 {
                return 0;
            }
            (at..).zip(&mut *to).for_each(|(at, byte)| *byte = memory(at));
            to.len()
        };
        assert_eq!(return_sites(0x2010, 0x8000, read).collect::<Vec<_>>(), [0x1105, 0x3002]);
    }
}
