//! Time travel. Callers say where to go; the timeline decides how.
//!
//! Start with [`Timeline`] (`travel`), which is what callers see. It moves a `walker`, which leaves snapshots
//! behind; `search` looks for things, on all cores; `stops` says what there is to stop at, and `condition`
//! reads that from text; `positions` finds out what a notation means; `settler` makes near what lies before, while nothing moves; `fast_forward` has KVM go ahead; `fork`
//! lets a debugger change things beside the recorded history. `vmm/history/TRAVEL.md` has the ideas.
//!
//! A timeline knows instruction counts only: [`crate::recount`] comes first where a recording counts exits.
//! Nothing here changes what was recorded; all that it adds to a recording are checkpoints.

mod condition;
mod fast_forward;
mod fork;
mod positions;
mod search;
mod settler;
mod snapshot;
mod stops;
mod travel;
mod walker;

pub use condition::{CONDITIONS, Condition, Names, NoNames, number};
pub use fast_forward::FastForward;
pub use search::{Direction, Look};
pub use stops::{Breakpoint, Cause, Comparison, Filter, Hit, Relation, Stops, Watch, address_space};
pub use travel::{Hits, Meter, Timeline, TravelStop, cores};
pub use walker::Poll;
