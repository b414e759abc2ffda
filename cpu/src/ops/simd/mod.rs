//! MMX, SSE to SSE4.2, AES and carry-less multiplication; MXCSR, FXSAVE and XSAVE.
//!
//! [`guard`] holds the checks at the start of every instruction. Each other module lowers one kind of
//! instruction. `packed` has the regular integer instructions, computed by [`crate::simd`]. `moves` and
//! `transfer` move data. `fp` and `convert` do floating point with the `softfloat` crate. `strings` has
//! PCMPxSTRx, and `save` has control and state. Instructions with VEX and EVEX encodings have mnemonics of their
//! own. No module lowers these instructions, so they raise #UD.
//!
//! Manual: SDM vol. 2 for each instruction; vol. 3, 23.25 (exception classes; 22.25 in older editions); vol. 1,
//! chapter 13 (state saving).

mod convert;
mod fp;
mod guard;
mod moves;
mod packed;
mod save;
mod strings;
mod transfer;

use crate::insn::Insn;
use crate::op::Op;

/// Lowers SIMD instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    moves::lower(insn)
        .or_else(|| packed::lower(insn))
        .or_else(|| fp::lower(insn))
        .or_else(|| convert::lower(insn))
        .or_else(|| transfer::lower(insn))
        .or_else(|| strings::lower(insn))
        .or_else(|| save::lower(insn))
}
