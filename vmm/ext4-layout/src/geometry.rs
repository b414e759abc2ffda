//! Where things lie on the disk.
//!
//! ```text
//!  superblock │ group descriptors │ block bitmaps │ inode bitmaps │ inode tables │ free groups │ host area
//!  block 0    │ 1 …               │ 1 per group   │ 1 per group   │ 512 per group│ the guest's │ the host's
//! ```
//!
//! The feature `flex_bg` lets the bitmaps and inode tables of all groups lie in front. The inode table of a free group has
//! only inodes that the guest makes. The inode tables of all other groups have only inodes of the host's files.

use std::ops::Range;

use crate::bytes::BLOCK_BYTES;
use crate::options::{Error, Options};

/// Blocks in a group: as many as one bitmap has bits.
pub(crate) const GROUP_BLOCKS: u32 = 8 * BLOCK_BYTES as u32;
/// Bytes in a group: 128 MiB.
pub(crate) const GROUP_BYTES: u64 = GROUP_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Bytes of an inode.
pub(crate) const INODE_BYTES: usize = 256;
/// Inodes in a block of an inode table.
pub(crate) const BLOCK_INODES: u32 = (BLOCK_BYTES / INODE_BYTES) as u32;
/// Inodes in a group: one for 16 KiB, as mke2fs does.
pub(crate) const GROUP_INODES: u32 = 8192;
/// Blocks of a group's inode table.
pub(crate) const TABLE_BLOCKS: u32 = GROUP_INODES / BLOCK_INODES;
/// Bytes of a group descriptor.
pub(crate) const DESCRIPTOR_BYTES: u32 = 32;
/// Group descriptors in a block.
pub(crate) const BLOCK_DESCRIPTORS: u32 = BLOCK_BYTES as u32 / DESCRIPTOR_BYTES;
/// The largest number of groups whose blocks have 32-bit numbers.
const MOST_GROUPS: u64 = (1 << 32) / GROUP_BLOCKS as u64 - 1;

/// The place of each part of the disk.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// The number of groups.
    pub(crate) groups: u32,
    /// The groups that the guest may use.
    pub(crate) free_groups: Range<u32>,
}

/// The part of the disk that has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Superblock,
    /// The block of descriptors that begins with this group.
    Descriptors(u32),
    /// The block bitmap of this group.
    BlockBitmap(u32),
    /// The inode bitmap of this group.
    InodeBitmap(u32),
    /// This block of the inode tables, counted through all groups.
    InodeTable(u32),
    /// This block of the free groups, or of the gap before them, or of the host area.
    Data(u32),
    /// Behind the end.
    Outside,
}

impl Geometry {
    pub(crate) fn new(options: &Options) -> Result<Geometry, Error> {
        let size_bytes = options.size_bytes;
        let groups = size_bytes / GROUP_BYTES;
        if groups > MOST_GROUPS {
            return Err(Error::TooLarge { size_bytes });
        }
        let free = options.free_bytes.div_ceil(GROUP_BYTES).min(MOST_GROUPS);
        let front = |groups: u64| front_blocks(groups).div_ceil(GROUP_BLOCKS.into());
        if groups < front(groups) + free + 1 {
            let least = (free + 2..).find(|&groups| groups > front(groups) + free);
            let least_bytes = least.map_or(u64::MAX, |groups| groups * GROUP_BYTES);
            return Err(Error::TooSmall { size_bytes, least_bytes });
        }
        let first = front(groups) as u32;
        Ok(Geometry { groups: groups as u32, free_groups: first..first + free as u32 })
    }

    /// The number of blocks of the disk.
    pub(crate) fn blocks(&self) -> u32 {
        self.groups * GROUP_BLOCKS
    }

    /// The blocks that descriptors, bitmaps and inode tables take, with the superblock.
    pub(crate) fn front(&self) -> Range<u32> {
        0..front_blocks(self.groups.into()) as u32
    }

    /// The blocks of the host's folders and files.
    pub(crate) fn host(&self) -> Range<u32> {
        self.free_groups.end * GROUP_BLOCKS..self.blocks()
    }

