//! Block maps: extents, block numbers with indirect blocks, and contents in the inode.

use guest_disk::Files;

use crate::image::{Extent, Image, Layout, Node, contents, extents, flag, read};

use Extent::{Index, Leaf};

const BLOCK: u64 = 1024;
/// A block number that needs more than 32 bits.
const FAR: u64 = 3 << 32 | 0x1234_5678;
/// The bit in an extent's length for blocks that are reserved, but not written.
const UNWRITTEN: u16 = 0x8000;

/// Writes different contents into each of these blocks.
fn fill(image: &mut Image, blocks: impl IntoIterator<Item = u64>) {
    blocks.into_iter().for_each(|block| image.put_block(block, &contents(block, BLOCK)));
}

/// The contents of these blocks one after the other. `None` stands for a hole.
fn expected(blocks: &[Option<u64>]) -> Vec<u8> {
    let one = |block: &Option<u64>| block.map_or(vec![0; BLOCK as usize], |block| contents(block, BLOCK));
    blocks.iter().flat_map(one).collect()
}

/// Reads a file in pieces of several sizes.
fn assert_reads(files: &mut Files, path: &str, wanted: &[u8]) {
    for step in [7, 1000, 1024, 3000, 1 << 20] {
        let got = read(files, path, step).unwrap();
        let first = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        assert!(got == wanted, "{path} by {step}: {} bytes, byte {first:?} differs", got.len());
    }
}

#[test]
fn extents_are_read_with_holes_between_them_and_reserved_blocks_as_zeroes() {
    let mut image = Image::new(Layout::LARGE);
    fill(&mut image, [500, 501, 502, 503, 600, 700, 701, 702, FAR, FAR + 1]);
    let leaves = [Leaf(1, 2, 500), Leaf(3, 1, 600), Leaf(5, UNWRITTEN | 2, 700), Leaf(7, 1, FAR)];
    image.add("file", &Node::with_extents(9 * BLOCK + 100, extents(0, &leaves)));
    let blocks = [None, Some(500), Some(501), Some(600), None, None, None, Some(FAR), None, None];
    let wanted = &expected(&blocks)[..9 * BLOCK as usize + 100];
    assert_reads(&mut image.open(), "file", wanted);
}

#[test]
fn a_tree_of_extents_has_holes_before_between_and_behind_its_leaves() {
    let mut image = Image::new(Layout::LARGE);
    fill(&mut image, [500, 501, 502, 503, 504, 505]);
    let left = image.add_block(&extents(0, &[Leaf(2, 1, 500), Leaf(4, 1, 501)]));
    let right = extents(0, &[Leaf(7, 2, 503)]);
    image.put_block(FAR, &right);
    let inner = image.add_block(&extents(1, &[Index(2, left.into()), Index(6, FAR)]));
    let last = image.add_block(&extents(0, &[Leaf(10, 1, 505)]));
    let last = image.add_block(&extents(1, &[Index(10, last.into())]));
    let root = extents(2, &[Index(2, inner.into()), Index(10, last.into())]);
    image.add("tree", &Node::with_extents(12 * BLOCK, root));
    let blocks: Vec<Option<u64>> =
        [0, 0, 500, 0, 501, 0, 0, 503, 504, 0, 505, 0].map(|block: u64| (block != 0).then_some(block)).into();
    assert_reads(&mut image.open(), "tree", &expected(&blocks));
}

#[test]
fn the_longest_written_extent_has_contents() {
    let mut image = Image::new(Layout { blocks: 1 << 20, ..Layout::SMALL });
    fill(&mut image, [40_000, 40_001, 40_002]);
    image.add("written", &Node::with_extents(2 * BLOCK, extents(0, &[Leaf(0, 0x8000, 40_000)])));
    image.add("reserved", &Node::with_extents(2 * BLOCK, extents(0, &[Leaf(0, 0x8001, 40_000)])));
    let mut files = image.open();
    assert_reads(&mut files, "written", &expected(&[Some(40_000), Some(40_001)]));
    assert_reads(&mut files, "reserved", &vec![0; 2 * BLOCK as usize]);
}

#[test]
fn a_tree_of_extents_may_have_five_levels_above_its_leaves() {
    let mut image = Image::new(Layout::SMALL);
    fill(&mut image, [500]);
    let mut node = extents(0, &[Leaf(0, 1, 500)]);
    for depth in 1..=6 {
        let child = image.add_block(&node);
        node = extents(depth, &[Index(0, child.into())]);
        image.add(&format!("depth{depth}"), &Node::with_extents(BLOCK, node.clone()));
    }
    let mut files = image.open();
    for depth in 1..=5 {
        assert_reads(&mut files, &format!("depth{depth}"), &contents(500, BLOCK));
    }
    assert_eq!(read(&mut files, "depth6", 100).unwrap_err(), "a tree of extents is damaged");
}

