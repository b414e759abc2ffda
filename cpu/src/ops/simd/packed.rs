//! Handlers for packed integer instructions: one generic handler per operand form, monomorphised for each
//! operation of [`crate::simd`].

use iced_x86::Mnemonic;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::simd::{Packed, aes, arith, compare, horizontal, pack, shift, shuffle};

/// The handlers of one operation, one for each class of the destination register and each kind of the source.
struct Forms {
    xmm_reg: Handler,
    /// The source is an aligned 16-byte memory operand.
    xmm_mem: Handler,
    /// A memory operand of less than 16 bytes, which is zero-extended. `aux` has its size.
    xmm_small: Handler,
    /// The source is the immediate, for shift counts.
    xmm_imm: Handler,
    mm_reg: Handler,
    mm_mem: Handler,
    mm_small: Handler,
    mm_imm: Handler,
}

const fn forms<P: Packed>() -> Forms {
    Forms {
        xmm_reg: xmm_reg::<P>,
        xmm_mem: xmm_mem::<P>,
        xmm_small: xmm_small::<P>,
        xmm_imm: xmm_imm::<P>,
        mm_reg: mm_reg::<P>,
        mm_mem: mm_mem::<P>,
        mm_small: mm_small::<P>,
        mm_imm: mm_imm::<P>,
    }
}

#[inline(always)]
fn apply_xmm<P: Packed>(core: &mut Core, op: &Op, source: [u8; 16]) {
    let new = P::apply(core.xmm_bytes(op.r0), source, op.imm as u8);
    core.set_xmm_bytes(op.r0, new);
}

#[inline(always)]
fn apply_mm<P: Packed>(core: &mut Core, op: &Op, source: u64) {
    let old = core.mm(op.r0).to_le_bytes();
    let new = P::apply(old, source.to_le_bytes(), op.imm as u8);
    core.set_mm(op.r0, u64::from_le_bytes(new));
}

fn xmm_reg<P: Packed>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    apply_xmm::<P>(core, op, core.xmm_bytes(op.r1));
    Ok(())
}

fn xmm_mem<P: Packed>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let address = core.linear(op, 16)?;
    core.require_aligned(address, 16)?;
    match core.fast_vector(address) {
        Some(source) => apply_xmm::<P>(core, op, source),
        None => return xmm_mem_slow::<P>(core, bus, op, address),
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn xmm_mem_slow<P: Packed>(core: &mut Core, bus: &mut dyn Bus, op: &Op, address: u64) -> Res<()> {
    let source = core.load_u128(bus, address)?;
    apply_xmm::<P>(core, op, source.to_le_bytes());
    Ok(())
}

fn xmm_small<P: Packed>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let address = core.linear(op, u64::from(op.aux))?;
    let source = core.load_sized(bus, address, u64::from(op.aux))?;
    apply_xmm::<P>(core, op, u128::from(source).to_le_bytes());
    Ok(())
}

fn xmm_imm<P: Packed>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    apply_xmm::<P>(core, op, u128::from(op.imm as u8).to_le_bytes());
    Ok(())
}

fn mm_reg<P: Packed>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    apply_mm::<P>(core, op, core.mm(op.r1));
    Ok(())
}

fn mm_mem<P: Packed>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    let source = core.load_quad(bus, op)?;
    apply_mm::<P>(core, op, source);
    Ok(())
}

fn mm_small<P: Packed>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    let source = core.load_double(bus, op)?;
    apply_mm::<P>(core, op, source.into());
    Ok(())
}

fn mm_imm<P: Packed>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    apply_mm::<P>(core, op, (op.imm as u8).into());
    Ok(())
}

