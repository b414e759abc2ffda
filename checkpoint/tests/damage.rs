//! Tests that damaged, foreign and half-written files cause an error, or still yield the right contents. Such files
//! never cause a panic, and never yield wrong bytes.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{PAGE_BYTES, PageRef, Policy, Result, Space, Store, StoreErrorKind};
use common::{DISK_BLOCKS, Machine, RAM_PAGES, StoreModel, example, new_store, page};
use proptest::prelude::*;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Reads the whole store. Every readable page must equal the model's page. Errors are returned.
fn read_all(dir: &Path, model: &StoreModel) -> Result<()> {
    let store = Store::open(dir)?;
    for entry in store.entries() {
        let copy = &model.copies[&entry.position];
        assert_eq!((entry.time_ns, &entry.head), (copy.time_ns, &copy.head));
        assert_eq!(store.state_at(entry.position)?, copy.state);
        let maps = store.maps_at(entry.position)?;
        for space in [Space::Ram, Space::Disk] {
            read_space(&store, &maps, space, &copy.machine)?;
        }
    }
    store.verify(|_, _| {})
}

fn read_space(store: &Store, maps: &checkpoint::Maps, space: Space, machine: &Machine) -> Result<()> {
    let mut stored = Vec::new();
    for (number, version) in maps.space(space).iter_not_base() {
        let expected = page(machine.space(space)[number as usize].unwrap());
        let PageRef::Stored(id) = version else { continue };
        stored.push((number, *id));
        let mut contents = [0; PAGE_BYTES];
        if store.read(*id, &mut contents).is_ok() {
            assert!(contents == expected, "{space:?} page {number}");
        }
    }
    let expected = |number: u64| page(machine.space(space)[number as usize].unwrap());
    store.read_many(&stored, |number, contents| assert!(*contents == expected(number)))
}

#[test]
fn every_changed_byte_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = example(dir.path());
    read_all(dir.path(), &model).unwrap();
    let mut seed = 1_u64;
    for path in files(dir.path()).into_iter().filter(|path| !path.ends_with("lock")) {
        let good = fs::read(&path).unwrap();
        let tail = good.len().saturating_sub(160);
        let step = (good.len() / 60).max(1);
        for at in (0..good.len()).step_by(step).chain(tail..good.len()) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bad = good.clone();
            bad[at] ^= ((seed >> 40) as u8).max(1);
            fs::write(&path, &bad).unwrap();
            match read_all(dir.path(), &model) {
                Err(error) => assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}"),
                Ok(()) => panic!("byte {at} of {} means nothing", path.display()),
            }
        }
        fs::write(&path, &good).unwrap();
    }
    read_all(dir.path(), &model).unwrap();
}

/// A page can be packed in many ways. For example, LZ4 can pack equal bytes as a repetition at any distance. So
/// only a checksum of the packed bytes shows every changed bit.
#[test]
fn every_changed_bit_of_a_blob_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 4, 1).unwrap();
    let mut contents = [7; PAGE_BYTES];
    for position in [10, 20, 30] {
        let mut draft = store.add(position, 0).unwrap();
        draft.page(Space::Ram, 0, &contents).unwrap();
        draft.finish(&[], &[]).unwrap();
        // The second version differs little from the first version, so it becomes a patch. The third version
        // differs much.
        let changed = if position == 10 { 1 } else { 150 };
        contents.chunks_exact_mut(16).take(changed).for_each(|words| words[3] ^= 0x21);
    }
    drop(store);
    for path in files(dir.path()).into_iter().filter(|path| path.extension().is_some()) {
        let good = fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            let result = Store::open(dir.path()).and_then(|store| store.verify(|_, _| {}));
            assert!(result.is_err_and(|error| error.is_damage()), "bit {bit} of {}", path.display());
        }
        fs::write(&path, &good).unwrap();
    }
    Store::open(dir.path()).unwrap().verify(|_, _| {}).unwrap();
}

#[test]
fn every_truncation_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = example(dir.path());
    for path in files(dir.path()).into_iter().filter(|path| !path.ends_with("lock")) {
        let good = fs::read(&path).unwrap();
        let step = (good.len() / 40).max(1);
        for len in (0..good.len()).step_by(step).chain([good.len() - 1]) {
            fs::write(&path, &good[..len]).unwrap();
            let error = Store::open(dir.path()).err().unwrap();
            assert!(error.is_damage(), "{error}");
        }
        fs::write(&path, [&good[..], &good].concat()).unwrap();
        assert!(Store::open(dir.path()).is_err(), "{} twice", path.display());
        fs::write(&path, &good).unwrap();
    }
    read_all(dir.path(), &model).unwrap();
}

