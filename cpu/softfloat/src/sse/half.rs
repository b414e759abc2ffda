//! F16C: binary16 to binary32 and back. SDM vol. 1, 14.4.1; vol. 2, VCVTPH2PS and VCVTPS2PH.

use super::SseEnv;
use super::format::{Kind, Unpacked, convert_nan, infinity, note_denormals, pack, round_pack, zero};
use crate::env::{IE, Rounding};

/// VCVTPH2PS of one lane. The conversion is exact. DAZ does not apply to binary16, and #D is not reported.
pub fn f16_to_f32(env: &mut SseEnv, a: u16) -> u32 {
    let x = Unpacked::new(a, false);
    match x.kind {
        Kind::Nan => {
            env.raise_if(x.is_signalling(), IE);
            convert_nan(a)
        }
        Kind::Infinity => infinity(x.sign),
        Kind::Zero => zero(x.sign),
        Kind::Finite => pack(x.sign, x.exact().round(24, Rounding::Zero)),
    }
}

/// VCVTPS2PH of one lane. Bits 1:0 of `imm8` are the mode; bit 2 selects MXCSR.RC instead. FTZ does not apply.
pub fn f32_to_f16(env: &mut SseEnv, a: u32, imm8: u8) -> u16 {
    let x = Unpacked::new(a, env.daz());
    match x.kind {
        Kind::Nan => {
            env.raise_if(x.is_signalling(), IE);
            convert_nan(a)
        }
        Kind::Infinity => infinity(x.sign),
        Kind::Zero => zero(x.sign),
        Kind::Finite => {
            note_denormals(env, &[x]);
            let mode = if imm8 & 4 != 0 { env.rounding() } else { Rounding::from_bits(u32::from(imm8)) };
            let mut inner = env.overridden(mode);
            let result = round_pack(&mut inner, x.exact());
            env.raise(inner.raised());
            result
        }
    }
}
