//! Bit tests and scans, POPCNT, LZCNT, TZCNT, BMI1, BMI2, CRC32.
//!
//! Flags that the manuals leave undefined have the values of Intel's processors since Skylake. BT, BTS, BTR and BTC
//! change only CF. BSF and BSR set ZF, compute PF from the result and clear the other flags; a zero source leaves
//! the destination unchanged. LZCNT, TZCNT and the BMI instructions clear AF and PF.

use iced_x86::Mnemonic;

use super::select::by_width;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::{LazyFlags, carry_overflow};
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::ops::width::{W32, W64, Width};

/// BT, BTS, BTR, BTC.
trait BitTest: 'static {
    const WRITES: bool = true;
    fn apply(value: u64, mask: u64) -> u64;
}

macro_rules! bit_test {
    ($name:ident, $writes:literal, |$v:ident, $m:ident| $body:expr) => {
        struct $name;
        impl BitTest for $name {
            const WRITES: bool = $writes;
            #[inline(always)]
            fn apply($v: u64, $m: u64) -> u64 {
                $body
            }
        }
    };
}

bit_test!(Bt, false, |v, _m| v);
bit_test!(Bts, true, |v, m| v | m);
bit_test!(Btr, true, |v, m| v & !m);
bit_test!(Btc, true, |v, m| v ^ m);

#[inline(always)]
fn set_carry(core: &mut Core, carry: bool) {
    let overflow = core.flags.of();
    core.flags.aux = core.flags.aux & !(3 << 62) | carry_overflow(carry, overflow);
}

/// The bit number: the register in the op's field `r1` if `aux` is 1, otherwise the immediate.
#[inline(always)]
fn bit_number<W: Width>(core: &Core, op: &Op) -> u64 {
    if op.aux == 1 { W::sext(W::get(core, op.r1)) } else { op.imm }
}

fn test_reg<O: BitTest, W: Width>(core: &mut Core, _: &mut dyn Bus, op: &Op) -> Res<()> {
    let mask = 1 << (bit_number::<W>(core, op) & u64::from(W::BITS - 1));
    let value = W::get(core, op.r0);
    set_carry(core, value & mask != 0);
    if O::WRITES {
        W::set(core, op.r0, O::apply(value, mask));
    }
    Ok(())
}

/// BT, BTS, BTR and BTC on memory. A bit number in a register can select a bit outside the addressed operand,
/// before or after it.
fn test_mem<O: BitTest, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let number = bit_number::<W>(core, op);
    let mut at = *op;
    if op.aux == 1 {
        let words = number as i64 >> W::BITS.trailing_zeros();
        at.disp = op.disp.wrapping_add(words.wrapping_mul(W::BYTES as i64));
    }
    let mask = 1 << (number & u64::from(W::BITS - 1));
    if O::WRITES {
        let address = core.linear_write(&at, W::BYTES)?;
        return W::update(core, bus, address, |core, value| {
            set_carry(core, value & mask != 0);
            O::apply(value, mask)
        });
    }
    let address = core.linear(&at, W::BYTES)?;
    let value = W::load(core, bus, address)?;
    set_carry(core, value & mask != 0);
    Ok(())
}

fn lower_test<O: BitTest>(insn: &Insn<'_>) -> Option<Op> {
    let size = insn.size(0);
    let op = if insn.is_memory(0) {
        insn.address(Op::new(by_width!(size, test_mem, O)))
    } else {
        Op::new(by_width!(size, test_reg, O)).r0(insn.register(0))
    };
    Some(if insn.is_register(1) { op.r1(insn.register(1)).aux(1) } else { op.imm(insn.immediate(1) & 63) })
}

/// An operation with one source and a destination. The result is `None` if the destination keeps its value.
trait Scan: 'static {
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64>;
}

/// Sets the flags of LZCNT and TZCNT. PF is clear even if the result is zero.
#[inline(always)]
fn set_count_flags(core: &mut Core, carry: bool, zero: bool) {
    core.flags =
        LazyFlags { result: u64::from(!zero), aux: carry_overflow(carry, false) | u64::from(zero) << 8 };
}

/// Sets the flags of BSF and BSR: ZF if the source was zero, PF from the result.
#[inline(always)]
fn set_scan_flags(core: &mut Core, result: Option<u64>) {
    // Setting bit 8 of the result keeps ZF clear. PF depends on bits 0 to 7 only.
    core.flags = LazyFlags { result: result.map_or(0, |bit| bit | 1 << 8), aux: 0 };
}

struct Bsf;
impl Scan for Bsf {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let result = (source != 0).then(|| u64::from(source.trailing_zeros()));
        set_scan_flags(core, result);
        result
    }
}

struct Bsr;
impl Scan for Bsr {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let result = (source != 0).then(|| u64::from(63 - source.leading_zeros()));
        set_scan_flags(core, result);
        result
    }
}

