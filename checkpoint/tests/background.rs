//! Tests of the background writer: under a cap, with errors, and with a limit on the age of checkpoints.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{BackgroundWriter, Policy, Space, Store, StoreErrorKind};
use common::{Machine, StoreModel, check_maps, new_store};

fn folder_bytes(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}

/// Records `rounds` checkpoints with a few new pages in each. Calls `watch` after every page. Returns the model, and
/// whether the store became full.
fn record(store: &Arc<Store>, policy: Policy, rounds: u32, mut watch: impl FnMut()) -> (StoreModel, bool) {
    let mut writer = BackgroundWriter::start(store.clone(), policy).unwrap();
    let (mut model, mut machine, mut before) = (StoreModel::default(), Machine::new(), Machine::new());
    for round in 0..rounds {
        let position = u64::from(round) * 100;
        for page in 0..30 {
            machine.write(Space::Ram, u64::from(page * 13 + round) % 400, 112 * (1 + page + round * 30));
        }
        let copy = common::Copy::at(position, machine.clone());
        writer.begin(position, copy.time_ns).unwrap();
        for (space, number, contents) in machine.dirty(&before) {
            writer.page(space, number, &contents).unwrap();
            watch();
        }
        writer.finish(copy.head.clone(), copy.state.clone()).unwrap();
        model.copies.insert(position, copy);
        before = machine.clone();
    }
    while !writer.is_full()
        && store.entries().last().is_none_or(|e| e.position != u64::from(rounds - 1) * 100)
    {
        std::thread::yield_now();
    }
    let full = writer.is_full();
    writer.close().unwrap();
    let kept: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
    model.copies.retain(|position, _| kept.contains(position));
    (model, full)
}

#[test]
fn the_cap_holds_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    let max = 6 << 20;
    let policy = Policy { max_bytes: Some(max), ..Policy::default() };
    let (model, full) = record(&store, policy, 120, || assert!(folder_bytes(dir.path()) <= max));
    assert!(!full, "{:?}", store.entries().iter().map(|e| (e.position, e.bytes >> 10)).collect::<Vec<_>>());
    assert!((3..100).contains(&model.copies.len()), "{}", model.copies.len());
    assert_eq!(model.copies.last_key_value().map(|(position, _)| *position), Some(11_900));
    model.check(&store);
    model.check(&Store::open(dir.path()).unwrap());
}

#[test]
fn a_cap_that_is_too_small_ends_recording_of_checkpoints() {
    for max in [0, 40_000, 400_000] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(new_store(dir.path()));
        let policy = Policy { max_bytes: Some(max), ..Policy::default() };
        let (model, full) = record(&store, policy, 40, || assert!(folder_bytes(dir.path()) <= max.max(40)));
        assert!(full && store.total_bytes() <= max.max(40), "{} of {max}", store.total_bytes());
        assert_eq!(model.copies.is_empty(), max < 400_000);
        model.check(&Store::open(dir.path()).unwrap());
    }
}

#[test]
fn old_checkpoints_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    // The model's time is three times its position.
    let policy = Policy { keep_last_ns: Some(3000), ..Policy::default() };
    let (model, _) = record(&store, policy, 60, || {});
    let oldest = *model.copies.first_key_value().unwrap().0;
    assert!((5900 - 1000 - 900..=5900 - 1000).contains(&oldest), "{oldest}");
    store.thin(&policy).unwrap();
    assert_eq!(store.entries()[0].position, 4900);
    let maps = store.maps_at(4900).unwrap();
    check_maps(&store, &maps, &model.copies[&4900].machine, 4900);
}

/// A recorder with a limit on the age of checkpoints rarely merges files, because it removes several old
/// checkpoints together. Once the old checkpoints are a quarter of the number of the others, all old ones are
/// removed.
#[test]
fn too_old_checkpoints_go_together_when_they_are_a_quarter_of_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    // The checkpoints of the last 40 ns and the newest older checkpoint stay: 41 checkpoints.
    let policy = Policy { keep_last_ns: Some(40), ..Policy::default() };
    let mut writer = BackgroundWriter::start(store.clone(), policy).unwrap();
    for position in 0..=100 {
        writer.begin(position, position).unwrap();
        writer.finish(vec![], vec![]).unwrap();
        writer.wait_and_take_lost().unwrap();
        let first = if position < 50 { 0 } else { position / 10 * 10 - 40 };
        assert_eq!(store.entries()[0].position, first, "at {position}");
    }
}

