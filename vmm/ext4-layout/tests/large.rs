//! Large files, large folders, and very many requests.

mod support;

use ext4_layout::{Block, Kind, Options};
use seeded::Rng;
use support::{Disk, Memory, ROOT, checker, options, reader};

/// A tree with a file of 100 GB, a folder of `names` names, and a folder of `subfolders` folders.
fn large(names: u32, subfolders: u32) -> Memory {
    let mut tree = Memory::new();
    let many = tree.add(ROOT, b"many names", Kind::Folder, 0);
    for number in 0..names {
        tree.add(
            many,
            format!("a name with its number {number}").as_bytes(),
            Kind::File,
            u64::from(number % 2),
        );
    }
    let folders = tree.add(ROOT, b"many folders", Kind::Folder, 0);
    for number in 0..subfolders {
        tree.add(folders, number.to_string().as_bytes(), Kind::Folder, 0);
    }
    tree.add(ROOT, b"large", Kind::File, 100_000_000_001);
    tree.add(ROOT, b"after", Kind::File, 10_000);
    tree
}

#[test]
fn a_million_names_and_seventy_thousand_folders_are_all_found() {
    let mut disk = Disk::lazy(Options::new([7; 16], 1), large(1_000_000, 70_000));
    reader::check(&mut disk);
    assert_eq!(disk.layout.tree().no_room, []);
}

#[test]
fn e2fsck_finds_nothing_in_large_things() {
    // 64,998 and 64,999 folders are about the largest number of links. The file in the sparse image has 240 extents.
    for subfolders in [64_998, 64_999] {
        let mut tree = large(60_000, subfolders);
        let root = tree.folders.get_mut(&ROOT).unwrap();
        let file = root.iter_mut().find(|entry| entry.name == b"large").unwrap();
        file.size_bytes = 30 << 30;
        let options = Options { size_bytes: 32 << 30, ..options(1) };
        match checker::problems(&mut Disk::eager(options, tree)) {
            Some(problems) => assert_eq!(problems, Vec::<String>::new()),
            None => return skip::test("there is no e2fsck: install e2fsprogs"),
        }
    }
}

#[test]
fn files_and_folders_in_very_many_pieces_are_found() {
    let mut tree = large(15_000, 3);
    let root = tree.folders.get_mut(&ROOT).unwrap();
    root.iter_mut().find(|entry| entry.name == b"large").unwrap().size_bytes = 3000 * 4096;
    let mut disk = Disk::lazy(options(1), tree);
    // Every other block at both ends of the host area is read too early, so the file gets 3000 extents in a deep tree.
    for at in 0..4000 {
        disk.layout.block(2 * 32768 + at * 2);
        disk.layout.block(3 * 32768 - 1 - at * 2);
    }
    reader::check(&mut disk);
    let root = reader::inode(&mut disk, 2);
    let large = reader::names(&mut disk, &root).into_iter().find(|(name, ..)| name == b"large").unwrap().1;
    let large = reader::inode(&mut disk, large);
    assert_eq!(reader::extents(&mut disk, &large).len(), 3000);
    match checker::lazy_problems(&mut disk) {
        Some(problems) => assert_eq!(problems, Vec::<String>::new()),
        None => skip::test("there is no e2fsck: install e2fsprogs"),
    }
}

#[test]
fn e2fsck_finds_nothing_where_a_folder_gets_a_tree_or_one_more_level() {
    let mut tree = Memory::new();
    // An entry has 16 bytes, a block 256 of them, and the root of a tree 508 blocks.
    for count in [254, 255, 256, 257, 508 * 256, 508 * 256 + 1] {
        let folder = tree.add(ROOT, format!("{count} names").as_bytes(), Kind::Folder, 0);
        for number in 0..count {
            tree.add(folder, format!("{number:08}").as_bytes(), Kind::Fifo, 0);
        }
    }
    let mut disk = Disk::eager(options(34), tree);
    match checker::problems(&mut disk) {
        Some(problems) => assert_eq!(problems, Vec::<String>::new()),
        None => skip::test("there is no e2fsck: install e2fsprogs"),
    }
    assert_eq!(disk.layout.tree().no_room, []);
}

#[test]
fn a_million_random_requests_stay_inside() {
    let tree = large(20_000, 2_000);
    let last = tree.folders.values().flatten().map(|entry| entry.id).max().unwrap();
    let mut disk = Disk::lazy(Options::new([7; 16], 1), tree);
    let (mut rng, blocks) = (Rng::new(&[3]), disk.layout.blocks());
    for _ in 0..1_000_000 {
        let number = match rng.below(4) {
            0 => rng.bits(),
            1 => rng.below(300_000),
            2 => 193 * 32768 + rng.below(1 << 25),
            _ => rng.below(blocks),
        };
        let block = disk.layout.block(number);
        assert!(number < blocks || block == Block::Zero);
        if let Block::File { id, offset } = block {
            assert!(id <= last && offset <= 100_000_000_001);
        }
    }
    // Blocks that were read too early are unused, and a walk finds everything all the same.
    reader::check(&mut disk);
}
