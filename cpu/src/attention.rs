//! Bits of the word `Core::attention`: conditions that the run loop handles before the next instruction. Each set bit
//! takes execution off the fast path.

/// Interrupt lines must be sampled ([`Bus::signals`](crate::bus::Bus::signals)) or are known to be raised.
pub const SIGNALS: u32 = 1;
/// An interrupt shadow is in force. The shadow ends when the next instruction has completed.
pub const SHADOW: u32 = 1 << 1;
/// TF, RF, the guest's debug registers or a pending debug trap require that the CPU executes one instruction at a
/// time.
pub const DEBUG: u32 = 1 << 2;
/// Decoded code of the pages in `Core::stale_code` must be dropped.
pub const STALE_CODE: u32 = 1 << 3;
/// Devices or a debugger wrote to RAM pages from which the CPU derived decoded code or translations of addresses.
pub const FOREIGN_WRITES: u32 = 1 << 4;
/// The CPU is halted or shut down.
pub const HALTED: u32 = 1 << 5;
/// The step that just completed hit a debugger's watchpoint or trap, or had a happening that an observer wants.
pub const HIT: u32 = 1 << 6;
/// An observer wants happenings that the CPU notices only when it executes one instruction at a time.
pub const OBSERVED: u32 = 1 << 7;
