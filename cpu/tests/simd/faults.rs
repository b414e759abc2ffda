//! Faults by the manual's exception classes: every instruction under every switch that forbids it, misaligned operands,
//! absent pages, unmasked floating-point exceptions.

use cpu::CpuState;
use iced_x86::{Code, Mnemonic, OpKind};

use crate::guest::{Guest, Outcome};
use crate::instructions::{self, Encoded};
use crate::state::State;
use seeded::Operands;

const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x50_0000;
const DATA_BYTES: u64 = 8192;

const UD: u8 = 6;
const NM: u8 = 7;
const GP: u8 = 13;
const PF: u8 = 14;
const MF: u8 = 16;
const XM: u8 = 19;

const CR0_EM: u64 = 1 << 2;
const CR0_TS: u64 = 1 << 3;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const CR4_OSXSAVE: u64 = 1 << 18;

/// The registers that an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Instructions that use only XMM registers or MXCSR.
    Sse,
    /// Instructions that use only MMX registers.
    Mmx,
    /// Instructions that use both XMM registers and MMX registers.
    Both,
    /// FXSAVE, FXRSTOR.
    Fx,
    /// XSAVE, XRSTOR.
    Xsave,
    /// MOVNTI.
    General,
}

fn class(encoded: &Encoded) -> Class {
    use Mnemonic::*;
    match encoded.instruction.mnemonic() {
        Fxsave | Fxsave64 | Fxrstor | Fxrstor64 => return Class::Fx,
        Xsave | Xsave64 | Xrstor | Xrstor64 => return Class::Xsave,
        Movnti => return Class::General,
        Ldmxcsr | Stmxcsr => return Class::Sse,
        Emms => return Class::Mmx,
        Cvtps2pi | Cvttps2pi | Cvtpd2pi | Cvttpd2pi => return Class::Both,
        _ => {}
    }
    let registers = || {
        (0..encoded.instruction.op_count())
            .filter(|&n| encoded.instruction.op_kind(n) == OpKind::Register)
            .map(|n| encoded.instruction.op_register(n))
    };
    match (registers().any(|r| r.is_xmm()), registers().any(|r| r.is_mm())) {
        (true, true) => Class::Both,
        (false, true) => Class::Mmx,
        _ => Class::Sse,
    }
}

struct Bench {
    guest: Guest,
    random: Operands,
}

impl Bench {
    fn new() -> Bench {
        Bench { guest: Guest::new(CODE, DATA, DATA_BYTES), random: Operands::for_test("faults", "SIMD_SEED") }
    }

    /// Each form of each instruction.
    fn encodings(&mut self) -> Vec<Encoded> {
        let forms = instructions::all().flat_map(|code| [(code, false), (code, true)]);
        forms
            .filter(|&(code, memory)| instructions::has_form(code, memory))
            .map(|(code, memory)| instructions::encode(code, memory, CODE, &mut self.random))
            .collect()
    }

    /// A state in which the instruction completes, with its operand at `address`.
    fn state(&mut self, encoded: &Encoded, address: u64) -> CpuState {
        let mut registers = State::random(&mut self.random);
        registers.gpr[4] = self.guest.initial().gpr[4];
        if let Some(base) = encoded.base {
            registers.gpr[base] = address.wrapping_sub(encoded.displacement);
        }
        let mut state = self.guest.initial();
        registers.enter(&mut state);
        state
    }

    fn run(&mut self, encoded: &Encoded, state: &CpuState) -> Outcome {
        self.guest.run(state, 0, &encoded.bytes)
    }

    /// Runs every instruction in states changed by `prepare`, and compares the exception with the expected one.
    fn expect(&mut self, prepare: impl Fn(&mut CpuState), expected: impl Fn(&Encoded) -> Option<u8>) {
        for encoded in self.encodings() {
            self.guest.write_data(0, &[0; 640]);
            let mut state = self.state(&encoded, DATA);
            prepare(&mut state);
            let outcome = self.run(&encoded, &state);
            assert_eq!(outcome.vector, expected(&encoded), "{}", encoded.instruction);
        }
    }
}

#[test]
fn nothing_faults_in_an_ordinary_state() {
    Bench::new().expect(|_| {}, |_| None);
}

#[test]
fn a_task_switch_disables_all_registers() {
    Bench::new()
        .expect(|state| state.cr0 |= CR0_TS, |encoded| (class(encoded) != Class::General).then_some(NM));
}

