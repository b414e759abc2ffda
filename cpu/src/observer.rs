//! Observers, which are told what the guest does in a part of a run. An observer chooses the kinds of happenings
//! that it wants, and the CPU reports these happenings in the order in which they occur. The guest cannot see an
//! observer, and happenings that no observer wants cost no time.
//!
//! Reports are exact: they do not depend on the [`Tier`](crate::Tier), or on how the guest's run is divided into calls
//! of the CPU. The happenings of one step are reported in this order:
//!
//! 1. the fetch, while the CPU still has the state before the step;
//! 2. all other happenings, once the step is complete: first loads and stores in the CPU's order, then all others. The
//!    branch comes last.
//!
//! The rules for reports are:
//!
//! - [`Cpu::steps`](crate::Cpu::steps) counts steps. Each iteration of a repeated string instruction is a step with a
//!   fetch of its own.
//! - For an instruction that faults, the reports are its fetch, its completed accesses, and the accesses of the
//!   fault's delivery. The delivery belongs to the same step. If the fetch itself faults, only the delivery is
//!   reported. The delivery of an interrupt is a step without a fetch.
//! - When instructions and deliveries access descriptor tables and task-state segments, these accesses are reported
//!   as loads and stores. Page walks, including the accessed and dirty bits that they set, are not reported.
//!   Accesses by devices are not reported.
//! - An access that crosses pages, or has more than [`Bytes::MOST`](crate::Bytes::MOST) bytes, is reported as
//!   several smaller accesses.

use std::any::Any;
use std::ops::ControlFlow;

use crate::core::Core;
use crate::happening::{At, Happening, Wants};

/// Receives the happenings of a run during the run.
///
/// The CPU calls an observer from the thread that runs the CPU, between steps. `Any` lets the code that attached an
/// observer convert it back to its own type.
pub trait Observer: Any + Send {
    /// The kinds of happenings to report. The CPU calls this function once, when the observer is attached.
    fn wants(&self) -> Wants;

    /// Reports a happening that the observer wants. A fetch is reported before its step, all other happenings after
    /// their step. `core` has the registers and the memory at that point ([`Core::peek`]). If the function returns
    /// [`ControlFlow::Break`], the run stops after the step.
    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()>;
}