#[test]
fn damaged_extents_get_a_sentence() {
    let mut image = Image::new(Layout::SMALL);
    fill(&mut image, [500]);
    let leaf = |entries: usize| {
        let mut node = extents(0, &vec![Leaf(0, 1, 500); entries]);
        node.truncate(60);
        node
    };
    let mut wrong_magic = leaf(1);
    wrong_magic[1] = 0xf2;
    image.add("magic", &Node::with_extents(BLOCK, wrong_magic));
    image.add("five", &Node::with_extents(BLOCK, leaf(5)));
    let good = image.add_block(&leaf(1));
    image.add("skipped", &Node::with_extents(BLOCK, extents(2, &[Index(0, good.into())])));
    let itself = u64::from(good) + 1;
    let loops = extents(1, &[Index(0, itself)]);
    assert_eq!(u64::from(image.add_block(&loops)), itself);
    image.add("itself", &Node::with_extents(BLOCK, loops));
    let long = |count: u16| {
        let mut node = leaf(1);
        node[2..4].copy_from_slice(&count.to_le_bytes());
        node.resize(1024, 0xff);
        node
    };
    // The header and the entries have 12 bytes each, so a block of 1024 bytes has at most 84 entries.
    for (name, count) in [("full", 84), ("overfull", 85)] {
        let child = image.add_block(&long(count));
        image.add(name, &Node::with_extents(BLOCK, extents(1, &[Index(0, child.into())])));
    }
    let mut files = image.open();
    for name in ["magic", "five", "skipped", "itself", "overfull"] {
        assert_eq!(read(&mut files, name, 100).unwrap_err(), "a tree of extents is damaged", "{name}");
    }
    assert_reads(&mut files, "full", &contents(500, BLOCK));
}

#[test]
fn four_extents_fit_into_an_inode() {
    let mut image = Image::new(Layout::SMALL);
    fill(&mut image, [500, 510, 520, 530]);
    let leaves = [Leaf(0, 1, 530), Leaf(1, 1, 520), Leaf(2, 1, 510), Leaf(3, 1, 500)];
    image.add("file", &Node::with_extents(4 * BLOCK, extents(0, &leaves)));
    assert_reads(&mut image.open(), "file", &expected(&[530, 520, 510, 500].map(Some)));
}

#[test]
fn blocks_behind_the_file_systems_end_get_a_sentence() {
    let mut image = Image::new(Layout::SMALL);
    let last = image.layout.blocks - 1;
    fill(&mut image, [last - 1, last]);
    image.add("last", &Node::with_extents(2 * BLOCK, extents(0, &[Leaf(0, 2, last - 1)])));
    image.add("beyond", &Node::with_extents(3 * BLOCK, extents(0, &[Leaf(0, 3, last - 1)])));
    image.add("number", &Node::file(BLOCK, &[last as u32 + 1]));
    image.add("far", &Node::file(BLOCK, &[u32::MAX]));
    let mut files = image.open();
    assert_reads(&mut files, "last", &expected(&[Some(last - 1), Some(last)]));
    // Pieces that end with the last block are read.
    assert_eq!(
        read(&mut files, "beyond", 2048).unwrap_err(),
        "it refers to block 8192, and it has only 8192 blocks"
    );
    assert_eq!(
        read(&mut files, "beyond", 4096).unwrap_err(),
        "it refers to block 8190, and it has only 8192 blocks"
    );
    assert_eq!(
        read(&mut files, "number", 1).unwrap_err(),
        "it refers to block 8192, and it has only 8192 blocks"
    );
    assert_eq!(
        read(&mut files, "far", 1).unwrap_err(),
        "it refers to block 4294967295, and it has only 8192 blocks"
    );
}

/// Reads a file with many holes. Returns the blocks that are not zero: the block's number in the file, and its contents.
fn written_blocks(files: &mut Files, path: &str) -> Vec<(u64, Vec<u8>)> {
    let mut file = files.read(path.as_bytes()).unwrap();
    let (mut part, zeroes) = (vec![0; 1 << 20], vec![0; BLOCK as usize]);
    let (mut found, mut first) = (Vec::new(), 0);
    loop {
        let mut filled = 0;
        while filled < part.len() {
            match file.read(&mut part[filled..]).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return found;
        }
        let blocks = part[..filled].chunks(BLOCK as usize);
        let written = (first..).zip(blocks).filter(|(_, block)| **block != zeroes[..block.len()]);
        found.extend(written.map(|(number, block)| (number, block.to_vec())));
        first += (filled as u64).div_ceil(BLOCK);
    }
}