#[test]
fn files_in_the_wrong_place_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = example(dir.path());
    let all = files(dir.path());
    let (first, second) = (&all[0], &all[1]);
    let good = fs::read(first).unwrap();
    // Three cases: a file under another file's name, a missing file, and a file of another machine.
    fs::copy(second, first).unwrap();
    assert!(Store::open(dir.path()).err().unwrap().is_damage());
    fs::remove_file(first).unwrap();
    assert!(Store::open(dir.path()).err().unwrap().is_damage());
    let other = tempfile::tempdir().unwrap();
    Store::create(other.path(), RAM_PAGES + 1, DISK_BLOCKS)
        .unwrap()
        .add(10, 0)
        .unwrap()
        .finish(&[], &[])
        .unwrap();
    fs::copy(&files(other.path())[0], first).unwrap();
    assert!(Store::open(dir.path()).err().unwrap().is_damage());
    fs::write(first, good).unwrap();
    read_all(dir.path(), &model).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn several_changes_at_once(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let dir = tempfile::tempdir().unwrap();
        let (_, model) = example(dir.path());
        let all = files(dir.path());
        for (file, at, byte) in changes {
            let path = file.get(&all);
            let mut bytes = fs::read(path).unwrap();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                fs::write(path, bytes).unwrap();
            }
        }
        // The reader may refuse the store or read it, but must not panic or return wrong contents.
        let _ = read_all(dir.path(), &model);
    }
}

/// A store whose writer was killed at some point of an addition or a removal.
#[test]
fn a_killed_writer_leaves_a_store_that_opens() {
    for removed in [10, 25, 20, 40, 60] {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut model) = example(dir.path());
        let before: Vec<(PathBuf, Vec<u8>)> =
            files(dir.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        store.remove(removed).unwrap();
        drop(store);
        // The writer is killed before the rename. The merged file, complete or not, still has its `.part` name, and
        // all other files are unchanged.
        let merged: Vec<(PathBuf, Vec<u8>)> =
            files(dir.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        let changed: Vec<_> = merged.iter().filter(|file| !before.contains(file)).collect();
        assert!(changed.len() <= 1, "one file is written anew");
        for (path, bytes) in &changed {
            let old = &before.iter().find(|(old, _)| old == path).unwrap().1;
            let part = path.with_extension("ckpt.part");
            for len in [0, bytes.len() / 2, bytes.len()] {
                before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
                fs::write(path, old).unwrap();
                fs::write(&part, &bytes[..len]).unwrap();
                model.check(&Store::open(dir.path()).unwrap());
            }
            fs::remove_file(&part).unwrap();
            // The writer is killed between the rename and the deletion. The removed checkpoint still exists.
            fs::write(path, bytes).unwrap();
        }
        let gone: Vec<_> = before.iter().filter(|(path, _)| !merged.iter().any(|(m, _)| m == path)).collect();
        assert_eq!(gone.len(), 1);
        fs::write(&gone[0].0, &gone[0].1).unwrap();
        let store = Store::open(dir.path()).unwrap();
        model.check(&store);
        store.verify(|_, _| {}).unwrap();
        // The next writer can add and remove checkpoints as usual.
        let machine = model.copies[&60].machine.clone();
        model.add(&store, 70, &machine);
        for position in [removed, 30, 70, 50] {
            store.remove(position).unwrap();
            model.copies.remove(&position);
            model.check(&store);
            model.check(&Store::open(dir.path()).unwrap());
        }
        store.verify(|_, _| {}).unwrap();
    }
}

#[test]
fn a_writer_removes_what_another_left_unfinished() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut model) = example(dir.path());
    drop(store);
    let part = dir.path().join("00000099.ckpt.part");
    fs::write(&part, b"half").unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(part.exists(), "a reader changes nothing");
    let machine = model.copies[&60].machine.clone();
    model.add(&store, 70, &machine);
    assert!(!part.exists());
    model.check(&store);
}

#[test]
fn a_reader_keeps_what_a_writer_removes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = example(dir.path());
    let reader = Store::open(dir.path()).unwrap();
    for position in [20, 10, 60, 40, 25, 30, 50] {
        store.remove(position).unwrap();
        model.check(&reader);
    }
    assert_eq!(Store::open(dir.path()).unwrap().entries().len(), 0);
    // A second writer fails while the first writer has the lock. Later the second writer sees the first writer's
    // changes.
    assert!(matches!(reader.remove(10).unwrap_err().kind, StoreErrorKind::Busy));
    drop(store);
    assert!(matches!(reader.remove(10).unwrap_err().kind, StoreErrorKind::Missing(10)));
    assert_eq!(reader.entries().len(), 0);
}

