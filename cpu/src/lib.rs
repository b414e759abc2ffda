//! A deterministic software x86-64 CPU: decoding by `iced-x86`, a software TLB, an interpreter over cached
//! blocks of decoded instructions, exact step and branch counts, break- and watchpoints.
//!
//! It knows nothing of devices, logs or hosts: the machine around it is behind [`Bus`], guest memory behind
//! [`guest_ram::GuestRam`]. Everything it computes is the same on every host. What must survive a checkpoint
//! is in [`CpuState`], on disk as a [`CpuStateV1`]; caches (translations, decoded code) can be dropped at any
//! time without a visible difference.
//!
//! Where to start reading: [`exec`](Cpu::run) is the run loop, `op` the decoded instruction, `decode` turns
//! bytes into ops, `ops` executes them, `memory` and `mmu` are loads, stores and translations.
//!
//! The files stand on one another in this order, and none imports from a file above itself:
//!
//! ```text
//! exec                                  the run loop, and what runs translated code
//! decode                                bytes to ops
//! ops                                   what instructions do, by family
//! msr, control_registers,               what system registers do,
//! interrupt, segmentation               descriptors, and what goes through them
//! memory, debug, cpuid                  loads and stores, watched places, features
//! insn, op, code                        an instruction on its way, decoded, and in blocks
//! core                                  the running CPU
//! mmu, code_lines, debug_points, quirks what the core consists of
//! state, model, registers, ...          plain data and bits
//! ```

#![forbid(unsafe_code)]

mod attention;
mod bus;
mod code;
mod code_lines;
mod control_registers;
mod core;
mod cpuid;
mod debug;
mod debug_points;
mod decode;
mod exception;
mod exec;
mod flags;
mod fpu;
mod insn;
mod interrupt;
mod memory;
mod mmu;
mod model;
mod msr;
mod op;
mod ops;
mod quirks;
mod registers;
mod segmentation;
mod simd;
mod slots;
mod state;
mod state_v1;
mod undefined;

pub use crate::bus::{Bus, BusSignals, EmptyBus};
pub use crate::core::{CodeSize, Core};
pub use crate::debug_points::{AddressKind, Hit, SystemCalls, Trap, Traps, WatchHit, WatchKind, Watchpoint};
pub use crate::exec::{Cpu, Stop, Tier};
pub use crate::model::CpuModel;
pub use crate::state::{Counts, CpuState, FpuState, Msrs, SegReg, Segment, TableRegister};
pub use crate::state_v1::CpuStateV1;
pub use crate::undefined::{fold_registers, without_undefined_flags};
