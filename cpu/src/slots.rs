//! Numbers of registers and segments in the fields of ops, in addition to the architectural numbers.

/// The number of a register that is always zero. A memory operand without a base or an index uses this number.
pub const REG_ZERO: u8 = 16;
/// Register slot that holds the linear RIP of the start of the running block.
pub const REG_BLOCK_RIP: u8 = 17;
/// The bit that is added to the numbers 0 to 3 of 8-bit registers for AH, CH, DH and BH.
pub const HIGH_BYTE: u8 = 0x40;
/// Segment slot whose base is always zero.
pub const SEG_NONE: u8 = 6;
