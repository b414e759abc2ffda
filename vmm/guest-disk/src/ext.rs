//! Blocks, inodes and folders of ext2, ext3 and ext4. The structures are from Linux' `Documentation/filesystems/ext4`.
//!
//! The newest contents of some blocks are in the journal. The module `journal` finds these blocks, and this module reads
//! them from there. Checksums of metadata are not checked. `e2fsck -n` on an exported disk checks them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::error::Error;
use crate::file_system::{EXT_MAGIC, EXT_SUPERBLOCK};
use crate::source::{ByteSource, bytes_at, field};

/// The inode of the root folder.
pub(crate) const ROOT: u32 = 2;
/// The smallest number of blocks in a group. `mke2fs` makes no smaller groups.
const LEAST_GROUP_BLOCKS: u32 = 256;
/// The first bytes of each block in the journal that describes other blocks.
pub(crate) const JOURNAL_MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
/// The greatest depth of a tree of extents.
const MOST_DEPTH: u16 = 5;
/// The number of bytes of block numbers in an inode.
const MAP_BYTES: usize = 60;
/// The number of block numbers in an inode that name blocks of the file itself.
const DIRECT: u64 = 12;
/// A run of blocks without an end of its own.
const LONG_RUN: u64 = 1 << 32;

/// Features that change what this module reads (`s_feature_incompat`).
pub(crate) mod feature {
    pub const RECOVER: u32 = 0x4;
    pub const BITS_64: u32 = 0x80;
    /// All features with which this module can read a file system. For example, mount protection and seeds of checksums do
    /// not matter here.
    pub const KNOWN: u32 = 0x2
        | RECOVER
        | 0x40
        | BITS_64
        | 0x100
        | 0x200
        | 0x400
        | 0x2000
        | 0x4000
        | 0x8000
        | 0x1_0000
        | 0x2_0000;
}

mod inode_flag {
    pub const ENCRYPTED: u32 = 0x800;
    pub const EXTENTS: u32 = 0x8_0000;
    pub const INLINE_DATA: u32 = 0x1000_0000;
}

/// A file system.
pub(crate) struct Ext {
    source: Box<dyn ByteSource>,
    pub(crate) superblock: Superblock,
    /// The blocks whose newest contents are in the journal.
    journaled: BTreeMap<u64, Journaled>,
    /// The metadata block that was read last, with its number.
    last: (u64, Vec<u8>),
}

/// The place of a block in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journaled {
    /// The block of the file system that has the contents.
    pub block: u64,
    /// Whether the contents begin with the journal's magic number, which the journal has replaced by zeroes.
    pub is_escaped: bool,
}

/// The superblock's fields.
pub(crate) struct Superblock {
    pub block_bytes: u64,
    blocks: u64,
    inodes: u32,
    group_inodes: u32,
    inode_bytes: u64,
    descriptor_bytes: u64,
    is_64bit: bool,
    /// The inode of the journal, if the journal is in use.
    pub journal: Option<u32>,
}

/// The description of a file.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub modified_seconds: i64,
    flags: u32,
    map: [u8; MAP_BYTES],
}

