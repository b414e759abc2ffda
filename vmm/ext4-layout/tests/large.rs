//! Large files, large folders, and very many requests.

mod support;

use std::time::Instant;

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
    // 110 GiB, because the large file must have room; 64,998 and 64,999 folders are about the largest number of links.
    for subfolders in [64_998, 64_999] {
        let options = Options { size_bytes: 110 << 30, ..options(1) };
        match checker::problems(&mut Disk::eager(options, large(60_000, subfolders))) {
            Some(problems) => assert_eq!(problems, Vec::<String>::new()),
            None => return skip::test("there is no e2fsck: install e2fsprogs"),
        }
    }
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
    // What was asked for too early is unused, and everything is found all the same.
    reader::check(&mut disk);
}

#[test]
fn a_block_takes_little_time() {
    let mut disk = Disk::lazy(Options::new([7; 16], 1), large(200_000, 10));
    reader::check(&mut disk);
    let (start, mut rng) = (Instant::now(), Rng::new(&[4]));
    for _ in 0..10_000 {
        disk.layout.block(disk.layout.blocks() - 1 - rng.below(1000));
    }
    // Some microseconds each; the limit only catches work that grows with the folder.
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}
