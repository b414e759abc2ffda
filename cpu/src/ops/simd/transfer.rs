//! Moves single lanes and sign masks between SIMD registers and general registers or memory. The module also
//! has variable blends, PTEST and the byte-masked stores.

use iced_x86::Mnemonic;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::flags::LazyFlags;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::simd::lanes::Lane;
use crate::simd::shuffle;
use crate::slots::REG_ZERO;

/// Lowers this module's instructions.
pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let raw = insn.raw;
    let mmx = raw.op0_register().is_mm() || raw.op1_register().is_mm();
    let memory = insn.is_memory(0) || insn.is_memory(1);
    let pick = |register: Handler, in_memory: Handler| if memory { in_memory } else { register };
    let handler: Handler = match insn.mnemonic() {
        Mnemonic::Pmovmskb if mmx => mm_byte_mask,
        Mnemonic::Pmovmskb => byte_mask,
        Mnemonic::Movmskps => sign_mask::<u32>,
        Mnemonic::Movmskpd => sign_mask::<u64>,
        Mnemonic::Pextrw if mmx => mm_extract_word,
        Mnemonic::Pextrb => pick(extract::<8>, extract_mem::<8>),
        Mnemonic::Pextrw => pick(extract::<16>, extract_mem::<16>),
        Mnemonic::Pextrd | Mnemonic::Extractps => pick(extract::<32>, extract_mem::<32>),
        Mnemonic::Pextrq => pick(extract::<64>, extract_mem::<64>),
        Mnemonic::Pinsrw if mmx => pick(mm_insert_word, mm_insert_word_mem),
        Mnemonic::Pinsrb => pick(insert::<8>, insert_mem::<8>),
        Mnemonic::Pinsrw => pick(insert::<16>, insert_mem::<16>),
        Mnemonic::Pinsrd => pick(insert::<32>, insert_mem::<32>),
        Mnemonic::Pinsrq => pick(insert::<64>, insert_mem::<64>),
        Mnemonic::Insertps => pick(insertps, insertps_mem),
        Mnemonic::Pblendvb => pick(blend::<u8>, blend_mem::<u8>),
        Mnemonic::Blendvps => pick(blend::<u32>, blend_mem::<u32>),
        Mnemonic::Blendvpd => pick(blend::<u64>, blend_mem::<u64>),
        Mnemonic::Ptest => pick(ptest, ptest_mem),
        Mnemonic::Maskmovdqu => return Some(masked_store(insn, maskmovdqu)),
        Mnemonic::Maskmovq => return Some(masked_store(insn, maskmovq)),
        _ => return None,
    };
    let mut op = Op::new(handler);
    if insn.is_register(0) {
        op = op.r0(insn.register(0));
    }
    if insn.is_register(1) {
        op = op.r1(insn.register(1));
    }
    if memory {
        op = insn.address(op);
    }
    if insn.is_immediate(2) {
        op = op.imm(insn.immediate(2) & 0xff);
    }
    Some(op)
}

/// MASKMOVQ and MASKMOVDQU, which store at the implied address in (R/E)DI.
fn masked_store(insn: &Insn<'_>, handler: Handler) -> Op {
    let raw = insn.raw;
    let mut op = Op::new(handler).r0(insn.register(1)).r1(insn.register(2));
    op.base = 7;
    op.index = REG_ZERO;
    op.seg = insn.segment_slot(raw.memory_segment());
    op.flags |= match raw.op0_kind() {
        iced_x86::OpKind::MemorySegDI => Op::LEGACY_EA | Op::ADDR16,
        iced_x86::OpKind::MemorySegEDI => Op::LEGACY_EA | Op::ADDR32,
        _ => 0,
    };
    if !insn.mode.is_64bit() {
        op.flags |= Op::CHECK_SEGMENT;
    }
    op
}

fn sign_mask<L: Lane>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let mask = top_bits(&core.xmm_bytes(op.r1), L::BYTES);
    core.set_reg32(op.r0, mask);
    Ok(())
}

fn byte_mask(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let value = core.xmm(op.r1);
    core.set_reg32(op.r0, top_bits_of_bytes(value as u64) | top_bits_of_bytes((value >> 64) as u64) << 8);
    Ok(())
}

fn mm_byte_mask(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    let mask = top_bits_of_bytes(core.mm(op.r1));
    core.state.fpu.enter_mmx();
    core.set_reg32(op.r0, mask);
    Ok(())
}

/// Returns the top bits of the bytes. The multiplication moves bit 8n+7 to bit 56+n (by bit 49-7n of the factor),
/// and no two terms of the product overlap.
#[inline(always)]
fn top_bits_of_bytes(value: u64) -> u32 {
    ((value & 0x8080_8080_8080_8080).wrapping_mul(0x0002_0408_1020_4081) >> 56) as u32
}

/// Returns the top bits of the lanes.
#[inline(always)]
fn top_bits(vector: &[u8], lane_bytes: usize) -> u32 {
    let tops = vector.iter().skip(lane_bytes - 1).step_by(lane_bytes);
    tops.enumerate().fold(0, |mask, (n, byte)| mask | u32::from(byte >> 7) << n)
}

/// Bit position of the lane that the immediate selects.
#[inline(always)]
fn lane_shift(op: &Op, lane_bits: u32, vector_bits: u32) -> u32 {
    (op.imm as u32 & (vector_bits / lane_bits - 1)) * lane_bits
}

