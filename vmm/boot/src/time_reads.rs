//! Rewrites the kernel's own RDTSC instructions. No CPUID bit stops the kernel from executing them, and KVM lets them
//! read the host's clock.
//!
//! For a machine that KVM can run, the loader rewrites the RDTSC instructions before it loads the kernel. Each RDTSC in
//! the kernel's code becomes HLT and a byte that is no instruction. The length stays two bytes, and KVM exits to the
//! VMM at every HLT ([`TIME_READ_MARK`]). The machine's board then answers with the machine's own time, and the guest
//! continues after both bytes.
//!
//! This module rewrites the executable sections of an ELF kernel, including the replacements of alternatives. Modules,
//! the vDSO and programs are not rewritten. These read the time stamp counter only if CPUID offers one. If such code
//! reads the counter anyway, replay finds the difference at the next event. The code of a kernel inside a bzImage is
//! not visible, so such a kernel is unpacked first ([`crate::packed_kernel`]).

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use super::elf::Elf;
use super::images::Image;

/// In 64-bit mode, a HLT that this byte follows is a rewritten RDTSC.
///
/// In no guest does this byte follow a HLT of the guest's own. After a HLT of its own, a guest must continue with
/// an instruction. This byte is not an instruction (SDM vol. 2, "UDB": permanently undefined in 64-bit mode).
/// Assemblers fill gaps with NOP and INT3, but not with this byte. Where Linux patches alternatives, its decoder
/// reads the rewritten code, and gives this byte a length of one. The addresses of the rewritten instructions could
/// not serve as a mark: alternatives are copied to other places, and code may be anywhere.
pub const TIME_READ_MARK: u8 = 0xd6;

const RDTSC: [u8; 2] = [0x0f, 0x31];
const HLT: u8 = 0xf4;
/// Decoding begins this many bytes before a candidate for an RDTSC. From any first byte, decoding synchronises with the
/// kernel's own instructions long before the candidate.
const RUN_UP_BYTES: usize = 192;

/// The result of rewriting a kernel's RDTSC instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewriting {
    /// The number of rewritten instructions.
    Done(usize),
    /// The image is not a 64-bit ELF file with sections, so its code could not be found.
    NotElf,
}

/// Rewrites the RDTSC instructions in a kernel image.
pub fn rewrite(image: &mut [u8]) -> Rewriting {
    let Some(sections) = code_sections(image) else { return Rewriting::NotElf };
    let mut count = 0;
    for section in sections {
        let code = &mut image[section];
        let found: Vec<usize> = candidates(code).filter(|&at| is_rdtsc(code, at)).collect();
        count += found.len();
        for at in found {
            (code[at], code[at + 1]) = (HLT, TIME_READ_MARK);
        }
    }
    Rewriting::Done(count)
}

fn candidates(code: &[u8]) -> impl Iterator<Item = usize> {
    code.windows(2).enumerate().filter(|(_, bytes)| *bytes == RDTSC).map(|(at, _)| at)
}

/// Whether an RDTSC instruction begins at offset `at` of `code`. False if the same bytes are part of another
/// instruction.
fn is_rdtsc(code: &[u8], at: usize) -> bool {
    let start = at.saturating_sub(RUN_UP_BYTES);
    let mut decoder =
        Decoder::with_ip(64, &code[start..code.len().min(at + 16)], start as u64, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let next = instruction.next_ip() as usize;
        if next > at {
            return instruction.mnemonic() == Mnemonic::Rdtsc && next == at + RDTSC.len();
        }
    }
    false
}

/// The executable sections' ranges in the file; `None` for a file that is not a 64-bit ELF file with sections.
fn code_sections(bytes: &[u8]) -> Option<Vec<Range<usize>>> {
    if !Elf::is_elf(bytes) {
        return None;
    }
    Elf::parse(Image { name: "", bytes }).ok()?.code_sections().filter(|sections| !sections.is_empty())
}

#[cfg(test)]
mod tests {
    use object::elf::{SHF_EXECINSTR, SectionFlags};

    use super::*;

    /// An ELF file with one executable section.
    fn elf(code: &[u8], flags: SectionFlags) -> Vec<u8> {
        let mut file = vec![0; 64];
        // 64 bits, little-endian, executable, for x86-64.
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[16], file[18]) = (2, 62);
        let table = 64 + code.len();
        file[40..48].copy_from_slice(&(table as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&1_u16.to_le_bytes());
        file.extend_from_slice(code);
        let mut header = [0; 64];
        header[4..8].copy_from_slice(&1_u32.to_le_bytes());
        header[8..16].copy_from_slice(&flags.0.to_le_bytes());
        header[24..32].copy_from_slice(&64_u64.to_le_bytes());
        header[32..40].copy_from_slice(&(code.len() as u64).to_le_bytes());
        file.extend_from_slice(&header);
        file
    }

    #[test]
    fn instructions_are_rewritten_and_operands_are_not() {
        for (what, code, expected) in [
            ("rdtsc; ret", &[0x0f, 0x31, 0xc3][..], &[0xf4, 0xd6, 0xc3][..]),
            ("lfence; rdtsc", &[0x0f, 0xae, 0xe8, 0x0f, 0x31], &[0x0f, 0xae, 0xe8, 0xf4, 0xd6]),
            ("mov eax, 0x310f", &[0xb8, 0x0f, 0x31, 0, 0, 0x90], &[0xb8, 0x0f, 0x31, 0, 0, 0x90]),
            ("rdtscp stays", &[0x0f, 0x01, 0xf9], &[0x0f, 0x01, 0xf9]),
        ] {
            let mut file = elf(code, SHF_EXECINSTR);
            rewrite(&mut file);
            assert_eq!(&file[64..64 + code.len()], expected, "{what}");
            let mut data = elf(code, SectionFlags(0));
            assert_eq!(rewrite(&mut data), Rewriting::NotElf, "{what} in data");
        }
    }

    #[test]
    fn files_that_lie_are_left_alone() {
        let good = elf(&[0x0f, 0x31], SHF_EXECINSTR);
        for length in 0..good.len() {
            assert_eq!(rewrite(&mut good[..length].to_vec()), Rewriting::NotElf, "{length}");
        }
        for at in 24..64 {
            let mut damaged = good.clone();
            damaged[at] ^= 0xff;
            rewrite(&mut damaged);
        }
        for at in good.len() - 64..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0xff;
            rewrite(&mut damaged);
        }
    }
}
