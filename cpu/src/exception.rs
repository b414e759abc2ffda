//! Exception vectors, the description of a raised exception, and the type with which instruction handlers report an
//! exception (SDM vol. 3, chapter 6).

/// A raised exception that waits to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exception {
    /// Vector number.
    pub vector: u8,
    /// Error code, for the vectors that push one.
    pub error_code: Option<u32>,
    /// New value of CR2, for #PF. CR2 changes when the exception is delivered.
    pub cr2: Option<u64>,
    /// Whether the exception is a #GP for a non-canonical address. If a stack access caused the exception, the CPU
    /// raises #SS in its place.
    pub noncanonical: bool,
}

/// An event that is delivered through the interrupt descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A fault or trap that an instruction caused. A fault's return address is the faulting instruction.
    Exception(Exception),
    /// An external interrupt.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
}

/// Why the execution of a block ends before the block's last instruction. The fields of [`Core`](crate::core::Core)
/// hold the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Break {
    /// The instruction faulted. `Core::exception` describes the fault. The instruction changed no other state.
    Fault,
    /// The instruction set RIP and the step count itself and did not complete as one step. Examples are a repeated
    /// string instruction that stopped between iterations and a trap-like software interrupt.
    Done,
}

/// Result of an operation that may fault.
pub type Res<T> = Result<T, Break>;

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
/// Alignment check.
pub const AC: u8 = 17;
/// x87 floating-point error.
pub const MF: u8 = 16;
/// SIMD floating-point error.
pub const XM: u8 = 19;