/// Puts a block number at `index` into an indirect block.
fn point(image: &mut Image, block: u32, index: u64, to: u32) {
    image.disk.put(u64::from(block) * BLOCK + index * 4, &to.to_le_bytes());
}

#[test]
fn indirect_blocks_of_three_levels_are_followed() {
    const PER_BLOCK: u64 = BLOCK / 4;
    const SINGLE: u64 = 12;
    const DOUBLE: u64 = SINGLE + PER_BLOCK;
    const TRIPLE: u64 = DOUBLE + PER_BLOCK * PER_BLOCK;
    let mut image = Image::new(Layout::SMALL);
    let mut wanted = Vec::new();
    let mut map = [0_u32; 15];
    for index in [0, 11] {
        map[index as usize] = 400 + index;
        wanted.push((u64::from(index), 400 + index));
    }
    let levels = [(12, SINGLE, 1), (13, DOUBLE, 2), (14, TRIPLE, 3)];
    for (slot, start, depth) in levels {
        let top = image.add_block(&[]);
        map[slot] = top;
        // The first block, some blocks in between, and the last block of two levels.
        let paths: &[&[u64]] = match depth {
            1 => &[&[0], &[3], &[255]],
            2 => &[&[0, 0], &[0, 255], &[1, 0], &[7, 9], &[255, 255]],
            _ => &[&[0, 0, 0], &[0, 0, 255], &[0, 1, 0], &[1, 0, 5], &[1, 3, 0]],
        };
        let mut nodes = std::collections::BTreeMap::from([(Vec::new(), top)]);
        for path in paths {
            let mut node = top;
            for level in 1..path.len() {
                let prefix = path[..level].to_vec();
                node = *nodes.entry(prefix).or_insert_with(|| {
                    let child = image.add_block(&[]);
                    point(&mut image, node, path[level - 1], child);
                    child
                });
            }
            let data = image.add_block(&[]);
            point(&mut image, node, path[path.len() - 1], data);
            let number = path.iter().fold(0, |all, index| all * PER_BLOCK + index);
            wanted.push((start + number, data));
        }
    }
    fill(&mut image, wanted.iter().map(|(_, block)| u64::from(*block)).collect::<Vec<_>>());
    let size = (wanted.last().unwrap().0 + 1) * BLOCK;
    image.add("file", &Node::file(size, &map));
    let found = written_blocks(&mut image.open(), "file");
    let numbers = |blocks: &[(u64, Vec<u8>)]| blocks.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    let wanted: Vec<_> =
        wanted.into_iter().map(|(number, block)| (number, contents(block.into(), BLOCK))).collect();
    assert_eq!(numbers(&found), numbers(&wanted));
    assert!(found == wanted, "the contents of a block differ");
}

#[test]
fn missing_indirect_blocks_are_holes() {
    let mut image = Image::new(Layout::SMALL);
    let (single, double, inner) = (image.add_block(&[]), image.add_block(&[]), image.add_block(&[]));
    point(&mut image, double, 2, inner);
    point(&mut image, inner, 1, 500);
    point(&mut image, single, 255, 501);
    fill(&mut image, [500, 501]);
    // Without the single indirect block, the double indirect block still counts from block 268 on.
    let mut map = [0; 15];
    map[13] = double;
    let (number, size) = (12 + 256 + 2 * 256 + 1, (12 + 256 + 256 * 256 + 300) * BLOCK);
    image.add("no-single", &Node::file(size, &map));
    let mut map = [0; 15];
    map[12] = single;
    image.add("no-double", &Node::file(size, &map));
    let mut files = image.open();
    assert_eq!(written_blocks(&mut files, "no-single"), [(number, contents(500, BLOCK))]);
    assert_eq!(written_blocks(&mut files, "no-double"), [(12 + 255, contents(501, BLOCK))]);
}

#[test]
fn small_contents_are_in_the_inode() {
    let mut image = Image::new(Layout::SMALL);
    let data = contents(1, 60);
    let node = |size| Node { flags: flag::INLINE_DATA, ..Node::with_extents(size, data.clone()) };
    image.add("some", &node(20));
    image.add("most", &node(60));
    image.add("more", &node(61));
    image.add("secret", &Node { flags: flag::ENCRYPTED, ..Node::file(10, &[500]) });
    let mut files = image.open();
    assert_reads(&mut files, "some", &data[..20]);
    assert_reads(&mut files, "most", &data);
    for (name, why) in [
        ("more", "a file whose data is in its attributes is not supported"),
        ("secret", "a file or folder on the path is encrypted"),
    ] {
        assert_eq!(read(&mut files, name, 100).unwrap_err(), why);
    }
}
