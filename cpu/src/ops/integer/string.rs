//! String instructions and their repetition.
//!
//! Each iteration of a repeated instruction is a step of its own. Between iterations the registers are consistent and
//! RIP is at the instruction, so a stop, an interrupt or a single-step trap can occur there. Forward MOVS and STOS
//! process many elements at once if all accesses would stay on the fast path.

use iced_x86::{Mnemonic, Register};

use super::alu::sub;
use crate::attention;
use crate::bus::Bus;
use crate::core::Core;
use crate::exception::{Break, Res};
use crate::flags;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::ops::width::{W8, W16, W32, W64, Width};
use crate::slots::SEG_NONE;

/// The segment slot of ES.
const ES: u8 = 0;
const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// The condition under which another iteration follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Once,
    /// The count is not zero: REP, and also REPE and REPNE before instructions that do not compare.
    Count,
    WhileEqual,
    WhileNotEqual,
}

impl Repeat {
    fn of(op: &Op) -> Repeat {
        match op.aux & 3 {
            0 => Repeat::Once,
            1 => Repeat::Count,
            2 => Repeat::WhileEqual,
            _ => Repeat::WhileNotEqual,
        }
    }
}

/// The work of one iteration of a string instruction.
trait Action: 'static {
    /// One iteration on elements of width `W` with addresses of width `A`.
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()>;

    /// Registers that processors write back before the first iteration. With 32-bit addresses, this clears the
    /// upper halves of the registers, even if the iteration faults or the count is zero.
    const WRITTEN_FIRST: &'static [u8] = &[];

    /// Executes up to `limit` iterations at once and returns their number. Returns 0 if only single iterations are
    /// possible.
    #[inline(always)]
    fn bulk<W: Width, A: Width>(_core: &mut Core, _op: &Op, _limit: u64) -> u64 {
        0
    }
}

/// Linear address of the element at RSI.
#[inline(always)]
fn source<W: Width, A: Width>(core: &mut Core, op: &Op, write: bool) -> Res<u64> {
    core.segment_linear(op.seg, A::get(core, RSI), W::BYTES, write)
}

/// Linear address of the element at ES:RDI.
#[inline(always)]
fn destination<W: Width, A: Width>(core: &mut Core, op: &Op, write: bool) -> Res<u64> {
    core.segment_linear(op.r0, A::get(core, RDI), W::BYTES, write)
}

#[inline(always)]
fn advance<W: Width, A: Width>(core: &mut Core, register: u8, elements: u64) {
    let distance = elements.wrapping_mul(W::BYTES);
    let old = A::get(core, register);
    let new =
        if core.rflags & flags::DF == 0 { old.wrapping_add(distance) } else { old.wrapping_sub(distance) };
    A::set(core, register, new & A::MASK);
}

struct Movs;
impl Action for Movs {
    const WRITTEN_FIRST: &'static [u8] = &[RSI, RDI];

    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let from = source::<W, A>(core, op, false)?;
        let value = W::load(core, bus, from)?;
        let to = destination::<W, A>(core, op, true)?;
        W::store(core, bus, to, value)?;
        advance::<W, A>(core, RSI, 1);
        advance::<W, A>(core, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn bulk<W: Width, A: Width>(core: &mut Core, op: &Op, limit: u64) -> u64 {
        if core.rflags & flags::DF != 0 || A::BITS != 64 {
            return 0;
        }
        let from = core.frame.regs[RSI as usize].wrapping_add(core.frame.seg_base[op.seg as usize]);
        let Some((from, from_room)) = core.bulk_page(from, false) else { return 0 };
        let Some((to, to_room)) = core.bulk_page(core.frame.regs[RDI as usize], true) else { return 0 };
        let count = limit.min(from_room / W::BYTES).min(to_room / W::BYTES);
        let bytes = count * W::BYTES;
        // If the destination begins inside the source, the copy repeats a pattern. Such a copy must be made element
        // by element.
        if count == 0 || (to > from && to < from + bytes) {
            return 0;
        }
        core.ram.copy_within(from, to, bytes as usize);
        advance::<W, A>(core, RSI, count);
        advance::<W, A>(core, RDI, count);
        count
    }
}

struct Stos;
impl Action for Stos {
    const WRITTEN_FIRST: &'static [u8] = &[RDI];

    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let to = destination::<W, A>(core, op, true)?;
        W::store(core, bus, to, W::get(core, 0))?;
        advance::<W, A>(core, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn bulk<W: Width, A: Width>(core: &mut Core, _op: &Op, limit: u64) -> u64 {
        if core.rflags & flags::DF != 0 || A::BITS != 64 {
            return 0;
        }
        let Some((to, room)) = core.bulk_page(core.frame.regs[RDI as usize], true) else { return 0 };
        let count = limit.min(room / W::BYTES);
        let bytes = W::get(core, 0).to_le_bytes();
        let element = &bytes[..W::BYTES as usize];
        if element.iter().all(|&b| b == element[0]) {
            core.ram.fill(to, element[0], (count * W::BYTES) as usize);
        } else {
            for n in 0..count {
                core.ram.write_bytes(to + n * W::BYTES, element);
            }
        }
        advance::<W, A>(core, RDI, count);
        count
    }
}

struct Lods;
impl Action for Lods {
    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let from = source::<W, A>(core, op, false)?;
        let value = W::load(core, bus, from)?;
        W::set(core, 0, value);
        advance::<W, A>(core, RSI, 1);
        Ok(())
    }
}

struct Scas;
impl Action for Scas {
    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let at = destination::<W, A>(core, op, false)?;
        let value = W::load(core, bus, at)?;
        sub::<W>(core, W::get(core, 0), value, 0);
        advance::<W, A>(core, RDI, 1);
        Ok(())
    }
}

