//! Paths, listings and folders.

use guest_disk::{Entry, Files, Kind};

use crate::image::{Extent, Image, Layout, Node, ROOT, extents, flag, folder_block, read, sentence};

/// The names in a folder.
fn names(files: &mut Files, path: &str) -> Vec<String> {
    files.list(path.as_bytes(), 1000).unwrap().entries.into_iter().map(|entry| entry.name).collect()
}

fn only_entry(files: &mut Files, path: &str) -> Entry {
    let listing = files.list(path.as_bytes(), 1000).unwrap();
    assert!(!listing.has_more);
    let [entry] = <[Entry; 1]>::try_from(listing.entries).unwrap();
    entry
}

/// The error of a path, without the path.
fn why_not(files: &mut Files, path: &str) -> String {
    let error = files.list(path.as_bytes(), 1).err().unwrap().to_string();
    error.strip_prefix(&format!("{path}: ")).map_or(error.clone(), str::to_string)
}

/// An image with the folders /a and /a/b, and the file /a/b/file with the contents "deep".
fn with_folders() -> (Image, u32, u32) {
    let mut image = Image::new(Layout::SMALL);
    let a = image.add_folder(ROOT, "a");
    let b = image.add_folder(a, "b");
    let block = image.add_block(b"deep");
    image.add_in(b, "file", &Node::file(4, &[block]));
    let block = image.add_block(b"top");
    image.add("file", &Node::file(3, &[block]));
    (image, a, b)
}

#[test]
fn a_path_goes_through_folders_and_links() {
    let (mut image, a, b) = with_folders();
    for (folder, name, target) in [
        (ROOT, "to-b", "a/b"),
        (ROOT, "to-file", "to-b/file"),
        (b, "up", "../../file"),
        (b, "absolute", "/a/b/file"),
        (b, "near", "file"),
        (a, "chain", "b/near"),
        (ROOT, "above", "../../.."),
    ] {
        image.add_in(folder, name, &Node::link(target));
    }
    let mut files = image.open();
    for (path, contents) in [
        ("/a/b/file", "deep"),
        ("a//b/./file", "deep"),
        ("/a/../file", "top"),
        ("/../../file", "top"),
        ("/a/b/../../file", "top"),
        ("/to-file", "deep"),
        ("/to-b/file", "deep"),
        // After a link, `..` is the folder above the link's target.
        ("/to-b/../b/file", "deep"),
        ("/to-b/up", "top"),
        ("/to-b/absolute", "deep"),
        ("/a/chain", "deep"),
        ("/above/file", "top"),
    ] {
        assert_eq!(read(&mut files, path, 100).unwrap(), contents.as_bytes(), "{path}");
    }
    // A name that is the beginning of another name is another name.
    for path in ["/fil", "/filed", "/a/file", "/b", "/to-b/../file"] {
        assert_eq!(why_not(&mut files, path), "there is no such file at this position", "{path}");
    }
    assert_eq!(why_not(&mut files, "/a/b/file/none"), "/a/b/file is no folder");
    assert_eq!(why_not(&mut files, "/to-file/none"), "/a/b/file is no folder");
    assert_eq!(why_not(&mut files, "/file/.."), "/file is no folder");
}

#[test]
fn forty_links_are_followed_and_one_more_is_refused() {
    let (mut image, ..) = with_folders();
    image.add("link1", &Node::link("file"));
    for number in 2..=41 {
        image.add(&format!("link{number}"), &Node::link(&format!("link{}", number - 1)));
    }
    let mut files = image.open();
    assert_eq!(read(&mut files, "link40", 100).unwrap(), b"top");
    assert_eq!(why_not(&mut files, "link41"), "the path has more than 40 symbolic links");
}

#[test]
fn paths_have_a_limit() {
    let (image, ..) = with_folders();
    let mut files = image.open();
    let path = format!("{}file", "/".repeat(4092));
    assert_eq!(read(&mut files, &path, 100).unwrap(), b"top");
    assert_eq!(why_not(&mut files, &format!("/{path}")), "the path has more than 4096 bytes");
}

