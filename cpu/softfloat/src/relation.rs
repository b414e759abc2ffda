//! The outcome of a comparison, in the form that both halves of the crate return.

use core::cmp::Ordering;

/// The relation of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The first operand is less.
    Less,
    /// The operands are equal. Zeros of either sign are equal.
    Equal,
    /// The first operand is greater.
    Greater,
    /// At least one operand is a NaN.
    Unordered,
}

impl Relation {
    /// The EFLAGS bits ZF (6), PF (2) and CF (0) that COMIS, UCOMIS and FCOMI set. OF, SF and AF become 0.
    #[inline]
    pub const fn eflags(self) -> u32 {
        match self {
            Relation::Unordered => 0x45,
            Relation::Greater => 0,
            Relation::Less => 1,
            Relation::Equal => 0x40,
        }
    }

    /// The x87 condition codes C3 (bit 14), C2 (10) and C0 (8) that FCOM, FUCOM and FTST set.
    #[inline]
    pub const fn condition_codes(self) -> u16 {
        match self {
            Relation::Unordered => 0x4500,
            Relation::Greater => 0,
            Relation::Less => 0x0100,
            Relation::Equal => 0x4000,
        }
    }
}

impl From<Ordering> for Relation {
    #[inline]
    fn from(order: Ordering) -> Relation {
        match order {
            Ordering::Less => Relation::Less,
            Ordering::Equal => Relation::Equal,
            Ordering::Greater => Relation::Greater,
        }
    }
}
