//! A reader of ext4 that compares a disk with its tree. The reader shares no code with the layout.

use ext4_layout::{Block, Entry, Id, Kind, Time};

use super::{Disk, ROOT};

/// The fields of an inode.
pub struct Inode {
    pub number: u32,
    pub mode: u16,
    pub links: u16,
    pub size_bytes: u64,
    pub flags: u32,
    uid: u32,
    gid: u32,
    mtime: Time,
    ctime: Time,
    block: [u8; 60],
}

fn get(bytes: &[u8], at: usize, size: usize) -> u64 {
    (0..size).map(|byte| u64::from(bytes[at + byte]) << (8 * byte)).sum()
}

fn time(bytes: &[u8], at: usize, extra: usize) -> Time {
    let extra = get(bytes, extra, 4);
    let low = i64::from(get(bytes, at, 4) as u32 as i32);
    Time { seconds: low + ((extra as i64 & 3) << 32), nanoseconds: (extra >> 2) as u32 }
}

pub fn inode(disk: &mut Disk, number: u32) -> Inode {
    let (group, index) = ((number - 1) / 8192, (number - 1) % 8192);
    let table = table(disk, group);
    let block = disk.bytes(table + u64::from(index / 16));
    let bytes = &block[(index % 16) as usize * 256..][..256];
    Inode {
        number,
        mode: get(bytes, 0, 2) as u16,
        links: get(bytes, 26, 2) as u16,
        size_bytes: get(bytes, 4, 4) | get(bytes, 108, 4) << 32,
        flags: get(bytes, 32, 4) as u32,
        uid: (get(bytes, 2, 2) | get(bytes, 120, 2) << 16) as u32,
        gid: (get(bytes, 24, 2) | get(bytes, 122, 2) << 16) as u32,
        mtime: time(bytes, 16, 136),
        ctime: time(bytes, 12, 132),
        block: bytes[40..100].try_into().unwrap(),
    }
}

/// The first block of a group's inode table.
fn table(disk: &mut Disk, group: u32) -> u64 {
    if let Some(&table) = disk.tables.get(&group) {
        return table;
    }
    assert_eq!(get(&*disk.bytes(0), 1024 + 40, 4), 8192, "inodes in a group");
    let descriptors = disk.bytes(1 + u64::from(group / 128));
    let table = get(&*descriptors, (group % 128) as usize * 32 + 8, 4);
    disk.tables.insert(group, table);
    table
}

/// The blocks of a file, as ranges: the first block in the file, the first block on the disk, the number of blocks.
pub fn extents(disk: &mut Disk, inode: &Inode) -> Vec<(u64, u64, u64)> {
    let mut found = Vec::new();
    walk_extents(disk, &inode.block, &mut found);
    found
}

fn walk_extents(disk: &mut Disk, node: &[u8], found: &mut Vec<(u64, u64, u64)>) {
    assert_eq!(get(node, 0, 2), 0xf30a);
    for at in (0..get(node, 2, 2) as usize).map(|entry| 12 + entry * 12) {
        if get(node, 6, 2) == 0 {
            found.push((get(node, at, 4), get(node, at + 8, 4), get(node, at + 4, 2)));
        } else {
            let child = disk.bytes(get(node, at + 4, 4));
            walk_extents(disk, &*child, found);
        }
    }
}

/// The names in a folder, with inodes and codes of kinds, sorted.
pub fn names(disk: &mut Disk, folder: &Inode) -> Vec<(Vec<u8>, u32, u8)> {
    let mut names = Vec::new();
    for (_, start, count) in extents(disk, folder) {
        for block in start..start + count {
            let bytes = disk.bytes(block);
            let mut at = 0;
            while at < 4096 {
                let (inode, length) = (get(&*bytes, at, 4) as u32, bytes[at + 6].into());
                if inode != 0 {
                    names.push((bytes[at + 8..][..length].to_vec(), inode, bytes[at + 7]));
                }
                at += get(&*bytes, at + 4, 2) as usize;
            }
        }
    }
    names.sort();
    names
}