#[test]
fn long_targets_of_links_are_in_blocks() {
    let (mut image, ..) = with_folders();
    let target = |length: usize| format!("{}file", "/".repeat(length - 4));
    image.add("short", &Node::link(&target(59)));
    let link = |image: &mut Image, target: &str| {
        let blocks: Vec<u32> = target.as_bytes().chunks(1024).map(|block| image.add_block(block)).collect();
        Node { mode: 0o12_0777, ..Node::file(target.len() as u64, &blocks) }
    };
    for length in [60, 1500, 4096] {
        let node = link(&mut image, &target(length));
        image.add(&format!("long{length}"), &node);
    }
    let too_long = link(&mut image, &target(4097));
    image.add("too-long", &too_long);
    let mut files = image.open();
    for (name, length) in [("short", 59), ("long60", 60), ("long1500", 1500), ("long4096", 4096)] {
        assert_eq!(read(&mut files, name, 100).unwrap(), b"top", "{name}");
        let entries = files.list(b"/", 100).unwrap().entries;
        let entry = entries.into_iter().find(|entry| entry.name == name).unwrap();
        assert_eq!((entry.target, entry.damage), (Some(target(length)), None));
    }
    let why =
        "the file system on the guest's disk cannot be read: the target of a symbolic link has 4097 bytes";
    assert_eq!(why_not(&mut files, "too-long"), why);
    let entries = files.list(b"/", 100).unwrap().entries;
    let entry = entries.into_iter().find(|entry| entry.name == "too-long").unwrap();
    assert_eq!((entry.kind, entry.target, entry.damage.as_deref()), (Kind::Link, None, Some(why)));
}

#[test]
fn a_listing_shows_each_kind_of_file() {
    let kinds = [
        (0o10, Kind::Regular, '-', "file"),
        (0o04, Kind::Folder, 'd', "folder"),
        (0o06, Kind::BlockDevice, 'b', "block device"),
        (0o02, Kind::CharacterDevice, 'c', "character device"),
        (0o01, Kind::Pipe, 'p', "named pipe"),
        (0o14, Kind::Socket, 's', "socket"),
        (0o03, Kind::Unknown, '?', "file of an unknown kind"),
    ];
    let mut image = Image::new(Layout::SMALL);
    for (number, (mode, ..)) in kinds.into_iter().enumerate() {
        // The numbers of a device: 8 bits each in the first word, or 12 and 20 bits in the second word.
        let map = if mode == 6 { vec![0x34, 0x12, 0, 0] } else { vec![0, 0, 0, 0, 0x78, 0x56, 0x34, 0x12] };
        let node = Node { mode: mode << 12 | 0o7000 | number as u16, map, ..Node::file(10, &[]) };
        image.add(&format!("file{number}"), &node);
    }
    image.add("link", &Node::link("somewhere"));
    let mut files = image.open();
    let entries = files.list(b"/", 100).unwrap().entries;
    for (number, (mode, kind, letter, words)) in kinds.into_iter().enumerate() {
        let entry = &entries[number];
        let device = match mode {
            6 => Some((0x12, 0x34)),
            2 => Some((0x456, 0x12378)),
            _ => None,
        };
        let shown = (entry.name.as_str(), entry.kind, entry.mode, entry.device, entry.target.as_deref());
        assert_eq!(shown, (&*format!("file{number}"), kind, 0o7000 | number as u16, device, None));
        assert_eq!(kind.letter(), letter);
        let read = files.read(entry.name.as_bytes());
        match kind {
            Kind::Regular => assert_eq!(read.unwrap().size_bytes(), 10),
            _ => {
                let wanted = format!("file{number}: it is a {words}; give a file with contents");
                assert_eq!(read.err().unwrap().to_string(), wanted);
            }
        }
    }
    let link = entries.last().unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (Kind::Link, Some("somewhere")));
    assert_eq!(Kind::Link.letter(), 'l');
}

