//! Random trees, read in random orders.

mod support;

use ext4_layout::Kind;
use proptest::prelude::*;
use seeded::Rng;
use support::{Disk, Memory, ROOT, checker, options, reader};

/// An entry of a random tree: numbers that choose its folder, its kind, and the hard link's target, and a name and a size.
type Choice = (usize, u8, Vec<u8>, u64);

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let name = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 1..20),
        1 => prop::collection::vec(any::<u8>(), 255),
    ];
    let size = prop_oneof![4 => 0..20_000_u64, 1 => 0..10_000_000_u64];
    prop::collection::vec((any::<usize>(), any::<u8>(), name, size), 0..120)
}

fn kind(choice: u8, name: &[u8], size_bytes: u64) -> Kind {
    let target = || name.iter().cycle().take(1 + size_bytes as usize % 4095).copied().collect();
    match choice % 16 {
        0..5 => Kind::Folder,
        5..7 => Kind::Symlink(target()),
        7 => Kind::Fifo,
        8 => Kind::Socket,
        9 => Kind::CharacterDevice(u32::from(choice), 1 + size_bytes as u32 % 0xfffff),
        10 => Kind::BlockDevice(1 + size_bytes as u32 % 0xfff, u32::from(choice)),
        _ => Kind::File,
    }
}

fn tree(choices: &[Choice]) -> Memory {
    let mut tree = Memory::new();
    let (mut folders, mut files) = (vec![ROOT], Vec::new());
    for &(folder, choice, ref name, size_bytes) in choices {
        let folder = folders[folder % folders.len()];
        let name: Vec<u8> =
            name.iter().map(|&byte| if byte == 0 || byte == b'/' { b'_' } else { byte }).collect();
        let taken = tree.folders[&folder].iter().any(|entry| entry.name == name);
        if taken || name == b"." || name == b".." {
            continue;
        }
        if choice % 16 == 15 && !files.is_empty() {
            tree.link(folder, &name, files[size_bytes as usize % files.len()]);
            continue;
        }
        let kind = kind(choice, &name, size_bytes);
        let list = if kind == Kind::Folder { &mut folders } else { &mut files };
        list.push(tree.add(folder, &name, kind, size_bytes));
    }
    tree
}

