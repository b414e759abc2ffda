//! The notes of a core file that describe a processor.
//!
//! QEMU writes such notes when it dumps a running guest (`target/i386/arch_dump.c`), and crash and drgn read them:
//!
//! - `NT_PRSTATUS` (`include/linux/elfcore.h`) has the general registers. The process number in the note is the number
//!   of the processor plus one, because drgn finds a processor's note by this number.
//! - `QEMU` has the system registers, too (`QEMUCPUState`). If a file has these notes, crash takes the registers of all
//!   running tasks from `NT_PRSTATUS`. Otherwise crash looks for the traces of a panic on the stacks of these tasks.
//!
//! A processor that has not started has notes, too, because crash finds a note by its place among the notes.

use cpu::{CpuState, SegReg, Segment, TableRegister};
use object::elf::{NT_PRSTATUS, NoteType};

/// The name of QEMU's notes. The next constant is the version of their contents.
const QEMU: &str = "QEMU";
const QEMU_VERSION: u32 = 1;

/// All notes of a processor.
pub(crate) fn of_processor(state: &CpuState, number: usize) -> Vec<u8> {
    let status = prstatus(state, number as u32 + 1);
    [note("CORE", NT_PRSTATUS, &status), note(QEMU, NoteType(0), &qemu_state(state))].concat()
}

/// A note of an ELF file: sizes, type, name and contents, with name and contents padded to four bytes.
pub(crate) fn note(name: &str, kind: NoteType, contents: &[u8]) -> Vec<u8> {
    let sizes = [name.len() as u32 + 1, contents.len() as u32, kind.0];
    let mut bytes: Vec<u8> = sizes.into_iter().flat_map(u32::to_le_bytes).collect();
    for part in [[name.as_bytes(), &[0]].concat(), contents.to_vec()] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// `struct elf_prstatus`, with a process number and the registers.
pub(crate) fn prstatus(state: &CpuState, pid: u32) -> Vec<u8> {
    const PID: usize = 32;
    const REGISTERS: usize = 112;
    const BYTES: usize = 336;
    let mut bytes = vec![0; BYTES];
    bytes[PID..PID + 4].copy_from_slice(&pid.to_le_bytes());
    let registers = user_regs(state).into_iter().flat_map(u64::to_le_bytes);
    bytes[REGISTERS..].iter_mut().zip(registers).for_each(|(to, byte)| *to = byte);
    bytes
}

/// The registers as a `struct user_regs_struct` of Linux.
fn user_regs(state: &CpuState) -> [u64; 27] {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let selector = |register: SegReg| u64::from(state.segments[register as usize].selector);
    let base = |register: SegReg| state.segments[register as usize].base;
    // The value -1 says that no system call waits for a restart.
    let orig_rax = u64::MAX;
    let (cs, ss) = (selector(SegReg::Cs), selector(SegReg::Ss));
    let [ds, es] = [SegReg::Ds, SegReg::Es].map(selector);
    let [fs, gs] = [SegReg::Fs, SegReg::Gs].map(selector);
    let (fs_base, gs_base) = (base(SegReg::Fs), base(SegReg::Gs));
    [
        r15,
        r14,
        r13,
        r12,
        rbp,
        rbx,
        r11,
        r10,
        r9,
        r8,
        rax,
        rcx,
        rdx,
        rsi,
        rdi,
        orig_rax,
        state.rip,
        cs,
        state.rflags,
        rsp,
        ss,
        fs_base,
        gs_base,
        ds,
        es,
        fs,
        gs,
    ]
}

/// The processor's state as a `QEMUCPUState` of QEMU.
fn qemu_state(state: &CpuState) -> Vec<u8> {
    const BYTES: u32 = 440;
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, rest @ ..] = state.gpr;
    let general = [rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp].into_iter().chain(rest);
    let table =
        |table: TableRegister| Segment { base: table.base, limit: table.limit.into(), ..Segment::default() };
    let segments = [SegReg::Cs, SegReg::Ds, SegReg::Es, SegReg::Fs, SegReg::Gs, SegReg::Ss]
        .map(|register| state.segments[register as usize])
        .into_iter()
        .chain([state.ldtr, state.tr, table(state.gdtr), table(state.idtr)]);
    let control = [state.cr0, 0, state.cr2, state.cr3, state.cr4];
    let mut bytes = [QEMU_VERSION, BYTES].map(u32::to_le_bytes).concat();
    bytes.extend(general.chain([state.rip, state.rflags]).flat_map(u64::to_le_bytes));
    bytes.extend(segments.flat_map(qemu_segment));
    bytes.extend(control.into_iter().chain([state.msrs.kernel_gs_base]).flat_map(u64::to_le_bytes));
    bytes
}

