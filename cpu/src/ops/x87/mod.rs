//! The x87 floating-point instructions: encodings D8 to DF, and FWAIT.
//!
//! `unit` holds the shared parts: the checks before an instruction, the register stack, stack faults, exceptions, and
//! the pointers to the last instruction. `arith`, `compare`, `transfer`, `store` and `math` compute with the
//! `softfloat` crate. `control` and `environment` read and write the x87 unit's control, status and tag registers
//! and its pointers. MMX, EMMS, FXSAVE and XSAVE are in [`crate::ops::simd`].
//!
//! Manual: SDM vol. 1, chapter 8; vol. 2 for each instruction. Where the manual leaves something open, or differs
//! from real processors, this code does what real processors do (`tests/x87` compares the two). The choices of this
//! CPU model:
//!
//! * FCS and FDS are zero, as CPUID.(7,0):EBX bit 13 announces (SDM vol. 1, 8.1.8).
//! * Every non-control instruction updates FIP. Only an instruction that raises an unmasked exception updates
//!   FDP and FOP (SDM vol. 1, 8.1.8 and 8.1.9.1). CPUID.(7,0):EBX bit 6 announces this behaviour.
//! * With CR0.NE = 0 there is no external error reporting (FERR#). Unmasked exceptions show in the status word, and
//!   execution continues as with IGNNE# asserted.

mod arith;
mod compare;
mod control;
mod environment;
mod math;
mod store;
mod transfer;
mod unit;

use crate::insn::Insn;
use crate::op::Op;

/// Lowers x87 instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    let op = arith::lower(insn)
        .or_else(|| compare::lower(insn))
        .or_else(|| transfer::lower(insn))
        .or_else(|| store::lower(insn))
        .or_else(|| math::lower(insn))
        .or_else(|| control::lower(insn))
        .or_else(|| environment::lower(insn))?;
    let op = if insn.is_memory(0) { insn.address(op) } else { op };
    Some(op.imm(u64::from(last_opcode(insn.bytes))))
}

/// The FOP value of an instruction: the low three bits of its first opcode byte, then its ModR/M byte.
fn last_opcode(bytes: &[u8]) -> u16 {
    let escape = bytes.iter().position(|byte| byte & 0xf8 == 0xd8);
    match escape.and_then(|at| bytes.get(at..at + 2)) {
        Some(opcode) => u16::from(opcode[0] & 7) << 8 | u16::from(opcode[1]),
        None => 0,
    }
}