/// Reads random blocks, more often where a small tree has its blocks.
fn read_anywhere(disk: &mut Disk, seed: u64, count: usize) {
    let mut rng = Rng::new(&[seed]);
    let blocks = disk.layout.blocks();
    for _ in 0..count {
        let number = match rng.below(6) {
            0 => rng.below(blocks),
            1 => rng.below(10),
            // Inode tables, the start of the host area, and its end.
            2 | 3 => 8 + rng.below(60),
            4 => 2 * 32768 + rng.below(1000),
            _ => blocks - 1 - rng.below(100),
        };
        disk.read(number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_from_the_root_sees_the_tree_whatever_was_read_before(
        choices in choices(), seed in any::<u64>(), before in 0_usize..400
    ) {
        let mut disk = Disk::lazy(options(1), tree(&choices));
        read_anywhere(&mut disk, seed, before);
        reader::check(&mut disk);
        read_anywhere(&mut disk, !seed, 200);
        reader::check(&mut disk);
        disk.check_frozen();
        prop_assert_eq!(&disk.layout.tree().no_room, &[]);
        let listed = &disk.layout.tree().listed;
        prop_assert_eq!(listed.len(), disk.layout.tree().folders.len(), "each folder is listed once");
    }

    #[test]
    fn an_eager_disk_shows_the_tree_too(choices in choices(), seed in any::<u64>()) {
        let mut disk = Disk::eager(options(1), tree(&choices));
        read_anywhere(&mut disk, seed, 200);
        reader::check(&mut disk);
        disk.check_frozen();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn e2fsck_finds_nothing_in_an_eager_disk(choices in choices()) {
        let Some(problems) = checker::problems(&mut Disk::eager(options(1), tree(&choices))) else {
            skip::test("there is no e2fsck: install e2fsprogs");
            return Ok(());
        };
        prop_assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn e2fsck_minds_only_the_counts_of_a_lazy_disk(choices in choices(), seed in any::<u64>(), walk in any::<bool>()) {
        let mut disk = Disk::lazy(options(1), tree(&choices));
        // Blocks that were read too early stay unused; a walk finds all of the tree all the same.
        if walk {
            read_anywhere(&mut disk, seed, 300);
            reader::check(&mut disk);
        }
        let Some(problems) = checker::lazy_problems(&mut disk) else {
            skip::test("there is no e2fsck: install e2fsprogs");
            return Ok(());
        };
        prop_assert_eq!(problems, Vec::<String>::new());
        reader::check(&mut disk);
    }
}

#[test]
fn only_folders_whose_inodes_are_read_are_listed() {
    let mut tree = Memory::new();
    let outer = tree.add(ROOT, b"outer", Kind::Folder, 0);
    let beside = tree.add(ROOT, b"beside", Kind::Folder, 0);
    let inner = tree.add(outer, b"inner", Kind::Folder, 0);
    tree.add(inner, b"deep", Kind::Folder, 0);
    tree.add(ROOT, b"file", Kind::File, 5);
    let mut disk = Disk::lazy(options(1), tree);
    disk.read(0);
    disk.read(1);
    assert_eq!(disk.layout.tree().listed, []);
    let root = reader::inode(&mut disk, 2);
    let names = reader::names(&mut disk, &root);
    assert_eq!(disk.layout.tree().listed, [ROOT]);
    let number = |name: &[u8]| names.iter().find(|(found, ..)| found == name).unwrap().1;
    reader::inode(&mut disk, number(b"file"));
    assert_eq!(disk.layout.tree().listed, [ROOT]);
    let folder = reader::inode(&mut disk, number(b"outer"));
    reader::names(&mut disk, &folder);
    assert_eq!(disk.layout.tree().listed, [ROOT, outer]);
    assert!(!disk.layout.tree().listed.contains(&beside));
}

#[test]
fn the_host_may_have_a_folder_lost_and_found_itself() {
    let mut tree = Memory::new();
    let lost = tree.add(ROOT, b"lost+found", Kind::Folder, 0);
    tree.add(lost, b"#1", Kind::File, 10);
    reader::check(&mut Disk::lazy(options(1), tree.clone()));
    match checker::problems(&mut Disk::eager(options(1), tree)) {
        Some(problems) => assert_eq!(problems, Vec::<String>::new()),
        None => skip::test("there is no e2fsck: install e2fsprogs"),
    }
}

#[test]
fn entries_that_a_folder_cannot_have_are_left_out() {
    let mut tree = Memory::new();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        tree.add(ROOT, name, Kind::File, 1);
    }
    for target in [&b""[..], b"a\0b", &[b'x'; 4096]] {
        tree.add(ROOT, format!("link {}", target.len()).as_bytes(), Kind::Symlink(target.to_vec()), 0);
    }
    tree.add(ROOT, b"twice", Kind::File, 1);
    tree.add(ROOT, b"twice", Kind::Folder, 1);
    let mut disk = Disk::lazy(options(1), tree);
    let root = reader::inode(&mut disk, 2);
    let names: Vec<Vec<u8>> = reader::names(&mut disk, &root).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, [&b"."[..], b"..", b"lost+found", b"twice"]);
}

#[test]
fn hard_links_that_the_tree_does_not_have_count_in_a_lazy_disk_only() {
    let mut tree = Memory::new();
    let folder = tree.add(ROOT, b"folder", Kind::Folder, 0);
    let file = tree.add(ROOT, b"one", Kind::File, 5);
    tree.link(folder, b"two", file);
    for entry in tree.folders.values_mut().flatten().filter(|entry| entry.id == file) {
        entry.links = 5;
    }
    let links = |mut disk: Disk| {
        let root = reader::inode(&mut disk, 2);
        let number = |name: &[u8], names: &[(Vec<u8>, u32, u8)]| {
            names.iter().find(|(found, ..)| found == name).unwrap().1
        };
        let names = reader::names(&mut disk, &root);
        let folder = reader::inode(&mut disk, number(b"folder", &names));
        let two = number(b"two", &reader::names(&mut disk, &folder));
        assert_eq!(number(b"one", &names), two);
        reader::inode(&mut disk, two).links
    };
    assert_eq!(links(Disk::lazy(options(1), tree.clone())), 5);
    assert_eq!(links(Disk::eager(options(1), tree)), 2);
}

#[test]
fn a_disk_without_room_says_so() {
    let mut tree = Memory::new();
    tree.add(ROOT, b"large", Kind::File, 1 << 40);
    tree.add(ROOT, b"small", Kind::File, 5);
    let folder = tree.add(ROOT, b"many", Kind::Folder, 0);
    for number in 0..20_000 {
        tree.add(folder, format!("{number:05}").as_bytes(), Kind::Fifo, 0);
    }
    let mut disk = Disk::lazy(options(1), tree);
    let root = reader::inode(&mut disk, 2);
    for (name, size) in [(&b"large"[..], 0), (b"small", 5)] {
        let names = reader::names(&mut disk, &root);
        let number = names.iter().find(|(found, ..)| found == name).unwrap().1;
        assert_eq!(reader::inode(&mut disk, number).size_bytes, size);
    }
    let many = reader::names(&mut disk, &root).iter().find(|(name, ..)| name == b"many").unwrap().1;
    let many = reader::inode(&mut disk, many);
    let found = reader::names(&mut disk, &many).len() - 2;
    let no_room = &disk.layout.tree().no_room;
    assert_eq!(no_room[0], (ROOT, b"large".to_vec()));
    assert_eq!(no_room.len() - 1, 20_000 - found);
    assert_eq!(no_room[1], (folder, format!("{found:05}").into_bytes()));
}

#[test]
fn a_long_symbolic_link_without_room_is_left_out() {
    let mut tree = Memory::new();
    // The host area has 32,768 blocks. The root takes one more for its names, so not all of the links have a block.
    tree.add(ROOT, b"a", Kind::File, 32_760 * 4096);
    for number in 0..20 {
        tree.add(ROOT, format!("link {number:02}").as_bytes(), Kind::Symlink(vec![b'x'; 100]), 0);
    }
    tree.add(ROOT, b"pipe", Kind::Fifo, 0);
    let mut disk = Disk::lazy(options(1), tree);
    let root = reader::inode(&mut disk, 2);
    let mut left_out: Vec<Vec<u8>> =
        disk.layout.tree().no_room.iter().map(|(_, name)| name.clone()).collect();
    // The names of the root have no block left. So the guest sees nothing, and the last report says so.
    assert_eq!(left_out.pop(), Some(Vec::new()));
    assert_eq!(left_out, (8..20).map(|number| format!("link {number:02}").into_bytes()).collect::<Vec<_>>());
    assert_eq!((root.size_bytes, reader::extents(&mut disk, &root).len()), (0, 0));
    // The pipe has the inode after the file and eight links, which begin a block behind that of lost+found.
    let pipe = reader::inode(&mut disk, 2 * 16 + 1 + 9);
    assert_eq!(pipe.mode >> 12, 1);
    assert_eq!(reader::inode(&mut disk, pipe.number + 1).mode, 0);
}