#[test]
fn opening_while_a_writer_merges_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for position in 0..60 {
        machine.write(Space::Ram, position % 9, position as u32 * 5);
        model.add(&store, position, &machine);
    }
    #[expect(clippy::disallowed_methods, reason = "the test is about a reader beside a writer")]
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            (0..40).for_each(|_| {
                let opened = Store::open(dir.path()).unwrap();
                let entries = opened.entries();
                let last = entries.last().unwrap();
                assert_eq!(opened.state_at(last.position).unwrap(), model.copies[&last.position].state);
                let maps = opened.maps_at(last.position).unwrap();
                common::check_maps(&opened, &maps, &model.copies[&last.position].machine, last.position);
            });
        });
        for position in (0..59).step_by(2).chain((1..59).step_by(2)) {
            store.remove(position).unwrap();
        }
        reader.join().unwrap();
    });
}

/// The model with only the checkpoints that a store has.
fn kept(model: &StoreModel, store: &Store) -> StoreModel {
    let positions: Vec<u64> = store.entries().iter().map(|entry| entry.position).collect();
    let mut model = model.clone();
    model.copies.retain(|position, _| positions.contains(position));
    model
}

#[test]
fn a_file_that_cannot_be_deleted_is_still_a_checkpoint() {
    for (removed, at_once) in
        [10, 20, 25, 60].into_iter().flat_map(|removed| [(removed, true), (removed, false)])
    {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut model) = example(dir.path());
        let number = store.entries().iter().find(|entry| entry.position == removed).unwrap().number;
        let path = dir.path().join(checkpoint::file_name(Some(number)).unwrap());
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        let error = store.remove(removed).unwrap_err();
        assert!(error.to_string().contains("cannot delete"), "{error}");
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        model.check(&store);
        model.check(&Store::open(dir.path()).unwrap());
        // The next process can add and remove checkpoints as usual. These removals include later checkpoints, whose
        // files took over the data.
        let machine = model.copies[&60].machine.clone();
        model.add(&store, 70, &machine);
        let order =
            if at_once { [removed, 20, 25, 30, 40, 50, 70] } else { [40, 30, removed, 20, 25, 70, 50] };
        for position in order {
            if !model.copies.contains_key(&position) {
                continue;
            }
            store.remove(position).unwrap();
            model.copies.remove(&position);
            model.check(&store);
            let again = Store::open(dir.path()).unwrap();
            model.check(&again);
            again.verify(|_, _| {}).unwrap();
        }
    }
}

#[test]
fn what_is_damaged_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = example(dir.path());
    let damaged = files(dir.path())[0].clone();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[100] ^= 1;
    // Overwrite the same file, and do not replace it, because the store has it open.
    fs::write(&damaged, &bytes).unwrap();
    let before: Vec<Vec<u8>> = files(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
    let error = store.remove(10).unwrap_err();
    assert!(error.is_damage() && error.path == damaged, "{error}");
    let after: Vec<Vec<u8>> = files(dir.path()).iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(before == after, "nothing has changed");
    // Thinning keeps checkpoints whose removal would copy damaged data, and thins out the others.
    let removed = store.thin(&Policy { max_checkpoints: 3, ..Policy::default() }).unwrap();
    assert_eq!((removed.len(), store.entries()[0].position), (4, 10));
    let error = Store::open(dir.path()).unwrap().verify(|_, _| {}).unwrap_err();
    assert_eq!(error.path, damaged);
}

