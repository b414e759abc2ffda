//! Privileged and system instructions. MONITOR, MWAIT, RSM, VMX and SVM do not exist here: `lower` declines them, so
//! they raise #UD.

mod checks;
mod control;
mod flag_ops;
mod flow;
mod operand;
mod port;
mod processor;
mod segment_ops;
mod tables;

use crate::insn::Insn;
use crate::op::Op;

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
