//! The blocks of a folder: names, and for a folder with several blocks a tree of hashes.
//!
//! See Linux's `Documentation/filesystems/ext4/directory.rst`, sections "Linear (Classic) Directories" and "Hash Tree
//! Directories". A guest finds a name among 10^6 names by reading four blocks.

use crate::bytes::{BLOCK_BYTES, Bytes, put16, put32, zeros};
use crate::hash::{HALF_MD4, hash};

/// The code of a folder in an entry.
pub(crate) const FOLDER: u8 = 2;

/// Bytes of an entry before its name.
const HEADER_BYTES: usize = 8;
/// Bytes of the entries `.` and `..`.
const DOTS_BYTES: usize = 24;
/// Entries in the root of a tree of hashes, which has `.`, `..` and 8 bytes of description too.
const ROOT_ENTRIES: usize = (BLOCK_BYTES - DOTS_BYTES - 8) / 8;
/// Entries in an inner node of a tree of hashes, which begins with an entry without a name.
const NODE_ENTRIES: usize = (BLOCK_BYTES - HEADER_BYTES) / 8;

/// A name in a folder.
#[derive(Clone, Debug)]
struct Name {
    /// The place of the name among the bytes of all names.
    at: usize,
    length: u8,
    /// The node that has the name.
    node: u32,
}

/// A block of names.
#[derive(Clone, Debug)]
struct Leaf {
    /// The number of the first name in the block.
    first: u32,
    /// The hash of the first name. The lowest bit says that the block before ends with the same hash.
    hash: u32,
}

/// The names in a folder, without `.` and `..`.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    /// The names in the order of their hashes.
    names: Vec<Name>,
    leaves: Vec<Leaf>,
    hashed: bool,
}

/// The parts of an entry other than its name.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) inode: u32,
    /// The code of the kind of the file.
    pub(crate) kind: u8,
}

