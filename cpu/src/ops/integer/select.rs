//! Macros that choose the instance of a generic handler for an operand size or a condition code.

use crate::insn::Insn;

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