#[test]
fn what_a_damaged_store_still_has_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = example(dir.path());
    drop(store);
    let good: Vec<(PathBuf, Vec<u8>)> =
        files(dir.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let (mut some, mut none) = (0, 0);
    for (path, bytes) in good.iter().filter(|(path, _)| path.extension().is_some()) {
        let tail = bytes.len() - 130;
        for at in (0..bytes.len()).step_by(bytes.len() / 12 + 1).chain((tail..bytes.len()).step_by(17)) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            fs::write(path, &bad).unwrap();
            let what = format!("byte {at} of {}", path.display());
            // Checkpoints offered to a reader are right, except for pages with a reported error.
            let opened = Store::open_around_damage(dir.path()).unwrap();
            for entry in opened.entries() {
                let copy = &model.copies[&entry.position];
                let maps = opened.maps_at(entry.position).unwrap();
                for space in [Space::Ram, Space::Disk] {
                    let read = read_space(&opened, &maps, space, &copy.machine);
                    assert!(read.is_ok() || read.is_err_and(|error| error.is_damage()), "{what}");
                }
            }
            if !opened.damage().is_empty() {
                assert!(opened.add(1_000, 0).is_err(), "{what}: nothing is built upon a damaged store");
            }
            let dropped = Store::drop_damaged(dir.path()).unwrap();
            assert!(!dropped.damage.is_empty() && dropped.dropped > 0, "{what}");
            assert_eq!(dropped.kept.len() + dropped.dropped, good.len() - 2, "{what}");
            let whole = Store::open(dir.path()).unwrap();
            assert_eq!(whole.entries(), dropped.kept);
            whole.verify(|_, _| {}).unwrap();
            let mut model = kept(&model, &whole);
            model.check(&whole);
            if let Some((_, last)) = model.copies.last_key_value() {
                let machine = last.machine.clone();
                model.add(&whole, 1_000, &machine);
                model.check(&whole);
                // The store still knows which versions the other checkpoints need.
                whole.thin(&Policy { max_checkpoints: 2, ..Policy::default() }).unwrap();
                kept(&model, &whole).check(&whole);
                whole.verify(|_, _| {}).unwrap();
                some += 1;
            } else {
                none += 1;
            }
            drop(whole);
            assert!(Store::drop_damaged(dir.path()).unwrap().damage.is_empty(), "{what}");
            assert_eq!(
                fs::read_dir(dir.path().parent().unwrap())
                    .unwrap()
                    .filter(|entry| {
                        entry
                            .as_ref()
                            .unwrap()
                            .path()
                            .to_str()
                            .unwrap()
                            .starts_with(dir.path().to_str().unwrap())
                    })
                    .count(),
                1,
                "{what}: nothing else stays behind"
            );
            files(dir.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
            good.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
    assert!(some > none && none > 0, "{some} with checkpoints, {none} without");
}

/// The removed checkpoint refers to a version in its neighbour's file, and no other checkpoint refers to this version.
#[test]
fn a_removal_that_is_cut_short_leaves_what_the_removed_checkpoint_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for (position, page, code) in [(10, 1, 21), (40, 2, 22), (50, 5, 112)] {
        machine.write(Space::Ram, page, code);
        model.add(&store, position, &machine);
    }
    let mut between = model.copies[&10].machine.clone();
    between.write(Space::Ram, 7, 112);
    model.add(&store, 20, &between);
    store.remove(50).unwrap();
    model.copies.remove(&50);
    let path = dir.path().join(checkpoint::file_name(Some(4)).unwrap());
    let bytes = fs::read(&path).unwrap();
    store.remove(20).unwrap();
    drop(store);
    fs::write(&path, &bytes).unwrap();
    let store = Store::open(dir.path()).unwrap();
    model.check(&store);
    store.verify(|_, _| {}).unwrap();
    // The next removal also removes the versions without references from their file.
    for position in [20, 40] {
        store.remove(position).unwrap();
        model.copies.remove(&position);
        model.check(&store);
        model.check(&Store::open(dir.path()).unwrap());
    }
    assert_eq!(store.entries()[0].counts.full, 1);
}

#[test]
fn a_checkpoint_is_not_built_upon_a_damaged_page() {
    let dir = tempfile::tempdir().unwrap();
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    // Both contents are similar (of one `family`), so that the second version would be a delta from the first.
    machine.write(Space::Ram, 3, 113);
    model.add(&new_store(dir.path()), 10, &machine);
    let path = files(dir.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    bytes[50] ^= 1;
    fs::write(&path, bytes).unwrap();
    let store = Store::open(dir.path()).unwrap();
    machine.write(Space::Ram, 3, 114);
    model.add(&store, 20, &machine);
    let maps = store.maps_at(20).unwrap();
    common::check_maps(&store, &maps, &machine, 20);
    drop(store);
    let dropped = Store::drop_damaged(dir.path()).unwrap();
    assert_eq!((dropped.dropped, dropped.kept[0].position), (1, 20));
    model.copies.remove(&10);
    model.check(&Store::open(dir.path()).unwrap());
}

/// Only the check of the maps shows the error, because no other file refers to a version in the missing file.
#[test]
fn a_missing_file_is_noticed_where_nothing_refers_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for (position, page, code) in [(10, 1, 17), (20, 2, 33), (30, 3, 49)] {
        machine.write(Space::Ram, page, code);
        model.add(&store, position, &machine);
    }
    drop(store);
    fs::remove_file(dir.path().join(checkpoint::file_name(Some(2)).unwrap())).unwrap();
    let store = Store::open(dir.path()).unwrap();
    let maps = store.maps_at(10).unwrap();
    common::check_maps(&store, &maps, &model.copies[&10].machine, 10);
    // A second request for the same maps fails, too.
    for _ in 0..2 {
        assert!(store.maps_at(30).unwrap_err().is_damage());
    }
    assert!(store.verify(|_, _| {}).unwrap_err().is_damage());
}

/// Each file is valid, and the maps of the second checkpoint are unchanged. But the base of its page is
/// another page.
#[test]
fn a_difference_from_a_page_of_another_store_is_noticed() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (dir, first) in [(&dir, 17), (&other, 33)] {
        let store = new_store(dir.path());
        let (mut model, mut machine) = (StoreModel::default(), Machine::new());
        for (position, code) in [(10, first), (20, 18)] {
            machine.write(Space::Ram, 0, code);
            model.add(&store, position, &machine);
        }
    }
    let name = checkpoint::file_name(Some(1)).unwrap();
    fs::copy(other.path().join(&name), dir.path().join(&name)).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.entries()[1].counts.delta, 1);
    let maps = store.maps_at(20).unwrap();
    let PageRef::Stored(id) = maps.ram.get(0) else { panic!("it was stored") };
    assert!(store.read(*id, &mut [0; PAGE_BYTES]).unwrap_err().is_damage());
    assert!(store.read_many(&[(0, *id)], |_, _| panic!("it is not right")).unwrap_err().is_damage());
    assert!(store.verify(|_, _| {}).unwrap_err().is_damage());
    let dropped = Store::drop_damaged(dir.path()).unwrap();
    assert_eq!((dropped.dropped, dropped.kept[0].position), (1, 10));
}

