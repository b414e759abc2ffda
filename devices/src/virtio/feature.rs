//! Feature words.

/// Bit `number` of a feature word.
pub(super) const fn feature(number: u32) -> u64 {
    1 << number
}