#[test]
fn owners_sizes_and_times_have_all_their_bits() {
    let node = Node {
        uid: 0x1234_5678,
        gid: 0x9abc_def0,
        modified: (0xffff_fff0, 1),
        ..Node::file(0x12_3456_789a, &[])
    };
    for (inode_bytes, time) in [
        // Before 1970, because only the low bits are there: they have a sign.
        (128, -16),
        // The next two bits count in steps of 2^32 seconds.
        (256, (1 << 32) - 16),
    ] {
        let mut image = Image::new(Layout { inode_bytes, ..Layout::SMALL });
        image.add("file", &node);
        let entry = only_entry(&mut image.open(), "file");
        let shown = (entry.uid, entry.gid, entry.size_bytes, entry.modified_seconds, entry.mode);
        assert_eq!(shown, (0x1234_5678, 0x9abc_def0, 0x12_3456_789a, time, 0o644));
    }
    let mut image = Image::new(Layout::SMALL);
    image.add("late", &Node { modified: (5, 3), ..Node::file(0, &[]) });
    assert_eq!(only_entry(&mut image.open(), "late").modified_seconds, (3 << 32) + 5);
}

/// A large inode says how many of the bytes after the first 128 bytes are in use.
#[test]
fn the_high_bits_of_a_time_count_only_if_they_are_in_use() {
    for (used, time) in [(11_u16, 5), (12, (1 << 32) + 5)] {
        let mut image = Image::new(Layout::SMALL);
        let number = image.add("file", &Node { modified: (5, 1), ..Node::file(0, &[]) });
        let inode = image.layout.tables.0 * 1024 + u64::from(number - 1) * 256;
        image.disk.put(inode + 0x80, &used.to_le_bytes());
        assert_eq!(only_entry(&mut image.open(), "file").modified_seconds, time, "{used}");
    }
}

#[test]
fn a_single_file_is_listed_by_the_name_of_the_links_target() {
    let (mut image, a, _) = with_folders();
    image.add_in(a, "link", &Node::link("b/file"));
    let mut files = image.open();
    let entry = only_entry(&mut files, "/a/link");
    assert_eq!((&*entry.name, entry.kind, entry.size_bytes), ("file", Kind::Regular, 4));
    assert_eq!(names(&mut files, "/a"), ["b", "link"]);
}

#[test]
fn a_listing_ends_after_the_wanted_number_of_files() {
    let mut image = Image::new(Layout::SMALL);
    ["d", "b", "c", "a"].iter().for_each(|name| _ = image.add(name, &Node::file(0, &[])));
    let mut files = image.open();
    for (most, expected, has_more) in [
        (5, &["a", "b", "c", "d"][..], false),
        (4, &["a", "b", "c", "d"], false),
        (3, &["b", "c", "d"], true),
    ] {
        let listing = files.list(b"/", most).unwrap();
        let names: Vec<&str> = listing.entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!((&names[..], listing.has_more), (expected, has_more));
    }
}

#[test]
fn names_without_inodes_and_inodes_that_do_not_exist() {
    let mut image = Image::new(Layout::SMALL);
    image.add("good", &Node::file(0, &[]));
    image.name(ROOT, "deleted", 0);
    image.name(ROOT, "wrong", 65);
    image.name(ROOT, "last", 64);
    image.put_inode(64, &Node::file(7, &[]));
    let mut files = image.open();
    let entries = files.list(b"/", 100).unwrap().entries;
    let why = "the file system on the guest's disk cannot be read: it refers to inode 65, and it has only 64 inodes";
    let shown: Vec<_> =
        entries.iter().map(|it| (&*it.name, it.kind, it.size_bytes, it.damage.as_deref())).collect();
    let expected = [
        ("good", Kind::Regular, 0, None),
        ("last", Kind::Regular, 7, None),
        ("wrong", Kind::Unknown, 0, Some(why)),
    ];
    assert_eq!(shown, expected);
    assert_eq!(why_not(&mut files, "/wrong"), why);
    assert_eq!(why_not(&mut files, "/deleted"), "there is no such file at this position");
}