#[test]
fn a_recorder_that_does_not_wait_learns_of_lost_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    let obstacle = dir.path().join("00000001.ckpt.part");
    fs::create_dir(&obstacle).unwrap();
    let mut writer = BackgroundWriter::start(store, Policy::default()).unwrap();
    assert!(writer.take_lost().unwrap().is_empty(), "nothing was begun");
    let mut machine = Machine::new();
    machine.write(Space::Ram, 3, 17);
    machine.write(Space::Disk, 4, 18);
    let copy = common::Copy::at(10, machine);
    let mut lost = BTreeSet::new();
    while lost.is_empty() {
        hand_in(&mut writer, &copy, 10, &Machine::new(), &BTreeSet::new());
        lost = writer.take_lost().unwrap();
    }
    assert_eq!(lost, [(Space::Ram, 3), (Space::Disk, 4)].into());
}

#[test]
fn trouble_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    store.add(7, 0).unwrap().finish(&[], &[]).unwrap();
    let mut writer = BackgroundWriter::start(store, Policy::default()).unwrap();
    // One of the next calls returns an error of the thread.
    let mut told = None;
    while told.is_none() {
        told = writer.begin(7, 0).and_then(|()| writer.finish(Vec::new(), Vec::new())).err();
    }
    assert!(matches!(told.unwrap().kind, StoreErrorKind::Taken(7)));
    assert!(writer.page(Space::Ram, 0, &[1; 4096]).is_ok(), "a page alone is not sent yet");
    assert!(writer.finish(Vec::new(), Vec::new()).is_err());
    assert!(matches!(writer.close().unwrap_err().kind, StoreErrorKind::Taken(7)));
}

/// Hands in the machine's pages that changed since `before`, and the lost pages.
fn hand_in(
    writer: &mut BackgroundWriter,
    copy: &common::Copy,
    position: u64,
    before: &Machine,
    lost: &BTreeSet<(Space, u64)>,
) {
    writer.begin(position, copy.time_ns).unwrap();
    let changed = copy.machine.dirty(before).into_iter().map(|(space, number, _)| (space, number));
    for (space, number) in changed.chain(lost.iter().copied()).collect::<BTreeSet<_>>() {
        let code = copy.machine.space(space)[number as usize].unwrap();
        writer.page(space, number, &common::page(code)).unwrap();
    }
    writer.finish(copy.head.clone(), copy.state.clone()).unwrap();
}

#[test]
fn a_checkpoint_that_cannot_be_written_costs_no_other() {
    // If `waits` is true, the recorder learns of the loss before the next checkpoint, otherwise some time later.
    for waits in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(new_store(dir.path()));
        let mut writer = BackgroundWriter::start(store.clone(), Policy::default()).unwrap();
        let (mut model, mut machine, mut before) = (StoreModel::default(), Machine::new(), Machine::new());
        let mut lost = BTreeSet::new();
        // A folder with the name of the next file's `.part` file, so that the file cannot be created.
        let mut obstacle = None;
        for round in 0..16 {
            for page in 0..30 {
                machine.write(Space::Ram, u64::from(page * 13 + round * 7) % 400, (page + round) % 50);
                machine.write(Space::Disk, u64::from(page + round) % 40, page % 3 * 16 + round);
            }
            match round {
                4 => {
                    model.copies.keys().last().inspect(|last| assert_eq!(**last, 300));
                    while store.entries().len() < 4 {
                        std::thread::yield_now();
                    }
                    obstacle = Some(dir.path().join("00000005.ckpt.part"));
                    fs::create_dir(obstacle.as_ref().unwrap()).unwrap();
                }
                9 => fs::remove_dir(obstacle.take().unwrap()).unwrap(),
                _ => {}
            }
            let position = u64::from(round) * 100;
            let copy = common::Copy::at(position, machine.clone());
            lost.append(&mut writer.take_lost().unwrap());
            hand_in(&mut writer, &copy, position, &before, &lost);
            lost = if waits { writer.wait_and_take_lost().unwrap() } else { BTreeSet::new() };
            assert_eq!(!lost.is_empty(), waits && obstacle.is_some(), "round {round}");
            model.copies.insert(position, copy);
            before = machine.clone();
        }
        let lost = writer.wait_and_take_lost().unwrap();
        let last = common::Copy::at(1_600, machine.clone());
        hand_in(&mut writer, &last, 1_600, &before, &lost);
        model.copies.insert(1_600, last);
        writer.close().unwrap();
        let kept: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
        assert!(kept.starts_with(&[0, 100, 200, 300]) && kept.ends_with(&[1_600]), "{kept:?}");
        assert!(!kept.contains(&400) && (!waits || kept.contains(&1_000)), "{kept:?}");
        model.copies.retain(|position, _| kept.contains(position));
        model.check(&store);
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        model.check(&store);
        store.verify(|_, _| {}).unwrap();
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, kept.len() + 2, "header, lock and checkpoints");
    }
}
