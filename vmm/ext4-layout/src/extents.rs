//! Extent trees: which block of the disk has which block of a file.
//!
//! See the section "Extent Tree" of Linux's `Documentation/filesystems/ext4/ifork.rst`.

use crate::bytes::{BLOCK_BYTES, Bytes, put16, put32, zeros};
use crate::space::Run;

/// Bytes of the root of an extent tree, in the inode.
pub(crate) const ROOT_BYTES: usize = 60;
/// Entries in the root.
const ROOT_ENTRIES: usize = 4;
/// Entries in a block.
const BLOCK_ENTRIES: usize = (BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES;
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;
const MAGIC: u16 = 0xf30a;
/// The largest number of blocks in an extent: 128 MiB.
const MOST_BLOCKS: u32 = 32768;

/// The blocks of a file, a folder or a long symbolic link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    /// The blocks of the contents, in their order.
    pub(crate) contents: Vec<Run>,
    /// The blocks of the extent tree, level by level from the leaves on.
    pub(crate) index: Vec<Run>,
}

#[derive(Clone, Copy)]
struct Extent {
    logical: u32,
    run: Run,
}

/// The number of blocks that the extent tree of these contents needs outside the inode.
pub(crate) fn index_blocks(contents: &[Run]) -> u32 {
    let extents = contents.iter().map(|run| run.count.div_ceil(MOST_BLOCKS) as usize).sum();
    levels(extents).iter().sum::<usize>() as u32
}

/// The number of blocks in each level of a tree, from the leaves on. The root is not counted.
fn levels(extents: usize) -> Vec<usize> {
    let (mut levels, mut entries) = (Vec::new(), extents);
    while entries > ROOT_ENTRIES {
        entries = entries.div_ceil(BLOCK_ENTRIES);
        levels.push(entries);
    }
    levels
}

fn extents(contents: &[Run]) -> Vec<Extent> {
    let (mut extents, mut logical) = (Vec::new(), 0);
    for run in contents {
        let mut at = 0;
        while at < run.count {
            let count = (run.count - at).min(MOST_BLOCKS);
            extents.push(Extent { logical, run: Run { start: run.start + at, count } });
            (at, logical) = (at + count, logical + count);
        }
    }
    extents
}

/// The block with this number among the blocks of runs.
fn nth(runs: &[Run], mut number: u32) -> u32 {
    for run in runs {
        if number < run.count {
            return run.start + number;
        }
        number -= run.count;
    }
    unreachable!("the number comes from the count of the blocks")
}

impl Extents {
    /// The number of blocks, including blocks of the extent tree.
    pub(crate) fn blocks(&self) -> u64 {
        self.contents.iter().chain(&self.index).map(|run| u64::from(run.count)).sum()
    }

    /// The root of the tree, for the inode.
    pub(crate) fn root(&self) -> [u8; ROOT_BYTES] {
        let extents = extents(&self.contents);
        let levels = levels(extents.len());
        let mut bytes = [0; ROOT_BYTES];
        match levels.last() {
            None => put_leaf(&mut bytes, ROOT_ENTRIES, &extents),
            Some(&blocks) => self.put_inner(&mut bytes, ROOT_ENTRIES, &extents, levels.len(), 0..blocks),
        }
        bytes
    }

    /// The block of the tree with this number.
    pub(crate) fn index_block(&self, number: u32) -> Box<Bytes> {
        let extents = extents(&self.contents);
        let levels = levels(extents.len());
        let (mut level, mut at, mut below) = (0, number as usize, extents.len());
        while at >= levels[level] {
            at -= levels[level];
            below = levels[level];
            level += 1;
        }
        let children = at * BLOCK_ENTRIES..((at + 1) * BLOCK_ENTRIES).min(below);
        let mut bytes = zeros();
        match level {
            0 => put_leaf(&mut *bytes, BLOCK_ENTRIES, &extents[children]),
            _ => self.put_inner(&mut *bytes, BLOCK_ENTRIES, &extents, level, children),
        }
        bytes
    }

