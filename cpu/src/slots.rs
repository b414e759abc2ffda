//! Numbers by which ops name registers and segments, beyond the architectural numbers.

/// Register number that reads as zero: "no base", "no index".
pub const REG_ZERO: u8 = 16;
/// Register slot that holds the linear RIP of the start of the running block.
pub const REG_BLOCK_RIP: u8 = 17;
/// Added to an 8-bit register number for AH, CH, DH, BH (numbers 0 to 3).
pub const HIGH_BYTE: u8 = 0x40;
/// Segment slot whose base is always zero.
pub const SEG_NONE: u8 = 6;
