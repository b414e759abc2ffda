//! Converts the CPU's state to gdb's registers and back.
//!
//! Some registers cannot be changed. Control registers determine how code and page tables are read, and gdb does not
//! know the hidden parts of segment registers. So a debugger cannot change control registers and hidden parts.

use cpu::{CpuState, SegReg};
use gdb::{Refusal, Registers};

/// Converts the CPU's state to gdb's registers.
pub(super) fn to_gdb(state: &CpuState) -> Registers {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let selector = |register: SegReg| state.segments[register as usize].selector;
    let base = |register: SegReg| state.segments[register as usize].base;
    let fpu = &state.fpu;
    Registers {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rbp,
        rsp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: state.rip,
        eflags: state.rflags as u32,
        cs: selector(SegReg::Cs),
        ss: selector(SegReg::Ss),
        ds: selector(SegReg::Ds),
        es: selector(SegReg::Es),
        fs: selector(SegReg::Fs),
        gs: selector(SegReg::Gs),
        fs_base: base(SegReg::Fs),
        gs_base: base(SegReg::Gs),
        k_gs_base: state.msrs.kernel_gs_base,
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8: 0,
        efer: state.msrs.efer,
        st: std::array::from_fn(|n| stack_register(state, n)),
        fctrl: fpu.control,
        fstat: fpu.status,
        ftag: full_tag_word(state),
        fiseg: (fpu.instruction_pointer >> 32) as u16,
        fioff: fpu.instruction_pointer as u32,
        foseg: (fpu.data_pointer >> 32) as u16,
        fooff: fpu.data_pointer as u32,
        fop: fpu.opcode,
        xmm: state.xmm,
        mxcsr: state.mxcsr,
    }
}

/// RFLAGS bits that a debugger may set: the arithmetic flags, TF, IF, DF, IOPL, NT, RF, AC and ID.
const CHANGEABLE_FLAGS: u64 = 0x0025_7fd5;
/// RFLAGS bit 1 is always set.
const FIXED_FLAG: u64 = 1 << 1;

/// Converts gdb's registers to the CPU's state. Changes each register of `state` that differs between `new` and
/// [`to_gdb`]'s result.
///
/// # Errors
///
/// If a register cannot be changed, or not to this value.
pub(super) fn from_gdb(state: &CpuState, new: &Registers) -> Result<CpuState, Refusal> {
    let old = to_gdb(state);
    let fixed = |what: &str| Err(Refusal::new(format!("{what} cannot be changed from here")));
    if (new.cs, new.ss, new.ds, new.es, new.fs, new.gs) != (old.cs, old.ss, old.ds, old.es, old.fs, old.gs) {
        return fixed("a segment register");
    }
    if (new.cr0, new.cr3, new.cr4, new.cr8, new.efer) != (old.cr0, old.cr3, old.cr4, old.cr8, old.efer) {
        return fixed("a control register");
    }
    let addresses =
        [(new.fs_base, "fs_base"), (new.gs_base, "gs_base"), (new.k_gs_base, "k_gs_base"), (new.rip, "rip")];
    if let Some((_, name)) = addresses.iter().find(|(address, _)| !canonical(*address)) {
        return Err(Refusal::new(format!("{name} must be a canonical address")));
    }
    let mut state = state.clone();
    state.gpr = [
        new.rax, new.rcx, new.rdx, new.rbx, new.rsp, new.rbp, new.rsi, new.rdi, new.r8, new.r9, new.r10,
        new.r11, new.r12, new.r13, new.r14, new.r15,
    ];
    if new.rip != old.rip {
        // A halted CPU that gets another RIP runs again.
        (state.halted, state.interrupt_shadow, state.mov_ss_shadow) = (false, false, false);
        state.rip = new.rip;
    }
    if new.eflags != old.eflags {
        let kept = state.rflags & !CHANGEABLE_FLAGS;
        state.rflags = kept | u64::from(new.eflags) & CHANGEABLE_FLAGS | FIXED_FLAG;
    }
    state.segments[SegReg::Fs as usize].base = new.fs_base;
    state.segments[SegReg::Gs as usize].base = new.gs_base;
    state.msrs.kernel_gs_base = new.k_gs_base;
    state.cr2 = new.cr2;
    state.xmm = new.xmm;
    // A reserved bit would fault in LDMXCSR.
    state.mxcsr = new.mxcsr & 0xffff;
    change_fpu(&mut state, &old, new);
    Ok(state)
}

