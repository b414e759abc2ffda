//! Time travel. The caller gives the place, and the timeline decides how to get there.
//!
//! Start with [`Timeline`] (`travel`), which callers use. The timeline moves a `walker`, which takes snapshots during
//! its run. All walkers of a session share the state in `shared`. `search` searches an interval, and `walkers` search
//! on all cores. `stops` has the events at which a run can stop, and `condition` parses them from text. `positions`
//! resolves notations of positions. `kernels` resolves names if a guest runs several kernels one after the other, and
//! `find_kernels` finds these kernels. `reports` finds the reports of a guest's kernel, and `fault` finds the
//! instruction that led to a report. While the timeline does not move, `settler` takes snapshots for the next search
//! back. `observe` lets an observer watch a part of the run. `runner` lets KVM run long stretches. `changes` lets a debugger change registers and memory in a `fork`.
//! `vmm/history/TRAVEL.md` explains the ideas.
//!
//! A *place* is a position in the recording. A *movement* is one seek, run, step or search of a timeline. A *walk* is a
//! walker's run from one place to a later one. A *hit* is an event that a stop waits for.
//!
//! A timeline's positions are counts of instructions. A recording that counts exits must be recounted first
//! ([`crate::recount`]). A timeline never changes the recorded run. A timeline only adds checkpoints to a recording.

mod changes;
mod condition;
mod fault;
mod find_kernels;
mod fork;
mod kernels;
mod observe;
mod positions;
mod report;
mod reports;
mod runner;
mod search;
mod settler;
mod shared;
mod snapshot;
mod stops;
mod travel;
mod walker;
mod walkers;

pub use crate::workers::Poll;
pub use condition::{CONDITIONS, Condition, Names, NoNames, number};
pub use kernels::{Kernel, KernelName, Kernels};
pub use report::Report;
pub use search::{Direction, Interval, Look};
pub use shared::FastForward;
pub use stops::{
    Breakpoint, Cause, Comparison, Filter, Hit, Relation, Stops, TravelStop, Watch, address_space,
};
pub use travel::{Hits, Meter, Timeline, cores};
