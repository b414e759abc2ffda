//! Time travel. Callers say where to go; the timeline decides how.
//!
//! Start with [`Timeline`] (`travel`), which is what callers see. It moves a `walker`, which leaves snapshots behind; `shared`
//! is what all walkers of a session have in common. `search` looks for things along an interval, and `walkers` do so on all
//! cores; `stops` says what there is to stop at, and `condition` reads that from text. `positions` finds out what a notation
//! means; `kernels` says what names mean where a guest runs several kernels one after the other, and `find_kernels` finds these.
//! `reports` finds what a guest's kernel reports of itself, and `fault` the instruction that led to it. `settler` makes near what
//! lies before, while nothing moves. `runner` has KVM go ahead. `changes` lets a debugger change things in a scratch `fork`.
//! `vmm/history/TRAVEL.md` has the ideas.
//!
//! A timeline knows instruction counts only: [`crate::recount`] comes first where a recording counts exits.
//! Nothing here changes what was recorded; all that it adds to a recording are checkpoints.

mod changes;
mod condition;
mod fault;
mod find_kernels;
mod fork;
mod kernels;
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
