//! The blocks and inodes that the file system calls free.
//!
//! A lazy layout does not know how many files the host has, so it calls the host area full from the start. A guest then
//! makes its files in the free groups. An eager layout counts exactly.

use std::ops::Range;

use crate::bytes::{BLOCK_BYTES, Bytes, set_bits, zeros};
use crate::geometry::{BLOCK_INODES, GROUP_BLOCKS, GROUP_INODES, Geometry, TABLE_BLOCKS};
use crate::node::Node;
use crate::tables::{Table, Tables};

/// The inodes from 1 to 10 are reserved. The root has inode 2.
pub(crate) const RESERVED_INODES: u32 = 10;

/// The free blocks, free inodes and folders of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
    pub(crate) folders: u32,
}

/// The way of counting.
#[derive(Debug)]
pub(crate) enum Usage {
    Lazy,
    Exact(Exact),
}

/// The counts of a file system whose files are all known.
#[derive(Debug)]
pub(crate) struct Exact {
    used_blocks: [Range<u32>; 3],
    tables: Vec<Table>,
    groups: Vec<Counts>,
}

impl Exact {
    /// Counts a file system of which no block was read. The blocks `left` of the host area have no contents.
    pub(crate) fn new(geometry: &Geometry, left: Range<u32>, tables: &Tables, nodes: &[Node]) -> Exact {
        let host = geometry.host();
        let used_blocks = [geometry.front(), host.start..left.start, left.end..host.end];
        let tables = tables.given().to_vec();
        let mut exact = Exact { used_blocks, tables, groups: Vec::new() };
        exact.groups = (0..geometry.groups).map(|group| exact.count(group)).collect();
        for node in nodes.iter().filter(|node| node.is_folder()) {
            exact.groups[((node.inode - 1) / GROUP_INODES) as usize].folders += 1;
        }
        exact
    }

    fn count(&self, group: u32) -> Counts {
        let used: usize = self.used_in_group(group).map(|bits| bits.len()).sum();
        let mut inodes: u32 = self.tables_of(group).iter().map(|table| table.count).sum();
        if group == 0 {
            // The root is both a reserved inode and the only inode of its block.
            inodes += RESERVED_INODES - 1;
        }
        Counts { free_blocks: GROUP_BLOCKS - used as u32, free_inodes: GROUP_INODES - inodes, folders: 0 }
    }

    /// The bits of a group's block bitmap that are set.
    fn used_in_group(&self, group: u32) -> impl Iterator<Item = Range<usize>> {
        let first = group * GROUP_BLOCKS;
        self.used_blocks.iter().map(move |range| {
            let bit = |block: u32| block.saturating_sub(first).min(GROUP_BLOCKS) as usize;
            bit(range.start)..bit(range.end)
        })
    }

    fn tables_of(&self, group: u32) -> &[Table] {
        let at = |block| self.tables.partition_point(|table| table.block < block);
        &self.tables[at(group * TABLE_BLOCKS)..at((group + 1) * TABLE_BLOCKS)]
    }
}

impl Usage {
    pub(crate) fn counts(&self, geometry: &Geometry, group: u32) -> Counts {
        match self {
            Usage::Exact(exact) => exact.groups[group as usize],
            Usage::Lazy if geometry.free_groups.contains(&group) => {
                Counts { free_blocks: GROUP_BLOCKS, free_inodes: GROUP_INODES, folders: 0 }
            }
            // The guest subtracts one for each folder that it deletes, so the number must not be too small.
            Usage::Lazy => Counts { free_blocks: 0, free_inodes: 0, folders: GROUP_INODES },
        }
    }

    pub(crate) fn block_bitmap(&self, geometry: &Geometry, group: u32) -> Box<Bytes> {
        let mut bitmap = zeros();
        match self {
            Usage::Lazy if geometry.free_groups.contains(&group) => (),
            Usage::Lazy => bitmap.fill(0xff),
            Usage::Exact(exact) => exact.used_in_group(group).for_each(|bits| set_bits(&mut *bitmap, bits)),
        }
        bitmap
    }

    pub(crate) fn inode_bitmap(&self, geometry: &Geometry, group: u32) -> Box<Bytes> {
        let mut bitmap = zeros();
        match self {
            Usage::Lazy if geometry.free_groups.contains(&group) => (),
            Usage::Lazy => bitmap.fill(0xff),
            Usage::Exact(exact) => {
                for table in exact.tables_of(group) {
                    let first = ((table.block % TABLE_BLOCKS) * BLOCK_INODES + table.slot) as usize;
                    set_bits(&mut *bitmap, first..first + table.count as usize);
                }
            }
        }
        if group == 0 {
            set_bits(&mut *bitmap, 0..RESERVED_INODES as usize);
        }
        // Bits without an inode.
        set_bits(&mut *bitmap, GROUP_INODES as usize..8 * BLOCK_BYTES);
        bitmap
    }
}
