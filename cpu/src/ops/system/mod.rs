//! Privileged and system instructions. MONITOR, MWAIT, RSM, VMX and SVM do not exist on this model: they are
//! declined, which makes them #UD.

pub(crate) mod control;
mod flag_ops;
mod flow;
mod port;
mod processor;
mod segment_ops;
mod tables;

use crate::bus::Bus;
use crate::core::Core;
use crate::decode::Insn;
use crate::op::{Op, Res};

/// Lowers this family's instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    flag_ops::lower(insn)
        .or_else(|| control::lower(insn))
        .or_else(|| flow::lower(insn))
        .or_else(|| port::lower(insn))
        .or_else(|| processor::lower(insn))
        .or_else(|| segment_ops::lower(insn))
        .or_else(|| tables::lower(insn))
}

/// The operand is in memory ([`read16`] and [`write_selector`]).
const MEMORY: u8 = Op::FAMILY;

/// Prepares operand `n`, register or memory, of an op: the register goes to `r0`.
fn operand(insn: &Insn<'_>, op: Op, n: u32) -> Op {
    if insn.is_memory(n) { insn.address(op).with(MEMORY) } else { op.r0(insn.register(n)) }
}

/// Reads the 16-bit operand that [`operand`] prepared.
fn read16(core: &mut Core, bus: &mut dyn Bus, op: &Op) -> Res<u16> {
    if op.flags & MEMORY == 0 {
        return Ok(core.reg16(op.r0));
    }
    let address = core.linear(op, 2)?;
    core.load_u16(bus, address)
}

/// Writes a 16-bit value to the operand that [`operand`] prepared: memory takes 16 bits, a register as many
/// as `aux` has bytes.
fn write16(core: &mut Core, bus: &mut dyn Bus, op: &Op, value: u64) -> Res<()> {
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

impl Core {
    /// RIP behind the running instruction.
    fn return_rip(&self, op: &Op) -> u64 {
        self.next_rip(self.block_rip(), op.next)
    }

    /// #UD outside protected mode (virtual-8086 mode counts as outside).
    fn require_protected(&mut self) -> Res<()> {
        if self.protected_mode() { Ok(()) } else { Err(self.ud()) }
    }

    /// With CR4.UMIP, descriptor-table registers and the like may not be read outside level 0.
    fn check_umip(&mut self) -> Res<()> {
        let forbidden = self.state.cr4 & crate::core::cr4::UMIP != 0 && self.cpl != 0;
        if forbidden { Err(self.gp(0)) } else { Ok(()) }
    }
}
