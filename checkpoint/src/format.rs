//! The bytes of a checkpoint's file. `FORMAT.md` describes the format.
//!
//! The reader checks every length in the file. Sections must fill the file exactly, and a section unpacks to at
//! most [`MAX_RATIO`] times its size plus [`UNPACK_FREE_BYTES`].

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::list::Lists;
use crate::page::PAGE_BYTES;
use crate::table::Digest;

/// The first bytes of every checkpoint's file.
pub(crate) const MAGIC: [u8; 8] = *b"ttvmckpt";

/// The version of this format. A reader refuses other versions.
pub(crate) const VERSION: u32 = 2;

/// The largest number of pages of either space: 4 TiB.
pub(crate) const MAX_PAGES: u64 = 1 << 30;

/// The largest number of bytes of a head.
pub(crate) const MAX_HEAD_BYTES: usize = 4096;

/// Versions have ids below this limit, so that no sum of an id and a length overflows.
pub(crate) const MAX_BLOB_ID: u64 = 1 << 62;

/// A section may unpack to at most this many times its size in the file, plus [`UNPACK_FREE_BYTES`].
const MAX_RATIO: u64 = 64;
const UNPACK_FREE_BYTES: u64 = 1 << 20;

const FOOTER_WORDS: usize = 14;
pub(crate) const FOOTER_BYTES: u64 = FOOTER_WORDS as u64 * 8 + 16;

/// The number of RAM's pages, and the number of the disk's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub ram_pages: u64,
    pub disk_blocks: u64,
}

/// The footer of a checkpoint's file: the lengths of the sections, and the checkpoint's number, position, time and
/// numbers of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub number: u32,
    pub position: u64,
    pub time_ns: u64,
    pub shape: Shape,
    pub blobs_len: u64,
    pub head: Section,
    pub state: Section,
    pub directory: Section,
}

/// The description of a section after the blobs: the head, the state or the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    /// The section's length in the file.
    pub len: u64,
    /// The section's length when unpacked; the same if the section is not compressed.
    pub raw_len: u64,
    /// CRC-32 of the section's bytes in the file.
    pub crc: u32,
}

/// The directory of a checkpoint's file: the changed pages, and the blobs in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// Number of bytes of the pages that the recorder handed in, whether or not these pages had changed.
    pub dirtied_bytes: u64,
    /// The check of the maps at this checkpoint; see [`crate::check`].
    pub maps_check: u64,
    /// Pages whose version differs from the version after the previous checkpoint's `back` list.
    pub list: Lists,
    /// Pages of `list` that change back after this checkpoint, with the versions to which they change back. Pages in
    /// the next checkpoint's `list` are omitted.
    pub back: Lists,
    /// The blobs in this file, in the order of their ids. The file has the blobs in the same order.
    pub blobs: Vec<BlobEntry>,
}

/// The directory's entry of one blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobEntry {
    /// The blob's id minus the previous blob's id; for the first blob, the id itself.
    pub step: NonZeroU64,
    pub base: Option<NonZeroU64>,
    pub len: u16,
    /// The digest of the unpacked page.
    pub digest: Digest,
    /// CRC-32 of the blob. A page can be packed in many ways, so a damaged blob can still yield the right page.
    #[serde(with = "postcard::fixint::le")]
    pub crc: u32,
}

impl Directory {
    /// Id, offset in the file, and entry of each blob.
    pub fn places(&self) -> impl Iterator<Item = (u64, u64, &BlobEntry)> {
        let (mut id, mut offset) = (0, MAGIC.len() as u64);
        self.blobs.iter().map(move |blob| {
            id += blob.step.get();
            let at = offset;
            offset += u64::from(blob.len);
            (id, at, blob)
        })
    }

    /// Id and base of each delta.
    pub fn bases(&self) -> impl Iterator<Item = (u64, u64)> {
        self.places().filter_map(|(id, _, blob)| Some((id, blob.base?.get())))
    }