impl Ext {
    pub fn open<S: ByteSource + 'static>(mut source: S) -> Result<Ext, Error> {
        let superblock = Superblock::of(&mut source)?;
        let last = (u64::MAX, vec![0; superblock.block_bytes as usize]);
        let source = Box::new(source);
        Ok(Ext { source, superblock, journaled: BTreeMap::new(), last })
    }

    /// From now on, reads these blocks from the journal.
    pub fn read_from_journal(&mut self, journaled: BTreeMap<u64, Journaled>) {
        self.journaled = journaled;
        self.last.0 = u64::MAX;
    }

    /// The contents of a block of metadata.
    pub fn block(&mut self, number: u64) -> Result<&[u8], Error> {
        if self.last.0 != number {
            let mut bytes = std::mem::take(&mut self.last.1);
            let read = self.read_blocks(number, 0, &mut bytes);
            self.last = (if read.is_ok() { number } else { u64::MAX }, bytes);
            read?;
        }
        Ok(&self.last.1)
    }

    /// Reads bytes that begin at an offset in a block. The bytes may continue in the blocks that follow.
    fn read_blocks(&mut self, mut number: u64, mut offset: u64, mut to: &mut [u8]) -> Result<(), Error> {
        let block_bytes = self.superblock.block_bytes;
        let end = number.saturating_add((offset + to.len() as u64).div_ceil(block_bytes));
        if end > self.superblock.blocks {
            let last = self.superblock.blocks;
            return Err(damaged(format!("it refers to block {number}, and it has only {last} blocks")));
        }
        while !to.is_empty() {
            let next = self.journaled.range(number..end).next().map(|(block, place)| (*block, *place));
            let length = match next {
                Some((block, _)) if block > number => {
                    ((block - number) * block_bytes - offset).min(to.len() as u64)
                }
                Some(_) => (block_bytes - offset).min(to.len() as u64),
                None => to.len() as u64,
            };
            let (part, rest) = to.split_at_mut(length as usize);
            match next {
                Some((block, place)) if block == number => {
                    if place.block >= self.superblock.blocks {
                        return Err(damaged(format!("its journal refers to block {}", place.block)));
                    }
                    self.source.read_at(place.block * block_bytes + offset, part)?;
                    if place.is_escaped {
                        let magic = &JOURNAL_MAGIC[(offset as usize).min(4)..];
                        part.iter_mut().zip(magic).for_each(|(byte, magic)| *byte = *magic);
                    }
                }
                _ => self.source.read_at(number * block_bytes + offset, part)?,
            }
            let done = offset + length;
            (number, offset, to) = (number + done / block_bytes, done % block_bytes, rest);
        }
        Ok(())
    }

    /// The inode with this number.
    pub fn inode(&mut self, number: u32) -> Result<Inode, Error> {
        let superblock = &self.superblock;
        let (block_bytes, inode_bytes) = (superblock.block_bytes, superblock.inode_bytes);
        if number == 0 || number > superblock.inodes {
            return Err(damaged(format!(
                "it refers to inode {number}, and it has only {} inodes",
                superblock.inodes
            )));
        }
        let (group, index) = ((number - 1) / superblock.group_inodes, (number - 1) % superblock.group_inodes);
        let (descriptor_bytes, is_64bit) = (superblock.descriptor_bytes, superblock.is_64bit);
        let per_block = block_bytes / descriptor_bytes;
        let first = if block_bytes == 1024 { 2 } else { 1 };
        let at = (u64::from(group) % per_block * descriptor_bytes) as usize;
        let descriptors = self.block(first + u64::from(group) / per_block)?;
        let low = u32::from_le_bytes(field(descriptors, at + 0x8));
        let high = if is_64bit { u32::from_le_bytes(field(descriptors, at + 0x28)) } else { 0 };
        let offset = u64::from(index) * inode_bytes;
        let table = u64::from(high) << 32 | u64::from(low);
        let block = table.saturating_add(offset / block_bytes);
        let at = (offset % block_bytes) as usize;
        Ok(Inode::of(&self.block(block)?[at..at + inode_bytes as usize]))
    }

    /// The block that has a block of a file, and the number of blocks from there on that follow one another. `None`
    /// stands for a hole.
    pub fn place(&mut self, inode: &Inode, logical: u64) -> Result<(Option<u64>, u64), Error> {
        if inode.flags & inode_flag::EXTENTS != 0 {
            self.extent(inode, logical)
        } else {
            self.indirect(inode, logical)
        }
    }

    fn extent(&mut self, inode: &Inode, logical: u64) -> Result<(Option<u64>, u64), Error> {
        let mut node = inode.map.to_vec();
        let mut expected_depth = None;
        // The first block of the file that is in another part of the tree.
        let mut limit = logical + LONG_RUN;
        loop {
            let half = |at| u16::from_le_bytes(field(&node, at));
            let (magic, count, depth) = (half(0), usize::from(half(2)), half(6));
            let is_good = expected_depth.map_or(depth <= MOST_DEPTH, |expected| depth == expected);
            if magic != 0xf30a || !is_good || (count + 1) * 12 > node.len() {
                return Err(damaged("a tree of extents is damaged".to_string()));
            }
            let entries: Vec<&[u8]> = node[12..].chunks_exact(12).take(count).collect();
            let start = |entry: &[u8]| u64::from(u32::from_le_bytes(field(entry, 0)));
            let after = entries.iter().position(|entry| start(entry) > logical).unwrap_or(count);
            if let Some(next) = entries.get(after) {
                limit = limit.min(start(next));
            }
            let hole = (None, (limit - logical).max(1));
            let Some(entry) = after.checked_sub(1).map(|index| entries[index]) else { return Ok(hole) };
            let [low, half_high] = [4, 8].map(|at| u64::from(u32::from_le_bytes(field(entry, at))));
            if depth > 0 {
                let child = (half_high & 0xffff) << 32 | low;
                expected_depth = Some(depth - 1);
                node = self.block(child)?.to_vec();
                continue;
            }
            /// Longer extents are reserved for the file, but never written.
            const MOST_WRITTEN: u64 = 0x8000;
            let (length, high, low) = (low & 0xffff, low >> 16, half_high);
            let is_written = length <= MOST_WRITTEN;
            let length = if is_written { length } else { length - MOST_WRITTEN };
            let distance = logical - start(entry);
            if distance >= length {
                return Ok(hole);
            }
            let block = is_written.then_some((high << 32 | low).saturating_add(distance));
            return Ok((block, length - distance));
        }
    }

    fn indirect(&mut self, inode: &Inode, logical: u64) -> Result<(Option<u64>, u64), Error> {
        let number =
            |bytes: &[u8], index: u64| u64::from(u32::from_le_bytes(field(bytes, index as usize * 4)));
        let some = |block: u64| (block != 0).then_some(block);
        if logical < DIRECT {
            return Ok((some(number(&inode.map, logical)), 1));
        }
        let per_block = self.superblock.block_bytes / 4;
        let mut rest = logical - DIRECT;
        let mut span = per_block;
        let mut level = 0;
        while rest >= span {
            rest -= span;
            span *= per_block;
            level += 1;
            if level > 2 {
                return Err(damaged(format!("block {logical} is after the end of the largest file")));
            }
        }
        let mut block = number(&inode.map, DIRECT + level);
        while span > 1 {
            if block == 0 {
                return Ok((None, span - rest));
            }
            span /= per_block;
            block = number(self.block(block)?, rest / span);
            rest %= span;
        }
        Ok((some(block), 1))
    }

    /// Reads bytes of a file. Returns their number, which is 0 at the file's end.
    pub fn read_file(&mut self, inode: &Inode, offset: u64, to: &mut [u8]) -> Result<usize, Error> {
        inode.check_contents()?;
        let block_bytes = self.superblock.block_bytes;
        let left = inode.size.saturating_sub(offset).min(to.len() as u64);
        if left == 0 {
            return Ok(0);
        }
        if inode.flags & inode_flag::INLINE_DATA != 0 {
            let bytes = &inode.map[offset as usize..][..left as usize];
            to[..bytes.len()].copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        let (block, run) = self.place(inode, offset / block_bytes)?;
        let in_block = offset % block_bytes;
        let length = run.saturating_mul(block_bytes).saturating_sub(in_block).min(left) as usize;
        match block {
            None => to[..length].fill(0),
            Some(block) => self.read_blocks(block, in_block, &mut to[..length])?,
        }
        Ok(length)
    }

    /// Calls `each` with the name and the inode's number of each entry in a folder, until `each` breaks.
    pub fn scan(
        &mut self,
        folder: &Inode,
        mut each: impl FnMut(&[u8], u32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        folder.check_contents()?;
        if folder.flags & inode_flag::INLINE_DATA != 0 {
            return Err(damaged("a folder whose entries are in its inode is not supported".to_string()));
        }
        let block_bytes = self.superblock.block_bytes as usize;
        let mut bytes = vec![0; block_bytes];
        let mut offset = 0;
        while offset < folder.size {
            let mut filled = 0;
            while filled < block_bytes {
                match self.read_file(folder, offset + filled as u64, &mut bytes[filled..])? {
                    0 => break,
                    count => filled += count,
                }
            }
            if scan_block(&bytes[..filled], &mut each)?.is_break() {
                return Ok(());
            }
            offset += block_bytes as u64;
        }
        Ok(())
    }
}

/// Calls `each` with the entries in a block of a folder. The index of a large folder looks like an unused entry.
fn scan_block(
    block: &[u8],
    each: &mut impl FnMut(&[u8], u32) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    const HEAD: usize = 8;
    let mut at = 0;
    while block.len() - at >= HEAD {
        let (inode, length) =
            (u32::from_le_bytes(field(block, at)), u16::from_le_bytes(field(block, at + 4)));
        // A length of 64 KiB does not fit into its field.
        let length = if matches!(length, 0 | u16::MAX) && block.len() > 0xffff {
            0x1_0000
        } else {
            usize::from(length)
        };
        let name_end = HEAD + usize::from(block[at + 6]);
        if length < HEAD || length > block.len() - at || (inode != 0 && name_end > length) {
            return Err(damaged("a folder is damaged".to_string()));
        }
        if inode != 0 && each(&block[at + HEAD..at + name_end], inode).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        at += length;
    }
    Ok(ControlFlow::Continue(()))
}

impl Inode {
    fn of(bytes: &[u8]) -> Inode {
        let half = |at| u16::from_le_bytes(field(bytes, at));
        let word = |at| u32::from_le_bytes(field(bytes, at));
        // The high bits of the time are in the part after the first 128 bytes, if this part has them.
        let high = if bytes.len() >= 0x8c && half(0x80) >= 0x0c { word(0x88) & 3 } else { 0 };
        Inode {
            mode: half(0),
            uid: u32::from(half(0x78)) << 16 | u32::from(half(2)),
            gid: u32::from(half(0x7a)) << 16 | u32::from(half(0x18)),
            size: u64::from(word(0x6c)) << 32 | u64::from(word(4)),
            modified_seconds: i64::from(word(0x10) as i32) + (i64::from(high) << 32),
            flags: word(0x20),
            map: field(bytes, 0x28),
        }
    }

    /// The number of a device file: major and minor.
    pub fn device(&self) -> (u32, u32) {
        let [old, new] = [0, 4].map(|at| u32::from_le_bytes(field(&self.map, at)));
        match old {
            0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
            old => (old >> 8 & 0xff, old & 0xff),
        }
    }

    /// The target of a short symbolic link, which is in the inode.
    pub fn short_target(&self) -> Option<&[u8]> {
        self.map.get(..usize::try_from(self.size).ok()?).filter(|target| target.len() < MAP_BYTES)
    }

    /// Returns an error if the contents cannot be read.
    fn check_contents(&self) -> Result<(), Error> {
        if self.flags & inode_flag::ENCRYPTED != 0 {
            return Err(damaged("a file or folder on the path is encrypted".to_string()));
        }
        if self.flags & inode_flag::INLINE_DATA != 0 && self.size > MAP_BYTES as u64 {
            return Err(damaged("a file whose data is in its attributes is not supported".to_string()));
        }
        Ok(())
    }
}

impl Superblock {
    /// Reads and checks the superblock, so that its lengths cannot make other code take much memory or time.
    fn of<S: ByteSource>(source: &mut S) -> Result<Superblock, Error> {
        let Some(bytes) =
            bytes_at::<1024, S>(source, EXT_SUPERBLOCK)?.filter(|bytes| bytes[56..58] == EXT_MAGIC)
        else {
            return Err(damaged("there is no superblock".to_string()));
        };
        let word = |at| u32::from_le_bytes(field(&bytes, at));
        let half = |at| u64::from(u16::from_le_bytes(field(&bytes, at)));
        let features = word(0x60);
        if features & !feature::KNOWN != 0 {
            let unknown = features & !feature::KNOWN;
            return Err(damaged(format!("it has features that ttvm does not support: {unknown:#x}")));
        }
        if word(0x18) > 6 {
            return Err(damaged(format!("its block size is 1024 << {}", word(0x18))));
        }
        let (block_bytes, is_64bit) = (1024 << word(0x18), features & feature::BITS_64 != 0);
        let high = if is_64bit { u64::from(word(0x150)) } else { 0 };
        let blocks = high << 32 | u64::from(word(4));
        if blocks.saturating_mul(block_bytes) > source.size_bytes() {
            let size = source.size_bytes();
            return Err(damaged(format!(
                "it has {blocks} blocks of {block_bytes} bytes, and the disk or partition has {size} bytes"
            )));
        }
        let (group, group_inodes) = (word(0x20), word(0x28));
        if group < LEAST_GROUP_BLOCKS || group_inodes == 0 {
            return Err(damaged(format!("a group has {group} blocks and {group_inodes} inodes")));
        }
        // The first revision of the format has no field for the size.
        let inode_bytes = if word(0x4c) == 0 { 128 } else { half(0x58) };
        let descriptor_bytes = if is_64bit { half(0xfe) } else { 32 };
        let fits = |bytes: u64, least| bytes.is_power_of_two() && (least..=block_bytes).contains(&bytes);
        if !fits(inode_bytes, 128) || !fits(descriptor_bytes, if is_64bit { 64 } else { 32 }) {
            return Err(damaged(format!(
                "its inodes have {inode_bytes} bytes, and its group descriptors {descriptor_bytes} bytes"
            )));
        }
        let has_journal = word(0x5c) & 4 != 0 && features & feature::RECOVER != 0;
        let journal = has_journal.then(|| word(0xe0));
        let inodes = word(0);
        Ok(Superblock {
            block_bytes,
            blocks,
            inodes,
            group_inodes,
            inode_bytes,
            descriptor_bytes,
            is_64bit,
            journal,
        })
    }
}

pub(crate) fn damaged(why: String) -> Error {
    Error::FileSystem(why)
}