#[test]
fn emulation_makes_instructions_undefined() {
    Bench::new().expect(
        |state| state.cr0 |= CR0_EM | CR0_TS,
        |encoded| match class(encoded) {
            Class::Sse | Class::Mmx | Class::Both => Some(UD),
            Class::Fx | Class::Xsave => Some(NM),
            Class::General => None,
        },
    );
}

#[test]
fn an_unaware_system_has_no_xmm_registers() {
    Bench::new().expect(
        |state| state.cr4 &= !CR4_OSFXSR,
        |encoded| matches!(class(encoded), Class::Sse | Class::Both).then_some(UD),
    );
}

#[test]
fn a_system_without_xsave_has_no_xsave() {
    Bench::new()
        .expect(|state| state.cr4 &= !CR4_OSXSAVE, |encoded| (class(encoded) == Class::Xsave).then_some(UD));
}

#[test]
fn pending_x87_exceptions_come_before_mmx_instructions() {
    Bench::new().expect(
        |state| {
            state.fpu.control = 0x37e;
            state.fpu.status |= 0x8081;
        },
        |encoded| matches!(class(encoded), Class::Mmx | Class::Both).then_some(MF),
    );
}

#[test]
fn large_operands_must_be_aligned() {
    let mut bench = Bench::new();
    for encoded in bench.encodings() {
        let mnemonic = encoded.instruction.mnemonic();
        let size = encoded.instruction.memory_size().size();
        if encoded.base.is_none() {
            continue;
        }
        let alignment = match class(&encoded) {
            Class::Xsave => 64,
            Class::Fx => 16,
            _ if size >= 16 && !instructions::allows_misaligned(mnemonic) => 16,
            _ => 1,
        };
        for distance in [1, 8, 16, 32] {
            bench.guest.write_data(0, &[0; 640]);
            let state = bench.state(&encoded, DATA + distance);
            let outcome = bench.run(&encoded, &state);
            let expected = (distance % alignment != 0).then_some(GP);
            assert_eq!(outcome.vector, expected, "{} at distance {distance}", encoded.instruction);
        }
    }
}

#[test]
fn absent_pages_leave_everything_as_it_was() {
    let mut bench = Bench::new();
    for encoded in bench.encodings().into_iter().filter(|encoded| encoded.base.is_some()) {
        let mut state = bench.state(&encoded, DATA + DATA_BYTES);
        if matches!(encoded.instruction.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu) {
            // All mask bits are set, so that the instruction stores bytes.
            state.xmm = [u128::MAX; 16];
            state.fpu.mantissas = [u64::MAX; 8];
        }
        let outcome = bench.run(&encoded, &state);
        assert_eq!(outcome.vector, Some(PF), "{}", encoded.instruction);
        let mut after = outcome.state;
        if (0..encoded.instruction.op_count()).any(|n| encoded.instruction.op_register(n).is_mm()) {
            // When an MMX store faults, processors have already left x87 mode: TOP is zero and all tags are valid.
            const TOP: u16 = 7 << 11;
            after.fpu.status |= state.fpu.status & TOP;
            after.fpu.valid = state.fpu.valid;
        }
        assert_eq!((after.xmm, &after.fpu), (state.xmm, &state.fpu), "{}", encoded.instruction);
        assert_eq!(after.mxcsr, state.mxcsr, "{}", encoded.instruction);
        assert_eq!(after.gpr[..4], state.gpr[..4], "{}", encoded.instruction);
    }
}

/// Puts operands into XMM1 and XMM2 and runs an instruction on these registers.
fn on_xmm(code: Code, imm: Option<u8>, mxcsr: u32, cr4: u64, operands: [u128; 2]) -> Outcome {
    let mut guest = Guest::new(CODE, DATA, DATA_BYTES);
    let mut instruction = iced_x86::Instruction::new();
    instruction.set_code(code);
    for (n, register) in [iced_x86::Register::XMM1, iced_x86::Register::XMM2].into_iter().enumerate() {
        instruction.set_op_kind(n as u32, OpKind::Register);
        instruction.set_op_register(n as u32, register);
    }
    if let Some(imm) = imm {
        instruction.set_op_kind(2, OpKind::Immediate8);
        instruction.set_immediate8(imm);
    }
    let mut encoder = iced_x86::Encoder::new(64);
    encoder.encode(&instruction, CODE).expect("an encodable instruction");
    let mut state = guest.initial();
    state.mxcsr = mxcsr;
    state.cr4 = cr4;
    state.xmm[1..3].copy_from_slice(&operands);
    guest.run(&state, 0, &encoder.take_buffer())
}

