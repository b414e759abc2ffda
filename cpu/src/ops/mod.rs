//! Instruction handlers by family. Each family has a function `lower` that turns a decoded instruction into an
//! [`Op`], or returns `None` for an instruction of another family.

pub(crate) mod integer;
pub(crate) mod simd;
pub(crate) mod system;
pub(crate) mod width;
pub(crate) mod x87;

use crate::insn::Insn;
use crate::op::Op;

/// The op of an instruction; `None` if no family handles it.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    const FAMILIES: [fn(&Insn<'_>) -> Option<Op>; 4] =
        [integer::lower, system::lower, simd::lower, x87::lower];
    FAMILIES.iter().find_map(|lower| lower(insn))
}
