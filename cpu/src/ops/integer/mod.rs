//! General-purpose instructions (SDM vol. 2; vol. 1 chapter 7).
//!
//! Flags that the manuals leave undefined are defined here, the same on every host; each place says how.

mod alu;
mod bits;
mod branch;
mod decimal;
mod moves;
mod muldiv;
mod shift;
mod stack;
mod string;

use crate::decode::Insn;
use crate::op::Op;

/// Lowers this family's instructions.
pub(crate) fn lower(insn: &Insn<'_>) -> Option<Op> {
    if touches_system_registers(insn) {
        return None;
    }
    alu::lower(insn)
        .or_else(|| moves::lower(insn))
        .or_else(|| branch::lower(insn))
        .or_else(|| stack::lower(insn))
        .or_else(|| shift::lower(insn))
        .or_else(|| muldiv::lower(insn))
        .or_else(|| bits::lower(insn))
        .or_else(|| string::lower(insn))
        .or_else(|| decimal::lower(insn))
}

/// MOV, PUSH and POP share their mnemonics with moves of segment, control and debug registers.
fn touches_system_registers(insn: &Insn<'_>) -> bool {
    (0..insn.raw.op_count()).filter(|&n| insn.is_register(n)).any(|n| {
        let register = insn.raw.op_register(n);
        register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
    })
}

/// Picks the handler for an operand size: `by_width!(size, function<Type>)`.
macro_rules! by_width {
    ($size:expr, $function:ident $(, $type:ty)*) => {
        match $size {
            1 => $function::<$($type,)* crate::ops::width::W8> as crate::op::Handler,
            2 => $function::<$($type,)* crate::ops::width::W16>,
            4 => $function::<$($type,)* crate::ops::width::W32>,
            _ => $function::<$($type,)* crate::ops::width::W64>,
        }
    };
}

/// Picks the handler for a condition code: `by_condition!(cc, function<Type>)`.
macro_rules! by_condition {
    (@ $function:ident, ($($type:ty),*), $n:literal) => {
        $function::<$($type,)* $n> as crate::op::Handler
    };
    (each $cc:expr, $function:ident, $types:tt, $($n:literal)*) => {
        match $cc {
            $($n => by_condition!(@ $function, $types, $n),)*
            _ => unreachable!("condition codes have four bits"),
        }
    };
    ($cc:expr, $function:ident $(, $type:ty)*) => {
        by_condition!(each $cc, $function, ($($type),*), 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}

pub(super) use {by_condition, by_width};

/// The four-bit encoding of a condition.
pub(super) fn condition_number(insn: &Insn<'_>) -> Option<u8> {
    use iced_x86::ConditionCode::*;
    Some(match insn.raw.condition_code() {
        o => 0,
        no => 1,
        b => 2,
        ae => 3,
        e => 4,
        ne => 5,
        be => 6,
        a => 7,
        s => 8,
        ns => 9,
        p => 10,
        np => 11,
        l => 12,
        ge => 13,
        le => 14,
        g => 15,
        None => return Option::None,
    })
}
