//! Instructions on XMM registers whose results are the same on every processor: moves, logic, integers.

use iced_x86::{Code, Instruction, OpKind};

use super::asm::{B4, B8, Size};

/// An instruction's opcode: the mandatory prefix, and the map after 0Fh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    pub prefix: u8,
    pub map: u8,
    pub number: u8,
    pub immediate: bool,
}

/// Forms of translated instructions on XMM registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The first operand becomes a function of both operands. If the second operand is in memory, it must be
    /// aligned.
    Two(Opcode),
    /// The first operand becomes a function of the second.
    From(Opcode),
    /// A shift of a register by an immediate: opcode and `/n`.
    Shift(u8, u8),
    /// A move of all 16 bytes. `aligned` says whether memory must be aligned.
    Whole { aligned: bool },
    /// A move of the low bytes from memory or a register, with zeros above them.
    Low(Size),
    /// A move of the low bytes to memory or a general register.
    StoreLow(Size),
    /// A move from or to a general register.
    FromGeneral(Size),
    /// A move of the low bytes of a register; the other bytes stay.
    Merge(Size),
    /// A load of the upper half from memory.
    LoadHigh,
    /// A load of the lower half from memory; the upper half stays.
    LoadHalf,
    /// A store of the upper half to memory.
    StoreHigh,
    /// PMOVMSKB.
    Mask,
}

