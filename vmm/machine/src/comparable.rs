//! The part of a CPU's state that is the same on every engine and processor.
//!
//! States of the software CPU are equal bit by bit on all hosts. Hardware processors also have state that the
//! architecture does not define. Examples are hidden parts of unused segments, undefined flags (also in copies of
//! RFLAGS), and the address of the last x87 instruction. Machines that may run on different engines and processor
//! models are compared without this undefined state, and without counts that only one engine has.

use cpu::{Counts, CpuState, CpuStateV1, SegReg, TurnState};
use serde::Serialize;

use crate::hashes::hash_of;
use crate::processors::{SpinStateV1, TurnStateV1, stored};

/// How two machines' states are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Likeness {
    /// All bits are compared, because only the software CPU runs machines of this kind.
    #[default]
    Exact,
    /// Only the part that all processors share is compared, because KVM may run such machines.
    AcrossProcessors,
}

/// The arithmetic flags CF, PF, AF, ZF, SF and OF, which may be undefined, and RF. Processors clear RF at slightly
/// different moments.
const VOLATILE_FLAGS: u64 = 0x8d5 | 1 << 16;

#[derive(Debug, Serialize)]
struct Comparable<'a> {
    gpr: [u64; 16],
    rip: u64,
    rflags: u64,
    selectors: [u16; 8],
    bases: [u64; 4],
    tables: [(u64, u16); 2],
    control: [u64; 4],
    debug: (&'a [u64; 4], u64),
    xmm: &'a [u128; 16],
    mxcsr: u32,
    x87: (u16, u16, u8, &'a [u64; 8], &'a [u16; 8]),
    msrs: [u64; 10],
    waiting: [bool; 2],
}

/// The state that a machine with several processors has in addition to the CPU in the seat. The processor whose turn it
/// is has the seat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others<'a> {
    /// The processors that are not in the seat, by number.
    pub cpus: &'a [CpuState],
    /// The state of the turns. `None` if the counts alone determine whose turn it is.
    pub turns: Option<&'a TurnState>,
}

/// Hash of a CPU's state and counts, limited to the part that `likeness` compares.
pub fn cpu_hash(state: &CpuState, counts: Counts, others: Others<'_>, likeness: Likeness) -> [u8; 32] {
    let own = || CpuStateV1::new(state, counts);
    match (likeness, others.turns) {
        (Likeness::Exact, None) if others.cpus.is_empty() => hash_of(&own()),
        (Likeness::Exact, None) => hash_of(&(own(), stored(others.cpus))),
        (Likeness::Exact, Some(turns)) => {
            let all = (own(), stored(others.cpus), TurnStateV1::from(turns));
            match turns.spins {
                None => hash_of(&all),
                Some(spins) => hash_of(&(all, SpinStateV1::from(spins))),
            }
        }
        (Likeness::AcrossProcessors, _) => hash_of(&comparable(state)),
    }
}

/// The compared part of a state as text, for a person.
pub fn shown(state: &CpuState) -> String {
    format!("{:x?}", comparable(state))
}

fn comparable(state: &CpuState) -> Comparable<'_> {
    let [es, cs, ss, ds, fs, gs] = state.segments.each_ref().map(|segment| segment.selector);
    let base = |register: SegReg| state.segments[register as usize].base;
    let (m, fpu) = (&state.msrs, &state.fpu);
    Comparable {
        gpr: state.gpr.map(cpu::without_undefined_flags),
        rip: state.rip,
        rflags: state.rflags & !VOLATILE_FLAGS,
        selectors: [es, cs, ss, ds, fs, gs, state.ldtr.selector, state.tr.selector],
        bases: [base(SegReg::Fs), base(SegReg::Gs), state.tr.base, base(SegReg::Cs)],
        tables: [(state.gdtr.base, state.gdtr.limit), (state.idtr.base, state.idtr.limit)],
        control: [state.cr0, state.cr2, state.cr3, state.cr4],
        debug: (&state.dr, state.dr7),
        xmm: &state.xmm,
        mxcsr: state.mxcsr,
        x87: (fpu.control, fpu.status, fpu.valid, &fpu.mantissas, &fpu.sign_exponents),
        msrs: [
            m.efer,
            m.star,
            m.lstar,
            m.cstar,
            m.sfmask,
            m.kernel_gs_base,
            m.sysenter_cs,
            // AMD's processors keep 32 bits of these registers. For a guest whose CPUID names AMD, KVM keeps 32 bits
            // too.
            m.sysenter_esp & 0xffff_ffff,
            m.sysenter_eip & 0xffff_ffff,
            m.pat,
        ],
        waiting: [state.halted, state.shut_down],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change's name, and the function that makes the change.
    type Change<'a> = (&'a str, &'a dyn Fn(&mut CpuState, &mut Counts));

    #[test]
    fn what_processors_differ_in_does_not_count_and_everything_else_does() {
        let state = CpuState::reset();
        let hash = |change: &dyn Fn(&mut CpuState, &mut Counts), likeness| {
            let (mut changed, mut counts) = (state.clone(), Counts::default());
            change(&mut changed, &mut counts);
            cpu_hash(&changed, counts, Others::default(), likeness)
        };
        let same = hash(&|_, _| (), Likeness::AcrossProcessors);
        let exactly_same = hash(&|_, _| (), Likeness::Exact);
        let ignored: [Change; 4] = [
            ("counts", &|_, counts| (counts.steps, counts.branches) = (5, 6)),
            ("flags", &|s, _| s.rflags ^= 0x8d5),
            ("x87 pointers", &|s, _| s.fpu.instruction_pointer = 9),
            ("hidden segment parts", &|s, _| s.segments[0].limit = 7),
        ];
        for (what, change) in ignored {
            assert_eq!(hash(change, Likeness::AcrossProcessors), same, "{what}");
            assert_ne!(hash(change, Likeness::Exact), exactly_same, "{what}");
        }
        let seen: [Change; 8] = [
            ("a register", &|s, _| s.gpr[15] = 1),
            ("RIP", &|s, _| s.rip += 1),
            ("IF", &|s, _| s.rflags ^= 1 << 9),
            ("XMM", &|s, _| s.xmm[15] = 1 << 127),
            ("a base", &|s, _| s.segments[5].base = 1),
            ("CR2", &|s, _| s.cr2 = 1),
            ("HLT", &|s, _| s.halted = true),
            ("ST", &|s, _| s.fpu.mantissas[7] = 1),
        ];
        for (what, change) in seen {
            assert_ne!(hash(change, Likeness::AcrossProcessors), same, "{what}");
            assert_ne!(hash(change, Likeness::Exact), exactly_same, "{what}");
        }
    }
}
