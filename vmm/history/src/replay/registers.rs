//! Formats registers for people.

use cpu::{Counts, CpuState};

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// The general and the control registers, four to a line.
pub fn lines(state: &CpuState) -> Vec<String> {
    let general: Vec<String> =
        NAMES.iter().zip(state.gpr).map(|(name, value)| format!("{name:>4} {value:016x}")).collect();
    let mut lines: Vec<String> = general.chunks(4).map(|four| four.join("")).collect();
    lines.push(format!(
        " rip {:016x} rfl {:016x} cs {:04x} ss {:04x}",
        state.rip, state.rflags, state.segments[1].selector, state.segments[2].selector
    ));
    lines.push(format!(
        " cr0 {:016x} cr2 {:016x} cr3 {:016x} cr4 {:016x} efer {:x}",
        state.cr0, state.cr2, state.cr3, state.cr4, state.msrs.efer
    ));
    lines
}

/// The general, segment and control registers by name.
pub fn named(state: &CpuState) -> Vec<(&'static str, u64)> {
    let segments = ["es", "cs", "ss", "ds", "fs", "gs"];
    let selectors = segments.into_iter().zip(state.segments.iter().map(|segment| segment.selector.into()));
    let rest = [
        ("rip", state.rip),
        ("rflags", state.rflags),
        ("fs_base", state.segments[4].base),
        ("gs_base", state.segments[5].base),
        ("kernel_gs_base", state.msrs.kernel_gs_base),
        ("cr0", state.cr0),
        ("cr2", state.cr2),
        ("cr3", state.cr3),
        ("cr4", state.cr4),
        ("efer", state.msrs.efer),
    ];
    NAMES.into_iter().zip(state.gpr).chain(selectors).chain(rest).collect()
}

/// The differences between two CPUs. Each line has the register's name, the value in the first CPU and the value in the
/// second.
pub fn differences(
    (then, counts_then): (&CpuState, Counts),
    (now, counts_now): (&CpuState, Counts),
) -> Vec<String> {
    let mut rest = now.clone();
    let mut found = Vec::new();
    let mut compare = |name: &str, then: u128, now: u128| {
        if then != now {
            found.push(format!("{name} {then:#x} {now:#x}"));
        }
    };
    for (number, name) in NAMES.iter().enumerate() {
        compare(name, then.gpr[number].into(), now.gpr[number].into());
    }
    for (name, then, now) in [
        ("rip", then.rip, now.rip),
        ("rflags", then.rflags, now.rflags),
        ("cr0", then.cr0, now.cr0),
        ("cr2", then.cr2, now.cr2),
        ("cr3", then.cr3, now.cr3),
        ("cr4", then.cr4, now.cr4),
        ("steps", counts_then.steps, counts_now.steps),
        ("branches", counts_then.branches, counts_now.branches),
    ] {
        compare(name, then.into(), now.into());
    }
    for number in 0..16 {
        compare(&format!("xmm{number}"), then.xmm[number], now.xmm[number]);
    }
    (rest.gpr, rest.rip, rest.rflags, rest.xmm) = (then.gpr, then.rip, then.rflags, then.xmm);
    (rest.cr0, rest.cr2, rest.cr3, rest.cr4) = (then.cr0, then.cr2, then.cr3, then.cr4);
    if rest != *then || counts_then.system_calls != counts_now.system_calls {
        found.push("other parts of the CPU's state differ".to_string());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let (then, counts) = (CpuState::reset(), Counts::default());
        assert!(differences((&then, counts), (&then, counts)).is_empty());
        let mut now = then.clone();
        now.gpr[3] = 0x12;
        now.xmm[15] = 1;
        now.dr6 ^= 1;
        assert_eq!(
            differences((&then, counts), (&now, counts)),
            ["rbx 0x0 0x12", "xmm15 0x0 0x1", "other parts of the CPU's state differ"]
        );
        let more = Counts { branches: 7, ..counts };
        assert_eq!(differences((&then, counts), (&then, more)), ["branches 0x0 0x7"]);
    }
}
