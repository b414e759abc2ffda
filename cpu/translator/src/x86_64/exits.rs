//! The exit protocol between generated code and the rest of the translator: the exit's code, and the counter.

/// The number of the exit before the first instruction, in place of an instruction's number.
pub(super) const ENTRY: u8 = 63;
/// The number of the edge of a taken branch.
pub(super) const EDGE_TAKEN: u8 = 62;
/// The number of the edge to the next instruction.
pub(super) const EDGE_ON: u8 = 61;
/// The largest number of blocks that an exit's code can distinguish.
pub(super) const MAX_BLOCKS: u32 = 1 << 26;

/// The value that a block's exit loads into EAX.
pub(super) fn exit_code(number: u32, code: u8) -> u32 {
    number << 6 | u32::from(code)
}

/// Number of low bits of the counter, which count branches.
pub(super) const BRANCH_BITS: u32 = 24;

/// The counter's change for a number of steps and conditional branches.
pub(super) fn cost(steps: usize, branches: u64) -> i64 {
    ((steps as i64) << BRANCH_BITS) - branches as i64
}