/// Walks the whole disk from the root, and checks that it shows the tree.
pub fn check(disk: &mut Disk) {
    let root = inode(disk, 2);
    check_folder(disk, &root, &root, ROOT);
}

fn check_folder(disk: &mut Disk, folder: &Inode, above: &Inode, id: Id) {
    let mut entries = disk.layout.tree().folders[&id].clone();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut found = names(disk, folder);
    let dots: Vec<_> = found.extract_if(.., |(name, ..)| name == b"." || name == b"..").collect();
    assert_eq!(dots, [(b".".to_vec(), folder.number, 2), (b"..".to_vec(), above.number, 2)]);
    let has_added = folder.number == 2 && !entries.iter().any(|entry| entry.name == b"lost+found");
    if has_added {
        let lost = found.extract_if(.., |(name, ..)| name == b"lost+found").next().unwrap();
        let lost = inode(disk, lost.1);
        assert_eq!(names(disk, &lost).len(), 2);
    }
    assert_eq!(found.len(), entries.len());
    let mut subfolders = u32::from(has_added);
    for ((name, number, code), entry) in found.into_iter().zip(&entries) {
        assert_eq!(name, entry.name);
        let child = inode(disk, number);
        check_inode(disk, &child, entry, code);
        if entry.kind == Kind::Folder {
            subfolders += 1;
            check_folder(disk, &child, folder, entry.id);
        }
    }
    let links = 2 + subfolders;
    assert_eq!(u32::from(folder.links), if links > 65_000 { 1 } else { links });
}

fn check_inode(disk: &mut Disk, inode: &Inode, entry: &Entry, code: u8) {
    let (kind, expected) = match entry.kind {
        Kind::Folder => (0o04, 2),
        Kind::File => (0o10, 1),
        Kind::Symlink(_) => (0o12, 7),
        Kind::Fifo => (0o01, 5),
        Kind::Socket => (0o14, 6),
        Kind::CharacterDevice(..) => (0o02, 3),
        Kind::BlockDevice(..) => (0o06, 4),
    };
    assert_eq!((code, inode.mode), (expected, kind << 12 | entry.permissions));
    let Entry { uid, gid, mtime, ctime, .. } = *entry;
    assert_eq!((inode.uid, inode.gid, inode.mtime, inode.ctime), (uid, gid, mtime, ctime));
    if entry.kind != Kind::Folder {
        assert_eq!(u32::from(inode.links), entry.links);
    }
    match &entry.kind {
        Kind::File => check_contents(disk, inode, entry),
        Kind::Symlink(target) => assert_eq!(&read_target(disk, inode), target),
        &Kind::CharacterDevice(major, minor) | &Kind::BlockDevice(major, minor) => {
            assert_eq!(device(inode), (major, minor));
        }
        _ => (),
    }
}

fn check_contents(disk: &mut Disk, inode: &Inode, entry: &Entry) {
    assert_eq!(inode.size_bytes, entry.size_bytes);
    let mut next = 0;
    for (logical, start, count) in extents(disk, inode) {
        assert_eq!(logical, next);
        next += count;
        // All blocks of a small file; the first and the last block of each extent of a large one.
        let all = 0..count;
        let some = [0, count - 1];
        let blocks: Vec<u64> = if count < 100 { all.collect() } else { some.to_vec() };
        for at in blocks {
            let expected = Block::File { id: entry.id, offset: (logical + at) * 4096 };
            assert_eq!(disk.read(start + at), expected);
        }
    }
    assert_eq!(next, entry.size_bytes.div_ceil(4096));
}

fn read_target(disk: &mut Disk, inode: &Inode) -> Vec<u8> {
    let size = inode.size_bytes as usize;
    if size < 60 {
        return inode.block[..size].to_vec();
    }
    let (_, start, _) = extents(disk, inode)[0];
    let bytes = disk.bytes(start);
    assert_eq!(bytes[size], 0);
    bytes[..size].to_vec()
}

fn device(inode: &Inode) -> (u32, u32) {
    let (old, new) = (get(&inode.block, 0, 4) as u32, get(&inode.block, 4, 4) as u32);
    match old {
        0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xfff00),
        old => (old >> 8, old & 0xff),
    }
}