const ONE: u128 = 0x3ff0_0000_0000_0000;
const THREE: u128 = 0x4008_0000_0000_0000;
const SMALL: u128 = 0x3fd0_0000_0000_0000;

#[test]
fn unmasked_exceptions_leave_the_destination() {
    let cr4 = Guest::new(CODE, DATA, DATA_BYTES).initial().cr4;
    // (instruction, imm8, unmasked, operands, flags in MXCSR afterwards)
    type Case = (Code, Option<u8>, u32, [u128; 2], u32);
    let cases: [Case; 6] = [
        (Code::Divsd_xmm_xmmm64, None, 4, [ONE, 0], 4),
        (Code::Divpd_xmm_xmmm128, None, 4, [ONE << 64 | ONE, THREE], 4),
        (Code::Divpd_xmm_xmmm128, None, 32, [ONE << 64 | ONE, ONE << 64 | THREE], 32),
        (Code::Sqrtsd_xmm_xmmm64, None, 1, [ONE, ONE | 1 << 63], 1),
        (Code::Roundsd_xmm_xmmm64_imm8, Some(0), 32, [ONE, SMALL], 32),
        (Code::Dppd_xmm_xmmm128_imm8, Some(0x33), 2, [1, ONE], 2),
    ];
    for (code, imm, unmasked, operands, flags) in cases {
        let mxcsr = 0x1f80 & !(unmasked << 7);
        for (cr4, vector) in [(cr4, XM), (cr4 & !CR4_OSXMMEXCPT, UD)] {
            let outcome = on_xmm(code, imm, mxcsr, cr4, operands);
            assert_eq!(outcome.vector, Some(vector), "{code:?}");
            assert_eq!(outcome.state.mxcsr, mxcsr | flags, "{code:?}");
            assert_eq!(outcome.state.xmm[1], operands[0], "{code:?}");
        }
        let masked = on_xmm(code, imm, 0x1f80, cr4, operands);
        assert_eq!(masked.vector, None, "{code:?}");
        assert_ne!(masked.state.xmm[1], operands[0], "{code:?}");
    }
}

#[test]
fn comparisons_with_unmasked_exceptions_leave_the_flags() {
    let cr4 = Guest::new(CODE, DATA, DATA_BYTES).initial().cr4;
    let nan = 0x7ff8_0000_0000_0000;
    let outcome = on_xmm(Code::Comisd_xmm_xmmm64, None, 0x1f00, cr4, [ONE, nan]);
    assert_eq!((outcome.vector, outcome.state.mxcsr), (Some(XM), 0x1f01));
    let quiet = on_xmm(Code::Ucomisd_xmm_xmmm64, None, 0x1f00, cr4, [ONE, nan]);
    assert_eq!((quiet.vector, quiet.state.mxcsr), (None, 0x1f00));
    assert_eq!(quiet.state.rflags & 0x8d5, 0x45);
}

/// Runs an instruction whose operand is `[rbx]`, at the start of the data area.
fn on_memory(bytes: &[u8], data: &[u8], change: impl FnOnce(&mut CpuState)) -> (Outcome, Vec<u8>) {
    let mut guest = Guest::new(CODE, DATA, DATA_BYTES);
    guest.write_data(0, data);
    let mut state = guest.initial();
    state.gpr[3] = DATA;
    change(&mut state);
    let outcome = guest.run(&state, 0, bytes);
    let mut after = vec![0; 640];
    guest.read_data(0, &mut after);
    (outcome, after)
}

const LDMXCSR: [u8; 3] = [0x0f, 0xae, 0x13];
const FXSAVE: [u8; 3] = [0x0f, 0xae, 0x03];
const FXRSTOR: [u8; 3] = [0x0f, 0xae, 0x0b];
const XSAVE: [u8; 3] = [0x0f, 0xae, 0x23];
const XRSTOR: [u8; 3] = [0x0f, 0xae, 0x2b];

#[test]
fn reserved_mxcsr_bits_are_refused() {
    for bit in 0..32 {
        let value = 0x1f80_u32 | 1 << bit;
        let expected = (bit >= 16).then_some(GP);
        let (loaded, _) = on_memory(&LDMXCSR, &value.to_le_bytes(), |_| {});
        assert_eq!(loaded.vector, expected, "LDMXCSR {value:#x}");
        assert_eq!(loaded.state.mxcsr, if bit < 16 { value } else { 0x1f80 });
        let mut image = [0; 576];
        image[24..28].copy_from_slice(&value.to_le_bytes());
        assert_eq!(on_memory(&FXRSTOR, &image, |_| {}).0.vector, expected, "FXRSTOR {value:#x}");
        let with = |mask| on_memory(&XRSTOR, &image, move |state| state.gpr[0] = mask).0.vector;
        assert_eq!((with(1), with(2)), (None, expected), "XRSTOR {value:#x}");
    }
}

