//! A deterministic x86-64 CPU in software: the same state and the same memory give the same result on every host.
//!
//! ```
//! use cpu::{Cpu, CpuState, EmptyBus, Segment, Stop};
//! use guest_ram::GuestRam;
//!
//! let ram = GuestRam::new(1 << 20)?;
//! // mov ax, 7; inc ax; hlt
//! ram.write_bytes(0x1000, &[0xb8, 7, 0, 0x40, 0xf4]);
//!
//! let mut state = CpuState::reset();
//! state.segments[1] = Segment { selector: 0, base: 0, ..state.segments[1] };
//! state.rip = 0x1000;
//! let mut cpu = Cpu::new(ram);
//! cpu.set_state(&state);
//!
//! assert_eq!(cpu.run(&mut EmptyBus::default(), u64::MAX, 0), Stop::Halted);
//! assert_eq!((cpu.gpr()[0], cpu.steps()), (8, 3));
//! # Ok::<(), guest_ram::RamError>(())
//! ```
//!
//! The package `cpu_model` describes the processors that a guest can see. `iced-x86` decodes. An interpreter executes
//! cached blocks of decoded instructions, and the package `translator` turns blocks that run often into host code.
//! Steps and branches are counted exactly, and runs stop at breakpoints and watchpoints.
//!
//! The crate has no code for devices, recordings or the host's operating system. The CPU reaches the machine
//! through [`Bus`], and guest memory through [`guest_ram::GuestRam`]. A checkpoint stores [`CpuState`] as
//! [`CpuStateV1`]. Caches can be dropped at any time, and the guest cannot see a difference. `CPU.md` describes the
//! design.
//!
//! Where to start reading: [`exec`](Cpu::run) is the run loop, `op` the decoded instruction, `decode` turns bytes into
//! ops, and `ops` executes them. `memory` and `mmu` do loads, stores and address translation.
//!
//! The list below shows the layers of the files, the highest layer first. No file imports from a higher layer:
//!
//! ```text
//! exec                                  the run loop, and the use of translated code
//! decode                                bytes to ops
//! ops                                   what instructions do, by family
//! msr, control_registers,               what system registers do,
//! interrupt, segmentation               descriptors, and transfers through them
//! memory, debug, observe, cpuid         loads and stores, checks for watchers, CPUID's answers
//! insn, op, code                        instructions during decoding, decoded, and in blocks
//! core, observer                        the running CPU, and its observers
//! mmu, code_lines, debug_points         the parts of the core
//! observing, happening, ranges          an observer's wants, happenings, sets of addresses
//! state, flags, exception, ...          plain data and bits
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
mod happening;
mod insn;
mod interrupt;
mod memory;
mod mmu;
mod msr;
mod observe;
mod observer;
mod observing;
mod op;
mod ops;
mod ranges;
mod segmentation;
mod simd;
mod slots;
mod state;
mod state_v1;
mod undefined;

pub use crate::bus::{Bus, BusSignals, EmptyBus, ProcessorSignals, Startup};
pub use crate::core::{CodeSize, Core};
pub use crate::debug_points::{AddressKind, Hit, SystemCalls, Trap, Traps, WatchHit, WatchKind, Watchpoint};
pub use crate::exec::{
    Cpu, Met, SpinState, Stop, TURN_STEPS, Tier, Turn, TurnPolicy, TurnRules, TurnState, UnknownTier,
};
pub use crate::happening::{At, Bytes, Calls, Happening, InstructionFilter, Place, Places, Vectors, Wants};
pub use crate::observer::Observer;
pub use crate::state::{Counts, CpuState, FpuState, Msrs, SegReg, Segment, TableRegister};
pub use crate::state_v1::CpuStateV1;
pub use crate::undefined::{fold_registers, without_undefined_flags};
pub use cpu_model::{CpuModel, Topology};
pub use translator::{Part, Parts};
