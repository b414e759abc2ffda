//! Faults, their order, and the modes of the environment's layout.

use cpu::{CpuState, Segment};

use crate::guest::{CODE, DATA, Guest};

const UD: Option<u8> = Some(6);
const NM: Option<u8> = Some(7);
const SS: Option<u8> = Some(12);
const GP: Option<u8> = Some(13);
const MF: Option<u8> = Some(16);

const MP: u64 = 1 << 1;
const EM: u64 = 1 << 2;
const TS: u64 = 1 << 3;
const NE: u64 = 1 << 5;

const FWAIT: &[u8] = &[0x9b];
const FNOP: &[u8] = &[0xd9, 0xd0];
const FADD: &[u8] = &[0xd8, 0xc1];
const FNINIT: &[u8] = &[0xdb, 0xe3];
const FNCLEX: &[u8] = &[0xdb, 0xe2];
const FNSTSW_AX: &[u8] = &[0xdf, 0xe0];
const FLDCW: &[u8] = &[0xd9, 0x29];
const FNSTCW: &[u8] = &[0xd9, 0x39];
const FLDENV: &[u8] = &[0xd9, 0x21];
const FNSTENV: &[u8] = &[0xd9, 0x31];
const FNSAVE: &[u8] = &[0xdd, 0x31];
const FRSTOR: &[u8] = &[0xdd, 0x21];
const FLD_M32: &[u8] = &[0xd9, 0x01];
const FSTP_M64: &[u8] = &[0xdd, 0x19];
const FBSTP: &[u8] = &[0xdf, 0x31];

/// A state with 1.0 in all registers and nothing pending.
fn initial() -> CpuState {
    let mut state = Guest::initial();
    state.fpu.control = 0x37f;
    state.fpu.status = 0;
    state.fpu.valid = 0xff;
    state.fpu.mantissas = [1 << 63; 8];
    state.fpu.sign_exponents = [0x3fff; 8];
    state
}

/// As [`initial`], with an unmasked division by zero pending.
fn pending() -> CpuState {
    let mut state = initial();
    state.fpu.control = 0x37b;
    state.fpu.status = 0x8084;
    state
}

fn vector(state: &CpuState, instruction: &[u8]) -> Option<u8> {
    let (after, vector) = Guest::new().run(state, instruction);
    if vector.is_some() {
        assert_eq!(after.fpu, state.fpu, "{instruction:02x?} changed the unit before its fault");
    }
    vector
}

/// Second bytes of the encodings that do not exist, by first byte. Second bytes below C0 mean the memory
/// operand \[ECX\].
const RESERVED: [&[std::ops::RangeInclusive<u8>]; 8] = [
    &[],
    &[0x09..=0x09, 0xd1..=0xd7, 0xe2..=0xe3, 0xe6..=0xe7, 0xef..=0xef],
    &[0xe0..=0xe8, 0xea..=0xff],
    &[0x21..=0x21, 0x31..=0x31, 0xe5..=0xe7, 0xf8..=0xff],
    &[],
    &[0x29..=0x29, 0xf0..=0xff],
    &[0xd8..=0xd8, 0xda..=0xdf],
    &[0xe1..=0xe7, 0xf8..=0xff],
];

#[test]
fn reserved_encodings_are_undefined() {
    for (escape, reserved) in (0xd8..=0xdf).zip(RESERVED) {
        for second in (0xc0..=0xff).chain((0..8).map(|digit| digit << 3 | 1)) {
            let expected = if reserved.iter().any(|range| range.contains(&second)) { UD } else { None };
            assert_eq!(vector(&initial(), &[escape, second]), expected, "{escape:02x} {second:02x}");
        }
    }
}

#[test]
fn device_not_available() {
    let all =
        [FADD, FNOP, FNINIT, FNCLEX, FNSTSW_AX, FLDCW, FNSTCW, FLDENV, FNSTENV, FNSAVE, FRSTOR, FSTP_M64];
    for (bits, expected) in [(0, None), (MP, None), (TS, NM), (EM, NM), (TS | EM | MP, NM)] {
        for instruction in all {
            let mut state = initial();
            state.cr0 |= bits;
            assert_eq!(vector(&state, instruction), expected, "{instruction:02x?} with {bits:#x}");
        }
    }
}

#[test]
fn wait_needs_both_bits_for_device_not_available() {
    for (bits, expected) in [(0, None), (MP, None), (TS, None), (EM, None), (TS | EM, None), (TS | MP, NM)] {
        let mut state = initial();
        state.cr0 |= bits;
        assert_eq!(vector(&state, FWAIT), expected, "with {bits:#x}");
    }
}

#[test]
fn pending_exceptions_wait_for_the_next_waiting_instruction() {
    for instruction in [FWAIT, FNOP, FADD, FLDCW, FLDENV, FRSTOR, FLD_M32, FSTP_M64] {
        assert_eq!(vector(&pending(), instruction), MF, "{instruction:02x?}");
    }
    for instruction in [FNINIT, FNCLEX, FNSTSW_AX, FNSTCW, FNSTENV, FNSAVE] {
        assert_eq!(vector(&pending(), instruction), None, "{instruction:02x?}");
    }
}

#[test]
fn an_unmasked_exception_faults_at_the_following_instruction() {
    let mut state = initial();
    state.fpu.control = 0x37b;
    state.fpu.mantissas[1] = 0;
    state.fpu.sign_exponents[1] = 0;
    let mut guest = Guest::new();
    // FDIV ST(0), ST(1), with a prefix that has no effect.
    let (after, vector) = guest.run(&state, &[0x26, 0xd8, 0xf1]);
    assert_eq!((vector, after.fpu.status), (None, 0x8084));
    assert_eq!(after.fpu.mantissas, state.fpu.mantissas, "no result");
    assert_eq!((after.fpu.instruction_pointer, after.fpu.opcode), (CODE, 0x0f1));
    let (faulted, vector) = guest.run(&after, FWAIT);
    assert_eq!((vector, &faulted.fpu), (MF, &after.fpu));
}

