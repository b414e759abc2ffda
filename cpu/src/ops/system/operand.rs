//! Operands of system instructions: 16 bits in memory, or a register.

use crate::bus::Bus;
use crate::core::Core;
use crate::exception::Res;
use crate::insn::Insn;
use crate::op::Op;

/// Flag of an op whose operand for [`read16`] and [`write16`] is in memory.
const MEMORY: u8 = Op::FAMILY;

/// Sets the fields of an op for operand `n` of the instruction. If the operand is a register, `r0` gets its number.
pub(super) fn operand(insn: &Insn<'_>, op: Op, n: u32) -> Op {
    if insn.is_memory(n) { insn.address(op).with(MEMORY) } else { op.r0(insn.register(n)) }
}

/// Reads the 16-bit operand that [`operand`] prepared.
pub(super) fn read16(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<u16> {
    if op.flags & MEMORY == 0 {
        return Ok(core.reg16(op.r0));
    }
    let address = core.linear(op, 2)?;
    core.load_u16(bus, address)
}

/// Writes a 16-bit value to the operand that [`operand`] prepared. Memory gets 16 bits; a register gets `aux` bytes.
pub(super) fn write16(core: &mut Core, bus: &mut dyn Bus, op: &Op, value: u64) -> Res<()> {
    if op.flags & MEMORY != 0 {
        let address = core.linear_write(op, 2)?;
        return core.store_u16(bus, address, value as u16);
    }
    match op.aux {
        2 => core.set_reg16(op.r0, value as u16),
        4 => core.set_reg32(op.r0, value as u32),
        _ => core.set_reg64(op.r0, value),
    }
    Ok(())
}
