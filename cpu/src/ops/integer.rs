//! General-purpose instructions.

use crate::decode::Insn;
use crate::op::Op;

/// Lowers this family's instructions.
pub(crate) fn lower(_insn: &Insn<'_>) -> Option<Op> {
    None
}
