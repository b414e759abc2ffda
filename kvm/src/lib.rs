//! One virtual CPU of the Linux kernel's KVM, over the same RAM, bus and state as the software CPU.
//!
//! ```no_run
//! use cpu::{CpuState, EmptyBus, Stop};
//! use engine_contract::{End, Leave};
//! use guest_ram::GuestRam;
//! use kvm::KvmCpu;
//!
//! let ram = GuestRam::new(4 << 20)?;
//! ram.write_bytes(0x1000, &[0xf4]); // hlt
//! let mut state = CpuState::reset();
//! (state.segments[1].selector, state.segments[1].base, state.rip) = (0, 0, 0x1000);
//!
//! let mut cpu = KvmCpu::new(ram, kvm::model()?)?;
//! cpu.set_state(&state);
//! assert_eq!(cpu.run(&mut EmptyBus::default(), Leave::AtExits)?, End::Stop(Stop::Halted));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The state is a [`cpu::CpuState`] and the board a [`cpu::Bus`]. So between two instructions, a guest can move between
//! KVM and the software CPU.
//!
//! KVM only executes. ttvm uses none of the kernel's interrupt controllers, timers and clocks, because they would
//! let host time into the guest. The number of exits before a place identifies the place. A place between two exits
//! is a [`engine_contract::LandingPlace`], which also has the number of conditional branches if they are counted.
//! See the kernel's Documentation/virt/kvm/api.rst.
//!
//! Where to start reading: [`KvmCpu::run`] is the run loop. Below the run loop, `exits` handles the guest's
//! exits, and `stopping` stops a guest that makes no exits. `landing` finds the place of a stop again by its
//! count of branches, and `search` finds it without a count. `vcpu` is the bare vCPU, `state` converts
//! states, `counter` counts branches, and `probe` tests a host's KVM. `KVM.md` describes how a whole machine
//! is recorded and replayed.
//!
//! Three system calls are made by hand. The libraries lack these calls: F_SETOWN_EX (nix and libc), the ioctl
//! for a perf event's period (perf-event2), and KVM_INTERRUPT (kvm-ioctls).

mod counter;
mod error;
mod kick;
mod landing;
mod probe;
mod run;
mod state;
mod vcpu;
mod vm;

pub use counter::{Behaviour, Counter, CounterReport, CounterTest, counter_usable, test_counter};
pub use engine_contract::{Landings, Statistics};
pub use error::Error;
pub use probe::{Capabilities, Probe, capabilities, model, probe, refuse_imitation};
pub use run::KvmCpu;
pub use vcpu::MAX_STOPS;
pub use vm::is_present;