struct Cmps;
impl Action for Cmps {
    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        // Processors read the destination before the source. If both reads would fault, this order decides which
        // fault is raised.
        let second = destination::<W, A>(core, op, false)?;
        let second = W::load(core, bus, second)?;
        let first = source::<W, A>(core, op, false)?;
        let first = W::load(core, bus, first)?;
        sub::<W>(core, first, second, 0);
        advance::<W, A>(core, RSI, 1);
        advance::<W, A>(core, RDI, 1);
        Ok(())
    }
}

struct Ins;
impl Action for Ins {
    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let port = core.reg16(2);
        core.check_io(bus, port, W::BYTES as u8)?;
        let to = destination::<W, A>(core, op, true)?;
        // Check the store before the port is read, because the read of a port cannot be undone.
        core.check_writable(bus, to, W::BYTES)?;
        core.check_alignment(to, W::BYTES)?;
        let value = bus.port_read(core.steps(), port, W::BYTES as u8);
        core.bus_was_used();
        W::store(core, bus, to, u64::from(value))?;
        advance::<W, A>(core, RDI, 1);
        Ok(())
    }
}

struct Outs;
impl Action for Outs {
    #[inline(always)]
    fn once<W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
        let port = core.reg16(2);
        core.check_io(bus, port, W::BYTES as u8)?;
        let from = source::<W, A>(core, op, false)?;
        let value = W::load(core, bus, from)?;
        bus.port_write(core.steps(), port, W::BYTES as u8, value as u32);
        core.bus_was_used();
        advance::<W, A>(core, RSI, 1);
        Ok(())
    }
}

fn string<S: Action, W: Width, A: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let repeat = Repeat::of(op);
    if repeat == Repeat::Once {
        return S::once::<W, A>(core, bus, op);
    }
    for &register in [RCX].iter().chain(S::WRITTEN_FIRST) {
        A::set(core, register, A::get(core, register));
    }
    if A::get(core, RCX) == 0 {
        return Ok(());
    }
    loop {
        let limit = A::get(core, RCX).min(core.remaining_steps());
        let bulk = if limit > 1 { S::bulk::<W, A>(core, op, limit) } else { 0 };
        let done = if bulk > 0 {
            bulk
        } else {
            S::once::<W, A>(core, bus, op)?;
            1
        };
        let left = A::get(core, RCX).wrapping_sub(done) & A::MASK;
        A::set(core, RCX, left);
        let finished = left == 0
            || repeat == Repeat::WhileEqual && !core.flags.zf()
            || repeat == Repeat::WhileNotEqual && core.flags.zf();
        if finished {
            // Count all iterations but the last. The run loop counts the last iteration as the completed
            // instruction.
            core.block_steps += done - 1;
            return Ok(());
        }
        core.block_steps += done;
        if core.remaining_steps() == 0 || core.break_block || core.attention & attention::DEBUG != 0 {
            return Err(pause(core, op));
        }
    }
}

