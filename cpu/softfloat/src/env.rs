//! Exception flag bits and rounding modes, which both halves of the crate share.
//!
//! The six exception flags have the same bit positions in MXCSR and in the x87 status word. The exceptions' masks
//! have the same order in MXCSR (from bit 7) and in the x87 control word (from bit 0). See the SDM, vol. 1,
//! sections 8.1.3 and 10.2.3.

/// Invalid operation.
pub const IE: u32 = 1;
/// Denormal operand.
pub const DE: u32 = 2;
/// Division by zero.
pub const ZE: u32 = 4;
/// Overflow.
pub const OE: u32 = 8;
/// Underflow.
pub const UE: u32 = 16;
/// Precision (inexact result).
pub const PE: u32 = 32;
/// All six exception flags.
pub const ALL_FLAGS: u32 = 0x3f;
/// Exceptions detected before the operation is computed. If unmasked, such an exception prevents a result
/// (SDM vol. 1, 4.9.2).
pub const PRE_COMPUTATION: u32 = IE | DE | ZE;

/// A rounding mode; the discriminants are the RC encoding of MXCSR, the x87 control word and `imm8` operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    Nearest = 0,
    /// Toward minus infinity.
    Down = 1,
    /// Toward plus infinity.
    Up = 2,
    /// Toward zero.
    Zero = 3,
}

impl Rounding {
    /// The mode that the low two bits of `rc` encode.
    #[inline]
    pub const fn from_bits(rc: u32) -> Rounding {
        match rc & 3 {
            0 => Rounding::Nearest,
            1 => Rounding::Down,
            2 => Rounding::Up,
            _ => Rounding::Zero,
        }
    }

    /// Whether an overflow gives infinity rather than the largest finite number (SDM vol. 1, table 4-10).
    #[inline]
    pub(crate) const fn overflows_to_infinity(self, sign: bool) -> bool {
        match self {
            Rounding::Nearest => true,
            Rounding::Down => sign,
            Rounding::Up => !sign,
            Rounding::Zero => false,
        }
    }
}
