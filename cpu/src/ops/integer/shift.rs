//! Shifts and rotates.
//!
//! Flags that the manuals leave undefined have the values of Intel's processors since Skylake. AF is zero after
//! shifts. For any count, OF has the value that a shift of the same operand by one bit gives. CF is zero if SHL or
//! SHR shifts an 8- or 16-bit operand by more than its width. ROL and ROR of a register by an immediate other than
//! 1 do not change OF.

use iced_x86::Mnemonic;

use super::select::by_width;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::{LazyFlags, carry_overflow};
use crate::insn::Insn;
use crate::op::Op;
use crate::ops::width::Width;

/// A shift or rotate. The count is not zero and already masked to 5 or 6 bits.
trait Shift: 'static {
    /// Whether an immediate count other than 1, with a register operand, leaves OF unchanged.
    const IMMEDIATE_KEEPS_OVERFLOW: bool = false;
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64;
}

#[inline(always)]
fn set_shift_flags<W: Width>(core: &mut Core, result: u64, carry: bool, overflow: bool) {
    core.flags = LazyFlags { result: W::sext(result), aux: carry_overflow(carry, overflow) };
}

/// Rotates change CF and OF only.
#[inline(always)]
fn set_rotate_flags(core: &mut Core, carry: bool, overflow: bool) {
    core.flags.aux = core.flags.aux & !(3 << 62) | carry_overflow(carry, overflow);
}

#[inline(always)]
fn sign<W: Width>(value: u64) -> bool {
    value & W::SIGN != 0
}

/// Whether the two highest bits of the operand differ. In that case a left shift by one changes the sign.
#[inline(always)]
fn top_bits_differ<W: Width>(value: u64) -> bool {
    sign::<W>(value ^ value << 1)
}

struct Shl;
impl Shift for Shl {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        let wide = u128::from(value) << count;
        let result = wide as u64 & W::MASK;
        let carry = wide >> W::BITS & 1 != 0;
        set_shift_flags::<W>(core, result, carry, top_bits_differ::<W>(value));
        result
    }
}

struct Shr;
impl Shift for Shr {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        let result = value >> count;
        let carry = value >> (count - 1) & 1 != 0;
        set_shift_flags::<W>(core, result, carry, sign::<W>(value));
        result
    }
}

struct Sar;
impl Shift for Sar {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        let wide = W::sext(value) as i64;
        let result = (wide >> count) as u64 & W::MASK;
        let carry = wide >> (count - 1) & 1 != 0;
        set_shift_flags::<W>(core, result, carry, false);
        result
    }
}

struct Rol;
impl Shift for Rol {
    const IMMEDIATE_KEEPS_OVERFLOW: bool = true;
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        let result = rotate_left::<W>(value, count % W::BITS);
        let carry = result & 1 != 0;
        set_rotate_flags(core, carry, top_bits_differ::<W>(value));
        result
    }
}

struct Ror;
impl Shift for Ror {
    const IMMEDIATE_KEEPS_OVERFLOW: bool = true;
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        let result = rotate_left::<W>(value, (W::BITS - count % W::BITS) % W::BITS);
        let carry = sign::<W>(result);
        set_rotate_flags(core, carry, sign::<W>(value) != (value & 1 != 0));
        result
    }
}

#[inline(always)]
fn rotate_left<W: Width>(value: u64, count: u32) -> u64 {
    if count == 0 { value } else { (value << count | value >> (W::BITS - count)) & W::MASK }
}

struct Rcl;
impl Shift for Rcl {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        rotate_through_carry::<W>(core, value, count % (W::BITS + 1), true)
    }
}

struct Rcr;
impl Shift for Rcr {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, value: u64, count: u32) -> u64 {
        rotate_through_carry::<W>(core, value, count % (W::BITS + 1), false)
    }
}

/// Rotates the (width + 1)-bit number CF:value. A count of zero changes nothing.
#[inline(always)]
fn rotate_through_carry<W: Width>(core: &mut Core, value: u64, count: u32, left: bool) -> u64 {
    if count == 0 {
        return value;
    }
    let bits = W::BITS + 1;
    let old_carry = core.flags.cf();
    let wide = u128::from(old_carry) << W::BITS | u128::from(value);
    let count = if left { count } else { bits - count };
    let rotated = wide << count | wide >> (bits - count);
    let result = rotated as u64 & W::MASK;
    let carry = rotated >> W::BITS & 1 != 0;
    let overflow = if left { top_bits_differ::<W>(value) } else { sign::<W>(value) != old_carry };
    set_rotate_flags(core, carry, overflow);
    result
}

#[inline(always)]
fn masked<W: Width>(count: u64) -> u32 {
    (count & if W::BITS == 64 { 63 } else { 31 }) as u32
}

/// Shifts or rotates by a count that is masked to 5 or 6 bits. A masked count of zero changes no flag.
#[inline(always)]
fn shift<O: Shift, W: Width, const IMMEDIATE: bool>(core: &mut Core, value: u64, count: u64) -> u64 {
    let count = masked::<W>(count);
    if count == 0 {
        return value;
    }
    let overflow = core.flags.of();
    let result = O::run::<W>(core, value, count);
    if IMMEDIATE && O::IMMEDIATE_KEEPS_OVERFLOW && count != 1 {
        let carry = core.flags.cf();
        set_rotate_flags(core, carry, overflow);
    }
    result
}