impl Names {
    /// Orders names, and divides them into blocks. Each name has the node that it stands for.
    pub(crate) fn new<'a>(seed: [u32; 4], names: impl Iterator<Item = (&'a [u8], u32)>) -> Names {
        let mut bytes = Vec::new();
        let mut hashed: Vec<(u32, Name)> = Vec::new();
        for (name, node) in names {
            hashed.push((hash(seed, name), Name { at: bytes.len(), length: name.len() as u8, node }));
            bytes.extend(name);
        }
        hashed.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a.of(&bytes).cmp(b.of(&bytes))));
        let linear = divide(&hashed, DOTS_BYTES);
        let leaves = divide(&hashed, 0);
        let use_tree = linear.len() > 1 && inner_nodes(leaves.len()) <= ROOT_ENTRIES;
        let leaves = if use_tree { leaves } else { linear };
        let mut names: Vec<Name> = hashed.into_iter().map(|(_, name)| name).collect();
        names.shrink_to_fit();
        Names { bytes, names, leaves, hashed: use_tree }
    }

    /// True if the folder has a tree of hashes.
    pub(crate) fn is_hashed(&self) -> bool {
        self.hashed
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        (self.first_leaf() + self.leaves.len()) as u32
    }

    /// The block with this number. The folder's inode is `own`, the inode of the folder above is `above`. `target` finds
    /// the inode of a node.
    pub(crate) fn block(
        &self,
        number: u32,
        own: u32,
        above: u32,
        target: impl Fn(u32) -> Target,
    ) -> Box<Bytes> {
        let mut bytes = zeros();
        match (number as usize).checked_sub(self.first_leaf()) {
            Some(leaf) => self.put_leaf(&mut bytes, leaf, [own, above], target),
            None if number == 0 => self.put_root(&mut bytes, own, above),
            None => self.put_node(&mut bytes, number as usize - 1),
        }
        bytes
    }

    /// The number of the first block with names.
    fn first_leaf(&self) -> usize {
        if self.hashed { 1 + inner_nodes(self.leaves.len()) } else { 0 }
    }

    fn put_leaf(&self, bytes: &mut Bytes, leaf: usize, dots: [u32; 2], target: impl Fn(u32) -> Target) {
        let (mut at, mut last) = (0, 0);
        if leaf == 0 && !self.hashed {
            for (name, inode) in [&b"."[..], b".."].into_iter().zip(dots) {
                last = at;
                at += put_entry(bytes, at, name, Target { inode, kind: FOLDER });
            }
        }
        let end = self.leaves.get(leaf + 1).map_or(self.names.len(), |next| next.first as usize);
        for name in &self.names[self.leaves[leaf].first as usize..end] {
            last = at;
            at += put_entry(bytes, at, name.of(&self.bytes), target(name.node));
        }
        // The last entry takes the rest of the block.
        put16(bytes, last + 4, (BLOCK_BYTES - last) as u16);
    }

    fn put_root(&self, bytes: &mut Bytes, own: u32, above: u32) {
        let at = put_entry(bytes, 0, b".", Target { inode: own, kind: FOLDER });
        put_entry(bytes, at, b"..", Target { inode: above, kind: FOLDER });
        put16(bytes, at + 4, (BLOCK_BYTES - at) as u16);
        let nodes = inner_nodes(self.leaves.len());
        // The version of the hash, the size of this description, and the number of levels of inner nodes.
        bytes[DOTS_BYTES + 4..DOTS_BYTES + 7].copy_from_slice(&[HALF_MD4, 8, u8::from(nodes > 0)]);
        let children = match nodes {
            0 => self.children(0..self.leaves.len(), 1, 1),
            _ => self.children(0..nodes, 1, NODE_ENTRIES),
        };
        put_children(bytes, DOTS_BYTES + 8, ROOT_ENTRIES, &children);
    }

    fn put_node(&self, bytes: &mut Bytes, node: usize) {
        put16(bytes, 4, BLOCK_BYTES as u16);
        let leaves = node * NODE_ENTRIES..((node + 1) * NODE_ENTRIES).min(self.leaves.len());
        let children = self.children(leaves, self.first_leaf(), 1);
        put_children(bytes, HEADER_BYTES, NODE_ENTRIES, &children);
    }

    /// The hash and the block of children of a node of the tree. Child 0 has the number `first`, and each child covers
    /// `leaves` blocks of names.
    fn children(&self, children: std::ops::Range<usize>, first: usize, leaves: usize) -> Vec<(u32, u32)> {
        children.map(|child| (self.leaves[child * leaves].hash, (first + child) as u32)).collect()
    }
}

impl Name {
    fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.at..self.at + usize::from(self.length)]
    }
}

/// The number of inner nodes of a tree of hashes, without its root.
fn inner_nodes(leaves: usize) -> usize {
    if leaves <= ROOT_ENTRIES { 0 } else { leaves.div_ceil(NODE_ENTRIES) }
}

/// Divides names into blocks. The first block has `taken_bytes` less.
fn divide(names: &[(u32, Name)], taken_bytes: usize) -> Vec<Leaf> {
    let mut leaves = vec![Leaf { first: 0, hash: 0 }];
    let (mut used_bytes, mut last_hash) = (taken_bytes, 0);
    for (first, (hash, name)) in names.iter().enumerate() {
        let bytes = entry_bytes(name.length.into());
        if used_bytes + bytes > BLOCK_BYTES {
            leaves.push(Leaf { first: first as u32, hash: hash | u32::from(*hash == last_hash) });
            used_bytes = 0;
        }
        used_bytes += bytes;
        last_hash = *hash;
    }
    leaves
}

/// The bytes of an entry with a name of this length.
fn entry_bytes(length: usize) -> usize {
    (HEADER_BYTES + length).next_multiple_of(4)
}