#[inline(always)]
fn low_mask<const BITS: u32>() -> u64 {
    u64::MAX >> (64 - BITS)
}

#[inline(always)]
fn lane_of_xmm<const BITS: u32>(core: &Core, op: &Op) -> u64 {
    (core.xmm(op.r1) >> lane_shift(op, BITS, 128)) as u64 & low_mask::<BITS>()
}

fn extract<const BITS: u32>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    core.set_reg64(op.r0, lane_of_xmm::<BITS>(core, op));
    Ok(())
}

fn extract_mem<const BITS: u32>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let size_bytes = u64::from(BITS / 8);
    let address = core.linear_write(op, size_bytes)?;
    core.store_sized(bus, address, size_bytes, lane_of_xmm::<BITS>(core, op))
}

fn mm_extract_word(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    core.state.fpu.enter_mmx();
    core.set_reg64(op.r0, core.mm(op.r1) >> lane_shift(op, 16, 64) & 0xffff);
    Ok(())
}

#[inline(always)]
fn insert_lane<const BITS: u32>(core: &mut Core, op: &Op, value: u64) {
    let shift = lane_shift(op, BITS, 128);
    let mask = u128::from(low_mask::<BITS>()) << shift;
    core.set_xmm(op.r0, core.xmm(op.r0) & !mask | u128::from(value) << shift & mask);
}

fn insert<const BITS: u32>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    insert_lane::<BITS>(core, op, core.reg64(op.r1));
    Ok(())
}

fn insert_mem<const BITS: u32>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let size_bytes = u64::from(BITS / 8);
    let address = core.linear(op, size_bytes)?;
    let value = core.load_sized(bus, address, size_bytes)?;
    insert_lane::<BITS>(core, op, value);
    Ok(())
}

fn mm_insert(core: &mut Core, op: &Op, value: u64) {
    let shift = lane_shift(op, 16, 64);
    core.set_mm(op.r0, core.mm(op.r0) & !(0xffff << shift) | (value & 0xffff) << shift);
}

fn mm_insert_word(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    mm_insert(core, op, core.reg64(op.r1));
    Ok(())
}

fn mm_insert_word_mem(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    let address = core.linear(op, 2)?;
    let value = core.load_u16(bus, address)?;
    mm_insert(core, op, value.into());
    Ok(())
}

fn set_insertps(core: &mut Core, op: &Op, value: u32) {
    let result = shuffle::insert_single(core.xmm(op.r0).to_le_bytes(), value, op.imm as u8);
    core.set_xmm(op.r0, u128::from_le_bytes(result));
}

fn insertps(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let value = core.xmm(op.r1) >> (32 * (op.imm >> 6 & 3));
    set_insertps(core, op, value as u32);
    Ok(())
}

fn insertps_mem(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let value = core.load_double(bus, op)?;
    set_insertps(core, op, value);
    Ok(())
}

fn set_blend<L: Lane>(core: &mut Core, op: &Op, source: u128) {
    let (old, mask) = (core.xmm(op.r0), core.xmm(0));
    let new = shuffle::blend_variable::<L>(old.to_le_bytes(), source.to_le_bytes(), mask.to_le_bytes());
    core.set_xmm(op.r0, u128::from_le_bytes(new));
}

fn blend<L: Lane>(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    set_blend::<L>(core, op, core.xmm(op.r1));
    Ok(())
}

fn blend_mem<L: Lane>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_aligned(bus, op)?;
    set_blend::<L>(core, op, source);
    Ok(())
}

/// Sets ZF if source and destination have no common set bit. Sets CF if every set bit of the source is set in the
/// destination. Clears the other flags.
fn set_ptest(core: &mut Core, op: &Op, source: u128) {
    let target = core.xmm(op.r0);
    let flags = u64::from(source & target == 0) << 6 | u64::from(source & !target == 0);
    core.flags = LazyFlags::from_bits(flags);
}

fn ptest(core: &mut Core, _bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    set_ptest(core, op, core.xmm(op.r1));
    Ok(())
}

fn ptest_mem(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let source = core.load_aligned(bus, op)?;
    set_ptest(core, op, source);
    Ok(())
}

fn maskmovdqu(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_sse()?;
    let (value, mask) = (core.xmm(op.r0), core.xmm(op.r1));
    store_selected(core, bus, op, &value.to_le_bytes(), &mask.to_le_bytes())
}

fn maskmovq(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.require_mmx()?;
    core.state.fpu.enter_mmx();
    let (value, mask) = (core.mm(op.r0), core.mm(op.r1));
    store_selected(core, bus, op, &value.to_le_bytes(), &mask.to_le_bytes())
}

/// Stores the bytes whose mask byte has its top bit set. If the store of any byte of the operand would fault,
/// selected or not, no byte is stored. The manual leaves open which bytes raise faults (SDM vol. 2, MASKMOVDQU);
/// real processors raise faults for all bytes.
fn store_selected(core: &mut Core, bus: &mut dyn Bus, op: &Op, value: &[u8], mask: &[u8]) -> Res<()> {
    let start = core.linear_write(op, value.len() as u64)?;
    let selected = || (0..value.len()).filter(|&n| mask[n] & 0x80 != 0);
    core.check_writable(bus, start, value.len() as u64)?;
    for n in selected() {
        core.store_u8(bus, start.wrapping_add(n as u64), value[n])?;
    }
    Ok(())
}
