//! MUL, IMUL, DIV, IDIV.
//!
//! Flags that the manuals leave undefined have the values of Intel's processors since Skylake. Multiplications set
//! SF and PF from the low half and clear ZF and AF. Divisions change no flags.

use iced_x86::Mnemonic;

use super::select::by_width;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::{LazyFlags, carry_overflow};
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::Width;
use crate::slots::HIGH_BYTE;

/// Reads the source. If the op has the flag `Op::FAMILY`, the source is in memory, otherwise in a register.
#[inline(always)]
fn source<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<u64> {
    if op.flags & Op::FAMILY == 0 {
        return Ok(W::get(core, op.r1));
    }
    let address = core.linear(op, W::BYTES)?;
    W::load(core, bus, address)
}

#[inline(always)]
fn set_flags<W: Width>(core: &mut Core, low: u64, significant: bool) {
    // Setting bit 32 of the result keeps ZF clear, and does not affect SF and PF.
    core.flags = LazyFlags { result: W::sext(low) | 1 << 32, aux: carry_overflow(significant, significant) };
}

/// Writes a double-width result to AX, DX:AX, EDX:EAX or RDX:RAX.
#[inline(always)]
fn set_pair<W: Width>(core: &mut Core, low: u64, high: u64) {
    W::set(core, 0, low);
    W::set(core, if W::BITS == 8 { HIGH_BYTE } else { 2 }, high);
}

/// MUL and one-operand IMUL.
fn multiply<const SIGNED: bool, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let b = source::<W>(core, bus, op)?;
    let a = W::get(core, 0);
    let product = if SIGNED { signed_product::<W>(a, b) } else { u128::from(a) * u128::from(b) };
    let (low, high) = (product as u64 & W::MASK, (product >> W::BITS) as u64 & W::MASK);
    let filler = if SIGNED && low & W::SIGN != 0 { W::MASK } else { 0 };
    set_pair::<W>(core, low, high);
    set_flags::<W>(core, low, high != filler);
    Ok(())
}

#[inline(always)]
fn signed_product<W: Width>(a: u64, b: u64) -> u128 {
    (i128::from(W::sext(a) as i64) * i128::from(W::sext(b) as i64)) as u128
}

/// Two- and three-operand IMUL: `r0 = first * second`.
#[inline(always)]
fn imul_into<W: Width>(core: &mut Core, register: u8, a: u64, b: u64) {
    let product = signed_product::<W>(a, b);
    let low = product as u64 & W::MASK;
    W::set(core, register, low);
    set_flags::<W>(core, low, i128::from(W::sext(low) as i64) as u128 != product);
}

fn imul_two<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let b = source::<W>(core, bus, op)?;
    imul_into::<W>(core, op.r0, W::get(core, op.r0), b);
    Ok(())
}

fn imul_three<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let a = source::<W>(core, bus, op)?;
    imul_into::<W>(core, op.r0, a, op.imm);
    Ok(())
}

#[inline(always)]
fn dividend<W: Width>(core: &Core) -> u128 {
    let high = if W::BITS == 8 { W::get(core, HIGH_BYTE) } else { W::get(core, 2) };
    u128::from(high) << W::BITS | u128::from(W::get(core, 0))
}

fn divide<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let divisor = source::<W>(core, bus, op)?;
    let dividend = dividend::<W>(core);
    if divisor == 0 || dividend >> W::BITS >= u128::from(divisor) {
        return Err(core.fault(crate::exception::DE));
    }
    let (quotient, remainder) = if W::BITS == 64 {
        ((dividend / u128::from(divisor)) as u64, (dividend % u128::from(divisor)) as u64)
    } else {
        let narrow = dividend as u64;
        (narrow / divisor, narrow % divisor)
    };
    set_pair::<W>(core, quotient, remainder);
    Ok(())
}

fn divide_signed<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let divisor = i128::from(W::sext(source::<W>(core, bus, op)?) as i64);
    let shift = 128 - 2 * W::BITS;
    let dividend = (dividend::<W>(core) << shift) as i128 >> shift;
    if divisor == 0 {
        return Err(core.fault(crate::exception::DE));
    }
    let (quotient, remainder) = (dividend.wrapping_div(divisor), dividend.wrapping_rem(divisor));
    if i128::from(W::sext(quotient as u64) as i64) != quotient {
        return Err(core.fault(crate::exception::DE));
    }
    set_pair::<W>(core, quotient as u64 & W::MASK, remainder as u64 & W::MASK);
    Ok(())
}

fn with_source(insn: &Insn<'_>, n: u32, op: Op) -> Op {
    if insn.is_memory(n) { insn.address(op).with(Op::FAMILY) } else { op.r1(insn.register(n)) }
}

macro_rules! by_width_signed {
    ($size:expr, $signed:literal) => {{
        use crate::ops::width::{W8, W16, W32, W64};
        match $size {
            1 => multiply::<$signed, W8> as crate::op::Handler,
            2 => multiply::<$signed, W16>,
            4 => multiply::<$signed, W32>,
            _ => multiply::<$signed, W64>,
        }
    }};
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let handler = match (insn.mnemonic(), insn.raw.op_count()) {
        (Mnemonic::Mul, _) => by_width_signed!(insn.size(0), false),
        (Mnemonic::Imul, 1) => by_width_signed!(insn.size(0), true),
        (Mnemonic::Imul, 2) => {
            return Some(
                with_source(insn, 1, Op::new(by_width!(insn.size(0), imul_two))).r0(insn.register(0)),
            );
        }
        (Mnemonic::Imul, _) => {
            let op = Op::new(by_width!(insn.size(0), imul_three)).imm(insn.immediate(2));
            return Some(with_source(insn, 1, op).r0(insn.register(0)));
        }
        (Mnemonic::Div, _) => by_width!(insn.size(0), divide),
        (Mnemonic::Idiv, _) => by_width!(insn.size(0), divide_signed),
        _ => return None,
    };
    Some(with_source(insn, 0, Op::new(handler)))
}
