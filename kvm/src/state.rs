//! Converts between KVM's structures and [`CpuState`].
//!
//! Converted states are canonical. Unusable segments have the values that the software CPU gives them. The x87
//! registers are in the order of the physical registers. An XSAVE image always says that it holds x87 and SSE
//! state. Some registers are not in KVM (MTRRs, debug control, the TSC's offset); these and the counts do not
//! change in the completed state.

use cpu::{CpuState, FpuState, Segment, TableRegister};
use kvm_bindings::{kvm_debugregs, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs, kvm_vcpu_events, kvm_xsave};

/// The APIC base that makes KVM show an APIC in CPUID: enabled, on the boot processor.
const APIC_BASE: u64 = 0xfee0_0900;
const APIC_ENABLE: u64 = 1 << 11;
/// Interrupt shadows in KVM's event structure.
const SHADOW_MOV_SS: u8 = 1;
const SHADOW_STI: u8 = 2;
/// Flags in KVM's event structure: the shadow and the NMI state are valid.
const EVENTS_VALID: u32 = 1 | 4;
const DEBUG_EXCEPTION: u8 = 1;
/// Model-specific registers that KVM itself holds.
pub(crate) const MSRS: [u32; 9] =
    [0x174, 0x175, 0x176, 0x277, 0xc000_0081, 0xc000_0082, 0xc000_0083, 0xc000_0084, 0xc000_0102];

/// The values of [`MSRS`] in a state.
pub(crate) fn msrs_mut(state: &mut CpuState) -> [&mut u64; 9] {
    let m = &mut state.msrs;
    [
        &mut m.sysenter_cs,
        &mut m.sysenter_esp,
        &mut m.sysenter_eip,
        &mut m.pat,
        &mut m.star,
        &mut m.lstar,
        &mut m.cstar,
        &mut m.sfmask,
        &mut m.kernel_gs_base,
    ]
}

/// RAX to R15 in the order of their numbers.
pub(crate) fn gpr_of(regs: &kvm_regs) -> [u64; 16] {
    [
        regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9,
        regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ]
}

pub(crate) fn regs_of(state: &CpuState) -> kvm_regs {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let (rip, rflags) = (state.rip, state.rflags);
    kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
}

fn kvm_segment_of(segment: &Segment) -> kvm_segment {
    let bit = |number: u16| (segment.attributes >> number & 1) as u8;
    kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: segment.kind(),
        present: bit(7),
        dpl: segment.dpl(),
        db: bit(14),
        s: bit(4),
        l: bit(13),
        g: bit(15),
        avl: bit(12),
        unusable: u8::from(!segment.present()),
        padding: 0,
    }
}

fn segment_of(segment: &kvm_segment) -> Segment {
    let attributes = u16::from(segment.type_)
        | u16::from(segment.s) << 4
        | u16::from(segment.dpl) << 5
        | 1 << 7
        | u16::from(segment.avl) << 12
        | u16::from(segment.l) << 13
        | u16::from(segment.db) << 14
        | u16::from(segment.g) << 15;
    let kvm_segment { selector, base, limit, dpl, .. } = *segment;
    if segment.unusable != 0 || segment.present == 0 {
        return Segment { selector, base, limit: 0, attributes: u16::from(dpl) << 5 };
    }
    Segment { selector, base, limit, attributes }
}

/// The APIC base. KVM uses the APIC base only to decide whether CPUID shows an APIC.
pub(crate) fn apic_base(enabled: bool) -> u64 {
    if enabled { APIC_BASE } else { APIC_BASE & !APIC_ENABLE }
}

pub(crate) fn sregs_of(state: &CpuState, cr8: u64, apic_enabled: bool) -> kvm_sregs {
    let [es, cs, ss, ds, fs, gs] = state.segments.each_ref().map(kvm_segment_of);
    let table = |t: &TableRegister| kvm_dtable { base: t.base, limit: t.limit, padding: [0; 3] };
    kvm_sregs {
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        tr: kvm_segment_of(&state.tr),
        ldt: kvm_segment_of(&state.ldtr),
        gdt: table(&state.gdtr),
        idt: table(&state.idtr),
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8,
        efer: state.msrs.efer,
        apic_base: apic_base(apic_enabled),
        interrupt_bitmap: [0; 4],
    }
}