    /// The first fault of the directory that can be found without reading the other files; `None` if there is no
    /// such fault.
    fn fault(&self, footer: &Footer) -> Option<&'static str> {
        let Shape { ram_pages, disk_blocks } = footer.shape;
        for lists in [&self.list, &self.back] {
            if !lists.ram.is_within(ram_pages) || !lists.disk.is_within(disk_blocks) {
                return Some("lists pages that the machine does not have");
            }
        }
        let (mut id, mut offset) = (0_u64, 0_u64);
        for blob in &self.blobs {
            id = id.saturating_add(blob.step.get());
            offset += u64::from(blob.len);
            if blob.len == 0 || usize::from(blob.len) > PAGE_BYTES {
                return Some("lists a blob of an impossible length");
            }
        }
        if id >= MAX_BLOB_ID {
            return Some("has blob numbers that are too high");
        }
        (offset != footer.blobs_len).then_some("lists blobs that do not fill their section")
    }
}

impl Footer {
    /// The file's length in bytes; `None` if the sum of the lengths overflows.
    pub fn file_len(&self) -> Option<u64> {
        let sections = [self.blobs_len, self.head.len, self.state.len, self.directory.len, FOOTER_BYTES];
        sections.iter().try_fold(MAGIC.len() as u64, |sum, len| sum.checked_add(*len))
    }

    fn head_at(&self) -> u64 {
        MAGIC.len() as u64 + self.blobs_len
    }

    fn state_at(&self) -> u64 {
        self.head_at() + self.head.len
    }

    fn directory_at(&self) -> u64 {
        self.state_at() + self.state.len
    }

    /// The bytes of the footer, which are the file's last bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        let words: [u64; FOOTER_WORDS] = [
            u64::from(self.number),
            self.position,
            self.time_ns,
            self.shape.ram_pages,
            self.shape.disk_blocks,
            self.blobs_len,
            self.head.len,
            u64::from(self.head.crc),
            self.state.len,
            self.state.raw_len,
            u64::from(self.state.crc),
            self.directory.len,
            self.directory.raw_len,
            u64::from(self.directory.crc),
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    }

    /// Reads and checks the footer and the first bytes of a file of `file_len` bytes.
    pub fn read(file: &File, path: &Path, file_len: u64) -> Result<Footer> {
        let wrong = |what: &str| StoreError::damaged(path, "footer", what);
        let at = file_len.checked_sub(FOOTER_BYTES).ok_or_else(|| wrong("the file is too short"))?;
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, 0).map_err(StoreError::io(path, "read the first bytes"))?;
        if magic != MAGIC {
            return Err(StoreError::damaged(path, "first bytes", "they are not the format's magic bytes"));
        }
        let mut bytes = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut bytes, at).map_err(StoreError::io(path, "read the footer"))?;
        let (words, tail) = bytes.split_at(FOOTER_WORDS * 8);
        let half = |at: usize| u32::from_le_bytes([tail[at], tail[at + 1], tail[at + 2], tail[at + 3]]);
        if tail[8..] != MAGIC {
            return Err(wrong("it does not end in the format's magic bytes"));
        }
        if half(4) != crc32fast::hash(&bytes[..FOOTER_WORDS * 8 + 4]) {
            return Err(wrong("its CRC-32 is wrong"));
        }
        if half(0) != VERSION {
            let kind = StoreErrorKind::Version { found: half(0), known: VERSION };
            return Err(StoreError::new(path, kind));
        }
        let mut values = [0; FOOTER_WORDS];
        for (value, word) in values.iter_mut().zip(words.chunks_exact(8)) {
            *value = u64::from_le_bytes(word.try_into().expect("chunks of 8 bytes"));
        }
        let footer = Footer::from_words(&values).ok_or_else(|| wrong("a number is out of range"))?;
        match footer.file_len() == Some(file_len) {
            true => Ok(footer),
            false => Err(wrong("the sections do not fill the file")),
        }
    }

    fn from_words(words: &[u64; FOOTER_WORDS]) -> Option<Footer> {
        let [number, position, time_ns, ram_pages, disk_blocks, blobs_len, rest @ ..] = *words;
        let [
            head_len,
            head_crc,
            state_len,
            state_raw,
            state_crc,
            directory_len,
            directory_raw,
            directory_crc,
        ] = rest;
        let section = |len, raw_len, crc: u64| Some(Section { len, raw_len, crc: u32::try_from(crc).ok()? });
        let footer = Footer {
            number: u32::try_from(number).ok()?,
            position,
            time_ns,
            shape: Shape { ram_pages, disk_blocks },
            blobs_len,
            head: section(head_len, head_len, head_crc)?,
            state: section(state_len, state_raw, state_crc)?,
            directory: section(directory_len, directory_raw, directory_crc)?,
        };
        (head_len <= MAX_HEAD_BYTES as u64).then_some(footer)
    }

    pub fn read_head(&self, file: &File, path: &Path) -> Result<Vec<u8>> {
        read_section(file, path, "head", self.head_at(), &self.head)
    }

    pub fn read_state(&self, file: &File, path: &Path) -> Result<Vec<u8>> {
        read_section(file, path, "state", self.state_at(), &self.state)
    }

    /// The state's bytes as stored in the file, still compressed, for copying.
    pub fn read_packed_state(&self, file: &File, path: &Path) -> Result<Vec<u8>> {
        let as_it_is = Section { raw_len: self.state.len, ..self.state };
        read_section(file, path, "state", self.state_at(), &as_it_is)
    }

    /// Reads the directory, and checks everything that does not need the other files.
    pub fn read_directory(&self, file: &File, path: &Path) -> Result<Directory> {
        let bytes = read_section(file, path, "directory", self.directory_at(), &self.directory)?;
        let wrong = |what: &str| StoreError::damaged(path, "directory", what);
        let directory: Directory = match postcard::take_from_bytes(&bytes) {
            Ok((directory, [])) => directory,
            _ => return Err(wrong("it cannot be decoded")),
        };
        match directory.fault(self) {
            None => Ok(directory),
            Some(what) => Err(wrong(what)),
        }
    }
}

