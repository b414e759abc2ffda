//! The state that all walkers of a timeline share: the recording, its checkpoints, this session's snapshots, and the
//! progress of a movement.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::snapshot::Snapshots;
use machine::engine::EngineKind;
use machine::position::Instructions;
use machine::start::Images;
use recording::Recording;
use recording::checkpoints::Checkpoints;

/// The state that all walkers of a timeline share.
pub(super) struct Shared {
    pub recording: Recording<Instructions>,
    pub images: Images,
    /// Where the recording ends.
    pub end: Instructions,
    /// The guest time at which the opened part begins.
    pub begins_ns: u64,
    /// The recording's checkpoints, if it has any. The field is also `None` while the first walker is being made.
    pub checkpoints: Option<Checkpoints<Instructions>>,
    /// The positions of checkpoints that could not be restored because they are damaged. The timeline does not use
    /// these checkpoints.
    pub damaged: Mutex<BTreeSet<Instructions>>,
    pub snapshots: Snapshots,
    /// The engine that runs long stretches, if it is not the software engine.
    pub fast_forward: OnceLock<FastForward>,
    /// Largest number of walkers in a long search.
    pub threads: usize,
    /// Steps that all walkers executed, except those in the background.
    pub replayed: AtomicU64,
    /// The part of the steps in `replayed` that another engine executed.
    pub fast_forwarded: AtomicU64,
    /// Steps that walkers in the background executed.
    pub settled: AtomicU64,
    /// Number of requests that the settler has finished.
    pub settlings: AtomicU64,
    /// The progress of the movement under way.
    pub under_way: Movement,
}

/// The movement under way, or the last one.
#[derive(Default)]
pub(super) struct Movement {
    /// The number of movements so far.
    number: AtomicU64,
    /// The steps executed before the movement began.
    begun_at: AtomicU64,
    /// Approximate upper bound for the number of steps that the movement executes.
    at_most: AtomicU64,
}

/// The engine that runs long stretches, and the lengths for which it pays off.
#[derive(Clone, Copy, Debug)]
pub struct FastForward {
    /// The engine.
    pub engine: EngineKind,
    /// Stretches with fewer steps run on the software CPU, because switching between engines would take as long.
    pub least_steps: u64,
    /// The longest stretch in one run. The walker takes a snapshot at the stretch's end.
    pub most_steps: u64,
    /// The length of the last part before the goal, which runs on the software CPU. The walker's snapshots in this part
    /// make the next steps back fast.
    pub near_steps: u64,
}

impl FastForward {
    /// Options for an engine as fast as KVM on a virtualising processor.
    pub fn on(engine: EngineKind) -> FastForward {
        FastForward { engine, least_steps: 20_000_000, most_steps: 2_000_000_000, near_steps: 20_000_000 }
    }
}

impl Shared {
    /// Notes that a movement begins. The movement executes at most about `at_most` steps.
    pub fn begin(&self, at_most: u64) {
        self.under_way.number.fetch_add(1, Ordering::Relaxed);
        self.under_way.begun_at.store(self.replayed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.under_way.at_most.store(at_most, Ordering::Relaxed);
    }

    /// The number of the present movement.
    pub fn movement(&self) -> u64 {
        self.under_way.number.load(Ordering::Relaxed)
    }

    /// Steps that the present movement has executed, and an upper bound for the steps that it executes in all.
    pub fn progress(&self) -> (u64, u64) {
        let begun_at = self.under_way.begun_at.load(Ordering::Relaxed);
        let done = self.replayed.load(Ordering::Relaxed).saturating_sub(begun_at);
        (done, self.under_way.at_most.load(Ordering::Relaxed).max(done))
    }

    /// The last restorable place at or before `target`, and whether it is a checkpoint.
    pub fn nearest(&self, target: Instructions) -> (Instructions, bool) {
        let snapshot = self.snapshots.nearest(target).map_or(Instructions(0), |(at, _)| at);
        match self.checkpoint_before(target) {
            Some(at) if at > snapshot => (at, true),
            _ => (snapshot, false),
        }
    }

    /// The last checkpoint at or before a place.
    pub fn checkpoint_before(&self, place: Instructions) -> Option<Instructions> {
        let (heads, damaged) = (self.checkpoints.as_ref()?.heads(), self.damaged());
        heads.range(..=place).rev().map(|(&at, _)| at).find(|at| !damaged.contains(at))
    }

    /// The first checkpoint after a place.
    pub fn checkpoint_after(&self, place: Instructions) -> Option<Instructions> {
        let (heads, damaged) = (self.checkpoints.as_ref()?.heads(), self.damaged());
        heads.range(place + 1..).map(|(&at, _)| at).find(|at| !damaged.contains(at))
    }

    pub fn is_checkpoint(&self, place: Instructions) -> bool {
        let is_one = |checkpoints: &Checkpoints<_>| checkpoints.heads().contains_key(&place);
        self.checkpoints.as_ref().is_some_and(is_one) && !self.damaged().contains(&place)
    }

    pub fn damaged(&self) -> MutexGuard<'_, BTreeSet<Instructions>> {
        self.damaged.lock().expect("no thread panics while it looks at a set")
    }
}