    /// Writes a node of depth `depth`, whose children are the blocks `children` of the level below the node.
    fn put_inner(
        &self,
        bytes: &mut [u8],
        most: usize,
        extents: &[Extent],
        depth: usize,
        children: std::ops::Range<usize>,
    ) {
        put_header(bytes, children.len(), most, depth);
        let before: usize = levels(extents.len())[..depth - 1].iter().sum();
        let extents_of_child = BLOCK_ENTRIES.pow(depth as u32);
        for (entry, child) in children.enumerate() {
            let at = HEADER_BYTES + entry * ENTRY_BYTES;
            put32(bytes, at, extents[child * extents_of_child].logical);
            put32(bytes, at + 4, nth(&self.index, (before + child) as u32));
        }
    }
}

fn put_leaf(bytes: &mut [u8], most: usize, extents: &[Extent]) {
    put_header(bytes, extents.len(), most, 0);
    for (entry, extent) in extents.iter().enumerate() {
        let at = HEADER_BYTES + entry * ENTRY_BYTES;
        put32(bytes, at, extent.logical);
        put16(bytes, at + 4, extent.run.count as u16);
        put32(bytes, at + 8, extent.run.start);
    }
}

fn put_header(bytes: &mut [u8], entries: usize, most: usize, depth: usize) {
    put16(bytes, 0, MAGIC);
    put16(bytes, 2, entries as u16);
    put16(bytes, 4, most as u16);
    put16(bytes, 6, depth as u16);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(bytes: &[u8], at: usize, size: usize) -> u32 {
        (0..size).map(|byte| u32::from(bytes[at + byte]) << (8 * byte)).sum()
    }

    /// Reads the tree below a node, as Linux does: the blocks of the contents.
    fn read(extents: &Extents, node: &[u8], blocks: &mut Vec<u32>) {
        assert_eq!(get(node, 0, 2), MAGIC.into());
        for entry in 0..get(node, 2, 2) as usize {
            let at = 12 + entry * 12;
            assert_eq!(get(node, at, 4) as usize, blocks.len());
            if get(node, 6, 2) == 0 {
                let start = get(node, at + 8, 4);
                blocks.extend(start..start + get(node, at + 4, 2));
                continue;
            }
            let block = get(node, at + 4, 4);
            let number = (0..).find(|&number| nth(&extents.index, number) == block).unwrap();
            let child = extents.index_block(number);
            assert_eq!(get(&*child, 6, 2) + 1, get(node, 6, 2));
            read(extents, &*child, blocks);
        }
    }

    #[test]
    fn trees_of_all_depths_have_all_blocks() {
        for (runs, index) in [(0, 0), (1, 0), (4, 0), (5, 1), (1360, 4), (1361, 6), (5000, 16)] {
            let contents: Vec<Run> =
                (0..runs).map(|at| Run { start: 1000 + at * 10, count: 1 + at % 9 }).collect();
            assert_eq!(index_blocks(&contents), index, "{runs}");
            let index =
                vec![Run { start: 7, count: index / 2 }, Run { start: 500, count: index - index / 2 }];
            let extents = Extents { contents, index };
            let mut blocks = Vec::new();
            read(&extents, &extents.root(), &mut blocks);
            let runs = extents.contents.iter();
            assert_eq!(blocks, runs.flat_map(|run| run.start..run.start + run.count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn long_runs_are_several_extents() {
        let contents = vec![Run { start: 100, count: 4 * MOST_BLOCKS + 1 }];
        assert_eq!(index_blocks(&contents), 1);
        let extents = Extents { contents, index: vec![Run { start: 7, count: 1 }] };
        let mut blocks = Vec::new();
        read(&extents, &extents.root(), &mut blocks);
        assert_eq!(blocks.len(), 4 * 32768 + 1);
        assert_eq!(extents.blocks(), 4 * 32768 + 2);
    }
}
