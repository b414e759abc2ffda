//! A tree in memory, a disk that checks that its blocks stay the same, and a reader of ext4.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod checker;
pub mod reader;

use std::collections::BTreeMap;

use ext4_layout::{Block, Entry, Id, Identity, Kind, Layout, Options, Time, Tree};

pub const ROOT: Id = Id(1);
pub const GROUP_BYTES: u64 = 128 << 20;

/// A disk with one group in front, one group for the guest and `host_groups` groups for the host.
pub fn options(host_groups: u64) -> Options {
    let size_bytes = (2 + host_groups) * GROUP_BYTES;
    Options { size_bytes, free_bytes: GROUP_BYTES, ..Options::new(*b"ext4-layout test", 1_700_000_000) }
}

/// A tree in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    pub folders: BTreeMap<Id, Vec<Entry>>,
    next: u64,
    /// The folders that were listed, in this order.
    pub listed: Vec<Id>,
    pub no_room: Vec<(Id, Vec<u8>)>,
}

impl Memory {
    pub fn new() -> Memory {
        let folders = BTreeMap::from([(ROOT, Vec::new())]);
        Memory { folders, next: 2, listed: Vec::new(), no_room: Vec::new() }
    }

    /// The entry of the root.
    pub fn root() -> Entry {
        entry(ROOT, b"", Kind::Folder, 0)
    }

    /// Adds an entry, with owner, permissions and times that depend on its number.
    pub fn add(&mut self, folder: Id, name: &[u8], kind: Kind, size_bytes: u64) -> Id {
        let id = Id(self.next);
        self.next += 1;
        if kind == Kind::Folder {
            self.folders.insert(id, Vec::new());
        }
        let entries = self.folders.get_mut(&folder).expect("the folder was added");
        entries.push(entry(id, name, kind, size_bytes));
        id
    }

    /// Adds a hard link to an entry.
    pub fn link(&mut self, folder: Id, name: &[u8], to: Id) {
        let mut links = self.folders.values_mut().flatten().filter(|entry| entry.id == to);
        let mut linked = links.next().expect("the entry was added").clone();
        linked.name = name.to_vec();
        self.folders.get_mut(&folder).expect("the folder was added").push(linked);
        let links = self.folders.values().flatten().filter(|entry| entry.id == to).count() as u32;
        let all = self.folders.values_mut().flatten().filter(|entry| entry.id == to);
        all.for_each(|entry| entry.links = links);
    }
}

impl Tree for Memory {
    fn list(&mut self, folder: Id) -> Vec<Entry> {
        self.listed.push(folder);
        self.folders[&folder].clone()
    }

    fn no_room(&mut self, folder: Id, name: &[u8]) {
        self.no_room.push((folder, name.to_vec()));
    }
}

fn entry(id: Id, name: &[u8], kind: Kind, size_bytes: u64) -> Entry {
    let bits = seeded::mix(id.0);
    let time =
        |bits: u64| Time { seconds: (bits % (1 << 31)) as i64, nanoseconds: (bits % 1_000_000_000) as u32 };
    Entry {
        name: name.to_vec(),
        id,
        kind,
        permissions: (bits % 0o10000) as u16,
        uid: (bits >> 20) as u32,
        gid: (bits >> 32) as u32,
        size_bytes,
        mtime: time(seeded::mix(bits)),
        ctime: time(seeded::mix(bits + 1)),
        links: 1,
        identity: Identity { device: 1, inode: id.0 },
    }
}

/// A byte of a file's contents.
pub fn byte(id: Id, offset: u64) -> u8 {
    seeded::mix(id.0 ^ (offset / 8) << 20).to_le_bytes()[(offset % 8) as usize]
}

/// A disk that remembers what was read, and checks that a second reading gives the same.
pub struct Disk {
    pub layout: Layout<Memory>,
    pub seen: BTreeMap<u64, Block>,
    /// The first blocks of inode tables that the reader has seen.
    pub tables: BTreeMap<u32, u64>,
}

impl Disk {
    pub fn lazy(options: Options, tree: Memory) -> Disk {
        Disk::of(Layout::new(options, tree, &Memory::root()).unwrap())
    }

    pub fn eager(options: Options, tree: Memory) -> Disk {
        Disk::of(Layout::eager(options, tree, &Memory::root()).unwrap())
    }

    fn of(layout: Layout<Memory>) -> Disk {
        Disk { layout, seen: BTreeMap::new(), tables: BTreeMap::new() }
    }

    pub fn read(&mut self, number: u64) -> Block {
        let block = self.layout.block(number);
        let first = self.seen.entry(number).or_insert_with(|| block.clone());
        assert!(*first == block, "block {number} changed from {first:?} to {block:?}");
        block
    }

    /// Reads all blocks again.
    pub fn check_frozen(&mut self) {
        let numbers: Vec<u64> = self.seen.keys().copied().collect();
        numbers.into_iter().for_each(|number| _ = self.read(number));
    }

    /// The bytes of a block that is no part of a file.
    pub fn bytes(&mut self, number: u64) -> Box<[u8; 4096]> {
        match self.read(number) {
            Block::Zero => Box::new([0; 4096]),
            Block::Made(bytes) => bytes,
            Block::File { id, offset } => panic!("block {number} is a part of file {id:?} at {offset}"),
        }
    }
}
