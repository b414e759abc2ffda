//! Registers by name: used to parse the table, and to compare two states.

use cpu::{CpuState, Segment};

/// A register inside a state.
enum Place<'a> {
    Byte(&'a mut u8),
    Word(&'a mut u16),
    Double(&'a mut u32),
    Quad(&'a mut u64),
    Octa(&'a mut u128),
    /// Mantissa, sign and exponent.
    Extended(&'a mut u64, &'a mut u16),
}

const GPR: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
const SEGMENTS: [&str; 8] = ["es", "cs", "ss", "ds", "fs", "gs", "ldtr", "tr"];

/// Registers that must not change unless a case says so; RIP and RFLAGS have separate rules. Hidden parts of segments,
/// except the bases of FS and GS, are compared only if a case names them.
pub const COMPARED: [&str; 65] = [
    "rax",
    "rcx",
    "rdx",
    "rbx",
    "rsp",
    "rbp",
    "rsi",
    "rdi",
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "es",
    "cs",
    "ss",
    "ds",
    "fs",
    "gs",
    "ldtr",
    "tr",
    "fs.base",
    "gs.base",
    "gdtr.base",
    "gdtr.limit",
    "idtr.base",
    "idtr.limit",
    "cr0",
    "cr2",
    "cr3",
    "cr4",
    "efer",
    "star",
    "lstar",
    "cstar",
    "sfmask",
    "kernel_gs",
    "pat",
    "dr0",
    "dr1",
    "dr2",
    "dr3",
    "dr6",
    "dr7",
    "mxcsr",
    "fcw",
    "fsw",
    "ftag",
    "xmm0",
    "xmm1",
    "xmm2",
    "xmm3",
    "xmm4",
    "xmm5",
    "xmm6",
    "xmm7",
    "xmm8",
    "xmm12",
    "xmm15",
    "sysenter_cs",
    "sysenter_esp",
    "sysenter_eip",
];

/// The register's value; `None` if there is no such register.
pub fn get(state: &CpuState, name: &str) -> Option<u128> {
    let mut copy = state.clone();
    Some(match place(&mut copy, name)? {
        Place::Byte(value) => (*value).into(),
        Place::Word(value) => (*value).into(),
        Place::Double(value) => (*value).into(),
        Place::Quad(value) => (*value).into(),
        Place::Octa(value) => *value,
        Place::Extended(low, high) => u128::from(*low) | u128::from(*high) << 64,
    })
}

/// Changes a register; `None` if there is no such register.
pub fn set(state: &mut CpuState, name: &str, value: u128) -> Option<()> {
    match place(state, name)? {
        Place::Byte(to) => *to = value as u8,
        Place::Word(to) => *to = value as u16,
        Place::Double(to) => *to = value as u32,
        Place::Quad(to) => *to = value as u64,
        Place::Octa(to) => *to = value,
        Place::Extended(low, high) => (*low, *high) = (value as u64, (value >> 64) as u16),
    }
    Some(())
}

fn place<'a>(state: &'a mut CpuState, name: &str) -> Option<Place<'a>> {
    if let Some(number) = GPR.iter().position(|known| *known == name) {
        return Some(Place::Quad(&mut state.gpr[number]));
    }
    let numbered = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse::<usize>().ok());
    if let Some(number) = numbered("xmm") {
        return state.xmm.get_mut(number).map(Place::Octa);
    }
    if let Some(number) = numbered("st") {
        let physical = (usize::from(state.fpu.status >> 11) + number) & 7;
        let fpu = &mut state.fpu;
        return Some(Place::Extended(&mut fpu.mantissas[physical], &mut fpu.sign_exponents[physical]));
    }
    Some(match name {
        "rip" => Place::Quad(&mut state.rip),
        "rflags" => Place::Quad(&mut state.rflags),
        "cr0" => Place::Quad(&mut state.cr0),
        "cr2" => Place::Quad(&mut state.cr2),
        "cr3" => Place::Quad(&mut state.cr3),
        "cr4" => Place::Quad(&mut state.cr4),
        "dr0" => Place::Quad(&mut state.dr[0]),
        "dr1" => Place::Quad(&mut state.dr[1]),
        "dr2" => Place::Quad(&mut state.dr[2]),
        "dr3" => Place::Quad(&mut state.dr[3]),
        "dr6" => Place::Quad(&mut state.dr6),
        "dr7" => Place::Quad(&mut state.dr7),
        "efer" => Place::Quad(&mut state.msrs.efer),
        "star" => Place::Quad(&mut state.msrs.star),
        "lstar" => Place::Quad(&mut state.msrs.lstar),
        "cstar" => Place::Quad(&mut state.msrs.cstar),
        "sfmask" => Place::Quad(&mut state.msrs.sfmask),
        "kernel_gs" => Place::Quad(&mut state.msrs.kernel_gs_base),
        "sysenter_cs" => Place::Quad(&mut state.msrs.sysenter_cs),
        "sysenter_esp" => Place::Quad(&mut state.msrs.sysenter_esp),
        "sysenter_eip" => Place::Quad(&mut state.msrs.sysenter_eip),
        "pat" => Place::Quad(&mut state.msrs.pat),
        "mxcsr" => Place::Double(&mut state.mxcsr),
        "fcw" => Place::Word(&mut state.fpu.control),
        "fsw" => Place::Word(&mut state.fpu.status),
        "ftag" => Place::Byte(&mut state.fpu.valid),
        "gdtr.base" => Place::Quad(&mut state.gdtr.base),
        "gdtr.limit" => Place::Word(&mut state.gdtr.limit),
        "idtr.base" => Place::Quad(&mut state.idtr.base),
        "idtr.limit" => Place::Word(&mut state.idtr.limit),
        _ => return segment_place(state, name),
    })
}

/// Finds a field of a segment register by name. A bare name means the selector; `.base`, `.limit` and `.attr` mean
/// hidden parts.
fn segment_place<'a>(state: &'a mut CpuState, name: &str) -> Option<Place<'a>> {
    let (register, part) = name.split_once('.').unwrap_or((name, ""));
    let segment: &mut Segment = match SEGMENTS.iter().position(|known| *known == register)? {
        6 => &mut state.ldtr,
        7 => &mut state.tr,
        number => &mut state.segments[number],
    };
    Some(match part {
        "" => Place::Word(&mut segment.selector),
        "base" => Place::Quad(&mut segment.base),
        "limit" => Place::Double(&mut segment.limit),
        "attr" => Place::Word(&mut segment.attributes),
        _ => return None,
    })
}