/// The form of an instruction, if it has one.
pub(super) fn form_of(instruction: &Instruction) -> Option<Form> {
    use Code::*;
    let two = |number| Form::Two(Opcode { prefix: 0x66, map: 0, number, immediate: false });
    let plain = |number| Form::Two(Opcode { prefix: 0, map: 0, number, immediate: false });
    Some(match instruction.code() {
        Movaps_xmm_xmmm128 | Movapd_xmm_xmmm128 | Movdqa_xmm_xmmm128 | Movaps_xmmm128_xmm
        | Movapd_xmmm128_xmm | Movdqa_xmmm128_xmm | Movntdqa_xmm_m128 | Movntdq_m128_xmm
        | Movntps_m128_xmm | Movntpd_m128_xmm => Form::Whole { aligned: true },
        Movups_xmm_xmmm128 | Movupd_xmm_xmmm128 | Movdqu_xmm_xmmm128 | Movups_xmmm128_xmm
        | Movupd_xmmm128_xmm | Movdqu_xmmm128_xmm | Lddqu_xmm_m128 => Form::Whole { aligned: false },
        Movq_xmm_xmmm64 => Form::Low(B8),
        Movq_xmmm64_xmm if is_memory(instruction, 0) => Form::StoreLow(B8),
        Movq_xmmm64_xmm => Form::Low(B8),
        Movd_xmm_rm32 if is_memory(instruction, 1) => Form::Low(B4),
        Movd_xmm_rm32 => Form::FromGeneral(B4),
        Movq_xmm_rm64 if is_memory(instruction, 1) => Form::Low(B8),
        Movq_xmm_rm64 => Form::FromGeneral(B8),
        Movd_rm32_xmm => Form::StoreLow(B4),
        Movq_rm64_xmm => Form::StoreLow(B8),
        Movss_xmm_xmmm32 if is_memory(instruction, 1) => Form::Low(B4),
        Movsd_xmm_xmmm64 if is_memory(instruction, 1) => Form::Low(B8),
        Movss_xmmm32_xmm if is_memory(instruction, 0) => Form::StoreLow(B4),
        Movsd_xmmm64_xmm if is_memory(instruction, 0) => Form::StoreLow(B8),
        Movss_xmm_xmmm32 | Movss_xmmm32_xmm => Form::Merge(B4),
        Movsd_xmm_xmmm64 | Movsd_xmmm64_xmm => Form::Merge(B8),
        Movhps_xmm_m64 | Movhpd_xmm_m64 => Form::LoadHigh,
        Movlps_xmm_m64 | Movlpd_xmm_m64 => Form::LoadHalf,
        Movhps_m64_xmm | Movhpd_m64_xmm => Form::StoreHigh,
        Movlps_m64_xmm | Movlpd_m64_xmm => Form::StoreLow(B8),
        Movhlps_xmm_xmm => plain(0x12),
        Movlhps_xmm_xmm => plain(0x16),
        Pmovmskb_r32_xmm | Pmovmskb_r64_xmm => Form::Mask,
        Andps_xmm_xmmm128 | Andpd_xmm_xmmm128 => plain(0x54),
        Andnps_xmm_xmmm128 | Andnpd_xmm_xmmm128 => plain(0x55),
        Orps_xmm_xmmm128 | Orpd_xmm_xmmm128 => plain(0x56),
        Xorps_xmm_xmmm128 | Xorpd_xmm_xmmm128 => plain(0x57),
        Unpcklps_xmm_xmmm128 => plain(0x14),
        Unpckhps_xmm_xmmm128 => plain(0x15),
        Unpcklpd_xmm_xmmm128 => two(0x14),
        Unpckhpd_xmm_xmmm128 => two(0x15),
        Shufps_xmm_xmmm128_imm8 => Form::Two(Opcode { prefix: 0, map: 0, number: 0xc6, immediate: true }),
        Shufpd_xmm_xmmm128_imm8 => Form::Two(Opcode { prefix: 0x66, map: 0, number: 0xc6, immediate: true }),
        Pshufd_xmm_xmmm128_imm8 => Form::From(Opcode { prefix: 0x66, map: 0, number: 0x70, immediate: true }),
        Pshufhw_xmm_xmmm128_imm8 => {
            Form::From(Opcode { prefix: 0xf3, map: 0, number: 0x70, immediate: true })
        }
        Pshuflw_xmm_xmmm128_imm8 => {
            Form::From(Opcode { prefix: 0xf2, map: 0, number: 0x70, immediate: true })
        }
        Psrlw_xmm_imm8 => Form::Shift(0x71, 2),
        Psraw_xmm_imm8 => Form::Shift(0x71, 4),
        Psllw_xmm_imm8 => Form::Shift(0x71, 6),
        Psrld_xmm_imm8 => Form::Shift(0x72, 2),
        Psrad_xmm_imm8 => Form::Shift(0x72, 4),
        Pslld_xmm_imm8 => Form::Shift(0x72, 6),
        Psrlq_xmm_imm8 => Form::Shift(0x73, 2),
        Psrldq_xmm_imm8 => Form::Shift(0x73, 3),
        Psllq_xmm_imm8 => Form::Shift(0x73, 6),
        Pslldq_xmm_imm8 => Form::Shift(0x73, 7),
        Punpcklbw_xmm_xmmm128 => two(0x60),
        Punpcklwd_xmm_xmmm128 => two(0x61),
        Punpckldq_xmm_xmmm128 => two(0x62),
        Packsswb_xmm_xmmm128 => two(0x63),
        Pcmpgtb_xmm_xmmm128 => two(0x64),
        Pcmpgtw_xmm_xmmm128 => two(0x65),
        Pcmpgtd_xmm_xmmm128 => two(0x66),
        Packuswb_xmm_xmmm128 => two(0x67),
        Punpckhbw_xmm_xmmm128 => two(0x68),
        Punpckhwd_xmm_xmmm128 => two(0x69),
        Punpckhdq_xmm_xmmm128 => two(0x6a),
        Packssdw_xmm_xmmm128 => two(0x6b),
        Punpcklqdq_xmm_xmmm128 => two(0x6c),
        Punpckhqdq_xmm_xmmm128 => two(0x6d),
        Pcmpeqb_xmm_xmmm128 => two(0x74),
        Pcmpeqw_xmm_xmmm128 => two(0x75),
        Pcmpeqd_xmm_xmmm128 => two(0x76),
        Psrlw_xmm_xmmm128 => two(0xd1),
        Psrld_xmm_xmmm128 => two(0xd2),
        Psrlq_xmm_xmmm128 => two(0xd3),
        Paddq_xmm_xmmm128 => two(0xd4),
        Pmullw_xmm_xmmm128 => two(0xd5),
        Psubusb_xmm_xmmm128 => two(0xd8),
        Psubusw_xmm_xmmm128 => two(0xd9),
        Pminub_xmm_xmmm128 => two(0xda),
        Pand_xmm_xmmm128 => two(0xdb),
        Paddusb_xmm_xmmm128 => two(0xdc),
        Paddusw_xmm_xmmm128 => two(0xdd),
        Pmaxub_xmm_xmmm128 => two(0xde),
        Pandn_xmm_xmmm128 => two(0xdf),
        Pavgb_xmm_xmmm128 => two(0xe0),
        Psraw_xmm_xmmm128 => two(0xe1),
        Psrad_xmm_xmmm128 => two(0xe2),
        Pavgw_xmm_xmmm128 => two(0xe3),
        Pmulhuw_xmm_xmmm128 => two(0xe4),
        Pmulhw_xmm_xmmm128 => two(0xe5),
        Psubsb_xmm_xmmm128 => two(0xe8),
        Psubsw_xmm_xmmm128 => two(0xe9),
        Pminsw_xmm_xmmm128 => two(0xea),
        Por_xmm_xmmm128 => two(0xeb),
        Paddsb_xmm_xmmm128 => two(0xec),
        Paddsw_xmm_xmmm128 => two(0xed),
        Pmaxsw_xmm_xmmm128 => two(0xee),
        Pxor_xmm_xmmm128 => two(0xef),
        Psllw_xmm_xmmm128 => two(0xf1),
        Pslld_xmm_xmmm128 => two(0xf2),
        Psllq_xmm_xmmm128 => two(0xf3),
        Pmuludq_xmm_xmmm128 => two(0xf4),
        Pmaddwd_xmm_xmmm128 => two(0xf5),
        Psadbw_xmm_xmmm128 => two(0xf6),
        Psubb_xmm_xmmm128 => two(0xf8),
        Psubw_xmm_xmmm128 => two(0xf9),
        Psubd_xmm_xmmm128 => two(0xfa),
        Psubq_xmm_xmmm128 => two(0xfb),
        Paddb_xmm_xmmm128 => two(0xfc),
        Paddw_xmm_xmmm128 => two(0xfd),
        Paddd_xmm_xmmm128 => two(0xfe),
        Pshufb_xmm_xmmm128 if is_x86_feature_detected!("ssse3") => {
            Form::Two(Opcode { prefix: 0x66, map: 0x38, number: 0x00, immediate: false })
        }
        Palignr_xmm_xmmm128_imm8 if is_x86_feature_detected!("ssse3") => {
            Form::Two(Opcode { prefix: 0x66, map: 0x3a, number: 0x0f, immediate: true })
        }
        _ => return None,
    })
}

fn is_memory(instruction: &Instruction, n: u32) -> bool {
    instruction.op_kind(n) == OpKind::Memory
}