/// Shifts a register. A 32-bit shift clears the register's upper half even if the count is zero.
#[inline(always)]
fn shift_register<O: Shift, W: Width, const IMMEDIATE: bool>(core: &mut Core, register: u8, count: u64) {
    let result = shift::<O, W, IMMEDIATE>(core, W::get(core, register), count);
    W::set(core, register, result);
}

#[inline(always)]
fn shift_memory<O: Shift, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op, count: u64) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    W::update(core, bus, address, |core, value| shift::<O, W, false>(core, value, count))
}

fn reg_imm<O: Shift, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    shift_register::<O, W, true>(core, op.r0, op.imm);
    Ok(())
}

fn reg_cl<O: Shift, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    shift_register::<O, W, false>(core, op.r0, core.frame.regs[1]);
    Ok(())
}

fn mem_imm<O: Shift, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    shift_memory::<O, W>(core, bus, op, op.imm)
}

fn mem_cl<O: Shift, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    shift_memory::<O, W>(core, bus, op, core.frame.regs[1])
}

fn lower_shift<O: Shift>(insn: &Insn<'_>) -> Option<Op> {
    let size = insn.size(0);
    let by_cl = insn.is_register(1);
    let handler = match (insn.is_memory(0), by_cl) {
        (false, false) => by_width!(size, reg_imm, O),
        (false, true) => by_width!(size, reg_cl, O),
        (true, false) => by_width!(size, mem_imm, O),
        (true, true) => by_width!(size, mem_cl, O),
    };
    let op = Op::new(handler).imm(if by_cl { 0 } else { insn.immediate(1) });
    Some(if insn.is_memory(0) { insn.address(op) } else { op.r0(insn.register(0)) })
}

/// SHLD (`LEFT`) and SHRD. For 16-bit operands, counts above 16 are undefined in the manuals. Here such a count
/// shifts in bits of the first operand again.
#[inline(always)]
fn double<W: Width, const LEFT: bool>(core: &mut Core, value: u64, filler: u64, count: u32) -> u64 {
    if count == 0 {
        return value;
    }
    let (result, carry) = match (W::BITS, LEFT) {
        (64, true) => (value << count | filler >> (64 - count), value >> (64 - count)),
        (64, false) => (value >> count | filler << (64 - count), value >> (count - 1)),
        (bits, left) => {
            let wide = u128::from(value) << (2 * bits) | u128::from(filler) << bits | u128::from(value);
            if left {
                ((wide << count >> (2 * bits)) as u64, (wide << count >> (3 * bits)) as u64)
            } else {
                ((wide >> count) as u64, (wide >> (count - 1)) as u64)
            }
        }
    };
    let (result, carry) = (result & W::MASK, carry & 1);
    let overflow = if LEFT { top_bits_differ::<W>(value) } else { sign::<W>(value) != (filler & 1 != 0) };
    set_shift_flags::<W>(core, result, carry != 0, overflow);
    result
}

#[inline(always)]
fn double_count<W: Width>(core: &Core, op: &Op) -> u32 {
    masked::<W>(if op.aux == 1 { core.frame.regs[1] } else { op.imm })
}

fn double_reg<W: Width, const LEFT: bool>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let (value, filler, count) = (W::get(core, op.r0), W::get(core, op.r1), double_count::<W>(core, op));
    let result = double::<W, LEFT>(core, value, filler, count);
    W::set(core, op.r0, result);
    Ok(())
}

fn double_mem<W: Width, const LEFT: bool>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear_write(op, W::BYTES)?;
    let (filler, count) = (W::get(core, op.r1), double_count::<W>(core, op));
    W::update(core, bus, address, |core, value| double::<W, LEFT>(core, value, filler, count))
}

fn lower_double<const LEFT: bool>(insn: &Insn<'_>) -> Op {
    use crate::ops::width::{W16, W32, W64};
    macro_rules! pick {
        ($function:ident) => {
            match insn.size(0) {
                2 => $function::<W16, LEFT> as crate::op::Handler,
                4 => $function::<W32, LEFT>,
                _ => $function::<W64, LEFT>,
            }
        };
    }
    let by_cl = insn.is_register(2);
    let op = if insn.is_memory(0) {
        insn.address(Op::new(pick!(double_mem)))
    } else {
        Op::new(pick!(double_reg)).r0(insn.register(0))
    };
    op.r1(insn.register(1)).aux(u8::from(by_cl)).imm(if by_cl { 0 } else { insn.immediate(2) })
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    match insn.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => lower_shift::<Shl>(insn),
        Mnemonic::Shr => lower_shift::<Shr>(insn),
        Mnemonic::Sar => lower_shift::<Sar>(insn),
        Mnemonic::Rol => lower_shift::<Rol>(insn),
        Mnemonic::Ror => lower_shift::<Ror>(insn),
        Mnemonic::Rcl => lower_shift::<Rcl>(insn),
        Mnemonic::Rcr => lower_shift::<Rcr>(insn),
        Mnemonic::Shld => Some(lower_double::<true>(insn)),
        Mnemonic::Shrd => Some(lower_double::<false>(insn)),
        _ => None,
    }
}
