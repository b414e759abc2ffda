//! Superblocks, group descriptors and tables of inodes.

use guest_disk::{FileSystem, Files};

use crate::image::{Image, Layout, Node, contents, feature, read, superblock};

/// Layouts with different sizes of blocks, inodes and descriptors. All have several groups.
const LAYOUTS: [Layout; 6] = [
    Layout { inodes: 100, group_inodes: 16, tables: (300, 40), ..Layout::SMALL },
    Layout { inode_bytes: 128, inodes: 40, group_inodes: 8, tables: (50, 3), ..Layout::SMALL },
    // More groups than a block has descriptors: 32 descriptors of 32 bytes.
    Layout { inode_bytes: 1024, inodes: 40 * 8, group_inodes: 8, tables: (500, 11), ..Layout::SMALL },
    Layout {
        block_bytes: 4096,
        inodes: 150,
        group_inodes: 1,
        tables: (400, 2),
        wide_descriptors: Some(64),
        ..Layout::SMALL
    },
    // The tables of inodes are behind the first 2^32 blocks.
    Layout { inodes: 64, group_inodes: 20, tables: (5 << 32 | 123, 1 << 31), ..Layout::LARGE },
    Layout {
        block_bytes: 1 << 16,
        blocks: 2000,
        inodes: 100,
        group_inodes: 9,
        wide_descriptors: Some(128),
        tables: (20, 7),
        ..Layout::SMALL
    },
];

#[test]
fn inodes_are_found_in_the_tables_of_their_groups() {
    for (kind, layout) in LAYOUTS.into_iter().enumerate() {
        let layout = Layout { blocks: if kind == 4 { 1 << 35 } else { layout.blocks }, ..layout };
        let mut image = Image::new(layout);
        let last = layout.inodes;
        let numbers = [1, 3, 16, 17, 18, 33, last / 2, last - 1, last];
        for number in numbers {
            let block = image.add_block(&contents(number.into(), 100));
            image.put_inode(number, &Node::file(100, &[block]));
            image.name(2, &format!("inode{number}"), number);
        }
        let mut files = image.open();
        for number in numbers {
            let read = read(&mut files, &format!("inode{number}"), 1000).unwrap();
            assert!(read == contents(number.into(), 100), "layout {kind}, inode {number}");
        }
    }
}

/// The first revision of the format has no field for the size of inodes.
#[test]
fn the_first_revision_has_inodes_of_128_bytes() {
    let mut image = Image::new(Layout { inode_bytes: 128, ..Layout::SMALL });
    let block = image.add_block(b"old");
    image.add("file", &Node::file(3, &[block]));
    image.set(superblock::REVISION, &0_u32.to_le_bytes());
    image.set(superblock::INODE_BYTES, &0_u16.to_le_bytes());
    assert_eq!(read(&mut image.open(), "file", 10).unwrap(), b"old");
}

