//! A machine at one point of a run, and the points that a recording holds: what a checkpoint says in the bytes that the
//! store keeps for us.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint::{Maps, PageMap, Store};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::{Machine, MachineState};
use crate::player::Cursor;
use crate::position::Moment;

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
            at: machine.moment_in_instructions(),
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
            .filter(|state: &MachineState| state.cpu.steps == steps && time_may_be(state, head.at))
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
