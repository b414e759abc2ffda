//! General-purpose instructions (SDM vol. 2; vol. 1 chapter 7).
//!
//! These modules give fixed values to flags that the manuals leave undefined, the same on every host. Each module
//! documents its own flags.

mod alu;
mod bits;
mod branch;
mod decimal;
mod moves;
mod muldiv;
mod select;
mod shift;
mod stack;
mod string;

use crate::insn::Insn;
use crate::op::Op;

/// The lowering functions of the modules. Functions for frequent instructions come first.
const FAMILIES: [fn(&Insn<'_>) -> Option<Op>; 9] = [
    alu::lower,
    moves::lower,
    branch::lower,
    stack::lower,
    shift::lower,
    muldiv::lower,
    bits::lower,
    string::lower,
    decimal::lower,
];

/// Lowers general-purpose instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    if touches_system_registers(insn) {
        return None;
    }
    FAMILIES.iter().find_map(|lower| lower(insn))
}

/// MOV, PUSH and POP share their mnemonics with moves of segment, control and debug registers.
fn touches_system_registers(insn: &Insn<'_>) -> bool {
    (0..insn.raw.op_count()).filter(|&n| insn.is_register(n)).any(|n| {
        let register = insn.raw.op_register(n);
        register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
    })
}
