//! ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, TEST, INC, DEC, NEG, NOT.

use iced_x86::Mnemonic;

use super::select::by_width;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::{LazyFlags, carry_overflow};
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::Width;

/// An operation with two operands that sets the six arithmetic flags.
trait Alu: 'static {
    /// Whether the result is written to the destination. CMP and TEST only set flags.
    const KEEPS_RESULT: bool = true;
    fn run<W: Width>(core: &mut Core, a: u64, b: u64) -> u64;
}

/// Sets the flags of an addition or subtraction from its result and its carry (or borrow) out of each bit.
/// Bits of `carries` above the width do not matter.
#[inline(always)]
pub(super) fn set_carries<W: Width>(core: &mut Core, result: u64, carries: u64) {
    core.flags = LazyFlags {
        result: W::sext(result),
        aux: (carries << (64 - W::BITS)) & (3 << 62) | carries >> 3 & 1,
    };
}

/// Sets the flags of a logical operation: CF, OF and (undefined in the manual) AF are zero.
#[inline(always)]
pub(super) fn set_logic<W: Width>(core: &mut Core, result: u64) {
    core.flags = LazyFlags { result: W::sext(result), aux: 0 };
}

/// `a + b + carry` with flags.
#[inline(always)]
pub(super) fn add<W: Width>(core: &mut Core, a: u64, b: u64, carry: u64) -> u64 {
    let r = a.wrapping_add(b).wrapping_add(carry);
    set_carries::<W>(core, r, (a & b) | ((a | b) & !r));
    r & W::MASK
}

/// `a - b - borrow` with flags.
#[inline(always)]
pub(super) fn sub<W: Width>(core: &mut Core, a: u64, b: u64, borrow: u64) -> u64 {
    let r = a.wrapping_sub(b).wrapping_sub(borrow);
    set_carries::<W>(core, r, (!a & b) | ((!a | b) & r));
    r & W::MASK
}

macro_rules! alu {
    ($name:ident, $keeps:literal, |$core:ident, $a:ident, $b:ident| $body:expr) => {
        struct $name;
        impl Alu for $name {
            const KEEPS_RESULT: bool = $keeps;
            #[inline(always)]
            fn run<W: Width>($core: &mut Core, $a: u64, $b: u64) -> u64 {
                $body
            }
        }
    };
}

alu!(Add, true, |core, a, b| add::<W>(core, a, b, 0));
alu!(Adc, true, |core, a, b| {
    let carry = u64::from(core.flags.cf());
    add::<W>(core, a, b, carry)
});
alu!(Sub, true, |core, a, b| sub::<W>(core, a, b, 0));
alu!(Sbb, true, |core, a, b| {
    let borrow = u64::from(core.flags.cf());
    sub::<W>(core, a, b, borrow)
});
alu!(Cmp, false, |core, a, b| sub::<W>(core, a, b, 0));
alu!(And, true, |core, a, b| logic::<W>(core, a & b));
alu!(Or, true, |core, a, b| logic::<W>(core, a | b));
alu!(Xor, true, |core, a, b| logic::<W>(core, a ^ b));
alu!(Test, false, |core, a, b| logic::<W>(core, a & b));

#[inline(always)]
fn logic<W: Width>(core: &mut Core, result: u64) -> u64 {
    set_logic::<W>(core, result);
    result
}

fn reg_reg<O: Alu, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let r = O::run::<W>(core, W::get(core, op.r0), W::get(core, op.r1));
    if O::KEEPS_RESULT {
        W::set(core, op.r0, r);
    }
    Ok(())
}

fn reg_imm<O: Alu, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let r = O::run::<W>(core, W::get(core, op.r0), op.imm);
    if O::KEEPS_RESULT {
        W::set(core, op.r0, r);
    }
    Ok(())
}

fn reg_mem<O: Alu, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let b = W::load(core, bus, address)?;
    let r = O::run::<W>(core, W::get(core, op.r0), b);
    if O::KEEPS_RESULT {
        W::set(core, op.r0, r);
    }
    Ok(())
}

fn mem_reg<O: Alu, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    mem_any::<O, W>(core, bus, op, W::get(core, op.r1))
}

