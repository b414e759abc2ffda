//! RCPSS and RSQRTSS as this crate defines them. No processor gives exactly these results.
//!
//! The SDM limits the relative error to 1.5 * 2^-12, but does not define the exact bits. The results of different
//! processors differ. This definition, the same on every host, is **the exact value rounded to nearest-even to 12
//! significant bits**. The relative error of this value is at most 2^-12.
//!
//! Special cases follow SDM vol. 2, RCPPS and RSQRTPS. MXCSR is neither read nor written. Denormal operands count as
//! zeros regardless of DAZ, and tiny results become zeros. SNaNs become quiet without an exception.

use super::format::{Kind, Unpacked, default_nan, emin, infinity, pack, quiet, zero};
use crate::env::Rounding;
use crate::exact::Exact;

const ESTIMATE_BITS: u32 = 12;

/// RCPSS: about `1 / a`.
pub fn reciprocal(a: u32) -> u32 {
    let x = Unpacked::new(a, true);
    match x.kind {
        Kind::Nan => quiet(a),
        Kind::Infinity => zero(x.sign),
        Kind::Zero => infinity(x.sign),
        Kind::Finite => estimate(Exact::quotient(ONE, x.exact())),
    }
}

/// RSQRTSS: about `1 / sqrt(a)`.
pub fn reciprocal_square_root(a: u32) -> u32 {
    let x = Unpacked::new(a, true);
    match x.kind {
        Kind::Nan => quiet(a),
        Kind::Zero => infinity(x.sign),
        _ if x.sign => default_nan(),
        Kind::Infinity => zero(false),
        // The root is cut to 64 bits, which cannot change a 12-bit result.
        Kind::Finite => estimate(Exact::quotient(ONE, Exact::square_root(x.exact()))),
    }
}

const ONE: Exact = Exact { sign: false, exp: 0, sig: 1 << 127 };

fn estimate(value: Exact) -> u32 {
    let rounded = value.round(ESTIMATE_BITS, Rounding::Nearest);
    if rounded.exp < emin::<u32>() { zero(value.sign) } else { pack(value.sign, rounded) }
}