/// Adds a folder whose entries are in these blocks. Returns the number of its inode.
fn add_raw_folder(image: &mut Image, name: &str, size: u64, blocks: &[Vec<u8>]) -> u32 {
    let blocks: Vec<u32> = blocks.iter().map(|block| image.add_block(block)).collect();
    image.add(name, &Node { mode: 0o4_0755, ..Node::file(size, &blocks) })
}

#[test]
fn folders_of_several_blocks_are_read_to_their_end() {
    let mut image = Image::new(Layout::SMALL);
    let blocks: Vec<Vec<u8>> = (0..3)
        .map(|block| {
            let names: Vec<String> = (0..3).map(|number| format!("name{block}{number}")).collect();
            let entries: Vec<(&[u8], u32)> = names.iter().map(|name| (name.as_bytes(), ROOT)).collect();
            folder_block(&entries, 1024)
        })
        .collect();
    add_raw_folder(&mut image, "three", 3072, &blocks);
    // The entries of the third block are not in the folder.
    add_raw_folder(&mut image, "two", 2048, &blocks);
    let all: Vec<String> =
        (0..3).flat_map(|block| (0..3).map(move |number| format!("name{block}{number}"))).collect();
    let mut files = image.open();
    assert_eq!(names(&mut files, "three"), all);
    assert_eq!(names(&mut files, "two"), all[..6]);
    assert_eq!(files.list(b"/two/name12", 1).unwrap().entries.len(), 1);
    assert_eq!(why_not(&mut files, "/two/name20"), "there is no such file at this position");
}

/// A folder can have blocks of 64 KiB. The length of an entry that fills such a block does not fit into its field.
#[test]
fn an_entry_may_fill_a_block_of_64_kib() {
    let mut image =
        Image::new(Layout { block_bytes: 1 << 16, blocks: 1024, tables: (2, 0), ..Layout::SMALL });
    for (name, length) in [("zero", 0_u16), ("ones", 0xffff)] {
        let mut block = folder_block(&[(b"only", ROOT)], 1 << 16);
        block[4..6].copy_from_slice(&length.to_le_bytes());
        add_raw_folder(&mut image, name, 1 << 16, &[block]);
    }
    let mut files = image.open();
    assert_eq!(names(&mut files, "zero"), ["only"]);
    assert_eq!(names(&mut files, "ones"), ["only"]);
    assert_eq!(names(&mut files, "/"), ["ones", "zero"]);
}

#[test]
fn damaged_folders_get_a_sentence() {
    let mut image = Image::new(Layout::SMALL);
    let good = folder_block(&[(b"first", ROOT), (b"second", ROOT)], 1024);
    // The first entry has 16 bytes, and its name has 5 bytes: it needs at least 13 bytes.
    let changed = |at: usize, bytes: &[u8]| {
        let mut block = good.clone();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        block
    };
    let cases = [
        ("good", good.clone(), true),
        ("length0", changed(4, &[0, 0]), false),
        ("length7", changed(4, &[7, 0]), false),
        ("length12", changed(4, &[12, 0]), false),
        ("length-long", changed(20, &1009_u16.to_le_bytes()), false),
        ("length-fits", changed(20, &1008_u16.to_le_bytes()), true),
        ("name-fits", changed(6, &[8]), true),
        ("name-long", changed(6, &[9]), false),
        // The name of an entry without an inode does not count.
        ("unused", changed(0, &[0, 0, 0, 0, 16, 0, 9]), true),
    ];
    for (name, block, _) in &cases {
        add_raw_folder(&mut image, name, 1024, std::slice::from_ref(block));
    }
    add_raw_folder(&mut image, "hole", 1024, &[]);
    // The last seven bytes of a block are too short for an entry.
    add_raw_folder(&mut image, "rest", 16 + 7, std::slice::from_ref(&good));
    add_raw_folder(&mut image, "rest8", 16 + 8, std::slice::from_ref(&good));
    let mut files = image.open();
    let mut found = |name: &str| match files.list(name.as_bytes(), 10) {
        Ok(listing) => Ok(listing.entries.len()),
        Err(error) => Err(sentence(error)),
    };
    let damaged = Err("a folder is damaged".to_string());
    for (name, _, is_good) in cases {
        match is_good {
            true => assert_eq!(found(name), Ok(if name == "unused" { 1 } else { 2 }), "{name}"),
            false => assert_eq!(found(name), damaged, "{name}"),
        }
    }
    assert_eq!(found("hole"), damaged);
    assert_eq!(found("rest"), Ok(1));
    assert_eq!(found("rest8"), damaged);
}

