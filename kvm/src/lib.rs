//! One virtual CPU of the Linux kernel's KVM, over the same RAM and the same [`cpu::Bus`] as the software CPU, with
//! its state as [`cpu::CpuState`]: what runs on the one can go on on the other at any point between two instructions.
//!
//! KVM executes and nothing more: interrupt controllers, timers and clocks stay outside, because the kernel's would let
//! host time in. A place in the run is named by the exits before it, and a place between
//! two exits by a [`engine_contract::LandingPlace`]. The landing place says how many conditional branches the guest had
//! retired, if something counts them. See the kernel's Documentation/virt/kvm/api.rst.
//!
//! Where to start reading: [`KvmCpu::run`] is the run loop; below it `exits` does what the guest's exits ask for, `stopping` stops
//! a guest that makes none, and `search` finds such a place again, or, by its count, `landing`. `vcpu` is the bare vCPU, `state`
//! the conversion of states, `counter` counts, `probe` finds out what a host's KVM is worth.
//! `KVM.md` says how a whole machine is recorded and replayed with it.

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
