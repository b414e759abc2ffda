//! Privileged and system instructions. This CPU does not implement MONITOR, MWAIT, RSM, VMX and SVM: `lower`
//! returns `None`, so these instructions raise #UD.

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

/// Lowers system instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    flag_ops::lower(insn)
        .or_else(|| control::lower(insn))
        .or_else(|| flow::lower(insn))
        .or_else(|| port::lower(insn))
        .or_else(|| processor::lower(insn))
        .or_else(|| segment_ops::lower(insn))
        .or_else(|| tables::lower(insn))
}
