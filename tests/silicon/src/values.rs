//! Random operand values. Special values are far more frequent than among uniformly random values.

use crate::state::FxImage;
use seeded::Rng;

/// Returns a 64-bit integer: often small, near a power of two, or a repeated pattern.
pub fn integer(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => rng.below(4).wrapping_sub(1),
        1 => (1_u64 << rng.below(64)).wrapping_add(rng.below(3)).wrapping_sub(1),
        2 => rng.below(256),
        3 => rng.bits() as i32 as u64,
        4 => u64::from(rng.bits() as u32),
        5 => rng.bits() & rng.bits() & rng.bits(),
        6 => (rng.bits() as i64 >> rng.below(63)) as u64,
        _ => rng.bits(),
    }
}

/// Returns the bits of a floating-point number with `exponent_bits` and `fraction_bits`.
fn float(rng: &mut Rng, exponent_bits: u32, fraction_bits: u32) -> u64 {
    let top = (1_u64 << exponent_bits) - 1;
    let bias = top >> 1;
    let all = (1_u64 << fraction_bits) - 1;
    let exponent = match rng.below(16) {
        0 => 0,
        1 => 1 + rng.below(3),
        2 => top,
        3 => top - 1 - rng.below(3),
        4..=9 => bias.wrapping_add(rng.below(80)).wrapping_sub(10),
        10..=12 => bias.wrapping_add(rng.below(5)).wrapping_sub(2),
        _ => rng.bits(),
    } & top;
    let fraction = match rng.below(8) {
        0 | 1 => 0,
        2 => all,
        3 => 1_u64 << rng.below(u64::from(fraction_bits)),
        4 => all << rng.below(u64::from(fraction_bits)),
        _ => rng.bits(),
    } & all;
    (rng.bits() & 1) << (exponent_bits + fraction_bits) | exponent << fraction_bits | fraction
}

/// Returns 128 bits: integers, floats of 32 or 64 bits, or decimal digits.
pub fn vector(rng: &mut Rng) -> u128 {
    let mut halves = [0_u64; 2];
    let kind = rng.below(8);
    for half in &mut halves {
        *half = match kind {
            0..=2 => float(rng, 8, 23) | float(rng, 8, 23) << 32,
            3..=4 => float(rng, 11, 52),
            5 => rng.bits() & 0x0707_0707_0707_0707,
            _ => integer(rng),
        };
    }
    if rng.percent(3) {
        halves[1] = halves[0];
    }
    u128::from(halves[1]) << 64 | u128::from(halves[0])
}

/// Returns an 80-bit x87 number: mantissa, sign and exponent. Some numbers have encodings that the x87 does not
/// support.
pub fn extended(rng: &mut Rng) -> (u64, u16) {
    let sign = (rng.bits() & 1) as u16 * 0x8000;
    let mut mantissa = match rng.below(8) {
        0 | 1 => 1 << 63,
        2 => u64::MAX,
        3 => 1 << 63 | 1 << rng.below(63),
        4 => 1 << 63 | integer(rng),
        _ => 1 << 63 | rng.bits(),
    };
    let exponent = match rng.below(20) {
        0 => 0,
        1 => 0x7fff,
        2 => 1 + rng.below(3) as u16,
        3 => 0x7ffe - rng.below(3) as u16,
        4..=9 => 0x3fff + rng.below(64) as u16,
        10..=13 => 0x3ffd + rng.below(5) as u16,
        14 => 0x3f00 + rng.below(0x200) as u16,
        15 => 0x3bff + rng.below(0x801) as u16,
        _ => rng.bits() as u16 & 0x7fff,
    };
    match rng.below(40) {
        0 => mantissa = 0,
        1 | 2 => mantissa &= !(1 << 63),
        _ if exponent == 0 && rng.percent(70) => mantissa &= !(1 << 63),
        _ => {}
    }
    (mantissa, sign | exponent)
}

/// Generates a whole x87, MMX and SSE state that an instruction can load without an exception.
pub fn fx_image(rng: &mut Rng, fx: &mut FxImage) {
    fx.0[..32].fill(0);
    let mut control = 0x037f;
    if rng.percent(60) {
        // Do not use 1 as precision control, because this value is reserved.
        control = 0x7f | rng.pick(&[0, 2, 3, 3]) << 8 | (rng.below(4) as u16) << 10;
    }
    if rng.percent(8) {
        control &= !(rng.bits() as u16 & 0x3f);
    }
    let mut status = (rng.bits() as u16) & 0x7f00;
    if rng.percent(30) {
        status |= rng.bits() as u16 & 0x7f;
    }
    if rng.percent(85) {
        // Most generated states have no pending exception, because with a pending exception the tested instruction
        // would only raise #MF.
        status &= !(!control & 0x3f);
    }
    if status & !control & 0x3f != 0 {
        status |= 0x8080;
    }
    fx.set_control(control);
    fx.set_status(status);
    fx.set_tags(if rng.percent(70) { 0xff } else { rng.bits() as u8 });
    fx.set_opcode(rng.bits() as u16 & 0x7ff);
    fx.set_instruction_pointer(rng.bits() & 0x7fff_ffff_ffff);
    fx.set_data_pointer(rng.bits() & 0x7fff_ffff_ffff);
    for n in 0..8 {
        let (mantissa, sign_exponent) = if rng.percent(15) { (integer(rng), 0xffff) } else { extended(rng) };
        fx.set_st(n, mantissa, sign_exponent);
    }
    fx.set_mxcsr(mxcsr(rng));
    for n in 0..16 {
        fx.set_xmm(n, vector(rng));
    }
}

fn mxcsr(rng: &mut Rng) -> u32 {
    if rng.percent(30) {
        return 0x1f80;
    }
    let mut value = 0x1f80 | rng.bits() as u32 & 0x6000;
    if rng.percent(40) {
        value |= rng.bits() as u32 & 0x8040;
    }
    if rng.percent(30) {
        value |= rng.bits() as u32 & 0x3f;
    }
    if rng.percent(10) {
        value &= !(rng.bits() as u32 & 0x1f80);
    }
    value
}

/// Fills `bytes` with the contents of a memory operand.
pub fn memory(rng: &mut Rng, bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(16) {
        let value = match rng.below(6) {
            0 => {
                let (mantissa, sign_exponent) = extended(rng);
                u128::from(mantissa) | u128::from(sign_exponent) << 64
            }
            1 => {
                // Packed decimal.
                let mut value = 0;
                for n in 0..18 {
                    value |= u128::from(rng.below(10)) << (4 * n);
                }
                value | u128::from(rng.bits() & 0x80) << 72
            }
            _ => vector(rng),
        };
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
}
