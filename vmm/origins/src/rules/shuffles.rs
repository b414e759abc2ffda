//! Instructions that only rearrange the bytes of XMM registers (SDM vol. 2). The C library's `memcpy` uses
//! such instructions.

use std::array::from_fn;

use iced_x86::{Instruction, Mnemonic};

/// The source of a byte of the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// Byte number `1` of operand number `0`.
    Of(u32, u8),
    /// A zero that the instruction shifts in.
    Zero,
}

/// The sources of all bytes that an instruction rearranges. `None` for other instructions. PSHUFB is not in the list,
/// because the order of its bytes is in a register.
pub fn sources(instruction: &Instruction) -> Option<[Byte; 16]> {
    use Mnemonic as M;
    let order = usize::from(instruction.immediate8());
    let second = |byte: usize| of(1, byte);
    Some(match instruction.mnemonic() {
        M::Palignr => from_fn(|to| match to + order {
            byte @ 0..16 => second(byte),
            byte @ 16..32 => of(0, byte - 16),
            _ => Byte::Zero,
        }),
        M::Psrldq => from_fn(|to| if to + order < 16 { of(0, to + order) } else { Byte::Zero }),
        M::Pslldq => from_fn(|to| to.checked_sub(order).map_or(Byte::Zero, |byte| of(0, byte))),
        M::Pshufd => from_fn(|to| second(chosen(order, to / 4) * 4 + to % 4)),
        M::Pshuflw => from_fn(|to| second(if to < 8 { chosen(order, to / 2) * 2 + to % 2 } else { to })),
        M::Pshufhw => {
            from_fn(|to| second(if to < 8 { to } else { 8 + chosen(order, to / 2 - 4) * 2 + to % 2 }))
        }
        M::Shufps => from_fn(|to| of(to / 8, chosen(order, to / 4) * 4 + to % 4)),
        M::Shufpd => from_fn(|to| of(to / 8, (order >> (to / 8) & 1) * 8 + to % 8)),
        M::Punpcklbw => from_fn(|to| interleaved(1, 0, to)),
        M::Punpcklwd => from_fn(|to| interleaved(2, 0, to)),
        M::Punpckldq | M::Unpcklps => from_fn(|to| interleaved(4, 0, to)),
        M::Punpcklqdq | M::Unpcklpd => from_fn(|to| interleaved(8, 0, to)),
        M::Punpckhbw => from_fn(|to| interleaved(1, 8, to)),
        M::Punpckhwd => from_fn(|to| interleaved(2, 8, to)),
        M::Punpckhdq | M::Unpckhps => from_fn(|to| interleaved(4, 8, to)),
        M::Punpckhqdq | M::Unpckhpd => from_fn(|to| interleaved(8, 8, to)),
        M::Movsldup => from_fn(|to| second(to & !4)),
        M::Movshdup => from_fn(|to| second(to | 4)),
        M::Movddup => from_fn(|to| second(to % 8)),
        M::Pblendw => from_fn(|to| of(order >> (to / 2) & 1, to)),
        M::Blendps => from_fn(|to| of(order >> (to / 4) & 1, to)),
        M::Blendpd => from_fn(|to| of(order >> (to / 8) & 1, to)),
        _ => return None,
    })
}

fn of(operand: usize, byte: usize) -> Byte {
    Byte::Of(operand as u32, byte as u8)
}

/// The number of an element by two bits of the immediate operand. The numbers of four elements repeat.
fn chosen(order: usize, element: usize) -> usize {
    order >> (element % 4 * 2) & 3
}

/// The elements come in turn from the first and the second operand, from byte `first` on.
fn interleaved(bytes: usize, first: usize, to: usize) -> Byte {
    let element = to / bytes;
    of(element % 2, first + element / 2 * bytes + to % bytes)
}
