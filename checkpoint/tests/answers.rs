//! Tests of the information that a store and its writer return about themselves.

mod common;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{
    BackgroundWriter, PAGE_BYTES, Page, PageMap, PageRef, Policy, Space, Store, digest, file_name,
};
use common::{Machine, StoreModel, example, new_store, page};

/// The names and contents of a store's files, except the lock.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name != "lock")
        .collect();
    files.sort();
    files
}

#[test]
fn the_last_checkpoint_at_or_before_a_position_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = example(dir.path());
    let found = |position| store.entry_at_or_before(position).map(|entry| entry.position);
    let first = *model.copies.first_key_value().unwrap().0;
    assert_eq!(found(first - 1), None);
    for &position in model.copies.keys() {
        assert_eq!(found(position), Some(position));
        assert_eq!(found(position + 1), Some(position));
    }
    assert_eq!(found(u64::MAX), model.copies.last_key_value().map(|(position, _)| *position));
}

#[test]
fn a_copy_of_its_files_is_the_same_store() {
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = example(dir.path());
    let files = store.files().unwrap();
    assert_eq!(files.len(), model.copies.len() + 1);
    let copy = tempfile::tempdir().unwrap();
    for file in &files {
        assert_eq!(file_name(file.number).as_ref(), Some(&file.name));
        let bytes = fs::read(dir.path().join(&file.name)).unwrap();
        assert_eq!(bytes.len() as u64, file.bytes);
        fs::write(copy.path().join(&file.name), bytes).unwrap();
    }
    assert_eq!(files.iter().map(|file| file.bytes).sum::<u64>(), store.total_bytes());
    model.check(&Store::open(copy.path()).unwrap());
}

#[test]
fn versions_have_a_number_and_the_digest_of_their_contents() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let mut draft = store.add(10, 0).unwrap();
    let codes = [35, 36, 900];
    for (number, code) in codes.into_iter().enumerate() {
        draft.page(Space::Ram, number as u64, &page(code)).unwrap();
    }
    draft.finish(&[], &[]).unwrap();
    let maps = store.maps_at(10).unwrap();
    let mut names = Vec::new();
    for (number, code) in codes.into_iter().enumerate() {
        let PageRef::Stored(id) = maps.ram.get(number as u64) else { panic!("it was stored") };
        assert_eq!(store.digest_of(*id), Some(digest(&page(code))));
        names.push(id.to_string());
    }
    names.dedup();
    assert!(names.len() == codes.len() && names.iter().all(|name| name.parse::<u64>().is_ok()), "{names:?}");
    let PageRef::Stored(id) = maps.ram.get(0) else { panic!("it was stored") };
    store.remove(10).unwrap();
    assert_eq!(store.digest_of(*id), None);
}

#[test]
fn a_version_in_memory_is_the_same_as_itself_only() {
    let [one, other] = [1, 2].map(|code| Arc::new(page(code)));
    let held = |page: &Arc<Page>| PageRef::Held(page.clone());
    assert!(held(&one).same_as(&held(&one)));
    assert!(!held(&one).same_as(&held(&other)));
    assert!(!held(&one).same_as(&held(&Arc::new(page(1)))), "equal contents are not one version");
    assert!(!held(&one).same_as(&PageRef::Zero) && !PageRef::Zero.same_as(&PageRef::Base));
}

#[test]
fn a_map_lies_over_another_where_it_has_something() {
    let [mut below, mut above] = [PageMap::new(1000), PageMap::new(1000)];
    let page = Arc::new([7; PAGE_BYTES]);
    below.set(3, PageRef::Held(page.clone()));
    below.set(900, PageRef::Held(page.clone()));
    above.set(3, PageRef::Zero);
    above.set(4, PageRef::Zero);
    let both = above.over(&below);
    assert!(both.get(3).same_as(&PageRef::Zero) && both.get(4).same_as(&PageRef::Zero));
    assert!(both.get(5).same_as(&PageRef::Base));
    assert!(both.get(900).same_as(&PageRef::Held(page)));
}

#[test]
fn trouble_of_the_host_has_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let error = Store::open(dir.path().join("none")).err().unwrap();
    let source = error.source().expect("the system said why").to_string();
    assert!(source.contains("os error 2"), "{source}");
}

#[test]
fn verifying_tells_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = example(dir.path());
    let mut told = Vec::new();
    store.verify(|done, total| told.push((done, total))).unwrap();
    assert!(told.is_sorted());
    assert!(told.iter().all(|&(_, total)| total == told[0].1));
    assert_eq!(told.last(), Some(&(told[0].1, told[0].1)));
    // There is one report of progress for about each thousand versions, and one at the end of each file.
    let files = model.copies.len();
    assert!((files..=2 * files).contains(&told.len()), "{} reports", told.len());
    let header = store.files().unwrap()[0].bytes;
    assert_eq!(told[0].1 + header, store.total_bytes());
}

#[test]
fn the_writer_tells_what_it_has_written_once_and_ends_with_its_work_done() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(new_store(dir.path()));
    let mut writer = BackgroundWriter::start(store.clone(), Policy::default()).unwrap();
    let write = |writer: &mut BackgroundWriter, position: u64| {
        writer.begin(position, position).unwrap();
        (0..50).for_each(|n| writer.page(Space::Ram, n, &page(112 * (n as u32 + 1))).unwrap());
        writer.finish(vec![], vec![]).unwrap();
    };
    write(&mut writer, 10);
    assert!(writer.wait_and_take_lost().unwrap().is_empty(), "nothing was lost");
    let done = writer.take_done();
    assert_eq!(done.iter().map(|done| done.entry.position).collect::<Vec<_>>(), [10]);
    assert!(writer.take_done().is_empty());
    write(&mut writer, 20);
    drop(writer);
    assert_eq!(store.entries().len(), 2);
}