/// Packs a section. Returns its bytes in the file, and their description.
pub(crate) fn pack_section(raw: &[u8]) -> (Vec<u8>, Section) {
    let packed = zstd::bulk::compress(raw, 1).ok();
    let bytes = packed.filter(|p| p.len() < raw.len() && raw.len() as u64 <= unpack_limit(p.len() as u64));
    let bytes = bytes.unwrap_or_else(|| raw.to_vec());
    let section =
        Section { len: bytes.len() as u64, raw_len: raw.len() as u64, crc: crc32fast::hash(&bytes) };
    (bytes, section)
}

/// The description of a section that consists of these bytes, uncompressed.
pub(crate) fn plain_section(bytes: &[u8]) -> Section {
    Section { len: bytes.len() as u64, raw_len: bytes.len() as u64, crc: crc32fast::hash(bytes) }
}

fn unpack_limit(len: u64) -> u64 {
    len.saturating_mul(MAX_RATIO).saturating_add(UNPACK_FREE_BYTES)
}

/// Reads a section. The check of the footer has shown that the section lies within the file.
fn read_section(file: &File, path: &Path, name: &'static str, at: u64, section: &Section) -> Result<Vec<u8>> {
    let wrong = |what: &str| StoreError::damaged(path, name, what);
    let len = usize::try_from(section.len).map_err(|_| wrong("it does not fit into memory"))?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).map_err(StoreError::io(path, "read a section"))?;
    if crc32fast::hash(&bytes) != section.crc {
        return Err(wrong("its CRC-32 is wrong"));
    }
    if section.raw_len == section.len {
        return Ok(bytes);
    }
    if section.raw_len > unpack_limit(section.len) {
        return Err(wrong("it claims to unpack to too much"));
    }
    crate::codec::make_room_for_zstd();
    match zstd::bulk::decompress(&bytes, section.raw_len as usize) {
        Ok(raw) if raw.len() as u64 == section.raw_len => Ok(raw),
        _ => Err(wrong("it cannot be unpacked")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_shrink_too_well_are_stored_as_they_are() {
        for (raw, packed) in [
            (vec![0; 100], true),
            (vec![0; 1 << 20], true),
            (vec![0; 3 << 20], false),
            (Vec::new(), false),
            (vec![9], false),
        ] {
            let (bytes, section) = pack_section(&raw);
            assert_eq!(bytes.len() < raw.len(), packed, "{}", raw.len());
            assert_eq!((bytes.len() as u64, raw.len() as u64), (section.len, section.raw_len));
        }
    }

    fn footer(shape: Shape, blobs_len: u64) -> Footer {
        let [head, state, directory] = [Section::default(); 3];
        Footer { number: 1, position: 0, time_ns: 0, shape, blobs_len, head, state, directory }
    }

    #[test]
    fn a_section_unpacks_to_what_it_claims_and_to_no_more_than_its_size_allows() {
        let packed = zstd::bulk::compress(&[7; 5000], 1).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&packed, 0).unwrap();
        let (len, crc) = (packed.len() as u64, crc32fast::hash(&packed));
        let read = |raw_len| {
            let read = read_section(&file, Path::new("x"), "state", 0, &Section { len, raw_len, crc });
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read(5000), Ok(vec![7; 5000]));
        let limit = unpack_limit(len);
        for (raw_len, what) in [
            (4999, "cannot be unpacked"),
            (5001, "cannot be unpacked"),
            (limit, "cannot be unpacked"),
            (limit + 1, "claims to unpack to too much"),
            (u64::MAX, "claims to unpack to too much"),
        ] {
            let error = read(raw_len).unwrap_err();
            assert!(error.contains(what), "{raw_len}: {error}");
        }
    }

    #[test]
    fn a_directory_of_pages_that_the_machine_does_not_have_is_refused() {
        let footer = footer(Shape { ram_pages: 5, disk_blocks: 3 }, 0);
        let runs = |page| crate::list::Runs::of([(page, crate::list::Slot::Zero)].into_iter());
        for (ram, disk, fits) in [(4, 2, true), (5, 2, false), (4, 3, false), (5, 3, false)] {
            let lists = Lists { ram: runs(ram), disk: runs(disk) };
            let list = Directory { list: lists.clone(), ..Directory::default() };
            let back = Directory { back: lists, ..Directory::default() };
            for directory in [list, back] {
                assert_eq!(directory.fault(&footer).is_none(), fits, "RAM page {ram}, disk block {disk}");
            }
        }
    }

    #[test]
    fn a_directory_with_blobs_of_no_length_or_too_long_ones_is_refused() {
        let fault = |lens: [u16; 2]| {
            let blob = |len| BlobEntry { step: NonZeroU64::MIN, base: None, len, digest: [0; 16], crc: 0 };
            let directory = Directory { blobs: lens.map(blob).to_vec(), ..Directory::default() };
            let blobs_len = lens.map(u64::from).iter().sum();
            directory.fault(&footer(Shape { ram_pages: 1, disk_blocks: 0 }, blobs_len))
        };
        const PAGE: u16 = PAGE_BYTES as u16;
        assert_eq!(fault([1, PAGE]), None);
        for wrong in [[1, 0], [1, PAGE + 1]] {
            assert_eq!(fault(wrong), Some("lists a blob of an impossible length"), "{wrong:?}");
        }
    }

    #[test]
    fn a_footer_comes_back() {
        let section = |len, raw_len| Section { len, raw_len, crc: 77 };
        let footer = Footer {
            number: 3,
            position: 1 << 40,
            time_ns: 12,
            shape: Shape { ram_pages: 5, disk_blocks: 6 },
            blobs_len: 0,
            head: section(0, 0),
            state: section(0, 0),
            directory: section(0, 0),
        };
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&MAGIC, 0).unwrap();
        file.write_all_at(&footer.to_bytes(), 8).unwrap();
        let len = 8 + FOOTER_BYTES;
        assert_eq!(Footer::read(&file, Path::new("x"), len).unwrap(), footer);
        for (at, what) in [(7, "the file is too short"), (len - 1, "does not end"), (0, "too short")] {
            let error = Footer::read(&file, Path::new("x"), at).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        for at in 0..len {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            assert!(Footer::read(&file, Path::new("x"), len).is_err(), "byte {at}");
            file.write_all_at(&byte, at).unwrap();
        }
    }
}