/// Writes an entry, and returns the entry's size.
fn put_entry(bytes: &mut Bytes, at: usize, name: &[u8], target: Target) -> usize {
    let size_bytes = entry_bytes(name.len());
    put32(bytes, at, target.inode);
    put16(bytes, at + 4, size_bytes as u16);
    bytes[at + 6] = name.len() as u8;
    bytes[at + 7] = target.kind;
    bytes[at + HEADER_BYTES..][..name.len()].copy_from_slice(name);
    size_bytes
}

/// Writes the children of a node. In place of the first child's hash stand the largest and the present number of children.
fn put_children(bytes: &mut Bytes, at: usize, most: usize, children: &[(u32, u32)]) {
    for (entry, &(hash, block)) in children.iter().enumerate() {
        put32(bytes, at + entry * 8, hash);
        put32(bytes, at + entry * 8 + 4, block);
    }
    put16(bytes, at, most as u16);
    put16(bytes, at + 2, children.len() as u16);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: u32) -> Names {
        let names: Vec<Vec<u8>> = (0..count).map(|number| format!("name {number}").into_bytes()).collect();
        Names::new([1, 2, 3, 4], names.iter().zip(100..).map(|(name, node)| (&name[..], node)))
    }

    /// All entries of a block: inode, kind, name.
    fn entries(block: &Bytes) -> Vec<(u32, u8, Vec<u8>)> {
        let (mut at, mut entries) = (0, Vec::new());
        while at < BLOCK_BYTES {
            let inode = u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
            let name = block[at + 8..][..block[at + 6].into()].to_vec();
            entries.push((inode, block[at + 7], name));
            at += usize::from(u16::from_le_bytes(block[at + 4..at + 6].try_into().unwrap()));
        }
        assert_eq!(at, BLOCK_BYTES);
        entries
    }

    #[test]
    fn folders_of_all_sizes_have_all_names_once() {
        for (count, blocks) in [(0, 1), (200, 1), (300, 3), (5000, 25), (200_000, 981)] {
            let names = names(count);
            assert_eq!((names.blocks(), names.is_hashed()), (blocks, blocks > 1), "{count}");
            let target = |node| Target { inode: node + 1000, kind: 1 };
            let mut found = Vec::new();
            for number in 0..names.blocks() {
                found.extend(entries(&names.block(number, 11, 2, target)));
            }
            let dots = [(11, FOLDER, b".".to_vec()), (2, FOLDER, b"..".to_vec())];
            assert_eq!(found[..2], dots);
            let mut found = found.split_off(2);
            found.retain(|&(inode, ..)| inode != 0);
            found.sort();
            let expected = (0..count).map(|number| (number + 1100, 1, format!("name {number}").into_bytes()));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_folder_gets_a_tree_when_names_and_dots_fill_a_block() {
        for (count, blocks) in
            [(254, 1), (255, 2), (256, 2), (257, 3), (508 * 256, 509), (508 * 256 + 1, 511)]
        {
            let names: Vec<String> = (0..count).map(|number| format!("{number:08}")).collect();
            let names = Names::new([0; 4], names.iter().map(|name| (name.as_bytes(), 5)));
            assert_eq!(names.blocks(), blocks, "{count}");
            let last = entries(&names.block(blocks - 1, 11, 2, |inode| Target { inode, kind: 1 }));
            let named = last.iter().filter(|(_, kind, _)| *kind == 1).count();
            assert_eq!(named, if blocks == 1 { 254 } else { 1 + (count - 1) % 256 }, "{count}");
        }
    }

    #[test]
    fn blocks_that_share_a_hash_are_marked() {
        let name = |at| (8, Name { at, length: 255, node: 1 });
        let leaves = divide(&(0..32).map(name).collect::<Vec<_>>(), 0);
        let hashes: Vec<u32> = leaves.iter().map(|leaf| leaf.hash).collect();
        assert_eq!(hashes, [0, 9, 9]);
    }
}
