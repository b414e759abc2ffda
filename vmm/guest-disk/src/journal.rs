//! The journal of ext3 and ext4 (jbd2): finds the blocks whose newest contents are only in the journal.
//!
//! The journal is a ring of transactions. Each transaction has descriptor blocks, which name blocks, with the contents of the
//! named blocks behind them. A commit block ends the transaction. A revoke block says that older contents of a block
//! must not be used any more. Linux applies the complete transactions at the next mount (`fs/jbd2/recovery.c`). This
//! module finds the same blocks, and writes nothing.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::ext::{Ext, Inode, JOURNAL_MAGIC, Journaled, damaged};
use crate::source::field;

/// The largest size in bytes of a journal. `mke2fs` makes journals of at most 1 GiB by itself.
const MOST_BYTES: u64 = 4 << 30;
/// The number of blocks for fast commits, if the journal's superblock does not say another number.
const FAST_BLOCKS: u32 = 256;

mod kind {
    pub const DESCRIPTOR: u32 = 1;
    pub const COMMIT: u32 = 2;
    pub const SUPERBLOCK_1: u32 = 3;
    pub const SUPERBLOCK_2: u32 = 4;
    pub const REVOKE: u32 = 5;
}

mod feature {
    pub const REVOKE: u32 = 0x1;
    pub const BITS_64: u32 = 0x2;
    pub const ASYNC_COMMIT: u32 = 0x4;
    pub const CHECKSUM_2: u32 = 0x8;
    pub const CHECKSUM_3: u32 = 0x10;
    pub const FAST_COMMIT: u32 = 0x20;
}

mod tag_flag {
    pub const ESCAPED: u32 = 1;
    pub const SAME_UUID: u32 = 2;
    pub const LAST: u32 = 8;
}

/// The contents of the journal.
pub(crate) struct Found {
    /// The blocks of the file system whose newest contents are in the journal.
    pub blocks: BTreeMap<u64, Journaled>,
    /// The reason why changes may be missing.
    pub unread: Option<String>,
}

/// The fields of the journal's superblock.
struct Ring {
    features: u32,
    /// The first block of the ring, and the block after its last.
    first: u64,
    end: u64,
    start: u64,
    sequence: u32,
}

/// A block that a descriptor names.
struct Tag {
    block: u64,
    flags: u32,
}

/// Reads the journal in the inode `number`.
pub(crate) fn read(ext: &mut Ext, number: u32) -> Result<Found, Error> {
    let inode = ext.inode(number)?;
    let blocks = inode.size / ext.superblock.block_bytes;
    if inode.size > MOST_BYTES {
        return Err(damaged(format!(
            "its journal has {} bytes, and ttvm reads at most {MOST_BYTES}",
            inode.size
        )));
    }
    let superblock = block(ext, &inode, 0)?;
    let ring = match Ring::of(&superblock, blocks) {
        Ok(ring) => ring,
        Err(why) => return Ok(Found { blocks: BTreeMap::new(), unread: Some(why) }),
    };
    let blocks = if ring.start == 0 { BTreeMap::new() } else { ring.newest(ext, &inode)? };
    let unread = (ring.features & feature::FAST_COMMIT != 0).then(|| "it has fast commits".to_string());
    Ok(Found { blocks, unread })
}

/// A block of the journal.
fn block(ext: &mut Ext, inode: &Inode, number: u64) -> Result<Vec<u8>, Error> {
    match ext.place(inode, number)?.0 {
        Some(place) => Ok(ext.block(place)?.to_vec()),
        None => Err(damaged(format!("its journal has no block {number}"))),
    }
}

impl Ring {
    /// Reads the superblock of a journal with this number of blocks. An error is the reason why the journal is not
    /// read.
    fn of(superblock: &[u8], blocks: u64) -> Result<Ring, String> {
        let word = |at| u32::from_be_bytes(field(superblock, at));
        if superblock[..4] != JOURNAL_MAGIC || !matches!(word(4), kind::SUPERBLOCK_1 | kind::SUPERBLOCK_2) {
            return Err("it has no superblock".to_string());
        }
        let features = if word(4) == kind::SUPERBLOCK_2 { word(40) } else { 0 };
        let known = feature::REVOKE
            | feature::BITS_64
            | feature::ASYNC_COMMIT
            | feature::CHECKSUM_2
            | feature::CHECKSUM_3
            | feature::FAST_COMMIT;
        if features & !known != 0 {
            return Err(format!("it has unknown features: {:#x}", features & !known));
        }
        let fast = match word(0x54) {
            _ if features & feature::FAST_COMMIT == 0 => 0,
            0 => FAST_BLOCKS,
            number => number,
        };
        let end = u64::from(word(16)).min(blocks).saturating_sub(u64::from(fast));
        let (first, start) = (u64::from(word(20)), u64::from(word(28)));
        let is_in_ring = first > 0 && first < end && (start == 0 || (first..end).contains(&start));
        if word(12) as usize != superblock.len() || !is_in_ring {
            return Err("its superblock is damaged".to_string());
        }
        Ok(Ring { features, first, end, start, sequence: word(24) })
    }

    fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    fn after(&self, number: u64) -> u64 {
        if number + 1 < self.end { number + 1 } else { self.first }
    }

    /// The newest contents of all blocks that complete transactions have.
    fn newest(&self, ext: &mut Ext, inode: &Inode) -> Result<BTreeMap<u64, Journaled>, Error> {
        /// A block that a transaction wrote: the transaction, the block, and the place of the contents in the ring.
        struct Written {
            sequence: u32,
            tag: Tag,
            at: u64,
        }
        // Revokes with the transaction that has them. The transaction that is read last may be incomplete.
        let (mut written, mut revoked) = (Vec::new(), Vec::new());
        let (mut complete_writes, mut complete_revokes) = (0, 0);
        let (mut at, mut sequence) = (self.start, self.sequence);
        let mut left = self.end - self.first;
        while let Some(rest) = left.checked_sub(1) {
            left = rest;
            let bytes = block(ext, inode, at)?;
            let word = |at| u32::from_be_bytes(field(&bytes, at));
            if bytes[..4] != JOURNAL_MAGIC || word(8) != sequence {
                break;
            }
            at = self.after(at);
            match word(4) {
                kind::DESCRIPTOR => {
                    for tag in self.tags(&bytes) {
                        written.push(Written { sequence, tag, at });
                        at = self.after(at);
                        left = left.saturating_sub(1);
                    }
                }
                kind::REVOKE => revoked.extend(self.revokes(&bytes).map(|block| (block, sequence))),
                kind::COMMIT => {
                    (complete_writes, complete_revokes) = (written.len(), revoked.len());
                    sequence = sequence.wrapping_add(1);
                }
                _ => break,
            }
        }
        written.truncate(complete_writes);
        // A later revoke of a block replaces an earlier one.
        let revoked: BTreeMap<u64, u32> = revoked.into_iter().take(complete_revokes).collect();
        let mut newest = BTreeMap::new();
        for Written { sequence, tag, at } in written {
            // Sequence numbers wrap around.
            let age = revoked.get(&tag.block).map(|revoke| revoke.wrapping_sub(sequence) as i32);
            if age.is_some_and(|age| age >= 0) {
                continue;
            }
            let Some(block) = ext.place(inode, at)?.0 else {
                return Err(damaged(format!("its journal has no block {at}")));
            };
            newest.insert(tag.block, Journaled { block, is_escaped: tag.flags & tag_flag::ESCAPED != 0 });
        }
        Ok(newest)
    }

    /// The number of bytes at the end of a block that have its checksum.
    fn tail_bytes(&self) -> usize {
        if self.has(feature::CHECKSUM_2 | feature::CHECKSUM_3) { 4 } else { 0 }
    }

    /// The blocks that a descriptor names.
    fn tags(&self, descriptor: &[u8]) -> Vec<Tag> {
        const HEAD: usize = 12;
        const UUID: usize = 16;
        let is_long = self.has(feature::CHECKSUM_3);
        let bytes = match (is_long, self.has(feature::CHECKSUM_2), self.has(feature::BITS_64)) {
            (true, ..) => 16,
            (_, true, true) => 14,
            (_, true, false) => 10,
            (_, false, true) => 12,
            (_, false, false) => 8,
        };
        let mut tags = Vec::new();
        let mut rest = &descriptor[HEAD..descriptor.len() - self.tail_bytes()];
        while rest.len() >= bytes {
            let word = |at| u32::from_be_bytes(field(rest, at));
            let flags = if is_long { word(4) } else { u32::from(u16::from_be_bytes(field(rest, 6))) };
            let high = if self.has(feature::BITS_64) { u64::from(word(8)) } else { 0 };
            tags.push(Tag { block: high << 32 | u64::from(word(0)), flags });
            if flags & tag_flag::LAST != 0 {
                break;
            }
            let uuid = if flags & tag_flag::SAME_UUID == 0 { UUID } else { 0 };
            rest = rest.get(bytes + uuid..).unwrap_or_default();
        }
        tags
    }

    /// The blocks that a revoke block names.
    fn revokes<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        const HEAD: usize = 16;
        let used = u32::from_be_bytes(field(bytes, 12)) as usize;
        let used = used.clamp(HEAD, bytes.len() - self.tail_bytes());
        let size = if self.has(feature::BITS_64) { 8 } else { 4 };
        bytes[HEAD..used]
            .chunks_exact(size)
            .map(|number| number.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)))
    }
}