    /// The blocks of all inode tables together.
    pub(crate) fn table_blocks(&self) -> u32 {
        self.groups * TABLE_BLOCKS
    }

    /// The blocks of inode tables that have inodes of the guest, counted as in [`Part::InodeTable`].
    pub(crate) fn free_tables(&self) -> Range<u32> {
        self.free_groups.start * TABLE_BLOCKS..self.free_groups.end * TABLE_BLOCKS
    }

    pub(crate) fn block_bitmap(&self, group: u32) -> u32 {
        1 + self.groups.div_ceil(BLOCK_DESCRIPTORS) + group
    }

    pub(crate) fn inode_bitmap(&self, group: u32) -> u32 {
        self.block_bitmap(self.groups) + group
    }

    pub(crate) fn inode_table(&self, group: u32) -> u32 {
        self.inode_bitmap(self.groups) + group * TABLE_BLOCKS
    }

    /// The part of the disk that has this block.
    pub(crate) fn part(&self, block: u64) -> Part {
        let Some(block) = u32::try_from(block).ok().filter(|&block| block < self.blocks()) else {
            return Part::Outside;
        };
        match block {
            0 => Part::Superblock,
            _ if block < self.block_bitmap(0) => Part::Descriptors((block - 1) * BLOCK_DESCRIPTORS),
            _ if block < self.inode_bitmap(0) => Part::BlockBitmap(block - self.block_bitmap(0)),
            _ if block < self.inode_table(0) => Part::InodeBitmap(block - self.inode_bitmap(0)),
            _ if block < self.front().end => Part::InodeTable(block - self.inode_table(0)),
            _ => Part::Data(block),
        }
    }
}

/// The number of blocks from the superblock to the end of the inode tables.
fn front_blocks(groups: u64) -> u64 {
    1 + groups.div_ceil(BLOCK_DESCRIPTORS.into()) + groups * u64::from(2 + TABLE_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(size_bytes: u64, free_bytes: u64) -> Options {
        Options { size_bytes, free_bytes, ..Options::new([1; 16], 0) }
    }

    #[test]
    fn the_parts_follow_one_another() {
        let geometry = Geometry::new(&options(Options::SIZE_BYTES, Options::FREE_BYTES)).unwrap();
        assert_eq!((geometry.groups, geometry.free_groups.clone()), (8192, 129..193));
        for (block, part) in [
            (0, Part::Superblock),
            (1, Part::Descriptors(0)),
            (64, Part::Descriptors(8064)),
            (65, Part::BlockBitmap(0)),
            (65 + 8191, Part::BlockBitmap(8191)),
            (65 + 8192, Part::InodeBitmap(0)),
            (65 + 2 * 8192, Part::InodeTable(0)),
            (65 + 514 * 8192 - 1, Part::InodeTable(512 * 8192 - 1)),
            (65 + 514 * 8192, Part::Data(65 + 514 * 8192)),
            ((1 << 28) - 1, Part::Data((1 << 28) - 1)),
            (1 << 28, Part::Outside),
            (u64::MAX, Part::Outside),
        ] {
            assert_eq!(geometry.part(block), part, "{block}");
        }
    }

    #[test]
    fn sizes_have_limits() {
        let largest = (MOST_GROUPS + 1) * GROUP_BYTES;
        assert_eq!(Geometry::new(&options(largest - 1, 0)).unwrap().blocks(), u32::MAX - 32767);
        assert_eq!(Geometry::new(&options(largest, 0)).unwrap_err(), Error::TooLarge { size_bytes: largest });
        let Err(Error::TooSmall { least_bytes, .. }) = Geometry::new(&options(0, GROUP_BYTES)) else {
            panic!()
        };
        assert_eq!(least_bytes, 3 * GROUP_BYTES);
        let least = Geometry::new(&options(least_bytes, GROUP_BYTES)).unwrap();
        assert_eq!((least.free_groups.clone(), least.host()), (1..2, 2 * GROUP_BLOCKS..3 * GROUP_BLOCKS));
        assert!(Geometry::new(&options(least_bytes - 1, GROUP_BYTES)).is_err());
        assert!(Geometry::new(&options(1 << 40, u64::MAX)).is_err());
    }
}