#[test]
fn xrstor_refuses_malformed_headers() {
    // (offset in the XSAVE header, value of the byte, whether XRSTOR refuses the header)
    for (at, value, refused) in [
        (0, 3, false),
        (0, 4, true),
        (7, 0x80, true),
        (8, 1, true),
        (15, 0x80, true),
        (16, 1, true),
        (23, 1, true),
        (24, 1, false),
    ] {
        let mut image = [0; 576];
        image[512 + at] = value;
        let (outcome, _) = on_memory(&XRSTOR, &image, |state| state.gpr[0] = 3);
        assert_eq!(outcome.vector, refused.then_some(GP), "header[{at}] = {value:#x}");
    }
}

#[test]
fn xrstor_initialises_what_the_image_lacks() {
    let mut image = [0xa5; 576];
    image[24..28].copy_from_slice(&0x9f80_u32.to_le_bytes());
    image[512..].fill(0);
    let (outcome, _) = on_memory(&XRSTOR, &image, |state| {
        state.gpr[0] = 3;
        state.xmm = [7; 16];
        state.fpu.status = 0x3800;
    });
    assert_eq!(outcome.vector, None);
    let after = outcome.state;
    assert_eq!((after.xmm, after.mxcsr), ([0; 16], 0x9f80));
    assert_eq!((after.fpu.control, after.fpu.status, after.fpu.valid), (0x37f, 0, 0));
}

#[test]
fn xsave_adds_to_the_header_and_touches_only_what_was_asked() {
    let before = [0x5a; 640];
    let (outcome, after) = on_memory(&XSAVE, &before, |state| {
        state.gpr[0] = 2;
        state.xmm = [0; 16];
    });
    assert_eq!(outcome.vector, None);
    let changed: Vec<usize> = (0..640).filter(|&n| after[n] != 0x5a).collect();
    assert!(changed.iter().all(|&n| (24..32).contains(&n) || (160..416).contains(&n)));
    assert_eq!(after[512], 0x5a | 2);
}

#[test]
fn outside_64_bit_mode_there_are_eight_xmm_registers() {
    let compatibility = |state: &mut CpuState| {
        state.segments[1].attributes = 0xc09b;
        state.xmm = [7; 16];
    };
    let (saved, image) = on_memory(&FXSAVE, &[0x5a; 640], compatibility);
    assert_eq!(saved.vector, None);
    assert_eq!(image[160], 7);
    assert!(image[288..].iter().all(|&byte| byte == 0x5a));
    let (restored, _) = on_memory(&FXRSTOR, &[0; 640], compatibility);
    assert_eq!((restored.state.xmm[7], restored.state.xmm[8]), (0, 7));
}

#[test]
fn segment_limits_hold_for_large_operands() {
    // movups xmm0, [ebx], where DS ends inside the operand, at its end, or after it
    for (last, vector) in [(14, Some(GP)), (15, None), (16, None)] {
        let (outcome, _) = on_memory(&[0x0f, 0x10, 0x03], &[], |state| {
            state.segments[1].attributes = 0xc09b;
            state.segments[3].limit = (DATA + last) as u32;
        });
        assert_eq!(outcome.vector, vector, "limit at {last}");
    }
}

#[test]
fn masked_stores_fault_for_their_whole_operand() {
    // The manual leaves this case to the implementation; the test expects the behaviour of processors.
    const MASKMOVDQU: [u8; 4] = [0x66, 0x0f, 0xf7, 0xca];
    for mask in [0x80_u128 << 56, 0x80 << 64, 0] {
        let (outcome, _) = on_memory(&MASKMOVDQU, &[], |state| {
            state.gpr[7] = DATA + DATA_BYTES - 8;
            state.xmm[2] = mask;
        });
        assert_eq!(outcome.vector, Some(PF), "mask {mask:#x}");
    }
}

#[test]
fn vex_encodings_are_undefined() {
    for bytes in [&[0xc5, 0xf8, 0x28, 0xc1][..], &[0xc5, 0xf1, 0xfe, 0xc2], &[0xc4, 0xe2, 0x79, 0x18, 0xc1]] {
        assert_eq!(on_memory(bytes, &[], |_| {}).0.vector, Some(UD), "{bytes:x?}");
    }
}
