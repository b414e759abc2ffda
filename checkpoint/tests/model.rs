//! Adds checkpoints, removes checkpoints and reopens the store in random order. Compares the store with full copies
//! of the checkpoints.

mod common;

use checkpoint::{BackgroundWriter, Policy, Space, Store, StoreErrorKind};
use common::{Machine, StoreModel, example, new_store, put};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Write(Space, u64, u32),
    Append(u64),
    Insert(prop::sample::Index, Vec<(Space, u64, u32)>),
    Remove(prop::sample::Index),
    GiveUp,
    ThinTo(usize),
    ThinHalf,
    Reopen,
}

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![Just(Space::Ram), Just(Space::Disk)]
}

fn write() -> impl Strategy<Value = (Space, u64, u32)> {
    // Few pages and contents, so that equal contents and repeated changes occur.
    (space(), prop_oneof![0_u64..20, 500_u64..530], 0_u32..130)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => write().prop_map(|(space, page, code)| Step::Write(space, page, code)),
        5 => (1_u64..1000).prop_map(Step::Append),
        4 => (any::<prop::sample::Index>(), prop::collection::vec(write(), 0..12))
            .prop_map(|(at, writes)| Step::Insert(at, writes)),
        3 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => Just(Step::GiveUp),
        1 => (0_usize..8).prop_map(Step::ThinTo),
        1 => Just(Step::ThinHalf),
        2 => Just(Step::Reopen),
    ]
}

struct Run {
    dir: tempfile::TempDir,
    store: Store,
    model: StoreModel,
    machine: Machine,
}

impl Run {
    fn new() -> Run {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(dir.path());
        Run { dir, store, model: StoreModel::default(), machine: Machine::new() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(space, page, code) => self.machine.write(space, page, code),
            Step::Append(distance) => {
                let last = self.model.copies.last_key_value().map_or(0, |(position, _)| *position);
                // No page returns to its power-on contents without being written.
                self.machine.inherit(&self.model.before(last + distance));
                self.model.add(&self.store, last + distance, &self.machine);
            }
            Step::Insert(at, writes) => self.insert(at, &writes),
            Step::Remove(at) => {
                if let Some(position) = self.pick(at) {
                    assert_eq!(self.store.remove(position).unwrap().position, position);
                    self.model.copies.remove(&position);
                }
            }
            Step::GiveUp => {
                let mut draft = self.store.add(u64::MAX, 1).unwrap();
                put(&mut draft, &self.machine.dirty(&Machine::new()));
            }
            Step::ThinTo(max_checkpoints) => self.thin(&Policy { max_checkpoints, ..Policy::default() }),
            Step::ThinHalf => {
                let max_bytes = Some(self.store.total_bytes() / 2);
                self.thin(&Policy { max_bytes, ..Policy::default() });
            }
            Step::Reopen => self.store = Store::open(self.dir.path()).unwrap(),
        }
    }

    fn pick(&self, at: prop::sample::Index) -> Option<u64> {
        let positions: Vec<u64> = self.model.copies.keys().copied().collect();
        (!positions.is_empty()).then(|| *at.get(&positions))
    }

    /// Adds a checkpoint one position after a random one. If this position is taken, the store must refuse the
    /// checkpoint.
    fn insert(&mut self, at: prop::sample::Index, writes: &[(Space, u64, u32)]) {
        let position = self.pick(at).map_or(5, |position| position + 1);
        if self.model.copies.contains_key(&position) {
            let taken = self.store.add(position, 0).err().unwrap();
            assert!(matches!(taken.kind, StoreErrorKind::Taken(_)));
            return;
        }
        let mut machine = self.model.before(position);
        writes.iter().for_each(|(space, page, code)| machine.write(*space, *page, *code));
        self.model.add(&self.store, position, &machine);
    }

