//! Bits of the word `Core::attention`: things that need a look before the next instruction. Any of them leaves the fast
//! path.

/// Interrupt lines must be sampled ([`Bus::signals`](crate::bus::Bus::signals)) or are known to be raised.
pub const SIGNALS: u32 = 1;
/// An interrupt shadow is in force for exactly one instruction.
pub const SHADOW: u32 = 1 << 1;
/// TF, RF, guest debug registers or a pending debug trap: go instruction by instruction.
pub const DEBUG: u32 = 1 << 2;
/// Decoded code must be dropped (those of `Core::stale_code`).
pub const STALE_CODE: u32 = 1 << 3;
/// Devices or a debugger wrote pages that code or translations came from.
pub const FOREIGN_WRITES: u32 = 1 << 4;
/// The CPU is halted or shut down.
pub const HALTED: u32 = 1 << 5;
/// The step that just completed hit a debugger's watchpoint or trap, or did what an observer wants.
pub const HIT: u32 = 1 << 6;
/// An observer wants what is found only instruction by instruction.
pub const OBSERVED: u32 = 1 << 7;