/// The names and contents of a folder's files.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(dir).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_file_of_a_later_program_is_not_dropped_with_a_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    drop(example(dir.path()));
    let all = files(dir.path());
    let mut damaged = fs::read(&all[0]).unwrap();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&all[0], damaged).unwrap();
    let mut later = fs::read(&all[1]).unwrap();
    // FORMAT.md: a file ends with the version, the CRC-32 of the footer up to there, and the format's name.
    let (at, footer) = (later.len() - 16, later.len() - 128);
    later[at..at + 4].copy_from_slice(&9_u32.to_le_bytes());
    let crc = crc32fast::hash(&later[footer..at + 4]);
    later[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    fs::write(&all[1], later).unwrap();
    let before = contents(dir.path());
    let is_version = |kind: StoreErrorKind| matches!(kind, StoreErrorKind::Version { found: 9, .. });
    assert!(is_version(Store::open_around_damage(dir.path()).err().unwrap().kind));
    assert!(is_version(Store::drop_damaged(dir.path()).unwrap_err().kind));
    assert!(contents(dir.path()) == before);
}

#[test]
fn damage_that_no_checkpoint_needs_goes_and_costs_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for (position, page, code) in [(10, 0, 17), (20, 0, 0), (30, 5, 17), (40, 5, 0)] {
        machine.write(Space::Ram, page, code);
        model.add(&store, position, &machine);
    }
    // When the first checkpoint is removed, its page moves into the second checkpoint's file, because the third
    // checkpoint needs this page. The page stays in the second checkpoint's file after the third checkpoint is
    // removed.
    for position in [10, 30] {
        store.remove(position).unwrap();
        model.copies.remove(&position);
    }
    assert_eq!(store.entries()[0].counts.full, 1);
    drop(store);
    let path = dir.path().join(checkpoint::file_name(Some(2)).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let dropped = Store::drop_damaged(dir.path()).unwrap();
    assert_eq!((dropped.damage.len(), dropped.dropped, dropped.kept.len()), (1, 0, 2));
    let store = Store::open(dir.path()).unwrap();
    model.check(&store);
    store.verify(|_, _| {}).unwrap();
}

/// An unreadable page is an error of the host, which is returned to the recorder.
#[test]
fn a_page_that_cannot_be_read_is_not_taken_for_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let add = |position, code| {
        let mut draft = store.add(position, 0)?;
        draft.page(Space::Ram, 3, &page(code))?;
        draft.finish(&[], &[])
    };
    let number = add(10, 113).unwrap().number;
    let path = dir.path().join(checkpoint::file_name(Some(number)).unwrap());
    let good = fs::read(&path).unwrap();
    // The store has the file open. So this damage truncates the same file, and does not replace it by another file.
    fs::write(&path, &good[..20]).unwrap();
    store.maps_at(10).unwrap();
    let error = add(20, 114).unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Io { .. }), "{error}");
    fs::write(&path, &good).unwrap();
    assert!(add(20, 114).is_ok());
}
