//! Tests which encodings each model executes: a sweep over the opcode maps, with prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use cpu_model::registers::cr4;
use cpu_model::{CpuModel, Features};
use guest_ram::GuestRam;
use iced_x86::{Code, CpuidFeature as F};

use super::*;
use crate::bus::EmptyBus;
use crate::core::{CodeSize, Core};
use crate::exception::UD;

const GOLDEN: &str = include_str!("../../tests/golden/instructions.txt");

const SIZES: [CodeSize; 3] = [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64];

/// Calls `visit` with the bytes of encodings, followed by zeroes. Visits every opcode and ModR/M byte of the legacy
/// maps, and a sample of ModR/M bytes of the VEX, XOP and EVEX maps.
fn sweep(size: CodeSize, mut visit: impl FnMut(&[u8])) {
    let rex: &[&[u8]] = if size == CodeSize::Bits64 { &[&[], &[0x48]] } else { &[&[]] };
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let prefixes: [&[u8]; 4] = [&[], &[0x66], &[0xf3], &[0xf2]];
    for prefix in prefixes {
        for (rex, map) in rex.iter().flat_map(|rex| maps.map(|map| (rex, map))) {
            each_opcode(&[prefix, *rex, map].concat(), 1, &mut visit);
        }
    }
    for bits in 0..32 {
        // The fields of the prefix: W, the vector length (L or L'L), and the implied legacy prefix.
        let (w, length, implied) = ((bits >> 4 & 1) << 7, bits >> 2 & 3, bits & 3);
        for map in [1, 2, 3, 5, 6] {
            if length < 2 && map <= 3 {
                each_opcode(&[0xc4, 0xe0 | map, w | 0x78 | length << 2 | implied], 8, &mut visit);
            }
            each_opcode(&[0x62, 0xf0 | map, w | 0x7c | implied, length << 5 | 8], 8, &mut visit);
        }
        for map in [8, 9, 10] {
            if length < 2 {
                each_opcode(&[0x8f, 0xe0 | map, w | 0x78 | length << 2 | implied], 8, &mut visit);
            }
        }
    }
}

/// Visits every opcode after `head` with every ModR/M byte whose number is a multiple of `step`.
fn each_opcode(head: &[u8], step: usize, visit: &mut impl FnMut(&[u8])) {
    let mut bytes = [0; MAX_LENGTH];
    bytes[..head.len()].copy_from_slice(head);
    for opcode in 0..=0xff {
        for modrm in (0..=0xff).step_by(step) {
            bytes[head.len()] = opcode;
            bytes[head.len() + 1] = modrm;
            visit(&bytes);
        }
    }
}

/// The encodings of the sweep that a CPU model executes.
#[derive(Default)]
struct Executed {
    /// For each code size, the number of encodings that the model executes, and the number of encodings that
    /// `iced-x86` can decode.
    counts: Vec<(usize, usize)>,
    codes: BTreeSet<Code>,
}

impl Executed {
    /// Formats the counts, and the names of the instructions grouped by the features that they need.
    fn text(&self) -> String {
        let mut names = BTreeMap::<String, BTreeSet<String>>::new();
        for code in &self.codes {
            names.entry(format!("{:?}", code.cpuid_features())).or_default().insert(format!("{code:?}"));
        }
        let mut text = String::new();
        for (size, (executed, all)) in SIZES.iter().zip(&self.counts) {
            writeln!(text, "{size:?}: {executed} of {all} encodings").unwrap();
        }
        for (features, names) in names {
            writeln!(text, "{features}").unwrap();
            names.iter().for_each(|name| writeln!(text, "    {name}").unwrap());
        }
        text
    }
}

/// Returns, for each model, the encodings of the sweep that the model executes.
fn executed() -> [(CpuModel, Executed); 4] {
    let mut models = [CpuModel::V2, CpuModel::V2_1, CpuModel::V2Kvm, CpuModel::V2KvmTcg]
        .map(|model| (model, Executed::default()));
    for code_size in SIZES {
        models.iter_mut().for_each(|(_, executed)| executed.counts.push((0, 0)));
        sweep(code_size, |bytes| note(&mut models, code_size, bytes));
    }
    models
}

