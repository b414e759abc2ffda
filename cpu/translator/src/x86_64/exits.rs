//! What generated code and the rest of the translator tell each other when it is left: the exit's code, and the counter.

/// What stands for "before the first instruction" in an exit's code, in place of an instruction's number.
pub(super) const ENTRY: u8 = 63;
/// The edge of a branch that is taken.
pub(super) const EDGE_TAKEN: u8 = 62;
/// The edge to what follows.
pub(super) const EDGE_ON: u8 = 61;
/// Blocks that can be told apart.
pub(super) const MAX_BLOCKS: u32 = 1 << 26;

/// What a block's exit leaves in EAX.
pub(super) fn exit_code(number: u32, code: u8) -> u32 {
    number << 6 | u32::from(code)
}

/// Bits of the counter below the steps, which count branches.
pub(super) const BRANCH_BITS: u32 = 24;

/// What so many steps and conditional branches take from the counter.
pub(super) fn cost(steps: usize, branches: u64) -> i64 {
    ((steps as i64) << BRANCH_BITS) - branches as i64
}
