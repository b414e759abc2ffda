//! Gives out the blocks of inode tables.

use std::ops::Range;

use crate::frozen::Frozen;
use crate::geometry::{BLOCK_INODES, Geometry};

/// A block of an inode table that has inodes of the host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The number of the block, counted through all inode tables.
    pub(crate) block: u32,
    /// The place of the first of these inodes in the block. The other inodes follow.
    pub(crate) slot: u32,
    /// The number of these inodes.
    pub(crate) count: u32,
    /// The number of the first of these inodes among all nodes.
    pub(crate) node: u32,
}

impl Table {
    /// The number of the inode after the last inode of the block.
    fn next_inode(&self) -> u32 {
        self.block * BLOCK_INODES + self.slot + self.count + 1
    }
}

/// The inode tables of all groups.
#[derive(Debug)]
pub(crate) struct Tables {
    next: u32,
    end: u32,
    /// Blocks with inodes that the guest makes.
    free: Range<u32>,
    frozen: Frozen,
    given: Vec<Table>,
    /// The last of `given` may get this number of inodes more.
    room: u32,
}

impl Tables {
    /// Inode tables with the root's inode, the number 2, in the first block. The root is node 0.
    pub(crate) fn new(geometry: &Geometry) -> Tables {
        let root = Table { block: 0, slot: 1, count: 1, node: 0 };
        let (end, free) = (geometry.table_blocks(), geometry.free_tables());
        Tables { next: 1, end, free, frozen: Frozen::default(), given: vec![root], room: 0 }
    }

    pub(crate) fn given(&self) -> &[Table] {
        &self.given
    }

    /// The inodes in a block. A block without inodes never gets any: the block is frozen.
    pub(crate) fn read(&mut self, block: u32) -> Option<Table> {
        match self.given.binary_search_by_key(&block, |table| table.block) {
            Ok(found) => Some(self.given[found]),
            Err(_) => {
                if block >= self.next {
                    self.frozen.insert(block);
                }
                None
            }
        }
    }

    /// Makes the next inode the first one of a fresh block.
    pub(crate) fn close_block(&mut self) {
        self.room = 0;
    }

    /// Gives an inode to the node `node`, the next one after the node of the call before. A block gets at most `most`
    /// inodes. The result is the number of the inode, or `None` if no inode is left.
    pub(crate) fn give(&mut self, node: u32, most: u32) -> Option<u32> {
        if self.room == 0 {
            let block = self.fresh_block()?;
            self.given.push(Table { block, slot: 0, count: 0, node });
            self.room = most;
        }
        let table = self.given.last_mut()?;
        let inode = table.next_inode();
        table.count += 1;
        self.room -= 1;
        Some(inode)
    }

    /// Takes the inode of the last call of `give` back.
    pub(crate) fn take_back(&mut self) {
        if let Some(table) = self.given.last_mut() {
            table.count -= 1;
            self.room += 1;
        }
    }

    fn fresh_block(&mut self) -> Option<u32> {
        while self.next < self.end {
            let block = self.next;
            if self.free.contains(&block) {
                self.next = self.free.end;
                continue;
            }
            self.next += 1;
            if self.frozen.first_in(block..block + 1).is_none() {
                return Some(block);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn inodes_skip_frozen_blocks_and_the_guests_blocks() {
        let options = Options { size_bytes: 3 << 27, free_bytes: 1 << 27, ..Options::new([1; 16], 0) };
        let mut tables = Tables::new(&Geometry::new(&options).unwrap());
        assert_eq!(tables.read(2), None);
        assert_eq!((tables.give(1, 2), tables.give(2, 2), tables.give(3, 2)), (Some(17), Some(18), Some(49)));
        tables.close_block();
        assert_eq!(tables.give(4, 16), Some(65));
        assert_eq!(tables.read(3), Some(Table { block: 3, slot: 0, count: 1, node: 3 }));
        assert_eq!(tables.read(0), Some(Table { block: 0, slot: 1, count: 1, node: 0 }));
        let mut inodes = Vec::new();
        while let Some(inode) = tables.give(5 + inodes.len() as u32, 16) {
            inodes.push(inode);
        }
        // Group 1 is the guest's.
        assert_eq!(inodes[..2], [66, 67]);
        assert!(!inodes.iter().any(|inode| (8193..=16384).contains(inode)));
        assert_eq!((inodes.len(), inodes.last()), (508 * 16 - 1 + 8192, Some(&(3 * 8192))));
    }
}
