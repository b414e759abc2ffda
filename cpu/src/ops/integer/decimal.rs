//! Decimal adjustments and BOUND: legacy-mode instructions that raise #UD in 64-bit mode.

use iced_x86::Mnemonic;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::{self, LazyFlags};
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::{W8, W16, W32, Width};
use crate::slots::HIGH_BYTE;

/// Sets SF, ZF and PF from AL, AF to `adjust` and CF to `carry`. Clears OF, which is undefined.
fn set_flags(core: &mut Core, value: u8, adjust: bool, carry: bool) {
    let plain = LazyFlags { result: W8::sext(u64::from(value)), aux: 0 }.bits();
    let bits = plain | if adjust { flags::AF } else { 0 } | if carry { flags::CF } else { 0 };
    core.flags = LazyFlags::from_bits(bits);
}

/// DAA (`SUBTRACT` false) and DAS.
fn decimal_adjust<const SUBTRACT: bool>(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let old = core.reg8(0);
    let (old_carry, old_adjust) = (core.flags.cf(), core.flags.af());
    let mut value = old;
    let change = |value: u8, by: u8| if SUBTRACT { value.wrapping_sub(by) } else { value.wrapping_add(by) };
    let low = old & 15 > 9 || old_adjust;
    let high = old > 0x99 || old_carry;
    let mut carry = high;
    if low {
        // DAS also sets CF if the subtraction of 6 borrows.
        carry |= SUBTRACT && old < 6;
        value = change(value, 6);
    }
    if high {
        value = change(value, 0x60);
    }
    core.set_reg8(0, value);
    set_flags(core, value, low, carry);
    Ok(())
}

/// AAA (`SUBTRACT` false) and AAS.
fn ascii_adjust<const SUBTRACT: bool>(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let adjust = core.reg8(0) & 15 > 9 || core.flags.af();
    if adjust {
        let ax = core.reg16(0);
        core.set_reg16(0, if SUBTRACT { ax.wrapping_sub(0x106) } else { ax.wrapping_add(0x106) });
    }
    let value = core.reg8(0) & 15;
    core.set_reg8(0, value);
    set_flags(core, value, adjust, adjust);
    Ok(())
}

fn aam(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let (value, base) = (core.reg8(0), op.imm as u8);
    if base == 0 {
        return Err(core.fault(crate::exception::DE));
    }
    core.set_reg8(HIGH_BYTE, value / base);
    core.set_reg8(0, value % base);
    set_flags(core, value % base, false, false);
    Ok(())
}

fn aad(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = core.reg8(0).wrapping_add(core.reg8(HIGH_BYTE).wrapping_mul(op.imm as u8));
    core.set_reg16(0, u16::from(value));
    set_flags(core, value, false, false);
    Ok(())
}

fn salc(core: &mut Core, _: &mut dyn Bus, _: &Op) -> Res<()> {
    let value = if core.flags.cf() { 0xff } else { 0 };
    core.set_reg8(0, value);
    Ok(())
}

fn bound<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, 2 * W::BYTES)?;
    let lower = W::sext(W::load(core, bus, address)?) as i64;
    let upper = W::sext(W::load(core, bus, address.wrapping_add(W::BYTES))?) as i64;
    let index = W::sext(W::get(core, op.r0)) as i64;
    if index < lower || index > upper {
        return Err(core.fault(crate::exception::BR));
    }
    Ok(())
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    Some(match insn.mnemonic() {
        Mnemonic::Daa => Op::new(decimal_adjust::<false>),
        Mnemonic::Das => Op::new(decimal_adjust::<true>),
        Mnemonic::Aaa => Op::new(ascii_adjust::<false>),
        Mnemonic::Aas => Op::new(ascii_adjust::<true>),
        Mnemonic::Aam => Op::new(aam).imm(insn.immediate(0) & 0xff),
        Mnemonic::Aad => Op::new(aad).imm(insn.immediate(0) & 0xff),
        Mnemonic::Salc => Op::new(salc),
        Mnemonic::Bound if insn.raw.op_register(0).size() == 2 => {
            insn.address(Op::new(bound::<W16>)).r0(insn.register(0))
        }
        Mnemonic::Bound => insn.address(Op::new(bound::<W32>)).r0(insn.register(0)),
        _ => return None,
    })
}
