//! What all walkers of a timeline share: the recording, its checkpoints, this session's snapshots, and the counts that say how
//! far a movement is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::snapshot::Snapshots;
use machine::engine::EngineKind;
use machine::position::Instructions;
use machine::start::Images;
use recording::Recording;
use recording::checkpoints::Checkpoints;

/// What all walkers of a timeline share.
pub(super) struct Shared {
    pub recording: Recording<Instructions>,
    pub images: Images,
    /// Where the recording ends.
    pub end: Instructions,
    /// The guest time at which what is opened begins.
    pub begins_ns: u64,
    /// `None` while the first walker is being made.
    pub checkpoints: Option<Checkpoints<Instructions>>,
    /// Those that turned out to be damaged when they were to be restored: all goes on without them.
    pub damaged: Mutex<BTreeSet<Instructions>>,
    pub snapshots: Snapshots,
    /// What goes along long stretches, if not the software engine.
    pub fast_forward: OnceLock<FastForward>,
    /// Walkers that a long search may have.
    pub threads: usize,
    /// Steps that all walkers executed, but for those in the background.
    pub replayed: AtomicU64,
    /// Those of them that another engine executed.
    pub fast_forwarded: AtomicU64,
    /// Steps that walkers in the background executed.
    pub settled: AtomicU64,
    /// Places that the settler is done with.
    pub settlings: AtomicU64,
    /// What the movement under way may have to execute.
    pub under_way: Movement,
}

/// The movement under way, or the last one.
#[derive(Default)]
pub(super) struct Movement {
    /// How many began so far.
    number: AtomicU64,
    /// The steps executed before it began.
    begun_at: AtomicU64,
    /// The steps that it executes at most, or a little more.
    at_most: AtomicU64,
}

/// Which engine goes ahead, and where it is worth it.
#[derive(Clone, Copy, Debug)]
pub struct FastForward {
    /// The engine.
    pub engine: EngineKind,
    /// Shorter stretches are left to the software CPU: going to the other engine and back costs as much.
    pub least_steps: u64,
    /// The longest stretch in one go. At its end the walker leaves a snapshot.
    pub most_steps: u64,
    /// The last of the way to a place is the software CPU's, which leaves behind what makes the next steps
    /// back cheap.
    pub near_steps: u64,
}

impl FastForward {
    /// With an engine that is as fast as KVM is on a processor that virtualises.
    pub fn on(engine: EngineKind) -> FastForward {
        FastForward { engine, least_steps: 20_000_000, most_steps: 2_000_000_000, near_steps: 20_000_000 }
    }
}

impl Shared {
    /// Notes that a movement begins that executes about `at_most` steps at most.
    pub fn begin(&self, at_most: u64) {
        self.under_way.number.fetch_add(1, Ordering::Relaxed);
        self.under_way.begun_at.store(self.replayed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.under_way.at_most.store(at_most, Ordering::Relaxed);
    }

    /// Tells one movement from the next.
    pub fn movement(&self) -> u64 {
        self.under_way.number.load(Ordering::Relaxed)
    }

    /// Steps that the movement under way has executed, and will have executed at most.
    pub fn progress(&self) -> (u64, u64) {
        let begun_at = self.under_way.begun_at.load(Ordering::Relaxed);
        let done = self.replayed.load(Ordering::Relaxed).saturating_sub(begun_at);
        (done, self.under_way.at_most.load(Ordering::Relaxed).max(done))
    }

    /// The last place at or before `target` that can be restored, and whether it is a checkpoint.
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