    fn thin(&mut self, policy: &Policy) {
        for removed in self.store.thin(policy).unwrap() {
            assert!(self.model.copies.remove(&removed.position).is_some());
        }
        assert!(self.model.copies.len() <= policy.max_checkpoints);
        if let Some(max) = policy.max_bytes {
            assert!(self.model.copies.is_empty() || self.store.total_bytes() <= max);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_checkpoint_stays_what_it_was(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::new();
        for (count, step) in steps.into_iter().enumerate() {
            run.step(step);
            if count % 8 == 7 {
                run.model.check(&run.store);
            }
        }
        run.model.check(&run.store);
        run.store.verify(|done, total| assert!(done <= total)).unwrap();
        let opened = Store::open(run.dir.path()).unwrap();
        run.model.check(&opened);
        prop_assert_eq!(opened.entries(), run.store.entries());
        prop_assert_eq!(opened.total_bytes(), run.store.total_bytes());
    }

    #[test]
    fn the_background_writer_equals_the_store(rounds in prop::collection::vec(prop::collection::vec(write(), 0..40), 1..20)) {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(new_store(dir.path()));
        let policy = Policy { max_checkpoints: 7, ..Policy::default() };
        let mut writer = BackgroundWriter::start(store.clone(), policy).unwrap();
        let (mut model, mut machine, mut before) = (StoreModel::default(), Machine::new(), Machine::new());
        for (round, writes) in rounds.iter().enumerate() {
            let position = round as u64 * 10;
            writes.iter().for_each(|(space, page, code)| machine.write(*space, *page, *code));
            let copy = common::Copy::at(position, machine.clone());
            writer.begin(position, copy.time_ns).unwrap();
            for (space, number, contents) in machine.dirty(&before) {
                writer.page(space, number, &contents).unwrap();
            }
            writer.finish(copy.head.clone(), copy.state.clone()).unwrap();
            model.copies.insert(position, copy);
            before = machine.clone();
        }
        let done = writer.close().unwrap();
        prop_assert_eq!(done.len(), rounds.len());
        let kept: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
        prop_assert_eq!(kept.len(), rounds.len().min(7));
        let newest = done.last().unwrap();
        let maps = store.maps_at(newest.entry.position).unwrap();
        for (block, version) in &newest.disk {
            prop_assert!(maps.disk.get(*block).same_as(version));
        }
        model.copies.retain(|position, _| kept.contains(position));
        model.check(&store);
    }
}

#[test]
fn equal_pages_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut model) = example(dir.path());
    let before = store.entries();
    // Pages of RAM and disk get contents that are already stored for other pages.
    let mut machine = model.copies[&60].machine.clone();
    machine.write(Space::Ram, 300, 3);
    machine.write(Space::Disk, 30, 3);
    machine.write(Space::Ram, 301, 0);
    model.add(&store, 70, &machine);
    let entry = store.entries().pop().unwrap();
    assert_eq!((entry.counts.ram, entry.counts.disk, entry.counts.zero), (2, 1, 1));
    assert_eq!((entry.counts.full, entry.counts.delta), (0, 0), "of {before:?}");
    model.check(&store);
}

#[test]
fn small_changes_are_stored_as_differences() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for member in 0..16 {
        (0..20).for_each(|n| machine.write(Space::Ram, n, 7 * 16 * (n as u32 + 1) + member));
        model.add(&store, u64::from(member), &machine);
    }
    let entries = store.entries();
    assert_eq!((entries[0].counts.full, entries[0].counts.delta), (20, 0));
    for entry in &entries[1..] {
        assert_eq!((entry.counts.full, entry.counts.delta), (0, 20));
        assert!(entry.bytes < entries[0].bytes / 10, "{} of {}", entry.bytes, entries[0].bytes);
    }
    // After removal of the full versions' own checkpoint, the deltas still have their bases.
    for position in 0..15 {
        store.remove(position).unwrap();
        model.copies.remove(&position);
        model.check(&store);
    }
    assert_eq!((store.entries()[0].counts.full, store.entries()[0].counts.delta), (20, 20));
}

#[test]
fn what_nobody_needs_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut model) = example(dir.path());
    let first = store.maps_at(10).unwrap();
    for position in [10, 60, 25, 30, 40, 50, 20] {
        store.remove(position).unwrap();
        model.copies.remove(&position);
        model.check(&store);
        store.verify(|_, _| {}).unwrap();
    }
    let gone = first.ram.iter_not_base().find_map(|(_, version)| match version {
        checkpoint::PageRef::Stored(id) => Some(*id),
        _ => None,
    });
    let error = store.read(gone.unwrap(), &mut [0; 4096]).unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Gone(_)), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the header and the lock");
    assert!(matches!(store.state_at(10).unwrap_err().kind, StoreErrorKind::Missing(10)));
}