#[test]
fn without_ne_errors_are_ignored() {
    let mut state = pending();
    state.cr0 &= !NE;
    for instruction in [FWAIT, FADD, FLD_M32] {
        assert_eq!(vector(&state, instruction), None, "{instruction:02x?}");
    }
}

#[test]
fn order_of_faults() {
    let mut state = pending();
    state.segments[3].limit = DATA as u32;
    assert_eq!(vector(&state, FSTP_M64), MF, "#MF before #GP");
    state.cr0 |= TS;
    assert_eq!(vector(&state, FSTP_M64), NM, "#NM before #MF");
}

#[test]
fn memory_faults_change_nothing() {
    let mut state = initial();
    state.segments[3].limit = DATA as u32;
    for instruction in
        [FLD_M32, FSTP_M64, FBSTP, FLDCW, FNSTCW, FLDENV, FNSTENV, FNSAVE, FRSTOR, &[0xd8, 0x01]]
    {
        assert_eq!(vector(&state, instruction), GP, "{instruction:02x?}");
    }
    let mut state = initial();
    state.gpr[5] = DATA;
    state.segments[2].limit = DATA as u32;
    assert_eq!(vector(&state, &[0xdd, 0x5d, 0x00]), SS, "FSTP [EBP]");
}

#[test]
fn unmasked_exceptions_keep_stores_from_memory() {
    let mut guest = Guest::new();
    let mut state = initial();
    state.fpu.control = 0x37e;
    state.fpu.valid = 0;
    for instruction in [FSTP_M64, FBSTP] {
        guest.write_data(&[0xaa; 16]);
        let (after, vector) = guest.run(&state, instruction);
        assert_eq!((vector, after.fpu.status), (None, 0x80c1), "stack underflow, nothing popped");
        let mut memory = [0; 16];
        guest.read_data(&mut memory);
        assert_eq!(memory, [0xaa; 16]);
        assert_eq!(after.fpu.data_pointer, DATA);
    }
}

/// A 16-bit code segment: real mode, or protected mode.
fn with_16_bit_code(mut state: CpuState, protected: bool) -> CpuState {
    let code = Segment { selector: 8, base: 0, limit: 0xffff, attributes: 0x809b };
    state.segments[1] = code;
    if !protected {
        state.cr0 &= !1;
        state.segments = state.segments.map(|segment| Segment { selector: 0, ..segment });
    }
    state
}

/// FLDENV and FNSTENV in each mode, with [BX + DI] as address.
#[test]
fn environment_layouts() {
    let mut state = initial();
    state.fpu.control = 0x27f;
    state.fpu.status = 0x3800;
    state.fpu.valid = 0x80;
    state.fpu.opcode = 0x5a5;
    state.fpu.instruction_pointer = 0x1234_5678;
    state.fpu.data_pointer = 0x9abc_def0;
    // The selectors of the x87 pointers, which are deprecated, are neither stored nor loaded.
    (state.fpu.instruction_selector, state.fpu.data_selector) = (0x10, 0x18);
    let narrow_protected = "7f02 0038 ff3f 7856 0000 f0de 0000";
    let narrow_real = "7f02 0038 ff3f 7856 a545 f0de 00c0";
    let wide_protected = "7f02ffff 0038ffff ff3fffff 78563412 0000a505 f0debc9a 0000ffff";
    let wide_real = "7f02ffff 0038ffff ff3fffff 7856ffff a5452301 f0deffff 00c0ab09";
    let cases: [(bool, &[u8], &str, u16); 4] = [
        (true, &[], narrow_protected, 0),
        (true, &[0x66], wide_protected, 0x5a5),
        (false, &[], narrow_real, 0x5a5),
        (false, &[0x66], wide_real, 0x5a5),
    ];
    for (protected, prefix, expected, opcode) in cases {
        let expected = bytes(expected);
        let mut guest = Guest::new();
        let mut state = with_16_bit_code(state.clone(), protected);
        (state.gpr[3], state.gpr[7]) = (DATA, 0);
        let (after, vector) = guest.run(&state, &[prefix, &[0xd9, 0x31]].concat());
        assert_eq!((vector, after.fpu.control), (None, 0x27f));
        let mut memory = vec![0; expected.len()];
        guest.read_data(&mut memory);
        assert_eq!(memory, expected, "protected {protected}, prefix {prefix:x?}");

        let blank = with_16_bit_code(initial(), protected);
        let blank = CpuState { gpr: state.gpr, ..blank };
        let (loaded, vector) = guest.run(&blank, &[prefix, &[0xd9, 0x21]].concat());
        assert_eq!(vector, None);
        let kept = match (protected, prefix.is_empty()) {
            (_, false) => 0xffff_ffff,
            (true, true) => 0xffff,
            (false, true) => 0xf_ffff,
        };
        let mut wanted = state.fpu.clone();
        wanted.instruction_pointer &= kept;
        wanted.data_pointer &= kept;
        wanted.opcode = opcode;
        (wanted.instruction_selector, wanted.data_selector) = (0, 0);
        assert_eq!(loaded.fpu, wanted, "protected {protected}, prefix {prefix:x?}");
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hex digits");
    digits.chunks(2).map(byte).collect()
}
