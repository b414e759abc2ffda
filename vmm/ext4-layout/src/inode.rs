//! The bytes of an inode.
//!
//! See Linux's `Documentation/filesystems/ext4/inodes.rst` and `ifork.rst`.

use crate::bytes::{BLOCK_BYTES, put16, put32};
use crate::extents::{Extents, ROOT_BYTES};
use crate::geometry::INODE_BYTES;
use crate::node::{Body, Folder, MOST_LINKS, Node};
use crate::tree::Time;

/// The largest target of a symbolic link that has its place in the inode, in bytes.
pub(crate) const SHORT_TARGET_BYTES: usize = ROOT_BYTES - 1;
/// Bytes of the fields behind the first 128 bytes of an inode.
pub(crate) const EXTRA_BYTES: u16 = 32;

const HAS_HASHES: u32 = 0x1000;
const HAS_EXTENTS: u32 = 0x8_0000;

/// The place of the block map, the extent tree or the short target.
const BLOCK: usize = 40;

/// The fields that depend on the kind.
struct Fields {
    kind: u16,
    links: u32,
    size_bytes: u64,
    blocks: u64,
    flags: u32,
    block: [u8; ROOT_BYTES],
}

/// The bytes of a node's inode. Folders must be listed.
pub(crate) fn inode(node: &Node) -> [u8; INODE_BYTES] {
    let mut bytes = [0; INODE_BYTES];
    let fields = fields(node);
    put16(&mut bytes, 0, fields.kind | node.permissions);
    put_halves(&mut bytes, 2, 120, node.uid);
    put32(&mut bytes, 4, fields.size_bytes as u32);
    put_halves(&mut bytes, 24, 122, node.gid);
    put16(&mut bytes, 26, fields.links as u16);
    // In units of 512 bytes, with 48 bits.
    let sectors = fields.blocks * (BLOCK_BYTES as u64 / 512);
    put32(&mut bytes, 28, sectors as u32);
    put16(&mut bytes, 116, (sectors >> 32) as u16);
    put32(&mut bytes, 32, fields.flags);
    bytes[BLOCK..BLOCK + ROOT_BYTES].copy_from_slice(&fields.block);
    put32(&mut bytes, 108, (fields.size_bytes >> 32) as u32);
    put16(&mut bytes, 128, EXTRA_BYTES);
    // The host's time of the last access changes too often; the creation time is unknown.
    for (at, extra, time) in
        [(8, 140, node.mtime), (12, 132, node.ctime), (16, 136, node.mtime), (144, 148, node.mtime)]
    {
        put_time(&mut bytes, at, extra, time);
    }
    bytes
}

fn put_halves(bytes: &mut [u8], low: usize, high: usize, value: u32) {
    put16(bytes, low, value as u16);
    put16(bytes, high, (value >> 16) as u16);
}

/// Writes a time from 1901 to 2310. An earlier or later time becomes the first or last possible time.
fn put_time(bytes: &mut [u8], at: usize, extra: usize, time: Time) {
    let seconds = time.seconds.clamp(i32::MIN.into(), (3 << 32) + i64::from(i32::MIN) - 1);
    let epoch = (seconds - i64::from(seconds as i32)) >> 32;
    put32(bytes, at, seconds as u32);
    put32(bytes, extra, time.nanoseconds.min(999_999_999) << 2 | epoch as u32);
}

fn fields(node: &Node) -> Fields {
    let empty =
        Fields { kind: 0, links: node.links, size_bytes: 0, blocks: 0, flags: 0, block: [0; ROOT_BYTES] };
    match &node.body {
        Body::Unlisted(_) => unreachable!("a folder is listed when the block of its inode is read"),
        Body::Folder(folder) => folder_fields(folder),
        Body::File { size_bytes, extents, .. } => {
            Fields { kind: 0o100_000, links: node.links, size_bytes: *size_bytes, ..mapped(extents) }
        }
        Body::Symlink { target, extents } => symlink_fields(target, extents, node.links),
        Body::Fifo => Fields { kind: 0o010_000, ..empty },
        Body::Socket => Fields { kind: 0o140_000, ..empty },
        &Body::CharacterDevice(major, minor) => {
            Fields { kind: 0o020_000, block: device(major, minor), ..empty }
        }
        &Body::BlockDevice(major, minor) => Fields { kind: 0o060_000, block: device(major, minor), ..empty },
    }
}

fn mapped(extents: &Extents) -> Fields {
    let (blocks, block) = (extents.blocks(), extents.root());
    Fields { kind: 0, links: 1, size_bytes: 0, blocks, flags: HAS_EXTENTS, block }
}

fn folder_fields(folder: &Folder) -> Fields {
    let links = 2 + folder.subfolders;
    // The feature `dir_nlink`: 1 says that the folder has more links than an inode can count.
    let links = if links > MOST_LINKS { 1 } else { links };
    let blocks = folder.names.as_ref().map_or(0, |names| names.blocks());
    let hashes = if folder.names.as_ref().is_some_and(|names| names.is_hashed()) { HAS_HASHES } else { 0 };
    let size_bytes = u64::from(blocks) * BLOCK_BYTES as u64;
    let flags = HAS_EXTENTS | hashes;
    Fields { kind: 0o040_000, links, size_bytes, flags, ..mapped(&folder.extents) }
}

fn symlink_fields(target: &[u8], extents: &Extents, links: u32) -> Fields {
    let mut fields = mapped(extents);
    if target.len() <= SHORT_TARGET_BYTES {
        fields.flags = 0;
        fields.block = [0; ROOT_BYTES];
        fields.block[..target.len()].copy_from_slice(target);
    }
    Fields { kind: 0o120_000, links, size_bytes: target.len() as u64, ..fields }
}

/// The number of a device: in the old form if the form has room, as Linux does.
fn device(major: u32, minor: u32) -> [u8; ROOT_BYTES] {
    let mut block = [0; ROOT_BYTES];
    if major < 256 && minor < 256 {
        put32(&mut block, 0, major << 8 | minor);
    } else {
        put32(&mut block, 4, minor & 0xff | major << 8 | (minor & !0xff) << 12);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_from_1901_to_2310_are_exact() {
        let decode = |bytes: &[u8]| {
            let low = i32::from_le_bytes(bytes[..4].try_into().unwrap());
            let extra = u32::from_le_bytes(bytes[4..].try_into().unwrap());
            (i64::from(low) + (i64::from(extra & 3) << 32), extra >> 2)
        };
        let last = (3 << 32) - (1 << 31) - 1;
        for seconds in [-(1 << 31), -1, 0, 1, (1 << 31) - 1, 1 << 31, 1 << 32, last] {
            let mut bytes = [0; 8];
            put_time(&mut bytes, 0, 4, Time { seconds, nanoseconds: 999_999_999 });
            assert_eq!(decode(&bytes), (seconds, 999_999_999));
        }
        for (seconds, shown) in [(i64::MIN, -(1 << 31)), (i64::MAX, last)] {
            let mut bytes = [0; 8];
            put_time(&mut bytes, 0, 4, Time { seconds, nanoseconds: u32::MAX });
            assert_eq!(decode(&bytes), (shown, 999_999_999));
        }
    }

    #[test]
    fn devices_have_the_old_form_if_it_has_room() {
        assert_eq!(device(8, 1)[..8], [1, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(device(259, 0x12345)[..8], [0, 0, 0, 0, 0x45, 0x03, 0x31, 0x12]);
    }
}
