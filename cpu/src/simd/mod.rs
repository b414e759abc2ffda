//! Packed operations as pure functions on little-endian byte vectors: no registers, no memory, no faults.
//!
//! A vector is `[u8; N]`, where `N` is 8 for an MMX register and 16 for an XMM register, so that one definition serves
//! both. Wider registers can later apply the 16-byte form to each 128-bit half, as AVX does.
//!
//! Each instruction is a type that is named after its mnemonic and implements [`Packed`]. The types have no
//! documentation of their own: the manual describes each instruction under its mnemonic (SDM vol. 2).

pub(crate) mod aes;
pub(crate) mod arith;
pub(crate) mod compare;
pub(crate) mod horizontal;
pub(crate) mod lanes;
pub(crate) mod pack;
pub(crate) mod shift;
pub(crate) mod shuffle;
pub(crate) mod string;

/// A packed instruction: `a` is the destination's old value, `b` the source. Instructions with one source ignore `a`;
/// instructions without an immediate ignore `imm`.
pub(crate) trait Packed: 'static {
    /// The destination's new value.
    fn apply<const N: usize>(a: [u8; N], b: [u8; N], imm: u8) -> [u8; N];
}

/// Defines types that implement [`Packed`], one per line.
macro_rules! packed {
    ($($name:ident = |$a:pat_param, $b:pat_param, $imm:pat_param| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl crate::simd::Packed for $name {
            #[inline(always)]
            fn apply<const N: usize>($a: [u8; N], $b: [u8; N], $imm: u8) -> [u8; N] {
                $body
            }
        }
    )*};
}
pub(crate) use packed;