#[test]
fn a_store_without_damage_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut model) = example(dir.path());
    // After these removals, the files have other numbers than the files of a newly written store.
    for position in [20, 10] {
        store.remove(position).unwrap();
        model.copies.remove(&position);
    }
    drop(store);
    let before = contents(dir.path());
    let dropped = Store::drop_damaged(dir.path()).unwrap();
    assert_eq!((dropped.dropped, dropped.damage.len()), (0, 0));
    assert_eq!(dropped.kept.len(), model.copies.len());
    assert!(contents(dir.path()) == before);
    let store = Store::open_around_damage(dir.path()).unwrap();
    assert!(store.damage().is_empty());
    model.check(&store);
}

/// A store with two checkpoints. The second checkpoint needs pages in the first checkpoint's file, and these pages
/// are damaged.
fn damaged_in_the_first(dir: &Path) -> (Store, StoreModel) {
    let store = new_store(dir);
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    (0..20).for_each(|n| machine.write(Space::Ram, n, 112 * (n as u32 + 1)));
    model.add(&store, 10, &machine);
    machine.write(Space::Ram, 30, 48);
    model.add(&store, 20, &machine);
    let first =
        store.files().unwrap().into_iter().find(|file| file.number == Some(store.entries()[0].number));
    let path = dir.join(first.unwrap().name);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    // The store has the file open. So overwrite the same file, and do not replace it by another file.
    fs::write(&path, bytes).unwrap();
    (store, model)
}

#[test]
fn what_would_need_a_copy_of_damage_is_not_thinned_out() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = damaged_in_the_first(dir.path());
    let old = Policy { keep_last_ns: Some(0), ..Policy::default() };
    assert_eq!(store.thin(&old).unwrap(), []);
    assert_eq!(store.entries().len(), 2);
    assert!(store.remove(10).unwrap_err().is_damage());
    // The first checkpoint cannot be removed, because the damaged pages would be copied. So the policy removes the
    // newest checkpoint.
    let removed = store.thin(&Policy { max_checkpoints: 1, ..Policy::default() }).unwrap();
    assert_eq!(removed.iter().map(|entry| entry.position).collect::<Vec<_>>(), [20]);
}

#[test]
fn what_cannot_be_deleted_is_not_taken_for_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let number = store.add(10, 0).unwrap().finish(&[], &[]).unwrap().number;
    let path = dir.path().join(file_name(Some(number)).unwrap());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = store.thin(&Policy { max_checkpoints: 0, ..Policy::default() }).unwrap_err();
    assert!(error.to_string().contains("cannot delete"), "{error}");
}

/// The store has so many versions that two threads read them, and that progress is reported within a file.
#[test]
fn many_versions_in_one_file_are_read_and_verified() {
    const PAGES: u64 = 2500;
    let contents = |number: u64| {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&(number + 1).to_le_bytes());
        page
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), PAGES, 0).unwrap();
    let mut draft = store.add(10, 0).unwrap();
    (0..PAGES).for_each(|number| drop(draft.page(Space::Ram, number, &contents(number)).unwrap()));
    let number = draft.finish(&[], &[]).unwrap().number;
    let maps = store.maps_at(10).unwrap();
    let stored = |(number, version): (u64, &PageRef)| match version {
        PageRef::Stored(id) => (number, *id),
        _ => panic!("page {number} was stored"),
    };
    let wanted: Vec<_> = maps.ram.iter_not_base().map(stored).collect();
    let read = || {
        let mut seen = Vec::new();
        let result = store.read_many(&wanted, |number, page| {
            assert!(*page == contents(number), "page {number}");
            seen.push(number);
        });
        seen.sort_unstable();
        (seen, result)
    };
    let (seen, result) = read();
    assert!(result.is_ok() && seen.into_iter().eq(0..PAGES), "each of them once");
    let mut reports = 0;
    store.verify(|_, _| reports += 1).unwrap();
    assert_eq!(reports, 4, "one for each 1024 versions that are begun, and one at the end");
    // The damage may be in any batch of pages, and either thread may read this batch.
    let path = dir.path().join(file_name(Some(number)).unwrap());
    let good = fs::read(&path).unwrap();
    for tenth in 0..10 {
        let mut bad = good.clone();
        bad[8 + tenth * PAGES as usize] ^= 1;
        fs::write(&path, &bad).unwrap();
        let (seen, result) = read();
        assert!(result.unwrap_err().is_damage() && seen.len() < wanted.len());
    }
}

#[test]
fn what_is_damaged_is_told_when_a_store_is_opened_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = example(dir.path());
    let file = store.files().unwrap().pop().unwrap();
    drop(store);
    let path = dir.path().join(&file.name);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Store::open(dir.path()).err().unwrap().is_damage());
    let store = Store::open_around_damage(dir.path()).unwrap();
    assert!(
        store.damage().iter().any(|error| error.to_string().contains(&file.name)),
        "{:?}",
        store.damage()
    );
}
