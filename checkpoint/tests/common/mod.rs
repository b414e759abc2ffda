//! A model of a store, which keeps full copies of all checkpoints, and test pages to fill the store with.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use checkpoint::{CheckpointDraft, Maps, PAGE_BYTES, Page, PageRef, Space, Store};

pub const RAM_PAGES: u64 = 600;
pub const DISK_BLOCKS: u64 = 40;

/// The contents of the test page with number `code`. Number 0 is the zero page. Pages whose numbers are in the same
/// group of 16 differ in few bytes. The pages of every seventh group cannot be compressed.
pub fn page(code: u32) -> Page {
    let mut page = [0; PAGE_BYTES];
    if code == 0 {
        return page;
    }
    let (family, member) = (code / 16, code % 16);
    let mut state = u64::from(family) + 1;
    for (at, byte) in page.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = if family.is_multiple_of(7) {
            (state >> 56) as u8
        } else {
            (at / 90) as u8 ^ (state >> 62) as u8
        };
    }
    for at in 0..member as usize {
        page[at * 200 + 7] ^= 0x55;
    }
    page
}

/// The contents of every page. `None` stands for the contents at power-on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    pub ram: Vec<Option<u32>>,
    pub disk: Vec<Option<u32>>,
}

impl Machine {
    pub fn new() -> Machine {
        Machine { ram: vec![None; RAM_PAGES as usize], disk: vec![None; DISK_BLOCKS as usize] }
    }

    pub fn space(&self, space: Space) -> &Vec<Option<u32>> {
        match space {
            Space::Ram => &self.ram,
            Space::Disk => &self.disk,
        }
    }

    pub fn write(&mut self, space: Space, number: u64, code: u32) {
        let pages = match space {
            Space::Ram => &mut self.ram,
            Space::Disk => &mut self.disk,
        };
        let len = pages.len();
        pages[number as usize % len] = Some(code);
    }

    /// Gives every page that was never written its contents in `before`.
    pub fn inherit(&mut self, before: &Machine) {
        let pages = self.ram.iter_mut().zip(&before.ram).chain(self.disk.iter_mut().zip(&before.disk));
        pages.for_each(|(now, then)| *now = now.or(*then));
    }

    /// Pages that differ from `before`, and some unchanged pages.
    pub fn dirty(&self, before: &Machine) -> Vec<(Space, u64, Page)> {
        let mut dirty = Vec::new();
        for space in [Space::Ram, Space::Disk] {
            let pairs = self.space(space).iter().zip(before.space(space));
            for (number, (now, then)) in pairs.enumerate() {
                if let Some(code) = now
                    && (now != then || number % 5 == 0)
                {
                    dirty.push((space, number as u64, page(*code)));
                }
            }
        }
        dirty
    }
}

/// A checkpoint in the model.
#[derive(Clone)]
pub struct Copy {
    pub machine: Machine,
    pub time_ns: u64,
    pub head: Vec<u8>,
    pub state: Vec<u8>,
}

impl Copy {
    pub fn at(position: u64, machine: Machine) -> Copy {
        let head = position.to_le_bytes().to_vec();
        let state = head.repeat(position as usize % 50);
        Copy { machine, time_ns: position * 3, head, state }
    }
}

/// Checkpoints with full copies of all pages.
#[derive(Clone, Default)]
pub struct StoreModel {
    pub copies: BTreeMap<u64, Copy>,
}

impl StoreModel {
    pub fn before(&self, position: u64) -> Machine {
        self.copies.range(..position).next_back().map_or_else(Machine::new, |(_, copy)| copy.machine.clone())
    }

    /// Adds a checkpoint to the store and to the model.
    pub fn add(&mut self, store: &Store, position: u64, machine: &Machine) {
        let copy = Copy::at(position, machine.clone());
        let mut draft = store.add(position, copy.time_ns).unwrap();
        put(&mut draft, &machine.dirty(&self.before(position)));
        let entry = draft.finish(&copy.head, &copy.state).unwrap();
        assert_eq!((entry.position, entry.time_ns, &entry.head), (position, copy.time_ns, &copy.head));
        self.copies.insert(position, copy);
    }

    /// Checks that the store agrees exactly with the model.
    pub fn check(&self, store: &Store) {
        let entries = store.entries();
        let positions: Vec<u64> = entries.iter().map(|entry| entry.position).collect();
        assert!(self.copies.keys().copied().eq(positions.iter().copied()), "{positions:?}");
        for (entry, (position, copy)) in entries.iter().zip(&self.copies) {
            assert_eq!((entry.time_ns, &entry.head), (copy.time_ns, &copy.head));
            assert_eq!(store.state_at(*position).unwrap(), copy.state);
            check_maps(store, &store.maps_at(*position).unwrap(), &copy.machine, *position);
        }
    }
}

pub fn put(draft: &mut CheckpointDraft<'_>, pages: &[(Space, u64, Page)]) {
    for (space, number, contents) in pages {
        draft.page(*space, *number, contents).unwrap();
    }
}

pub fn check_maps(store: &Store, maps: &Maps, machine: &Machine, position: u64) {
    for space in [Space::Ram, Space::Disk] {
        let mut stored = Vec::new();
        for (number, code) in machine.space(space).iter().enumerate() {
            let number = number as u64;
            match (maps.space(space).get(number), code) {
                (PageRef::Base, None) | (PageRef::Zero, Some(0)) => {}
                (PageRef::Stored(id), Some(_)) => stored.push((number, *id)),
                (have, want) => panic!("{space:?} page {number} at {position}: {have:?}, not {want:?}"),
            }
        }
        let expected = |number: u64| page(machine.space(space)[number as usize].unwrap());
        let mut count = 0;
        let sink = |number, contents: &Page| {
            assert!(*contents == expected(number), "{space:?} page {number} at {position}");
            count += 1;
        };
        store.read_many(&stored, sink).unwrap();
        assert_eq!(count, stored.len());
        for (number, id) in stored.iter().step_by(17) {
            let mut contents = [0xcc; PAGE_BYTES];
            store.read(*id, &mut contents).unwrap();
            assert!(contents == expected(*number), "{space:?} page {number} at {position}");
        }
    }
}

pub fn new_store(dir: &Path) -> Store {
    Store::create(dir, RAM_PAGES, DISK_BLOCKS).unwrap()
}

/// A store and its model: checkpoints at 10, 20, ..., and a few that were added between these and removed.
pub fn example(dir: &Path) -> (Store, StoreModel) {
    let store = new_store(dir);
    let (mut model, mut machine) = (StoreModel::default(), Machine::new());
    for round in 1..=6_u32 {
        for step in 0..12 {
            let code = if step == 3 { 0 } else { (step % 4) * 16 + round };
            machine.write(Space::Ram, u64::from(step * 37 + round / 3), code);
            machine.write(Space::Disk, u64::from(step), (step % 4) * 16 + round);
        }
        model.add(&store, u64::from(round) * 10, &machine);
    }
    let mut between = model.copies[&20].machine.clone();
    between.write(Space::Ram, 500, 333);
    between.write(Space::Ram, 37, 0);
    model.add(&store, 25, &between);
    (store, model)
}