#[test]
fn superblocks_that_cannot_be_right_are_refused() {
    let word = |value: u32| value.to_le_bytes().to_vec();
    let half = |value: u16| value.to_le_bytes().to_vec();
    let small: [(u64, Vec<u8>, Option<&str>); 18] = [
        (superblock::LOG_BLOCK_BYTES, word(7), Some("its block size is 1024 << 7")),
        (superblock::LOG_BLOCK_BYTES, word(u32::MAX), Some("its block size is 1024 << 4294967295")),
        (superblock::BLOCKS, word(8192), None),
        (
            superblock::BLOCKS,
            word(8193),
            Some("it has 8193 blocks of 1024 bytes, and the disk or partition has 8388608 bytes"),
        ),
        // Without 64-bit block numbers, this field does not exist.
        (superblock::BLOCKS_HIGH, word(1), None),
        (superblock::GROUP_BLOCKS, word(256), None),
        (superblock::GROUP_BLOCKS, word(255), Some("a group has 255 blocks and 64 inodes")),
        (superblock::GROUP_INODES, word(0), Some("a group has 8192 blocks and 0 inodes")),
        (superblock::INODE_BYTES, half(64), Some("its inodes have 64 bytes")),
        (superblock::INODE_BYTES, half(192), Some("its inodes have 192 bytes")),
        (
            superblock::INODE_BYTES,
            half(2048),
            Some("its inodes have 2048 bytes, and its group descriptors 32 bytes"),
        ),
        (superblock::DESCRIPTOR_BYTES, half(7), None),
        (superblock::INCOMPATIBLE, word(1), Some("it has features that ttvm does not support: 0x1")),
        (
            superblock::INCOMPATIBLE,
            word(0x40008),
            Some("it has features that ttvm does not support: 0x40008"),
        ),
        (superblock::INCOMPATIBLE, word(0x1002), Some("it has features that ttvm does not support: 0x1000")),
        // Types in folders, extents, mount protection, flexible groups, large attributes, seeds, large folders,
        // contents in inodes, and encryption of some files.
        (superblock::INCOMPATIBLE, word(0x3_e742), None),
        (superblock::MAGIC, half(0xef54), Some("there is no known file system here")),
        (superblock::COMPATIBLE, word(u32::MAX), None),
    ];
    let wide: [(u64, Vec<u8>, Option<&str>); 5] = [
        (superblock::DESCRIPTOR_BYTES, half(32), Some("its group descriptors 32 bytes")),
        (superblock::DESCRIPTOR_BYTES, half(96), Some("its group descriptors 96 bytes")),
        (superblock::DESCRIPTOR_BYTES, half(2048), Some("its group descriptors 2048 bytes")),
        (superblock::DESCRIPTOR_BYTES, half(1024), None),
        (superblock::BLOCKS_HIGH, word(5), Some("it has 21474836480 blocks of 1024 bytes")),
    ];
    let cases = small.map(|case| (Layout::SMALL, case)).into_iter();
    for (layout, (field, bytes, why)) in cases.chain(wide.map(|case| (Layout::LARGE, case))) {
        let mut image = Image::new(layout);
        image.set(field, &bytes);
        match why {
            None => drop(Files::open(image.finished()).unwrap()),
            Some(why) => {
                let error = image.refusal();
                assert!(error.contains(why), "{field:#x}: {error}");
            }
        }
    }
}

/// The kind of a file system follows from its features. A label may fill its field.
#[test]
fn kind_label_and_uuid_are_in_the_superblock() {
    const HAS_JOURNAL: u32 = feature::HAS_JOURNAL;
    for (compatible, incompatible, kind) in [
        (0, 2, "ext2"),
        (HAS_JOURNAL, 2, "ext3"),
        (HAS_JOURNAL, 0x40, "ext4"),
        (HAS_JOURNAL | 0x38, 0x80, "ext4"),
        (0, 0x200, "ext4"),
        (!HAS_JOURNAL, 2, "ext2"),
        (HAS_JOURNAL, feature::RECOVER, "ext3"),
        (HAS_JOURNAL, feature::RECOVER | 0x40, "ext4"),
    ] {
        let mut image = Image::new(Layout::SMALL);
        image.set(superblock::COMPATIBLE, &compatible.to_le_bytes());
        image.set(superblock::INCOMPATIBLE, &incompatible.to_le_bytes());
        image.set(0x68, &(0x10..0x20).collect::<Vec<u8>>());
        image.set(0x78, b"sixteen letters!/mount/point");
        let found = FileSystem::of(&mut image.finished()).unwrap().unwrap();
        assert!(found.has_files());
        assert_eq!(
            (found.kind, found.label.as_deref(), found.uuid.as_deref(), found.journal_in_use),
            (
                kind,
                Some("sixteen letters!"),
                Some("10111213-1415-1617-1819-1a1b1c1d1e1f"),
                incompatible & feature::RECOVER != 0
            )
        );
        image.set(0x78, b"short\0letters!\0\0");
        let found = FileSystem::of(&mut image.finished()).unwrap().unwrap();
        assert_eq!(found.label.as_deref(), Some("short"));
        image.set(0x78, &[0]);
        assert_eq!(FileSystem::of(&mut image.finished()).unwrap().unwrap().label, None);
    }
}