struct Tzcnt;
impl Scan for Tzcnt {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let count = source.trailing_zeros().min(W::BITS);
        set_count_flags(core, source == 0, count == 0);
        Some(u64::from(count))
    }
}

struct Lzcnt;
impl Scan for Lzcnt {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let count = source.leading_zeros() - (64 - W::BITS);
        set_count_flags(core, source == 0, count == 0);
        Some(u64::from(count))
    }
}

struct Popcnt;
impl Scan for Popcnt {
    /// Clears all flags but ZF, including PF.
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        core.flags = LazyFlags { result: source, aux: 0 };
        let parity_set = core.flags.pf();
        core.flags.aux = u64::from(parity_set) << 8;
        // This correction keeps SF clear even if the sign bit of the source is set.
        core.flags.aux |= (source >> 63) << 1;
        Some(u64::from(source.count_ones()))
    }
}

struct Blsr;
impl Scan for Blsr {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let result = source & source.wrapping_sub(1) & W::MASK;
        bmi_flags::<W>(core, result, source == 0);
        Some(result)
    }
}

struct Blsi;
impl Scan for Blsi {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let result = source & source.wrapping_neg() & W::MASK;
        bmi_flags::<W>(core, result, source != 0);
        Some(result)
    }
}

struct Blsmsk;
impl Scan for Blsmsk {
    #[inline(always)]
    fn run<W: Width>(core: &mut Core, source: u64) -> Option<u64> {
        let result = (source ^ source.wrapping_sub(1)) & W::MASK;
        bmi_flags::<W>(core, result, source == 0);
        Some(result)
    }
}

#[inline(always)]
fn bmi_flags<W: Width>(core: &mut Core, result: u64, carry: bool) {
    let even = u64::from((result as u8).count_ones() & 1 == 0);
    core.flags = LazyFlags { result: W::sext(result), aux: carry_overflow(carry, false) | even << 8 };
}

/// Reads the r/m operand. If the op has the flag `Op::FAMILY`, the operand is in memory, otherwise in the register
/// in the op's field `r1`.
#[inline(always)]
fn source<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<u64> {
    if op.flags & Op::FAMILY == 0 {
        return Ok(W::get(core, op.r1));
    }
    let address = core.linear(op, W::BYTES)?;
    W::load(core, bus, address)
}

fn scan<O: Scan, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = source::<W>(core, bus, op)?;
    if let Some(result) = O::run::<W>(core, value) {
        W::set(core, op.r0, result);
    }
    Ok(())
}

fn lower_scan<O: Scan>(insn: &Insn<'_>) -> Option<Op> {
    Some(with_source(insn, 1, Op::new(by_width!(insn.size(0), scan, O))).r0(insn.register(0)))
}

fn with_source(insn: &Insn<'_>, n: u32, op: Op) -> Op {
    if insn.is_memory(n) { insn.address(op).with(Op::FAMILY) } else { op.r1(insn.register(n)) }
}

/// A BMI operation on the r/m operand and a second register (`aux`). The operation itself sets the flags.
trait Bmi: 'static {
    fn run<W: Width>(core: &mut Core, source: u64, register: u64) -> u64;
}

macro_rules! bmi {
    ($name:ident, $width:ident, |$core:ident, $source:ident, $register:ident| $body:expr) => {
        struct $name;
        impl Bmi for $name {
            #[inline(always)]
            fn run<$width: Width>($core: &mut Core, $source: u64, $register: u64) -> u64 {
                $body
            }
        }
    };
}

bmi!(Andn, W, |core, source, register| {
    let result = !register & source & W::MASK;
    bmi_flags::<W>(core, result, false);
    result
});
bmi!(Bextr, W, |core, source, register| {
    let (start, length) = (register & 0xff, register >> 8 & 0xff);
    let shifted = if start >= u64::from(W::BITS) { 0 } else { source >> start };
    let result = if length >= 64 { shifted } else { shifted & !(u64::MAX << length) };
    // SF is undefined in the manuals. Here SF is clear, even if BEXTR extracts all bits.
    bmi_flags::<W>(core, result & !W::SIGN, false);
    core.flags.result |= u64::from(result != 0) << 8;
    result
});
bmi!(Bzhi, W, |core, source, register| {
    let index = register & 0xff;
    let result = if index >= u64::from(W::BITS) { source } else { source & !(u64::MAX << index) };
    bmi_flags::<W>(core, result, index >= u64::from(W::BITS));
    result
});
bmi!(Shlx, W, |_core, source, register| source << (register & u64::from(W::BITS - 1)) & W::MASK);
bmi!(Shrx, W, |_core, source, register| source >> (register & u64::from(W::BITS - 1)));
bmi!(Sarx, W, |_core, source, register| {
    (W::sext(source) as i64 >> (register & u64::from(W::BITS - 1))) as u64 & W::MASK
});
bmi!(Pdep, W, |_core, mask, register| {
    let (mut left, mut from, mut result) = (mask, register, 0);
    while left != 0 {
        let lowest = left & left.wrapping_neg();
        if from & 1 != 0 {
            result |= lowest;
        }
        from >>= 1;
        left ^= lowest;
    }
    result & W::MASK
});
bmi!(Pext, W, |_core, mask, register| {
    let (mut left, mut result, mut place) = (mask, 0, 1_u64);
    while left != 0 {
        let lowest = left & left.wrapping_neg();
        if register & lowest != 0 {
            result |= place;
        }
        place = place.wrapping_shl(1);
        left ^= lowest;
    }
    result & W::MASK
});

