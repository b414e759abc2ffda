//! The kinds of file systems, by their magic numbers. The numbers are from the sources of Linux and of libblkid.

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::source::{ByteSource, bytes_at, field};

/// The offset of an ext file system's superblock.
pub(crate) const EXT_SUPERBLOCK: u64 = 1024;
/// The magic number of ext2, ext3 and ext4, at offset 56 of the superblock.
pub(crate) const EXT_MAGIC: [u8; 2] = [0x53, 0xef];

/// A magic number: the kind's name, the offset and the bytes.
const KINDS: [(&str, u64, &[u8]); 18] = [
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("squashfs", 0, b"hsqs"),
    ("erofs", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("iso9660", 0x8001, b"CD001"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM", 512, b"LABELONE"),
    ("LVM", 0, b"LABELONE"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("vfat", 0x52, b"FAT32   "),
    ("vfat", 0x36, b"FAT16   "),
    ("vfat", 0x36, b"FAT12   "),
    ("bcachefs", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("minix", 1040, &[0x8f, 0x13]),
    ("reiserfs", 0x1_0034, b"ReIsEr"),
];

/// The kind and the names of a file system.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct FileSystem {
    /// The kind, such as `ext4`, `vfat` or `swap`.
    pub kind: &'static str,
    /// The label. Only ext2, ext3 and ext4 have it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The UUID. Only ext2, ext3 and ext4 have it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Whether the last changes are only in the journal. [`crate::Files`] reads them from the journal.
    pub journal_in_use: bool,
}

impl FileSystem {
    /// The file system at the source's start; `None` if its kind is not known.
    ///
    /// # Errors
    ///
    /// If the source cannot be read.
    pub fn of<S: ByteSource>(source: &mut S) -> Result<Option<FileSystem>, Error> {
        if let Some(superblock) = bytes_at::<1024, S>(source, EXT_SUPERBLOCK)?
            && superblock[56..58] == EXT_MAGIC
        {
            return Ok(Some(ext(&superblock)));
        }
        for (kind, offset, magic) in KINDS {
            let found = bytes_at::<16, S>(source, offset)?.unwrap_or_default();
            if found.starts_with(magic) {
                return Ok(Some(FileSystem { kind, label: None, uuid: None, journal_in_use: false }));
            }
        }
        Ok(None)
    }

    /// Whether [`crate::Files`] reads this kind.
    pub fn has_files(&self) -> bool {
        self.kind.starts_with("ext")
    }
}

fn ext(superblock: &[u8; 1024]) -> FileSystem {
    /// Extents, 64-bit block numbers, and flexible block groups: features that only ext4 has.
    const OF_EXT4: u32 = 0x40 | 0x80 | 0x200;
    const HAS_JOURNAL: u32 = 4;
    const NEEDS_RECOVERY: u32 = 4;
    let word = |at| u32::from_le_bytes(field(superblock, at));
    let (compatible, incompatible) = (word(0x5c), word(0x60));
    let kind = match (incompatible & OF_EXT4 != 0, compatible & HAS_JOURNAL != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    let label = superblock[0x78..0x88].split(|&byte| byte == 0).next().unwrap_or_default();
    let label = String::from_utf8_lossy(label).into_owned();
    let hex = |from: usize, to| superblock[from..to].iter().map(|it| format!("{it:02x}")).collect::<String>();
    let uuid = [(0x68, 0x6c), (0x6c, 0x6e), (0x6e, 0x70), (0x70, 0x72), (0x72, 0x78)];
    FileSystem {
        kind,
        label: (!label.is_empty()).then_some(label),
        uuid: Some(uuid.map(|(from, to)| hex(from, to)).join("-")),
        journal_in_use: incompatible & NEEDS_RECOVERY != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_their_magic_numbers() {
        for (kind, offset, magic) in KINDS {
            let mut disk = vec![0; 0x2_0000];
            disk[offset as usize..][..magic.len()].copy_from_slice(magic);
            let found = FileSystem::of(&mut disk).unwrap().unwrap();
            assert_eq!((found.kind, found.has_files()), (kind, false));
        }
        assert_eq!(FileSystem::of(&mut vec![0; 0x2_0000]).unwrap(), None);
        assert_eq!(FileSystem::of(&mut vec![0; 3]).unwrap(), None);
    }
}
