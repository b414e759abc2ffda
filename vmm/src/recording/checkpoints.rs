//! A machine at one point of a run, and the points that a recording holds: what a checkpoint says in the bytes that the
//! store keeps for us.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint::{Entry, Maps, PAGE_BYTES, PageMap, Space, Store};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::{Machine, MachineState};
use crate::position::{Counting, Moment};
use crate::recording::Recording;
use crate::recording::player::Cursor;

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
    /// Where, in what the recording counts.
    pub at: Moment,
    /// Retired conditional branches there; zero where exits are counted.
    pub branches: u64,
    /// System calls entered until there; zero where exits are counted.
    pub system_calls: u64,
    /// RIP there.
    pub rip: u64,
    /// How far the log was played.
    pub cursor: Cursor,
}

impl CheckpointHead {
    /// The head of a checkpoint taken here, whose position is in `counting`.
    pub fn of(machine: &Machine, counting: Counting, cursor: Cursor) -> CheckpointHead {
        let cpu = machine.cpu();
        let (branches, system_calls) = match counting {
            Counting::Instructions => (cpu.branches(), cpu.system_calls()),
            Counting::Exits => (0, 0),
        };
        CheckpointHead { at: machine.moment_in(counting), branches, system_calls, rip: cpu.rip(), cursor }
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
    /// What their positions are.
    counting: Counting,
    /// By position.
    heads: BTreeMap<u64, CheckpointHead>,
    /// RAM at power-on: what the pages are that no checkpoint names.
    initial: PageMap,
}

impl Checkpoints {
    /// Looks at the heads of all checkpoints in a recording's store. `initial` is RAM at power-on.
    pub fn new(store: Arc<Store>, initial: PageMap, recording: &Recording) -> Result<Checkpoints, Error> {
        let (log, counting) = (&recording.log, recording.counting);
        let (end, records) = (log.last_moment(), (log.events.len(), log.checks.len()));
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
                    let (counted, at) = (counting.one(), entry.position);
                    let why = format!("the checkpoint at {counted} {at} does not fit the event log");
                    return Err(Error::recording(store.dir(), why));
                }
            };
        }
        Ok(Checkpoints { store, counting, heads, initial })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// RAM at power-on.
    pub fn initial(&self) -> &PageMap {
        &self.initial
    }

    /// All heads by position.
    pub fn heads(&self) -> &BTreeMap<u64, CheckpointHead> {
        &self.heads
    }

    /// The contents of memory and disk at a checkpoint.
    pub fn maps(&self, steps: u64) -> Result<Maps, Error> {
        let mut maps = self.store.maps_at(steps)?;
        maps.ram = maps.ram.over(&self.initial);
        Ok(maps)
    }

    /// Lets a machine at power-on read from the store, and loads a checkpoint for it, if there is one at that position.
    pub fn attach_and_load(&self, steps: u64, machine: &mut Machine) -> Result<Option<Snapshot>, Error> {
        must_fit(&self.store, machine)?;
        machine.attach_store(self.store.clone());
        self.heads.contains_key(&steps).then(|| self.load(steps)).transpose()
    }

    /// A checkpoint as a snapshot.
    pub fn load(&self, steps: u64) -> Result<Snapshot, Error> {
        let head = self.heads.get(&steps).expect("callers take the number from here");
        let bytes = self.store.state_at(steps)?;
        let state = postcard::from_bytes(&bytes).ok().filter(|state| self.may_be(state, head.at));
        let state = state.ok_or_else(|| {
            let counted = self.counting.one();
            let why = format!("the machine's state in the checkpoint at {counted} {steps} makes no sense");
            Error::recording(self.store.dir(), why)
        })?;
        Ok(Snapshot { state, maps: self.maps(steps)?, cursor: head.cursor })
    }

    /// Whether a state can be at a moment, in one time base or the other.
    fn may_be(&self, state: &MachineState, at: Moment) -> bool {
        match self.counting {
            Counting::Exits => state.idle_ns == at.time_ns,
            Counting::Instructions => {
                let all = state.cpu.steps.checked_add(state.idle_ns);
                state.cpu.steps == at.steps && (state.idle_ns == at.time_ns || all == Some(at.time_ns))
            }
        }
    }
}

/// Refuses a store of a machine of another size.
pub fn must_fit(store: &Store, machine: &mut Machine) -> Result<(), Error> {
    if (store.ram_pages(), store.disk_blocks()) != machine.page_counts() {
        let why = "is of another machine: RAM or disk have another size";
        return Err(Error::recording(store.dir(), why));
    }
    Ok(())
}

/// Adds a checkpoint of everything as it is here to a recording's store, which somebody else may read meanwhile. `initial` is
/// RAM at power-on.
pub fn add_here(
    store: &Store,
    initial: &PageMap,
    machine: &mut Machine,
    cursor: Cursor,
) -> Result<Entry, Error> {
    let at = machine.moment_in(Counting::Instructions);
    let before = match store.entry_at_or_before(at.steps) {
        Some(entry) => store.maps_at(entry.position)?,
        None => Maps::new(store.ram_pages(), store.disk_blocks()),
    };
    let now = machine.maps();
    let mut draft = store.add(at.steps, at.time_ns)?;
    let mut contents = [0; PAGE_BYTES];
    let ram = before.ram.over(initial);
    for (page, _) in now.ram.changed_since(&ram) {
        machine.ram().read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
        draft.page(Space::Ram, page, &contents)?;
    }
    for (block, _) in now.disk.changed_since(&before.disk) {
        machine.read_block(block, &mut contents)?;
        draft.page(Space::Disk, block, &contents)?;
    }
    let head = CheckpointHead::of(machine, Counting::Instructions, cursor);
    Ok(draft.finish(&head.to_bytes(), &state_bytes(&machine.state()))?)
}
