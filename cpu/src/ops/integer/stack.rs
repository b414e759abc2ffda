//! PUSH, POP, PUSHA, POPA, ENTER, LEAVE. `ops/system` has PUSHF and POPF.

use iced_x86::Mnemonic;

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::{Handler, Op};
use crate::ops::width::{W16, W32, W64, Width};

fn push_reg<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.push(bus, W::BYTES, W::get(core, op.r0))
}

fn push_imm<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    core.push(bus, W::BYTES, op.imm & W::MASK)
}

fn push_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let address = core.linear(op, W::BYTES)?;
    let value = W::load(core, bus, address)?;
    core.push(bus, W::BYTES, value)
}

fn pop_reg<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let value = core.pop(bus, W::BYTES)?;
    W::set(core, op.r0, value);
    Ok(())
}

/// POP to memory. The address of the operand is computed with the stack pointer after the pop.
fn pop_mem<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let old = core.frame.regs[4];
    let value = core.pop(bus, W::BYTES)?;
    let stored = core.linear_write(op, W::BYTES).and_then(|address| W::store(core, bus, address, value));
    if stored.is_err() {
        core.frame.regs[4] = old;
    }
    stored
}

fn pusha<W: Width>(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    let old = core.frame.regs[4];
    for register in 0..8 {
        let value = if register == 4 { old & W::MASK } else { W::get(core, register) };
        if let Err(reason) = core.push(bus, W::BYTES, value) {
            core.frame.regs[4] = old;
            return Err(reason);
        }
    }
    Ok(())
}

fn popa<W: Width>(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    let sp = core.frame.regs[4] & core.stack_mask;
    let mut values = [0; 8];
    for (n, value) in values.iter_mut().enumerate() {
        *value = core.load_stack(bus, sp.wrapping_add(n as u64 * W::BYTES) & core.stack_mask, W::BYTES)?;
    }
    for (n, &value) in values.iter().enumerate() {
        let register = 7 - n as u8;
        if register != 4 {
            W::set(core, register, value);
        }
    }
    core.set_stack_pointer(sp.wrapping_add(8 * W::BYTES));
    Ok(())
}

/// ENTER (SDM vol. 2): `imm` is the frame size, `aux` the nesting level.
fn enter<W: Width>(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<()> {
    let level = u64::from(op.aux & 31);
    let mask = core.stack_mask;
    let mut sp = core.stack_pointer_minus(W::BYTES);
    core.store_stack(bus, sp, W::BYTES, W::get(core, 5))?;
    let frame = sp;
    for n in 1..level {
        let at = core.frame.regs[5].wrapping_sub(n * W::BYTES) & mask;
        let display = core.load_stack(bus, at, W::BYTES)?;
        sp = sp.wrapping_sub(W::BYTES) & mask;
        core.store_stack(bus, sp, W::BYTES, display)?;
    }
    if level > 0 {
        sp = sp.wrapping_sub(W::BYTES) & mask;
        core.store_stack(bus, sp, W::BYTES, frame & W::MASK)?;
    }
    sp = sp.wrapping_sub(op.imm) & mask;
    // Probe the new top of the stack before registers change, as the manual demands.
    let probe = core.segment_linear(2, sp, W::BYTES, true)?;
    core.check_writable(bus, probe, W::BYTES).map_err(|reason| core.as_stack_fault(reason))?;
    W::set(core, 5, frame);
    core.set_stack_pointer(sp);
    Ok(())
}

fn leave<W: Width>(core: &mut Core, bus: &mut dyn Bus, _: &Op) -> Res<()> {
    let sp = core.frame.regs[5] & core.stack_mask;
    let value = core.load_stack(bus, sp, W::BYTES)?;
    core.set_stack_pointer(sp.wrapping_add(W::BYTES));
    W::set(core, 5, value);
    Ok(())
}

/// The number of bytes that the instruction pushes or pops for each of its `items` values.
fn item_bytes(insn: &Insn<'_>, items: u32) -> u32 {
    insn.raw.stack_pointer_increment().unsigned_abs() / items
}

macro_rules! by_stack_width {
    ($bytes:expr, $function:ident) => {
        match $bytes {
            2 => $function::<W16> as Handler,
            4 => $function::<W32>,
            _ => $function::<W64>,
        }
    };
}

fn enter_leave_bytes(insn: &Insn<'_>) -> u32 {
    use iced_x86::Code::*;
    match insn.code() {
        Enterw_imm16_imm8 | Leavew => 2,
        Enterd_imm16_imm8 | Leaved => 4,
        _ => 8,
    }
}

pub(super) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let op = match insn.mnemonic() {
        Mnemonic::Push => {
            let bytes = item_bytes(insn, 1);
            if insn.is_memory(0) {
                insn.address(Op::new(by_stack_width!(bytes, push_mem)))
            } else if insn.is_register(0) {
                Op::new(by_stack_width!(bytes, push_reg)).r0(insn.register(0))
            } else {
                Op::new(by_stack_width!(bytes, push_imm)).imm(insn.immediate(0))
            }
        }
        Mnemonic::Pop => {
            let bytes = item_bytes(insn, 1);
            if insn.is_memory(0) {
                insn.address(Op::new(by_stack_width!(bytes, pop_mem)))
            } else {
                Op::new(by_stack_width!(bytes, pop_reg)).r0(insn.register(0))
            }
        }
        Mnemonic::Pusha | Mnemonic::Pushad => Op::new(by_stack_width!(item_bytes(insn, 8), pusha)),
        Mnemonic::Popa | Mnemonic::Popad => Op::new(by_stack_width!(item_bytes(insn, 8), popa)),
        Mnemonic::Enter => Op::new(by_stack_width!(enter_leave_bytes(insn), enter))
            .imm(insn.immediate(0) & 0xffff)
            .aux(insn.immediate(1) as u8),
        Mnemonic::Leave => Op::new(by_stack_width!(enter_leave_bytes(insn), leave)),
        _ => return None,
    };
    Some(op)
}