/// Completes a state with the registers that KVM gives after every exit.
pub(crate) fn take_registers(
    state: &mut CpuState,
    regs: &kvm_regs,
    sregs: &kvm_sregs,
    events: &kvm_vcpu_events,
) {
    state.gpr = gpr_of(regs);
    state.rip = regs.rip;
    state.rflags = regs.rflags;
    state.segments = [&sregs.es, &sregs.cs, &sregs.ss, &sregs.ds, &sregs.fs, &sregs.gs].map(segment_of);
    state.ldtr = segment_of(&sregs.ldt);
    state.tr = segment_of(&sregs.tr);
    state.gdtr = TableRegister { base: sregs.gdt.base, limit: sregs.gdt.limit };
    state.idtr = TableRegister { base: sregs.idt.base, limit: sregs.idt.limit };
    (state.cr0, state.cr2, state.cr3, state.cr4) = (sregs.cr0, sregs.cr2, sregs.cr3, sregs.cr4);
    state.msrs.efer = sregs.efer;
    state.interrupt_shadow = events.interrupt.shadow != 0;
    state.mov_ss_shadow = events.interrupt.shadow & SHADOW_MOV_SS != 0;
    state.nmi_blocked = events.nmi.masked != 0;
    state.pending_debug = 0;
}

/// KVM's events for a state: interrupt shadows, blocked NMIs, and a pending debug trap. A [`CpuState`] has no other
/// pending events.
pub(crate) fn events_of(state: &CpuState) -> kvm_vcpu_events {
    let mut events = kvm_vcpu_events { flags: EVENTS_VALID, ..Default::default() };
    events.interrupt.shadow = match (state.interrupt_shadow, state.mov_ss_shadow) {
        (false, _) => 0,
        (true, false) => SHADOW_STI,
        (true, true) => SHADOW_MOV_SS,
    };
    events.nmi.masked = u8::from(state.nmi_blocked);
    if state.pending_debug != 0 {
        events.exception.injected = 1;
        events.exception.nr = DEBUG_EXCEPTION;
    }
    events
}

/// Whether the vCPU has no interrupt or exception that was accepted and not yet delivered.
pub(crate) fn nothing_under_way(events: &kvm_vcpu_events) -> bool {
    let kvm_vcpu_events { exception, interrupt, nmi, .. } = events;
    [exception.injected, exception.pending, interrupt.injected, nmi.injected, nmi.pending]
        .iter()
        .all(|&flag| flag == 0)
}

pub(crate) fn debugregs_of(state: &CpuState) -> kvm_debugregs {
    let dr6 = state.dr6 & !0xf | (state.dr6 | state.pending_debug) & 0xf | state.pending_debug;
    kvm_debugregs { db: state.dr, dr6, dr7: state.dr7, ..Default::default() }
}

pub(crate) fn take_debugregs(state: &mut CpuState, regs: &kvm_debugregs) {
    (state.dr, state.dr6, state.dr7) = (regs.db, regs.dr6, regs.dr7);
}

/// The legacy area of an XSAVE image, as bytes.
type Image = [u8; 4096];

/// XSTATE_BV, in the image's header.
const XSTATE_BV: usize = 512;
const X87_AND_SSE: u8 = 3;

pub(crate) fn xsave_of(state: &CpuState) -> kvm_xsave {
    let mut image: Image = [0; 4096];
    let fpu = &state.fpu;
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &fpu.control.to_le_bytes());
    put(2, &fpu.status.to_le_bytes());
    put(4, &[fpu.valid]);
    put(6, &fpu.opcode.to_le_bytes());
    put(8, &fpu.instruction_pointer.to_le_bytes());
    put(16, &fpu.data_pointer.to_le_bytes());
    put(24, &state.mxcsr.to_le_bytes());
    put(28, &0xffff_u32.to_le_bytes());
    for number in 0..8 {
        let physical = physical(fpu.status, number);
        put(32 + 16 * number, &fpu.mantissas[physical].to_le_bytes());
        put(40 + 16 * number, &fpu.sign_exponents[physical].to_le_bytes());
    }
    for (number, value) in state.xmm.iter().enumerate() {
        put(160 + 16 * number, &value.to_le_bytes());
    }
    put(XSTATE_BV, &[X87_AND_SSE]);
    let mut xsave = kvm_xsave::default();
    for (word, bytes) in xsave.region.iter_mut().zip(image.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    xsave
}