fn mem_imm<O: Alu, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    mem_any::<O, W>(core, bus, op, op.imm)
}

#[inline(always)]
fn mem_any<O: Alu, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op, b: u64) -> Res<()> {
    if O::KEEPS_RESULT {
        let address = core.linear_write(op, W::BYTES)?;
        return W::update(core, bus, address, |core, a| O::run::<W>(core, a, b));
    }
    let address = core.linear(op, W::BYTES)?;
    let a = W::load(core, bus, address)?;
    O::run::<W>(core, a, b);
    Ok(())
}

fn lower_alu<O: Alu>(insn: &Insn<'_>) -> Option<Op> {
    let size = insn.size(0);
    let handler = match (insn.is_memory(0), insn.is_memory(1), insn.is_immediate(1)) {
        (false, false, false) => by_width!(size, reg_reg, O),
        (false, false, true) => by_width!(size, reg_imm, O),
        (false, true, _) => by_width!(size, reg_mem, O),
        (true, _, false) => by_width!(size, mem_reg, O),
        (true, _, true) => by_width!(size, mem_imm, O),
    };
    let mut op = insn.address(Op::new(handler));
    if insn.is_register(0) {
        op.r0 = insn.register(0);
    }
    if insn.is_register(1) {
        op.r1 = insn.register(1);
    }
    if insn.is_immediate(1) {
        op.imm = insn.immediate(1) & (u64::MAX >> (64 - 8 * size));
    }
    Some(op)
}

/// An operation with one operand.
trait Unary: 'static {
    fn run<W: Width>(core: &mut Core, a: u64) -> u64;
}

struct Inc;
impl Unary for Inc {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, a: u64) -> u64 {
        let carry = core.flags.cf();
        let r = add::<W>(core, a, 1, 0);
        keep_carry(core, carry);
        r
    }
}

struct Dec;
impl Unary for Dec {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, a: u64) -> u64 {
        let carry = core.flags.cf();
        let r = sub::<W>(core, a, 1, 0);
        keep_carry(core, carry);
        r
    }
}

/// INC and DEC do not change CF.
#[inline(always)]
fn keep_carry(core: &mut Core, carry: bool) {
    let overflow = core.flags.of();
    core.flags.aux = core.flags.aux & !(3 << 62) | carry_overflow(carry, overflow);
}

struct Neg;
impl Unary for Neg {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, a: u64) -> u64 {
        sub::<W>(core, 0, a, 0)
    }
}

struct Not;
impl Unary for Not {
    #[inline(always)]
    fn run<W: Width>(_: &mut Core, a: u64) -> u64 {
        !a & W::MASK
    }
}

fn unary_reg<O: Unary, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let r = O::run::<W>(core, W::get(core, op.r0));
    W::set(core, op.r0, r);
    Ok(())
}

fn unary_mem<O: Unary, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::update(core, bus, address, |core, a| O::run::<W>(core, a))
}

fn lower_unary<O: Unary>(insn: &Insn<'_>) -> Option<Op> {
    let size = insn.size(0);
    if insn.is_memory(0) {
        return Some(insn.address(Op::new(by_width!(size, unary_mem, O))));
    }
    Some(Op::new(by_width!(size, unary_reg, O)).r0(insn.register(0)))
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    match insn.mnemonic() {
        Mnemonic::Add => lower_alu::<Add>(insn),
        Mnemonic::Or => lower_alu::<Or>(insn),
        Mnemonic::Adc => lower_alu::<Adc>(insn),
        Mnemonic::Sbb => lower_alu::<Sbb>(insn),
        Mnemonic::And => lower_alu::<And>(insn),
        Mnemonic::Sub => lower_alu::<Sub>(insn),
        Mnemonic::Xor => lower_alu::<Xor>(insn),
        Mnemonic::Cmp => lower_alu::<Cmp>(insn),
        Mnemonic::Test => lower_alu::<Test>(insn),
        Mnemonic::Inc => lower_unary::<Inc>(insn),
        Mnemonic::Dec => lower_unary::<Dec>(insn),
        Mnemonic::Neg => lower_unary::<Neg>(insn),
        Mnemonic::Not => lower_unary::<Not>(insn),
        _ => None,
    }
}