/// A segment register as a `QEMUCPUSegment` of QEMU. The flags are the second half of a descriptor, without base
/// and limit.
fn qemu_segment(segment: Segment) -> impl Iterator<Item = u8> {
    let flags = u32::from(segment.attributes) << 8;
    let words = [segment.selector.into(), segment.limit, flags, 0].into_iter().flat_map(u32::to_le_bytes);
    words.chain(segment.base.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers such as crash expect these offsets of `struct elf_prstatus` on x86-64.
    #[test]
    fn the_note_of_a_cpu_has_the_process_and_all_registers_in_their_places() {
        let mut state = CpuState { rip: 0x100, rflags: 0x202, ..CpuState::reset() };
        for (number, value) in state.gpr.iter_mut().enumerate() {
            *value = 0x1000 + number as u64;
        }
        for (register, selector) in [
            (SegReg::Cs, 0x10),
            (SegReg::Ss, 0x18),
            (SegReg::Ds, 0x2b),
            (SegReg::Es, 0x33),
            (SegReg::Fs, 0x3b),
            (SegReg::Gs, 0x43),
        ] {
            state.segments[register as usize].selector = selector;
            state.segments[register as usize].base = u64::from(selector) << 32;
        }
        let bytes = prstatus(&state, 0x0403_0201);
        assert_eq!((bytes.len(), &bytes[32..36]), (336, &[1, 2, 3, 4][..]));
        let words: Vec<u64> = bytes[112..112 + 27 * 8]
            .as_chunks()
            .0
            .iter()
            .map(|word: &[u8; 8]| u64::from_le_bytes(*word))
            .collect();
        // The order in the note: R15 to R12, RBP, RBX, R11 to R8, RAX, RCX, RDX, RSI, RDI.
        let general = [15, 14, 13, 12, 5, 3, 11, 10, 9, 8, 0, 1, 2, 6, 7].map(|number| 0x1000 + number);
        assert_eq!(words[..15], general);
        assert_eq!(words[15..21], [u64::MAX, 0x100, 0x10, 0x202, 0x1004, 0x18]);
        assert_eq!(words[21..], [0x3b << 32, 0x43 << 32, 0x2b, 0x33, 0x3b, 0x43]);
        let rest = bytes[..32].iter().chain(&bytes[36..112]).chain(&bytes[112 + 27 * 8..]);
        assert!(rest.copied().all(|byte| byte == 0));
    }

    #[test]
    fn a_note_says_its_sizes_and_is_filled_up() {
        let bytes = note("CORE", NT_PRSTATUS, &[7; 5]);
        let header = [5, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(bytes, [&header[..], b"CORE\0\0\0\0", &[7, 7, 7, 7, 7, 0, 0, 0]].concat());
    }

    /// QEMU's layout: version and size, 18 registers, ten segments of 24 bytes, five control registers, and one MSR.
    #[test]
    fn the_system_registers_are_in_qemus_places() {
        let mut state =
            CpuState { rip: 0x100, cr0: 0xc0, cr2: 0xc2, cr3: 0xc3, cr4: 0xc4, ..CpuState::reset() };
        state.gpr = std::array::from_fn(|number| 0x1000 + number as u64);
        let code = Segment { selector: 0x10, base: 7, limit: 0xf_ffff, attributes: 0xa09b };
        state.segments[SegReg::Cs as usize] = code;
        (state.gdtr, state.msrs.kernel_gs_base) = (TableRegister { base: 0x9000, limit: 0x7f }, 0x77);
        let bytes = qemu_state(&state);
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((bytes.len(), word(0), word(4)), (440, 1, 440));
        // The order in the note: RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, and R8 to R15.
        let general = [0, 3, 1, 2, 6, 7, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15].map(|number| 0x1000 + number);
        assert!(general.iter().enumerate().all(|(place, &value)| long(8 + 8 * place) == value));
        assert_eq!((long(136), long(144)), (0x100, state.rflags));
        assert_eq!((word(152), word(156), word(160), long(168)), (0x10, 0xf_ffff, 0xa0_9b00, 7));
        let gdt = 152 + 8 * 24;
        assert_eq!((word(gdt + 4), long(gdt + 16)), (0x7f, 0x9000));
        assert_eq!([392, 400, 408, 416, 424, 432].map(long), [0xc0, 0, 0xc2, 0xc3, 0xc4, 0x77]);
    }
}
