//! Where a session was and can go back to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::recording::checkpoints::Snapshot;

/// Snapshots of one session that are kept at most.
const MAX_SNAPSHOTS: usize = 256;
/// Pages that they may hold in memory together: 256 MiB.
const MAX_PAGES: usize = 65536;

/// The snapshots of one session: close together around the place that is being looked at, and ever farther apart
/// from there.
#[derive(Default)]
pub struct Snapshots(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_steps: BTreeMap<u64, Kept>,
    pages: usize,
    /// The place that is being looked at.
    focus: u64,
}

struct Kept {
    snapshot: Arc<Snapshot>,
    /// Pages that were new in it.
    pages: usize,
}

impl Snapshots {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Says around which step count snapshots are wanted most.
    pub fn focus(&self, steps: u64) {
        self.inner().focus = steps;
    }

    /// Whether there is one at exactly this step count.
    pub fn contains(&self, steps: u64) -> bool {
        self.inner().by_steps.contains_key(&steps)
    }

    /// The last one at or before a step count.
    pub fn nearest(&self, steps: u64) -> Option<(u64, Arc<Snapshot>)> {
        let inner = self.inner();
        let (&at, kept) = inner.by_steps.range(..=steps).next_back()?;
        Some((at, kept.snapshot.clone()))
    }

    /// Keeps a snapshot in which `pages` pages are new. The one at the first instruction stays for ever.
    pub fn keep(&self, steps: u64, snapshot: Snapshot, pages: usize) {
        let mut inner = self.inner();
        inner.pages += pages;
        if let Some(old) = inner.by_steps.insert(steps, Kept { snapshot: Arc::new(snapshot), pages }) {
            inner.pages -= old.pages;
        }
        while inner.by_steps.len() > MAX_SNAPSHOTS || inner.pages > MAX_PAGES {
            let Some(least) = inner.least_useful() else { break };
            if let Some(kept) = inner.by_steps.remove(&least) {
                inner.pages -= kept.pages;
            }
        }
    }
}

impl Inner {
    /// The one whose loss leaves the smallest gap for its distance from the focus.
    fn least_useful(&self) -> Option<u64> {
        let steps: Vec<u64> = self.by_steps.keys().copied().collect();
        let cost =
            |before: u64, at: u64, after: u64| (after - before) as f64 / (at.abs_diff(self.focus) + 1) as f64;
        steps
            .windows(2)
            .enumerate()
            .map(|(n, pair)| {
                let after = steps.get(n + 2).copied().unwrap_or(self.focus.max(pair[1]));
                (pair[1], cost(pair[0], pair[1], after))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(at, _)| at)
    }
}