fn bmi<O: Bmi, W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = source::<W>(core, bus, op)?;
    let result = O::run::<W>(core, value, W::get(core, op.aux));
    W::set(core, op.r0, result);
    Ok(())
}

/// Lowers a BMI instruction. `rm` is the operand number of the r/m source, and `register` the operand number of the
/// other source.
fn lower_bmi<O: Bmi>(insn: &Insn<'_>, rm: u32, register: u32) -> Option<Op> {
    let handler = if insn.size(0) == 4 { bmi::<O, W32> as Handler } else { bmi::<O, W64> };
    Some(with_source(insn, rm, Op::new(handler)).r0(insn.register(0)).aux(insn.register(register)))
}

fn mulx<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let product = u128::from(source::<W>(core, bus, op)?) * u128::from(W::get(core, 2));
    // If both destinations are one register, that register holds the high half.
    W::set(core, op.aux, product as u64 & W::MASK);
    W::set(core, op.r0, (product >> W::BITS) as u64 & W::MASK);
    Ok(())
}

fn rorx<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = source::<W>(core, bus, op)?;
    let count = (op.imm & u64::from(W::BITS - 1)) as u32;
    let result = if count == 0 { value } else { value >> count | value << (W::BITS - count) };
    W::set(core, op.r0, result & W::MASK);
    Ok(())
}

/// CRC32 (polynomial 0x11EDC6F41, reflected). `W` is the source's width.
fn crc32<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = source::<W>(core, bus, op)?;
    let mut crc = core.reg32(op.r0);
    for byte in &value.to_le_bytes()[..W::BYTES as usize] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
        }
    }
    core.set_reg64(op.r0, u64::from(crc));
    Ok(())
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    match insn.mnemonic() {
        Mnemonic::Bt => lower_test::<Bt>(insn),
        Mnemonic::Bts => lower_test::<Bts>(insn),
        Mnemonic::Btr => lower_test::<Btr>(insn),
        Mnemonic::Btc => lower_test::<Btc>(insn),
        Mnemonic::Bsf => lower_scan::<Bsf>(insn),
        Mnemonic::Bsr => lower_scan::<Bsr>(insn),
        Mnemonic::Tzcnt => lower_scan::<Tzcnt>(insn),
        Mnemonic::Lzcnt => lower_scan::<Lzcnt>(insn),
        Mnemonic::Popcnt => lower_scan::<Popcnt>(insn),
        Mnemonic::Blsr => lower_scan::<Blsr>(insn),
        Mnemonic::Blsi => lower_scan::<Blsi>(insn),
        Mnemonic::Blsmsk => lower_scan::<Blsmsk>(insn),
        Mnemonic::Andn => lower_bmi::<Andn>(insn, 2, 1),
        Mnemonic::Bextr => lower_bmi::<Bextr>(insn, 1, 2),
        Mnemonic::Bzhi => lower_bmi::<Bzhi>(insn, 1, 2),
        Mnemonic::Shlx => lower_bmi::<Shlx>(insn, 1, 2),
        Mnemonic::Shrx => lower_bmi::<Shrx>(insn, 1, 2),
        Mnemonic::Sarx => lower_bmi::<Sarx>(insn, 1, 2),
        Mnemonic::Pdep => lower_bmi::<Pdep>(insn, 2, 1),
        Mnemonic::Pext => lower_bmi::<Pext>(insn, 2, 1),
        Mnemonic::Mulx => {
            let handler = if insn.size(0) == 4 { mulx::<W32> as Handler } else { mulx::<W64> };
            Some(with_source(insn, 2, Op::new(handler)).r0(insn.register(0)).aux(insn.register(1)))
        }
        Mnemonic::Rorx => {
            let handler = if insn.size(0) == 4 { rorx::<W32> as Handler } else { rorx::<W64> };
            Some(with_source(insn, 1, Op::new(handler)).r0(insn.register(0)).imm(insn.immediate(2)))
        }
        Mnemonic::Crc32 => {
            Some(with_source(insn, 1, Op::new(by_width!(insn.size(1), crc32))).r0(insn.register(0)))
        }
        _ => None,
    }
}
