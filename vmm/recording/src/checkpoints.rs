//! A recording's checkpoints, and snapshots. A snapshot is a machine's whole state at one point of the run, in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Entry, Maps, PAGE_BYTES, PageMap, Space, Store};

pub use crate::checkpoint_head::CheckpointHead;
use crate::cursor::Cursor;
use crate::files::CHECKPOINTS;
use crate::log::Log;
use machine::error::Error;
use machine::position::{Count, Exits, Instructions, Moment};
use machine::unit::Unit;
use machine::{Format, Machine, MachineState};

/// A machine's state at one point of the run, and the place in the log at this point.
#[derive(Clone)]
pub struct Snapshot<C> {
    /// The machine's state without RAM and disk.
    pub state: MachineState,
    /// The contents of RAM and disk.
    pub maps: Maps,
    /// The place in the log at this point of the run.
    pub cursor: Cursor<C>,
}

/// Reads a recording's checkpoints.
pub struct Checkpoints<C> {
    store: Arc<Store>,
    format: Format,
    heads: BTreeMap<C, CheckpointHead<C>>,
    /// RAM at power-on. A page that no checkpoint stores still has these contents.
    initial: PageMap,
}

impl<C: Unit> Checkpoints<C> {
    /// Reads the heads of all checkpoints in a store, which belongs to the recording with this log. `initial` is RAM
    /// at power-on.
    pub fn new(store: Arc<Store>, initial: PageMap, log: &Log<C>) -> Result<Checkpoints<C>, Error> {
        let end = log.last_moment();
        let mut heads = BTreeMap::new();
        for entry in store.entries() {
            let head = CheckpointHead::parse(log.format, &entry.head);
            let fits = |head: &CheckpointHead<C>| {
                head.at.count.number() == entry.position
                    && head.at <= end
                    && log.reaches(head.cursor.events(), head.cursor.checks())
            };
            match head {
                Some(head) if fits(&head) => heads.insert(head.at.count, head),
                // A recorder that was killed may have stored a checkpoint beyond the end of its log.
                Some(head) if head.at > end => continue,
                _ => {
                    let at = C::new(entry.position).position();
                    let why = format!("the checkpoint at {at} does not fit the event log");
                    return Err(Error::recording(store.dir(), why));
                }
            };
        }
        Ok(Checkpoints { store, format: log.format, heads, initial })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// RAM at power-on.
    pub fn initial(&self) -> &PageMap {
        &self.initial
    }

    /// The heads of all checkpoints, by position.
    pub fn heads(&self) -> &BTreeMap<C, CheckpointHead<C>> {
        &self.heads
    }

    /// The contents of memory and disk at a checkpoint.
    pub fn maps(&self, at: C) -> Result<Maps, Error> {
        let mut maps = self.store.maps_at(at.number())?;
        maps.ram = maps.ram.over(&self.initial);
        Ok(maps)
    }

    /// Attaches the store to a machine at power-on. Then loads the checkpoint at the position `at`, if there is
    /// one.
    pub fn attach_and_load<U: Unit>(
        &self,
        at: C,
        machine: &mut Machine<U>,
    ) -> Result<Option<Snapshot<C>>, Error> {
        must_fit(&self.store, machine)?;
        machine.attach_store(self.store.clone());
        self.heads.contains_key(&at).then(|| self.load(at)).transpose()
    }

    /// Reads a checkpoint into a snapshot.
    pub fn load(&self, at: C) -> Result<Snapshot<C>, Error> {
        let head = self.heads.get(&at).expect("callers take the position from here");
        let bytes = self.store.state_at(at.number())?;
        let state = MachineState::from_bytes(self.format, &bytes).filter(|state| may_be(state, head.at));
        let state = state.ok_or_else(|| {
            let why = format!("the machine's state in the checkpoint at {} is invalid", at.position());
            Error::recording(self.store.dir(), why)
        })?;
        Ok(Snapshot { state, maps: self.maps(at)?, cursor: head.cursor })
    }
}

/// Whether a checkpoint at moment `at` can have this state. Checks the counts and the virtual time, in a recording of
/// either unit.
fn may_be<C: Unit>(state: &MachineState, at: Moment<C>) -> bool {
    let all = state.counts.steps.checked_add(state.idle_ns);
    let by_exits = state.idle_ns == at.time_ns;
    let by_instructions = all == Some(at.time_ns);
    // The state has no count of exits, so `at` itself gives the count of exits here.
    let counts = C::here(Instructions(state.counts.steps), Exits(at.count.number()));
    counts == at.count && (by_exits || (by_instructions && C::NAMES_ONE_PLACE))
}

/// Opens all checkpoints of the recording at `path`, which has this log. Any damage is an error.
pub fn open_checkpoints<C: Unit>(path: &Path, log: &Log<C>) -> Result<Option<Arc<Store>>, Error> {
    let directory = path.join(CHECKPOINTS);
    if !directory.is_dir() {
        return Ok(None);
    }
    must_be_of(log, Store::open(&directory)?).map(Some)
}

/// Does the same as [`open_checkpoints`], but leaves out damaged checkpoints, and checkpoints that need a damaged
/// one, with a warning.
pub fn open_around_damage<C: Unit>(path: &Path, log: &Log<C>) -> Result<Option<Arc<Store>>, Error> {
    let directory = path.join(CHECKPOINTS);
    if !directory.is_dir() {
        return Ok(None);
    }
    match Store::open_around_damage(&directory) {
        Err(error) if error.is_damage() => {
            log::warn!("{error}; the recording is used without its checkpoints");
            Ok(None)
        }
        opened => {
            let store = opened?;
            if let Some(damage) = store.damage().first() {
                log::warn!(
                    "{damage}; ttvm uses the other {} checkpoints; `ttvm checkpoints {} drop-damaged` removes the \
                     damaged ones",
                    store.entries().len(),
                    path.display()
                );
            }
            must_be_of(log, store).map(Some)
        }
    }
}

/// Returns an error if the store belongs to another recording.
fn must_be_of<C: Unit>(log: &Log<C>, store: Store) -> Result<Arc<Store>, Error> {
    for entry in store.entries() {
        let head = CheckpointHead::<C>::parse(log.format, &entry.head);
        if head.map_or(Ok(true), |head| head.cursor.is_of(log))? {
            continue;
        }
        let file = checkpoint::file_name(Some(entry.number)).unwrap_or_default();
        let at = C::new(entry.position).position();
        let why = format!("the checkpoint at {at} belongs to another recording");
        return Err(Error::recording(store.dir().join(file), why));
    }
    Ok(Arc::new(store))
}

/// Returns an error if the store is for another size of RAM or disk than the machine's.
pub fn must_fit<U: Unit>(store: &Store, machine: &mut Machine<U>) -> Result<(), Error> {
    if (store.ram_pages(), store.disk_blocks()) != machine.page_counts() {
        let why = "is of another machine: RAM or disk have another size";
        return Err(Error::recording(store.dir(), why));
    }
    Ok(())
}

/// Adds a checkpoint of the machine's present state to a recording's store. Other processes may read the store at the
/// same time. `initial` is RAM at power-on.
pub fn add_here<U: Unit>(
    store: &Store,
    initial: &PageMap,
    machine: &mut Machine<U>,
    cursor: Cursor<Instructions>,
    format: Format,
) -> Result<Entry, Error> {
    let at = machine.moment_in::<Instructions>();
    let before = match store.entry_at_or_before(at.count.number()) {
        Some(entry) => store.maps_at(entry.position)?,
        None => Maps::new(store.ram_pages(), store.disk_blocks()),
    };
    let now = machine.maps()?;
    let mut draft = store.add(at.count.number(), at.time_ns)?;
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
    let head = CheckpointHead::of(machine, cursor);
    Ok(draft.finish(&head.to_bytes(format), &machine.state().to_bytes(format))?)
}
