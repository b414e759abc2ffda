//! Observers: what asks about a stretch of the run. An observer names the kinds of happenings that it wants, and is told of
//! them in their order. The guest sees nothing of it, and what no observer wants costs nothing.
//!
//! Exact means: the same happenings are reported whatever executes the guest ([`Tier`](crate::Tier)), and however its run is
//! cut into runs of the CPU. Of one step they are reported in this order:
//!
//! 1. the fetch, while the CPU is as it was before the step;
//! 2. all others, once the step is complete: loads and stores in the order in which the CPU makes them, then the delivery,
//!    then the system call, then the branch.
//!
//! What counts:
//!
//! - A step is what [`Cpu::steps`](crate::Cpu::steps) counts. Each iteration of a repeated string instruction is a step with a
//!   fetch of its own.
//! - An instruction that faults has a fetch and the accesses that it has completed, and then those of the delivery, which is
//!   the same step. Where the fetch itself faults there is no fetch, only the delivery. The delivery of an interrupt is a
//!   step without a fetch.
//! - What instructions and deliveries read and write of descriptor tables and task states are loads and stores. Walks through
//!   page tables, with the accessed and dirty bits that they set, are not; nor is what devices read and write.
//! - An access that crosses pages, or has more than [`Bytes::MOST`](crate::Bytes::MOST) bytes, is reported in parts that do not.

use std::any::Any;
use std::ops::ControlFlow;

use crate::core::Core;
use crate::happening::{At, Happening, Wants};

/// What is told of a run while it goes on.
///
/// The CPU calls an observer from the thread that runs it, between steps. `Any` lets whoever attached an observer take its
/// own type back.
pub trait Observer: Any + Send {
    /// What it wants to be told of. It is asked once, when it is attached.
    fn wants(&self) -> Wants;

    /// Something that it wants has happened, or, if that is a fetch, is about to. `core` is the CPU at that point, to read
    /// registers and memory from ([`Core::peek`]). The run stops behind the step on [`ControlFlow::Break`].
    fn happened(&mut self, at: At, happening: &Happening, core: &Core) -> ControlFlow<()>;
}
