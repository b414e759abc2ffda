//! FLD1, FLDZ, FLDL2T, FLDL2E, FLDPI, FLDLG2, FLDLN2. SDM vol. 1, 8.3.8; vol. 2, FLD1.

use super::{F80, X87Env};
use crate::env::Rounding;

/// A constant that an instruction can load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// +0 (FLDZ).
    Zero,
    /// 1 (FLD1).
    One,
    /// log2(10) (FLDL2T).
    Log2Of10,
    /// log2(e) (FLDL2E).
    Log2OfE,
    /// pi (FLDPI).
    Pi,
    /// log10(2) (FLDLG2).
    Log10Of2,
    /// ln(2) (FLDLN2).
    LnOf2,
}

/// The constant, rounded by the rounding control but not by the precision control. Raises nothing, not even #P.
pub fn load_constant(env: &X87Env, constant: Constant) -> F80 {
    // For each irrational constant: exponent, first 64 bits, and whether rounding to nearest rounds up.
    let (sign_exponent, truncated, nearest_up) = match constant {
        Constant::Zero => return F80::ZERO,
        Constant::One => return F80::ONE,
        Constant::Log2Of10 => (0x4000, 0xd49a_784b_cd1b_8afe, false),
        Constant::Log2OfE => (0x3fff, 0xb8aa_3b29_5c17_f0bb, true),
        Constant::Pi => (0x4000, 0xc90f_daa2_2168_c234, true),
        Constant::Log10Of2 => (0x3ffd, 0x9a20_9a84_fbcf_f798, true),
        Constant::LnOf2 => (0x3ffe, 0xb172_17f7_d1cf_79ab, true),
    };
    let up = match env.rounding() {
        Rounding::Nearest => nearest_up,
        Rounding::Up => true,
        Rounding::Down | Rounding::Zero => false,
    };
    F80 { mantissa: truncated + u64::from(up), sign_exponent }
}
