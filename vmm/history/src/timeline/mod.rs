//! Time travel. Callers say where to go; the timeline decides how.
//!
//! Start with [`Timeline`] (`travel`), which callers use. The timeline moves a `walker`, which leaves
//! snapshots behind; all walkers of a session have `shared` in common. `search` searches an interval, and
//! `walkers` search on all cores. `stops` has everything that a run can stop at, and `condition` parses it
//! from text. `positions` resolves notations of positions. `kernels` resolves names if a guest runs several
//! kernels one after the other, and `find_kernels` finds these. `reports` finds the reports of a guest's
//! kernel, and `fault` the instruction that led to one. While nothing moves, `settler` leaves snapshots for
//! the next search back. `runner` lets KVM run long stretches. `changes` lets a debugger change things in a
//! scratch `fork`. `vmm/history/TRAVEL.md` explains the ideas.
//!
//! A *place* is a position in the recording. A *movement* is one seek, run, step or search of a timeline. A *walk* is a
//! walker's run from one place to a later one. A *hit* is an event that a stop waits for.
//!
//! A timeline knows instruction counts only. A recording that counts exits must go through [`crate::recount`] first.
//! Nothing here changes the recorded run; a timeline only adds checkpoints to a recording.

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