/// Notes which models execute an instruction. If a family lowers the instruction, at least one model must
/// execute it.
fn note(models: &mut [(CpuModel, Executed)], code_size: CodeSize, bytes: &[u8]) {
    let (mut is_lowered, mut is_executed) = (false, false);
    for (model, executed) in models {
        let mode = Mode { code_size, features: &model.description().features, yields: false };
        let instruction = Decoder::new(mode.bitness(), bytes, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return;
        }
        let insn = Insn::new(&instruction, bytes, mode, 0);
        let counts = executed.counts.last_mut().unwrap();
        counts.1 += 1;
        is_lowered = is_lowered || ops::lower(&insn).is_some();
        if op_of(&insn).is_some() {
            counts.0 += 1;
            executed.codes.insert(instruction.code());
            is_executed = true;
        }
    }
    assert_eq!(is_lowered, is_executed, "{bytes:02x?} in {code_size:?} code");
}

/// Each model's differences from `ttvm-v2`: the lines of the golden list that the model adds, and the lines that
/// the model lacks.
const OTHERWISE: [(CpuModel, &[&str], &[&str]); 4] = [
    (CpuModel::V2, &[], &[]),
    (CpuModel::V2_1, HINTS, TBM),
    (CpuModel::V2Kvm, HINTS, &[]),
    (CpuModel::V2KvmTcg, HINTS, &[]),
];
const HINTS: &[&str] = &[
    "    Cldemote_m8",
    "    Prefetchit0_m8",
    "    Prefetchit1_m8",
    "    Rdsspd_r32",
    "    Rdsspq_r64",
    "    Wbnoinvd",
    "[CET_SS]",
    "[CLDEMOTE]",
    "[PREFETCHITI]",
    "[WBNOINVD]",
];
const TBM: &[&str] = &["    XOP_Bextr_r32_rm32_imm32", "    XOP_Bextr_r64_rm64_imm32", "[TBM]"];

/// The golden list was made before CPU models had lists of features. At that time, each model executed every
/// instruction for which ttvm had a lowering function.
#[test]
fn what_a_model_executes_never_changes() {
    let names =
        |text: &str| text.lines().filter(|line| !line.ends_with("encodings")).map(str::to_string).collect();
    let golden: BTreeSet<String> = names(GOLDEN);
    for ((model, executed), (of, more, fewer)) in executed().into_iter().zip(OTHERWISE) {
        assert_eq!(model, of);
        let text = executed.text();
        let now: BTreeSet<String> = names(&text);
        assert_eq!(now.difference(&golden).collect::<Vec<_>>(), more, "{}", model.name());
        assert_eq!(golden.difference(&now).collect::<Vec<_>>(), fewer, "{}", model.name());
        if model == CpuModel::V2 {
            assert_eq!(text, GOLDEN);
        }
    }
}

/// A list of fewer features than any CPU model has.
const FEW: Features = Features::of(&[F::INTEL8086, F::INTEL386, F::X64, F::SSE]);

#[test]
fn an_instruction_whose_features_are_missing_is_undefined() {
    for (what, bytes, is_there) in [
        ("add rax, rbx", &[0x48, 0x01, 0xd8][..], true),
        ("addps xmm0, xmm1", &[0x0f, 0x58, 0xc1], true),
        ("addpd xmm0, xmm1", &[0x66, 0x0f, 0x58, 0xc1], false),
        ("popcnt eax, ebx", &[0xf3, 0x0f, 0xb8, 0xc3], false),
        ("andn eax, ebx, ecx", &[0xc4, 0xe2, 0x60, 0xf2, 0xc1], false),
        ("fld1", &[0xd9, 0xe8], false),
        ("rdtscp", &[0x0f, 0x01, 0xf9], false),
    ] {
        let all = Mode {
            code_size: CodeSize::Bits64,
            features: &CpuModel::V2.description().features,
            yields: false,
        };
        assert!(!is_undefined(bytes, all), "{what} on ttvm-v2");
        assert_eq!(
            is_undefined(bytes, Mode { features: &FEW, ..all }),
            !is_there,
            "{what} with few features"
        );
    }
}

/// Whether an instruction is decoded to an op that raises #UD and is as long as the instruction.
fn is_undefined(bytes: &[u8], mode: Mode) -> bool {
    let Decoded::Op(op) = decode(bytes, 0x1000, 0, mode) else { panic!("{bytes:02x?} is not complete") };
    assert_eq!(op.length(), bytes.len() as u64);
    let mut core = Core::new(GuestRam::new(1 << 20).unwrap());
    core.state.cr4 = cr4::OSFXSR;
    let done = (op.handler)(&mut core, &mut EmptyBus::default(), &op);
    done.is_err() && core.exception.vector == UD
}
