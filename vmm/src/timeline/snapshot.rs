//! What a timeline can go back to: a machine at one point, and the collection of all such points.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use checkpoint::{Maps, PageMap, Store};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::{Machine, MachineState};
use crate::player::Cursor;
use crate::position::Moment;

/// Snapshots of one session that are kept at most.
const MAX_SNAPSHOTS: usize = 256;
/// Pages that they may hold in memory together: 256 MiB.
const MAX_PAGES: usize = 65536;

/// Where and how a machine once was, in the order of the run.
#[derive(Clone)]
pub struct Snapshot {
    /// Everything but memory and disk.
    pub state: MachineState,
    /// Memory and disk.
    pub maps: Maps,
    /// How far the log was played.
    pub cursor: Cursor,
}

/// What a checkpoint says of itself without being unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointHead {
    /// Where.
    pub at: Moment,
    /// Retired conditional branches there.
    pub branches: u64,
    /// System calls entered until there.
    pub system_calls: u64,
    /// RIP there.
    pub rip: u64,
    /// How far the log was played.
    pub cursor: Cursor,
}

impl CheckpointHead {
    /// The head of a checkpoint taken here.
    pub fn of(machine: &Machine, cursor: Cursor) -> CheckpointHead {
        let cpu = machine.cpu();
        CheckpointHead {
            at: machine.moment(),
            branches: cpu.branches(),
            system_calls: cpu.system_calls(),
            rip: cpu.rip(),
            cursor,
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data in memory always serializes")
    }

    /// From bytes that may be anybody's.
    pub fn parse(bytes: &[u8]) -> Option<CheckpointHead> {
        let (head, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(head)
    }
}

/// A state's bytes, as checkpoints hold them.
pub fn state_bytes(state: &MachineState) -> Vec<u8> {
    postcard::to_stdvec(state).expect("plain data in memory always serializes")
}

/// A recording's checkpoints, for reading.
pub struct Checkpoints {
    store: Arc<Store>,
    /// By step count.
    heads: BTreeMap<u64, CheckpointHead>,
    /// RAM at power-on: what the pages are that no checkpoint names.
    initial: PageMap,
}

impl Checkpoints {
    /// Looks at the heads of all checkpoints. `initial` is RAM at power-on; `end` and `records` (events and checks)
    /// are what the log reaches to.
    pub fn new(
        store: Arc<Store>,
        initial: PageMap,
        end: Moment,
        records: (usize, usize),
    ) -> Result<Checkpoints, Error> {
        let mut heads = BTreeMap::new();
        for entry in store.entries() {
            let head = CheckpointHead::parse(&entry.head);
            let fits = |head: &CheckpointHead| {
                head.at.steps == entry.position && head.at <= end && head.cursor.is_within(records)
            };
            match head {
                Some(head) if fits(&head) => heads.insert(entry.position, head),
                // A recorder that was killed may have stored a checkpoint that its log does not reach.
                Some(head) if head.at > end => continue,
                _ => {
                    let why = format!(
                        "the checkpoint at instruction {} does not fit the event log",
                        entry.position
                    );
                    return Err(Error::recording(store.dir(), why));
                }
            };
        }
        Ok(Checkpoints { store, heads, initial })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// RAM at power-on.
    pub fn initial(&self) -> &PageMap {
        &self.initial
    }

    /// All heads by step count.
    pub fn heads(&self) -> &BTreeMap<u64, CheckpointHead> {
        &self.heads
    }

    /// The contents of memory and disk at a checkpoint.
    pub fn maps(&self, steps: u64) -> Result<Maps, Error> {
        let mut maps = self.store.maps_at(steps)?;
        maps.ram = maps.ram.over(&self.initial);
        Ok(maps)
    }

    /// A checkpoint as a snapshot.
    pub fn load(&self, steps: u64) -> Result<Snapshot, Error> {
        let head = self.heads.get(&steps).expect("callers take the number from here");
        let bytes = self.store.state_at(steps)?;
        let state: MachineState = postcard::from_bytes(&bytes)
            .ok()
            .filter(|state: &MachineState| state.cpu.steps == steps && time_may_be(&state, head.at))
            .ok_or_else(|| {
                let why =
                    format!("the machine's state in the checkpoint at instruction {steps} makes no sense");
                Error::recording(self.store.dir(), why)
            })?;
        Ok(Snapshot { state, maps: self.maps(steps)?, cursor: head.cursor })
    }
}

/// Whether a state can be at a moment, in one time base or the other.
fn time_may_be(state: &MachineState, at: Moment) -> bool {
    state.idle_ns == at.time_ns || state.cpu.steps.checked_add(state.idle_ns) == Some(at.time_ns)
}

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
