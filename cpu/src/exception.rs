//! Exception vectors and the description of one raised exception (SDM vol. 3, chapter 6).

/// A raised exception that waits to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exception {
    /// Vector number.
    pub vector: u8,
    /// Error code, for the vectors that push one.
    pub error_code: Option<u32>,
    /// New value of CR2, for #PF. Set when the exception is delivered.
    pub cr2: Option<u64>,
}

/// Divide error.
pub const DE: u8 = 0;
/// Debug.
pub const DB: u8 = 1;
/// Non-maskable interrupt.
pub const NMI: u8 = 2;
/// Breakpoint.
pub const BP: u8 = 3;
/// Overflow (INTO).
pub const OF: u8 = 4;
/// Bound range exceeded.
pub const BR: u8 = 5;
/// Invalid opcode.
pub const UD: u8 = 6;
/// Device not available.
pub const NM: u8 = 7;
/// Double fault.
pub const DF: u8 = 8;
/// Invalid TSS.
pub const TS: u8 = 10;
/// Segment not present.
pub const NP: u8 = 11;
/// Stack fault.
pub const SS: u8 = 12;
/// General protection.
pub const GP: u8 = 13;
/// Page fault.
pub const PF: u8 = 14;
/// x87 floating-point error.
pub const MF: u8 = 16;
/// SIMD floating-point error.
pub const XM: u8 = 19;