fn change_fpu(state: &mut CpuState, old: &Registers, new: &Registers) {
    state.fpu.control = new.fctrl;
    state.fpu.status = new.fstat;
    if new.ftag != old.ftag {
        let in_use = |n: u16| new.ftag >> (2 * n) & 3 != 3;
        state.fpu.valid = (0..8).fold(0, |valid, n| valid | u8::from(in_use(n)) << n);
    }
    for n in 0..8 {
        if new.st[n] != old.st[n] {
            let number = physical(state, n);
            let [a, b, c, d, e, f, g, h, low, high] = new.st[n];
            state.fpu.mantissas[number] = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            state.fpu.sign_exponents[number] = u16::from_le_bytes([low, high]);
        }
    }
}

fn canonical(address: u64) -> bool {
    ((address as i64) << 16 >> 16) as u64 == address
}

/// The number of the physical register that ST(n) names.
fn physical(state: &CpuState, n: usize) -> usize {
    (usize::from(state.fpu.status >> 11) + n) & 7
}

fn stack_register(state: &CpuState, n: usize) -> [u8; 10] {
    let number = physical(state, n);
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&state.fpu.mantissas[number].to_le_bytes());
    bytes[8..].copy_from_slice(&state.fpu.sign_exponents[number].to_le_bytes());
    bytes
}

/// The x87 tag word, with two bits for each physical register: valid, zero, special or empty (SDM vol. 1, 8.1.7).
fn full_tag_word(state: &CpuState) -> u16 {
    (0..8).fold(0, |word, n| {
        let (exponent, mantissa) = (state.fpu.sign_exponents[n] & 0x7fff, state.fpu.mantissas[n]);
        let tag = if state.fpu.valid >> n & 1 == 0 {
            3
        } else if exponent == 0 && mantissa == 0 {
            1
        } else if exponent == 0 || exponent == 0x7fff || mantissa >> 63 == 0 {
            2
        } else {
            0
        };
        word | tag << (2 * n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gdb_read_changes_nothing_when_written_back() {
        let mut state = CpuState::reset();
        state.fpu.status = 3 << 11;
        state.fpu.valid = 0b1010;
        state.halted = true;
        assert_eq!(from_gdb(&state, &to_gdb(&state)), Ok(state));
    }

    #[test]
    fn what_is_changed_is_read_again_and_nothing_else_changes() {
        let state = CpuState::reset();
        let mut new = to_gdb(&state);
        (new.r9, new.rip, new.gs_base, new.xmm[3]) = (7, 0x1234, 0xffff_8880_0000_0000, 5);
        new.st[2] = [9; 10];
        new.eflags = 0xffff_ffff;
        let changed = from_gdb(&state, &new).unwrap();
        new.eflags = (CHANGEABLE_FLAGS | FIXED_FLAG) as u32 | state.rflags as u32;
        // The tag word is derived from the registers' contents.
        new.ftag = to_gdb(&changed).ftag;
        assert_eq!(to_gdb(&changed), new);
    }

    #[test]
    fn the_pointers_of_the_x87_are_shown_in_two_parts() {
        let mut state = CpuState::reset();
        state.fpu.instruction_pointer = 0x1234_8765_4321;
        state.fpu.data_pointer = 0x5678_1111_2222;
        let shown = to_gdb(&state);
        assert_eq!((shown.fiseg, shown.fioff), (0x1234, 0x8765_4321));
        assert_eq!((shown.foseg, shown.fooff), (0x5678, 0x1111_2222));
    }

    #[test]
    fn some_changes_are_refused() {
        let changes: [fn(&mut Registers); 5] = [
            |r| r.cs ^= 3,
            |r| r.cr0 ^= 1,
            |r| r.cr3 ^= 0x1000,
            |r| r.efer ^= 1,
            |r| r.rip = 0xdead_0000_0000_0000,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut new = to_gdb(&CpuState::reset());
            change(&mut new);
            assert!(from_gdb(&CpuState::reset(), &new).is_err(), "{number}");
        }
    }
}