/// Stops between two iterations: RIP stays at the instruction.
#[cold]
fn pause(core: &mut Core, op: &Op) -> Break {
    core.rip = core.wrap_rip(core.block_rip().wrapping_add(u64::from(op.start)));
    // If the bit BTF is set, TF raises traps only after branches.
    if core.rflags & flags::TF != 0 && core.state.msrs.debugctl & 2 == 0 {
        core.state.pending_debug |= 1 << 14;
        core.update_debug_attention();
    }
    Break::Done
}

fn pick<S: Action>(element: u32, address: u32) -> Handler {
    match (element, address) {
        (1, 2) => string::<S, W8, W16>,
        (1, 4) => string::<S, W8, W32>,
        (1, _) => string::<S, W8, W64>,
        (2, 2) => string::<S, W16, W16>,
        (2, 4) => string::<S, W16, W32>,
        (2, _) => string::<S, W16, W64>,
        (4, 2) => string::<S, W32, W16>,
        (4, 4) => string::<S, W32, W32>,
        (4, _) => string::<S, W32, W64>,
        (_, 2) => string::<S, W64, W16>,
        (_, 4) => string::<S, W64, W32>,
        (_, _) => string::<S, W64, W64>,
    }
}

/// Address size of the implied memory operands, in bytes.
fn address_size(insn: &Insn<'_>) -> u32 {
    use iced_x86::OpKind::*;
    let kinds = (0..insn.raw.op_count()).map(|n| insn.raw.op_kind(n));
    for kind in kinds {
        match kind {
            MemorySegSI | MemorySegDI | MemoryESDI => return 2,
            MemorySegESI | MemorySegEDI | MemoryESEDI => return 4,
            MemorySegRSI | MemorySegRDI | MemoryESRDI => return 8,
            _ => {}
        }
    }
    8
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    if !insn.raw.is_string_instruction() {
        return None;
    }
    let address = address_size(insn);
    let (element, compares) = match insn.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Stosb | Mnemonic::Lodsb | Mnemonic::Insb | Mnemonic::Outsb => (1, false),
        Mnemonic::Movsw | Mnemonic::Stosw | Mnemonic::Lodsw | Mnemonic::Insw | Mnemonic::Outsw => (2, false),
        Mnemonic::Movsd | Mnemonic::Stosd | Mnemonic::Lodsd | Mnemonic::Insd | Mnemonic::Outsd => (4, false),
        Mnemonic::Movsq | Mnemonic::Stosq | Mnemonic::Lodsq => (8, false),
        Mnemonic::Scasb | Mnemonic::Cmpsb => (1, true),
        Mnemonic::Scasw | Mnemonic::Cmpsw => (2, true),
        Mnemonic::Scasd | Mnemonic::Cmpsd => (4, true),
        Mnemonic::Scasq | Mnemonic::Cmpsq => (8, true),
        _ => return None,
    };
    let handler = match insn.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq => {
            pick::<Movs>(element, address)
        }
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
            pick::<Stos>(element, address)
        }
        Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => {
            pick::<Lods>(element, address)
        }
        Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq => {
            pick::<Scas>(element, address)
        }
        Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsd | Mnemonic::Cmpsq => {
            pick::<Cmps>(element, address)
        }
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => pick::<Ins>(element, address),
        _ => pick::<Outs>(element, address),
    };
    let repeat = match (insn.raw.has_rep_prefix(), insn.raw.has_repne_prefix(), compares) {
        (false, false, _) => 0,
        (_, _, false) => 1,
        (_, true, true) => 3,
        _ => 2,
    };
    let mut op = Op::new(handler).aux(repeat);
    op.seg = insn.segment_slot(source_segment(insn));
    op.r0 = if insn.mode.is_64bit() { SEG_NONE } else { ES };
    if repeat != 0 {
        // The number of steps is not known when the block is decoded, so the instruction must be the last in its
        // block.
        op.flags |= Op::ENDS_BLOCK;
    }
    Some(op)
}

/// Segment of the source operand; a segment prefix can change it.
fn source_segment(insn: &Insn<'_>) -> Register {
    if insn.raw.has_segment_prefix() { insn.raw.segment_prefix() } else { Register::DS }
}