/// The physical register of ST(`number`).
fn physical(status: u16, number: usize) -> usize {
    (usize::from(status >> 11) + number) & 7
}

/// Completes a state from an XSAVE image. KVM fills in the parts that the processor omitted because they were in their
/// initial state.
pub(crate) fn take_xsave(state: &mut CpuState, xsave: &kvm_xsave) {
    let mut image: Image = [0; 4096];
    for (bytes, word) in image.chunks_exact_mut(4).zip(&xsave.region) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&image[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let status = word(2);
    let mut fpu = FpuState {
        control: word(0),
        status,
        valid: image[4],
        opcode: word(6),
        instruction_pointer: long(8),
        data_pointer: long(16),
        instruction_selector: 0,
        data_selector: 0,
        ..state.fpu.clone()
    };
    for number in 0..8 {
        let physical = physical(status, number);
        fpu.mantissas[physical] = long(32 + 16 * number);
        fpu.sign_exponents[physical] = word(40 + 16 * number);
    }
    state.fpu = fpu;
    state.mxcsr = long(24) as u32;
    for (number, value) in state.xmm.iter_mut().enumerate() {
        let at = 160 + 16 * number;
        *value = u128::from(long(at)) | u128::from(long(at + 8)) << 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state in which all fields differ.
    fn sample() -> CpuState {
        let mut state = CpuState::reset();
        let code = Segment { selector: 0x10, base: 0, limit: u32::MAX, attributes: 0xa09b };
        let data = Segment { selector: 0x18, base: 0, limit: u32::MAX, attributes: 0xc093 };
        let null = |base| Segment { selector: 0, base, limit: 0, attributes: 0 };
        state.segments = [null(0), code, data, null(0), null(0x7777), null(0x8888)];
        state.gpr = std::array::from_fn(|n| 0x1000 + n as u64);
        state.rip = 0xffff_ffff_8100_0000;
        state.rflags = 0x246;
        (state.cr0, state.cr2, state.cr3, state.cr4) = (0x8005_0033, 0x1234, 0x5000, 0x6f0);
        state.dr = [1, 2, 3, 4];
        state.fpu.status = 5 << 11 | 0x41;
        state.fpu.valid = 0xe1;
        state.fpu.mantissas = std::array::from_fn(|n| 0x8000_0000_0000_0000 + n as u64);
        state.fpu.sign_exponents = std::array::from_fn(|n| 0x3ff0 + n as u16);
        state.xmm = std::array::from_fn(|n| (n as u128) << 64 | 7 - (n as u128 & 7));
        state.interrupt_shadow = true;
        state.nmi_blocked = true;
        state
    }

    #[test]
    fn a_state_comes_back_as_it_went() {
        let state = sample();
        let mut copy = CpuState { msrs: state.msrs.clone(), ..CpuState::reset() };
        take_registers(&mut copy, &regs_of(&state), &sregs_of(&state, 0, true), &events_of(&state));
        take_xsave(&mut copy, &xsave_of(&state));
        take_debugregs(&mut copy, &debugregs_of(&state));
        copy.ldtr = state.ldtr;
        assert_eq!(copy, state);
    }

    #[test]
    fn st_registers_are_by_their_distance_from_the_top() {
        let xsave = xsave_of(&sample());
        // TOP is 5, so ST(0) is R5 and ST(3) is R0.
        assert_eq!(xsave.region[8], 5);
        assert_eq!(xsave.region[8 + 3 * 4], 0);
        assert_eq!(xsave.region[10] & 0xffff, 0x3ff5);
    }

    #[test]
    fn anything_under_way_is_seen() {
        assert!(nothing_under_way(&kvm_vcpu_events::default()));
        for number in 0..5 {
            let mut events = kvm_vcpu_events::default();
            *[
                &mut events.exception.injected,
                &mut events.exception.pending,
                &mut events.interrupt.injected,
                &mut events.nmi.injected,
                &mut events.nmi.pending,
            ][number] = 1;
            assert!(!nothing_under_way(&events), "{number}");
        }
    }
}