/// First the checkpoint that stored a delta is removed, and then all other checkpoints that refer to the delta. The
/// delta and its base stay in a neighbour's file until that file is rewritten.
#[test]
fn what_only_a_lost_difference_needs_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    // The second checkpoint has a delta from the first. The fourth checkpoint refers to this delta. The third and the
    // last checkpoint store no pages.
    for (position, page, code) in [(10, 0, 17), (20, 0, 18), (30, 0, 0), (40, 5, 18), (50, 5, 0)] {
        machine.write(Space::Ram, page, code);
        model.add(&store, position, &machine);
    }
    let counts = |number: usize| {
        let counts = store.entries()[number].counts;
        (counts.full, counts.delta)
    };
    for (removed, first, second) in [(20, (1, 0), (0, 1)), (40, (1, 0), (0, 1)), (10, (0, 0), (0, 0))] {
        store.remove(removed).unwrap();
        model.copies.remove(&removed);
        assert_eq!((counts(0), counts(1)), (first, second), "without {removed}");
        model.check(&store);
        model.check(&Store::open(dir.path()).unwrap());
    }
}

#[test]
fn a_draft_that_is_given_up_needs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for (position, code) in [(10, 17), (20, 0)] {
        machine.write(Space::Ram, 0, code);
        model.add(&store, position, &machine);
    }
    // Equal contents are not stored again. The new checkpoint refers to the first checkpoint's version.
    let mut draft = store.add(30, 0).unwrap();
    draft.page(Space::Ram, 1, &common::page(17)).unwrap();
    drop(draft);
    store.remove(10).unwrap();
    model.copies.remove(&10);
    assert_eq!(store.entries()[0].counts.full, 0);
    model.check(&store);
}

/// A later process reuses numbers of removed files and versions. An old number then stands for another file or
/// version.
#[test]
fn a_store_that_another_process_has_changed_forgets_what_it_knew() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut model) = example(dir.path());
    let mut machine = model.copies[&60].machine.clone();
    machine.write(Space::Ram, 300, 1000);
    model.add(&store, 70, &machine);
    drop(store);
    let reader = Store::open(dir.path()).unwrap();
    model.check(&reader);
    // The next process reuses the number of the removed file.
    let other = Store::open(dir.path()).unwrap();
    other.remove(70).unwrap();
    drop(other);
    model.copies.remove(&70);
    let other = Store::open(dir.path()).unwrap();
    let mut machine = model.copies[&60].machine.clone();
    machine.write(Space::Ram, 301, 2000);
    model.add(&other, 70, &machine);
    drop(other);
    model.add(&reader, 80, &machine);
    model.check(&reader);
}

#[test]
fn a_stored_page_that_becomes_zero_costs_nothing_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    // A page of RAM and a disk block are stored, become zero, stay zero, get other contents, and become zero again.
    for (position, code) in [(10, 35), (20, 0), (30, 0), (40, 36), (50, 0)] {
        machine.write(Space::Ram, 7, code);
        machine.write(Space::Disk, 3, code);
        model.add(&store, position, &machine);
    }
    let counts: Vec<_> =
        store.entries().iter().map(|e| (e.counts.zero, e.counts.full + e.counts.delta)).collect();
    assert_eq!(counts, [(0, 1), (2, 0), (0, 0), (0, 1), (2, 0)]);
    model.check(&store);
    model.check(&Store::open(dir.path()).unwrap());
    // Add a checkpoint between the others. Then remove the others one after the other.
    let between = model.copies[&40].machine.clone();
    model.add(&store, 25, &between);
    for position in [10, 40, 20, 50] {
        store.remove(position).unwrap();
        model.copies.remove(&position);
        model.check(&store);
        let again = Store::open(dir.path()).unwrap();
        model.check(&again);
        again.verify(|_, _| {}).unwrap();
    }
}

#[test]
fn a_head_may_be_as_long_as_a_page_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let finish = |position: u64, bytes: usize| {
        let mut draft = store.add(position, position).unwrap();
        put(&mut draft, &Machine::new().dirty(&Machine::new()));
        draft.finish(&vec![7; bytes], b"state")
    };
    assert!(finish(1, 4096).is_ok());
    assert!(finish(2, 4097).is_err());
    assert_eq!(store.entries().len(), 1);
}

#[test]
fn no_store_with_this_state_is_smaller() {
    for state in [vec![], vec![7; 100_000], (0..=255).collect()] {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(dir.path());
        store.add(1, 1).unwrap().finish(&[], &state).unwrap();
        let (least, real) = (checkpoint::least_bytes(&state), store.total_bytes());
        assert!((least..least + 16).contains(&real), "{real} bytes, at least {least}");
    }
}
