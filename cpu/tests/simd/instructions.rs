//! Every SIMD instruction, and random encodings of each.

use iced_x86::{
    Code, CpuidFeature, Encoder, EncodingKind, Instruction, Mnemonic, OpCodeOperandKind, OpKind, Register,
};

use seeded::Operands;

/// An instruction with chosen registers and address.
pub struct Encoded {
    pub instruction: Instruction,
    pub bytes: Vec<u8>,
    /// The base register of the memory operand, if there is one.
    pub base: Option<usize>,
    pub displacement: u64,
}

/// All SIMD and state-saving instructions without VEX in 64-bit mode.
pub fn all() -> impl Iterator<Item = Code> {
    Code::values().filter(|&code| {
        let info = code.op_code();
        info.encoding() == EncodingKind::Legacy
            && info.mode64()
            && code.cpuid_features().iter().any(|&feature| ours(feature))
            && !elsewhere(code.mnemonic())
    })
}

fn ours(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    matches!(feature, MMX | SSE | SSE2 | SSE3 | SSSE3 | SSE4_1 | SSE4_2 | AES | PCLMULQDQ | FXSR | XSAVE)
}

/// Whether an instruction has an SSE feature bit but is not a SIMD instruction. These tests leave it out.
fn elsewhere(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Sfence
            | Lfence
            | Mfence
            | Crc32
            | Fisttp
            | Monitor
            | Mwait
            | Pause
            | Clflush
            | Xgetbv
            | Xsetbv
    )
}

/// Whether a memory operand of 16 bytes or more may be misaligned.
pub fn allows_misaligned(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Movups
            | Movupd
            | Movdqu
            | Lddqu
            | Pcmpestri
            | Pcmpestri64
            | Pcmpestrm
            | Pcmpestrm64
            | Pcmpistri
            | Pcmpistrm
            | Maskmovdqu
    )
}

/// Whether the instruction has a form with a memory operand. If `memory` is false: whether it has a form without
/// one.
pub fn has_form(code: Code, memory: bool) -> bool {
    use OpCodeOperandKind::*;
    let kinds = code.op_code().op_kinds();
    let either = kinds.iter().any(|kind| matches!(kind, r32_or_mem | r64_or_mem | mm_or_mem | xmm_or_mem));
    let only_memory = kinds.iter().any(|kind| matches!(kind, mem | seg_rDI));
    either || only_memory == memory
}

/// General registers that instructions under test may use.
const GENERAL: [usize; 14] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// Chooses registers, displacement and immediate, and encodes the instruction for an address.
pub fn encode(code: Code, memory: bool, address: u64, random: &mut Operands) -> Encoded {
    let mut instruction = Instruction::new();
    instruction.set_code(code);
    let mut chosen = (None, 0);
    for (n, &kind) in code.op_code().op_kinds().iter().enumerate() {
        set_operand(&mut instruction, n as u32, kind, memory, random, &mut chosen);
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&instruction, address).unwrap_or_else(|error| panic!("{code:?}: {error}"));
    Encoded { instruction, bytes: encoder.take_buffer(), base: chosen.0, displacement: chosen.1 }
}

fn set_operand(
    instruction: &mut Instruction,
    n: u32,
    kind: OpCodeOperandKind,
    memory: bool,
    random: &mut Operands,
    chosen: &mut (Option<usize>, u64),
) {
    use OpCodeOperandKind::*;
    let numbered = |first: Register, number: u64| {
        Register::try_from(first as usize + number as usize).expect("registers are numbered in a row")
    };
    let register = match kind {
        mem => Option::None,
        r32_or_mem | r64_or_mem | mm_or_mem | xmm_or_mem if memory => Option::None,
        r32_reg | r32_rm | r32_or_mem => Some(numbered(Register::EAX, random.pick(&GENERAL) as u64)),
        r64_reg | r64_rm | r64_or_mem => Some(numbered(Register::RAX, random.pick(&GENERAL) as u64)),
        mm_reg | mm_rm | mm_or_mem => Some(numbered(Register::MM0, random.below(8))),
        xmm_reg | xmm_rm | xmm_or_mem => Some(numbered(Register::XMM0, random.below(16))),
        imm8 => {
            instruction.set_op_kind(n, OpKind::Immediate8);
            instruction.set_immediate8(random.bits() as u8);
            return;
        }
        seg_rDI => {
            *chosen = (Some(7), 0);
            instruction.set_op_kind(n, OpKind::MemorySegRDI);
            return;
        }
        other => panic!("operand kind {other:?}"),
    };
    if let Some(register) = register {
        instruction.set_op_kind(n, OpKind::Register);
        instruction.set_op_register(n, register);
        return;
    }
    // RAX and RDX may hold the component mask of XSAVE, so they are not base registers.
    let base = random.pick(&GENERAL[3..]);
    *chosen = (Some(base), random.below(256));
    instruction.set_op_kind(n, OpKind::Memory);
    instruction.set_memory_base(numbered(Register::RAX, base as u64));
    instruction.set_memory_displ_size(8);
    instruction.set_memory_displacement64(chosen.1);
}
