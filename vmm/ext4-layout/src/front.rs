//! The superblock and the group descriptors.
//!
//! See Linux's `Documentation/filesystems/ext4/super.rst` and `group_descr.rst`.

use crate::bytes::{BLOCK_BYTES, Bytes, put16, put32, zeros};
use crate::geometry::{
    BLOCK_DESCRIPTORS, DESCRIPTOR_BYTES, GROUP_BLOCKS, GROUP_INODES, Geometry, INODE_BYTES,
};
use crate::hash::HALF_MD4;
use crate::inode::EXTRA_BYTES;
use crate::options::Options;
use crate::usage::{Counts, RESERVED_INODES, Usage};

/// The number of the root's inode.
pub(crate) const ROOT_INODE: u32 = 2;
/// The superblock begins 1024 bytes after the start of the disk.
const SUPERBLOCK: usize = 1024;

/// `ext_attr`, `dir_index`, `sparse_super2`. The last one says that there are no copies of the superblock, because the two
/// groups that could have one are both group 0.
const COMPATIBLE: u32 = 0x8 | 0x20 | 0x200;
/// `filetype`, `extents`, `flex_bg`.
const INCOMPATIBLE: u32 = 0x2 | 0x40 | 0x200;
/// `sparse_super`, `large_file`, `huge_file`, `dir_nlink`, `extra_isize`. There are no checksums,
/// because no medium keeps the bytes that could decay.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40;
/// Bytes in names are unsigned for their hash.
const UNSIGNED_HASH: u32 = 0x2;
/// Extended attributes of users and access control lists are on, as by mke2fs.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;

/// The block with the superblock.
pub(crate) fn superblock(geometry: &Geometry, options: &Options, usage: &Usage) -> Box<Bytes> {
    let mut block = zeros();
    let bytes = &mut block[SUPERBLOCK..2 * SUPERBLOCK];
    let counts = |group| usage.counts(geometry, group);
    let sum = |count: fn(Counts) -> u32| (0..geometry.groups).map(|group| count(counts(group))).sum();
    for (at, value) in [
        (0, geometry.groups * GROUP_INODES),
        (4, geometry.blocks()),
        (12, sum(|counts| counts.free_blocks)),
        (16, sum(|counts| counts.free_inodes)),
        // The size of blocks and of clusters: 1024 << 2 bytes.
        (24, 2),
        (28, 2),
        (32, GROUP_BLOCKS),
        (36, GROUP_BLOCKS),
        (40, GROUP_INODES),
        (48, options.created_seconds),
        (64, options.created_seconds),
        // The revision of the format: dynamic.
        (76, 1),
        (84, RESERVED_INODES + 1),
        (92, COMPATIBLE),
        (96, INCOMPATIBLE),
        (100, READ_ONLY_COMPATIBLE),
        (256, MOUNT_OPTIONS),
        (264, options.created_seconds),
        (352, UNSIGNED_HASH),
    ] {
        put32(bytes, at, value);
    }
    for (at, value) in [
        // No check after some number of mounts.
        (54, 0xffff),
        (56, 0xef53),
        // Clean; an error does not stop the guest.
        (58, 1),
        (60, 1),
        (88, INODE_BYTES as u16),
        (348, EXTRA_BYTES),
        (350, EXTRA_BYTES),
    ] {
        put16(bytes, at, value);
    }
    bytes[104..120].copy_from_slice(&options.uuid);
    bytes[236..252].copy_from_slice(&options.uuid);
    bytes[252] = HALF_MD4;
    block
}

/// The seed of hashes of names, which the superblock has too.
pub(crate) fn hash_seed(options: &Options) -> [u32; 4] {
    let (words, _) = options.uuid.as_chunks::<4>();
    std::array::from_fn(|word| u32::from_le_bytes(words[word]))
}

/// The block of group descriptors that begins with group `first`.
pub(crate) fn descriptors(geometry: &Geometry, usage: &Usage, first: u32) -> Box<Bytes> {
    let mut block = zeros();
    let groups = first..(first + BLOCK_DESCRIPTORS).min(geometry.groups);
    for (bytes, group) in block.chunks_mut(DESCRIPTOR_BYTES as usize).zip(groups) {
        let counts = usage.counts(geometry, group);
        put32(bytes, 0, geometry.block_bitmap(group));
        put32(bytes, 4, geometry.inode_bitmap(group));
        put32(bytes, 8, geometry.inode_table(group));
        put16(bytes, 12, counts.free_blocks as u16);
        put16(bytes, 14, counts.free_inodes as u16);
        put16(bytes, 16, counts.folders as u16);
    }
    block
}

const _: () = assert!(BLOCK_BYTES == 1024 << 2);