#[test]
fn folders_that_cannot_be_read_get_a_sentence() {
    let mut image = Image::new(Layout::SMALL);
    let folder = Node { mode: 0o4_0755, ..Node::file(60, &[]) };
    image.add("inline", &Node { flags: flag::INLINE_DATA, ..folder.clone() });
    image.add("secret", &Node { flags: flag::ENCRYPTED, ..folder });
    // Folders of more than 1 GiB in all are not searched.
    let block = folder_block(&[(b"first", ROOT), (b"second", ROOT)], 1024);
    add_raw_folder(&mut image, "largest", 1 << 30, std::slice::from_ref(&block));
    let mut files = image.open();
    for (path, why) in [
        ("inline", "a folder whose entries are in its inode is not supported"),
        ("secret", "a file or folder on the path is encrypted"),
        ("largest", "largest: the search of folders exceeds the limit of 1073741824 bytes"),
    ] {
        assert_eq!(sentence(files.list(path.as_bytes(), 10).err().unwrap()), why);
    }
    // The look-up in the root folder counts as 4 KiB. Both folders together reach the limit.
    let whole = (1 << 30) - 4096;
    let mut image = Image::new(Layout::SMALL);
    add_raw_folder(&mut image, "fits", whole, std::slice::from_ref(&block));
    add_raw_folder(&mut image, "exceeds", whole + 1, std::slice::from_ref(&block));
    let mut files = image.open();
    // The folder ends early, because the caller wants only one file.
    let listing = files.list(b"fits", 1).unwrap();
    assert_eq!((listing.entries.len(), listing.has_more), (1, true));
    assert!(why_not(&mut files, "exceeds").starts_with("the search of folders exceeds the limit"));
}

/// The index of a large folder is in blocks that look like unused entries.
#[test]
fn the_index_of_a_large_folder_is_skipped() {
    let mut image = Image::new(Layout::SMALL);
    let mut index = folder_block(&[(b".", ROOT), (b"..", ROOT)], 1024);
    // The entry `..` has the rest of the block, with the index.
    index[24..].fill(0xee);
    let inner = {
        let mut block = vec![0xee; 1024];
        block[..8].copy_from_slice(&[0, 0, 0, 0, 0, 4, 0, 0]);
        block
    };
    let leaf = folder_block(&[(b"found", ROOT)], 1024);
    add_raw_folder(&mut image, "large", 3072, &[index, inner, leaf]);
    assert_eq!(names(&mut image.open(), "large"), ["found"]);
}

#[test]
fn a_folder_with_extents_in_several_places_is_read() {
    let mut image = Image::new(Layout::SMALL);
    image.put_block(700, &folder_block(&[(b"one", ROOT)], 1024));
    image.put_block(650, &folder_block(&[(b"two", ROOT)], 1024));
    let map = extents(0, &[Extent::Leaf(0, 1, 700), Extent::Leaf(1, 1, 650)]);
    image.add("folder", &Node { mode: 0o4_0755, ..Node::with_extents(2048, map) });
    assert_eq!(names(&mut image.open(), "folder"), ["one", "two"]);
}