/// Lowers packed integer instructions, shuffles, logic (including floating-point logic) and AES.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let raw = insn.raw;
    if raw.op_count() < 2 || !raw.op0_register().is_vector_register() && !raw.op0_register().is_mm() {
        return None;
    }
    let forms = operation(insn.mnemonic())?;
    let xmm = raw.op0_register().is_xmm();
    let whole = if xmm { 16 } else { 8 };
    let handler = if insn.is_register(1) {
        if xmm { forms.xmm_reg } else { forms.mm_reg }
    } else if insn.is_memory(1) {
        match (xmm, insn.size(1) == whole) {
            (true, true) => forms.xmm_mem,
            (true, false) => forms.xmm_small,
            (false, true) => forms.mm_mem,
            (false, false) => forms.mm_small,
        }
    } else if xmm {
        forms.xmm_imm
    } else {
        forms.mm_imm
    };
    let mut op = Op::new(handler).r0(insn.register(0));
    if insn.is_register(1) {
        op = op.r1(insn.register(1));
    } else if insn.is_memory(1) {
        op = insn.address(op).aux(insn.size(1) as u8);
    }
    let last = raw.op_count() - 1;
    if insn.is_immediate(last) {
        op = op.imm(insn.immediate(last) & 0xff);
    }
    Some(op)
}

/// Maps mnemonics to operations. `Alias => Type` means that the mnemonic `Alias` uses the operation of another
/// mnemonic.
macro_rules! operations {
    ($mnemonic:expr; [$($module:ident: $($name:ident)*;)*] $($alias:ident => $target:path;)*) => {
        match $mnemonic {
            $($(Mnemonic::$name => Some(forms::<$module::$name>()),)*)*
            $(Mnemonic::$alias => Some(forms::<$target>()),)*
            _ => None,
        }
    };
}

fn operation(mnemonic: Mnemonic) -> Option<Forms> {
    operations! { mnemonic; [
        arith: Paddb Paddw Paddd Paddq Paddsb Paddsw Paddusb Paddusw
            Psubb Psubw Psubd Psubq Psubsb Psubsw Psubusb Psubusw Pavgb Pavgw
            Pminub Pminuw Pminud Pminsb Pminsw Pminsd Pmaxub Pmaxuw Pmaxud Pmaxsb Pmaxsw Pmaxsd
            Pabsb Pabsw Pabsd Psignb Psignw Psignd
            Pmullw Pmulld Pmulhw Pmulhuw Pmulhrsw Pmuludq Pmuldq Pmaddwd Pmaddubsw
            Psadbw Mpsadbw Phminposuw;
        compare: Pcmpeqb Pcmpeqw Pcmpeqd Pcmpeqq Pcmpgtb Pcmpgtw Pcmpgtd Pcmpgtq Pand Pandn Por Pxor;
        horizontal: Phaddw Phaddd Phaddsw Phsubw Phsubd Phsubsw;
        shift: Psllw Pslld Psllq Psrlw Psrld Psrlq Psraw Psrad Pslldq Psrldq;
        pack: Packsswb Packuswb Packssdw Packusdw
            Punpcklbw Punpcklwd Punpckldq Punpcklqdq Punpckhbw Punpckhwd Punpckhdq Punpckhqdq
            Pmovsxbw Pmovsxbd Pmovsxbq Pmovsxwd Pmovsxwq Pmovsxdq
            Pmovzxbw Pmovzxbd Pmovzxbq Pmovzxwd Pmovzxwq Pmovzxdq;
        shuffle: Pshufb Pshufd Pshufw Pshuflw Pshufhw Shufps Shufpd Palignr Pblendw Blendps Blendpd
            Movddup Movsldup Movshdup;
        aes: Aesenc Aesenclast Aesdec Aesdeclast Aesimc Aeskeygenassist Pclmulqdq;
    ]
            Andps => compare::Pand; Andpd => compare::Pand;
            Andnps => compare::Pandn; Andnpd => compare::Pandn;
            Orps => compare::Por; Orpd => compare::Por;
            Xorps => compare::Pxor; Xorpd => compare::Pxor;
            Unpcklps => pack::Punpckldq; Unpcklpd => pack::Punpcklqdq;
            Unpckhps => pack::Punpckhdq; Unpckhpd => pack::Punpckhqdq;
    }
}
