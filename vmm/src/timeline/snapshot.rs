//! Snapshots: places where a session was, and to which it can go back at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::position::{Count, Instructions};
use crate::recording::checkpoints::Snapshot;

/// Snapshots of one session that are kept at most.
const MAX_SNAPSHOTS: usize = 256;
/// Pages that they may hold in memory together: 256 MiB.
const MAX_PAGES: usize = 65536;

/// The snapshots of one session: close together around the place that is being looked at, and ever farther
/// apart from there.
#[derive(Default)]
pub struct Snapshots(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_place: BTreeMap<Instructions, Kept>,
    pages: usize,
    /// The place that is being looked at.
    focus: Instructions,
}

struct Kept {
    snapshot: Arc<Snapshot<Instructions>>,
    /// Pages that were new in it.
    pages: usize,
}

impl Snapshots {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Says around which place snapshots are wanted most.
    pub fn focus(&self, at: Instructions) {
        self.inner().focus = at;
    }

    /// Whether there is one at exactly this place.
    pub fn contains(&self, at: Instructions) -> bool {
        self.inner().by_place.contains_key(&at)
    }

    /// The last one at or before a place.
    pub fn nearest(&self, at: Instructions) -> Option<(Instructions, Arc<Snapshot<Instructions>>)> {
        let inner = self.inner();
        let (&at, kept) = inner.by_place.range(..=at).next_back()?;
        Some((at, kept.snapshot.clone()))
    }

    /// Where the first one at or after a place is.
    pub fn first_from(&self, at: Instructions) -> Option<Instructions> {
        self.inner().by_place.range(at..).next().map(|(&at, _)| at)
    }

    /// Keeps a snapshot in which `pages` pages are new. The one at the first instruction stays for ever.
    pub fn keep(&self, at: Instructions, snapshot: Snapshot<Instructions>, pages: usize) {
        let mut inner = self.inner();
        inner.pages += pages;
        if let Some(old) = inner.by_place.insert(at, Kept { snapshot: Arc::new(snapshot), pages }) {
            inner.pages -= old.pages;
        }
        while inner.by_place.len() > MAX_SNAPSHOTS || inner.pages > MAX_PAGES {
            let Some(least) = inner.least_useful() else { break };
            if let Some(kept) = inner.by_place.remove(&least) {
                inner.pages -= kept.pages;
            }
        }
    }
}

impl Inner {
    /// The one whose loss leaves the smallest gap for its distance from the focus.
    fn least_useful(&self) -> Option<Instructions> {
        let places: Vec<Instructions> = self.by_place.keys().copied().collect();
        let cost = |before: Instructions, at: Instructions, after: Instructions| {
            (after - before) as f64 / (at.number().abs_diff(self.focus.number()) + 1) as f64
        };
        places
            .windows(2)
            .enumerate()
            .map(|(n, pair)| {
                let after = places.get(n + 2).copied().unwrap_or(self.focus.max(pair[1]));
                (pair[1], cost(pair[0], pair[1], after))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(at, _)| at)
    }
}
