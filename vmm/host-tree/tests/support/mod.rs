//! A disk that another package reads, and helpers for trees.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ext4_layout::{Entry, Id, Time, Tree};
use guest_disk::{ByteSource, Files};
use host_tree::{Disk, HostTree, Options, Warning};

pub fn options(root: &Path) -> Options {
    Options::new(root, Time { seconds: 1_700_000_000, nanoseconds: 0 })
}

pub fn tree(root: &Path) -> HostTree {
    HostTree::new(&options(root)).unwrap()
}

/// A disk that keeps what was read, as a recording does.
#[derive(Clone)]
pub struct Shared(pub Arc<Mutex<Kept>>);

pub struct Kept {
    disk: Disk,
    blocks: BTreeMap<u64, Option<Option<Box<[u8; 4096]>>>>,
}

impl Shared {
    pub fn new(options: &Options) -> Shared {
        let disk = Disk::new(ext4_layout::Options::new([9; 16], 1_700_000_000), options).unwrap();
        Shared(Arc::new(Mutex::new(Kept { disk, blocks: BTreeMap::new() })))
    }

    pub fn files(&self) -> Files {
        Files::open(self.clone()).unwrap()
    }

    pub fn warnings(&self) -> Vec<Warning> {
        self.0.lock().unwrap().disk.take_warnings()
    }
}

impl ByteSource for Shared {
    fn size_bytes(&self) -> u64 {
        self.0.lock().unwrap().disk.blocks() * 4096
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let Kept { disk, blocks } = &mut *self.0.lock().unwrap();
        for (at, byte) in (offset..).zip(to) {
            let block = blocks.entry(at / 4096).or_insert_with_key(|&number| disk.read_block(number).ok());
            let block = block.as_ref().ok_or_else(|| io::Error::other("the block is unreadable"))?;
            *byte = block.as_ref().map_or(0, |bytes| bytes[(at % 4096) as usize]);
        }
        Ok(())
    }
}

/// The whole contents of a file of a guest.
pub fn contents(files: &mut Files, path: &str) -> Result<Vec<u8>, guest_disk::Error> {
    let mut file = files.read(path.as_bytes())?;
    let (mut all, mut part) = (Vec::new(), [0; 5000]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(all),
            count => all.extend(&part[..count]),
        }
    }
}

/// The entries of a folder to which names lead, by name.
pub fn listing(tree: &mut HostTree, names: &[&str]) -> BTreeMap<String, Entry> {
    let mut id = tree.root().id;
    for name in names {
        id = listed(tree, id).remove(*name).unwrap_or_else(|| panic!("there is no {name}")).id;
    }
    listed(tree, id)
}

pub fn listed(tree: &mut HostTree, folder: Id) -> BTreeMap<String, Entry> {
    let entries = tree.list(folder).into_iter();
    entries.map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry)).collect()
}
