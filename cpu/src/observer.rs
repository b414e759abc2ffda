//! Observers of a stretch of the run. An observer chooses the kinds of happenings that it wants, and the CPU reports
//! these in the order of the run. The guest cannot see an observer, and happenings that nobody wants cost nothing.
//!
//! Reports are exact: they do not depend on the [`Tier`](crate::Tier), or on how the guest's run is divided into calls
//! of the CPU. The happenings of one step are reported in this order:
//!
//! 1. the fetch, while the CPU still has the state before the step;
//! 2. all other happenings, once the step is complete: loads and stores in the CPU's order, then the delivery, the
//!    system call and the branch.
//!
//! What counts:
//!
//! - [`Cpu::steps`](crate::Cpu::steps) counts steps. Each iteration of a repeated string instruction is a step with a
//!   fetch of its own.
//! - An instruction that faults has a fetch, its completed accesses, and the accesses of the delivery, which belongs to
//!   the same step. If the fetch itself faults, there is only the delivery. The delivery of an interrupt is a step
//!   without a fetch.
//! - Accesses to descriptor tables and task states by instructions and deliveries are loads and stores. Page
//!   walks, including the accessed and dirty bits that they set, are not reported. Accesses by devices are
//!   not reported.
//! - An access that crosses pages, or has more than [`Bytes::MOST`](crate::Bytes::MOST) bytes, is reported in
//!   smaller parts.

use std::any::Any;
use std::ops::ControlFlow;

use crate::core::Core;
use crate::happening::{At, Happening, Wants};

/// Receives the happenings of a run while it goes on.
///
/// The CPU calls an observer from the thread that runs the CPU, between steps. `Any` lets the code that attached an
/// observer convert it back to its own type.
pub trait Observer: Any + Send {
    /// The kinds of happenings to report. The CPU asks once, when the observer is attached.
    fn wants(&self) -> Wants;

    /// Reports a happening that the observer wants: a fetch before its step, all others after. `core` is the CPU at
    /// that point, from which registers and memory can be read ([`Core::peek`]). If the function returns
    /// [`ControlFlow::Break`], the run stops after the step.
    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()>;
}
