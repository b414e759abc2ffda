//! Encodes one page as a blob: compressed by itself, or as its difference from another page. A difference of a few
//! words is stored uncompressed.
//!
//! `FORMAT.md` describes the stored form. RFC 8878 and LZ4's block format describe the compressed encodings.

use std::io;

use lz4::block::{CompressionMode, compress_to_buffer};
use lz4_flex::block::{self, CompressTable, compress_into_with_table};
use twox_hash::XxHash3_128;
use zstd::bulk::Decompressor;

use crate::page::{PAGE_BYTES, Page};
use crate::table::Digest;

/// LZ4's mode for a page's first version. This fast mode takes a quarter of the normal mode's time, for a
/// third more bytes. A guest that boots writes ten thousand such pages within a second.
const FIRST_MODE: CompressionMode = CompressionMode::FAST(64);

/// The first byte of a patch. No zstd frame begins with this byte (RFC 8878, section 3.1.1).
const PATCH_TAG: u8 = 0;

/// The first byte before an LZ4 block. No zstd frame begins with this byte either.
const LZ4_TAG: u8 = 1;

/// Size of the output buffer, which LZ4 requires to fit its longest result. A result longer than the page is not used.
const MAX_PACKED_BYTES: usize = 1 + block::get_maximum_output_size(PAGE_BYTES);

/// The largest number of bytes of a patch that is stored without compressing the difference. Most patches are this
/// small, and storing without compression is ten times as fast.
const SMALL_PATCH_BYTES: usize = 256;

/// A compressed difference of at most this many bytes is stored at once. For a longer difference, the codec also
/// compresses the whole page, and compares the sizes.
const SMALL_DELTA_BYTES: usize = 512;

/// The largest number of differing words, of a page's 512, that a delta may have. Beyond this number a delta
/// rarely compresses better than the page.
const MAX_DELTA_WORDS: usize = 320;

/// The digest that identifies a page's contents: XXH3-128, little endian.
pub fn digest(page: &Page) -> Digest {
    XxHash3_128::oneshot(page).to_le_bytes()
}

/// The result of [`Codec::encode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoded {
    Full,
    Delta,
}

/// Decompression state and scratch space, reused between pages.
pub(crate) struct Codec {
    decompressor: Decompressor<'static>,
    full: Buffer,
    delta: Buffer,
    /// The scratch space of `lz4_flex`.
    table: CompressTable,
}

/// A compressed page, which is never longer than the page itself.
struct Buffer {
    bytes: Box<[u8; MAX_PACKED_BYTES]>,
    len: usize,
}

/// The largest size in bytes of zstd's state for unpacking.
const ZSTD_BYTES: usize = 512 << 10;

/// Allocates and frees as much memory as zstd needs for unpacking. zstd panics if the host refuses the memory. Rust's
/// allocator says by a sentence that the host refuses memory.
pub(crate) fn make_room_for_zstd() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(ZSTD_BYTES)));
}

impl Codec {
    /// Makes a codec. Fails only if memory is exhausted.
    pub fn new() -> io::Result<Codec> {
        let buffer = || Buffer { bytes: Box::new([0; MAX_PACKED_BYTES]), len: 0 };
        let (full, delta) = (buffer(), buffer());
        make_room_for_zstd();
        Ok(Codec { decompressor: Decompressor::new()?, full, delta, table: CompressTable::small() })
    }

    /// Encodes `page` in full or as a delta from `base`, and returns the form and the blob's bytes. Without `base`
    /// the form is full. A full form that is up to half longer than the delta is preferred. Later versions can then
    /// be small deltas from this page. A booting guest writes only first versions of pages, which the `lz4` library
    /// packs in a fast mode. `lz4_flex` packs later versions, because its scratch space takes less time to clear.
    pub fn encode(&mut self, page: &Page, base: Option<&Page>) -> (Encoded, &[u8]) {
        let Some(base) = base else {
            self.full.pack_first(page);
            return (Encoded::Full, self.full.packed());
        };
        let Some(difference) = difference(page, base) else {
            self.full.pack(&mut self.table, page);
            return (Encoded::Full, self.full.packed());
        };
        if let Some(len) = write_patch(&difference, &mut self.delta.bytes[..SMALL_PATCH_BYTES]) {
            self.delta.len = len;
            return (Encoded::Delta, self.delta.packed());
        }
        self.delta.pack(&mut self.table, &difference);
        if self.delta.len <= SMALL_DELTA_BYTES {
            return (Encoded::Delta, self.delta.packed());
        }
        self.full.pack(&mut self.table, page);
        if self.full.len <= self.delta.len * 3 / 2 {
            return (Encoded::Full, self.full.packed());
        }
        (Encoded::Delta, self.delta.packed())
    }

    /// Decompresses a blob. Returns false if the blob does not yield a page.
    pub fn unpack(&mut self, blob: &[u8], to: &mut Page) -> bool {
        if let Ok(page) = <&Page>::try_from(blob) {
            *to = *page;
            return true;
        }
        match blob.split_first() {
            Some((&PATCH_TAG, patch)) => read_patch(patch, to),
            Some((&LZ4_TAG, block)) => matches!(block::decompress_into(block, to), Ok(PAGE_BYTES)),
            _ => matches!(self.decompressor.decompress_to_buffer(blob, &mut to[..]), Ok(PAGE_BYTES)),
        }
    }
}

impl Buffer {
    fn pack_first(&mut self, page: &Page) {
        self.bytes[0] = LZ4_TAG;
        // LZ4 fails if the compressed page is not smaller than the page.
        match compress_to_buffer(page, Some(FIRST_MODE), false, &mut self.bytes[1..PAGE_BYTES - 1]) {
            Ok(len) => self.len = 1 + len,
            Err(_) => self.keep(page),
        }
    }

    fn pack(&mut self, table: &mut CompressTable, page: &Page) {
        self.bytes[0] = LZ4_TAG;
        match compress_into_with_table(page, &mut self.bytes[1..], table) {
            Ok(len) if 1 + len < PAGE_BYTES => self.len = 1 + len,
            _ => self.keep(page),
        }
    }

    /// Copies the uncompressed page into this buffer.
    fn keep(&mut self, page: &Page) {
        self.bytes[..PAGE_BYTES].copy_from_slice(page);
        self.len = PAGE_BYTES;
    }

    fn packed(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes the non-zero words of a page. Two bytes precede each group of words: the number of zero words before the
/// group, and the number of words. `None` if there is not enough room.
fn write_patch(page: &Page, to: &mut [u8]) -> Option<usize> {
    to[0] = PATCH_TAG;
    let (mut len, mut group, mut skip) = (1, None, 0_usize);
    for word in page.chunks_exact(8) {
        if word == [0; 8] {
            (group, skip) = (None, skip + 1);
            continue;
        }
        let start = match group {
            Some(start) if to[start + 1] < u8::MAX => start,
            _ => {
                while skip > usize::from(u8::MAX) {
                    to.get_mut(len..len + 2)?.copy_from_slice(&[u8::MAX, 0]);
                    (len, skip) = (len + 2, skip - usize::from(u8::MAX));
                }
                to.get_mut(len..len + 2)?.copy_from_slice(&[skip as u8, 0]);
                len += 2;
                len - 2
            }
        };
        (group, skip) = (Some(start), 0);
        to.get_mut(len..len + 8)?.copy_from_slice(word);
        to[start + 1] += 1;
        len += 8;
    }
    Some(len)
}

/// Decodes a patch into `page`. The patch's tag byte is already removed. Returns false if the patch is not valid.
fn read_patch(mut patch: &[u8], page: &mut Page) -> bool {
    page.fill(0);
    let mut at = 0;
    while let [skip, count, rest @ ..] = patch {
        at += usize::from(*skip) * 8;
        let len = usize::from(*count) * 8;
        let (Some(to), Some(words)) = (page.get_mut(at..at + len), rest.get(..len)) else { return false };
        to.copy_from_slice(words);
        patch = &rest[len..];
        at += len;
    }
    patch.is_empty()
}

/// Replaces `page` by its exclusive-or with `base`. This turns a difference into the page, and a page into the
/// difference.
pub(crate) fn xor(page: &mut Page, base: &Page) {
    for (byte, other) in page.iter_mut().zip(base) {
        *byte ^= other;
    }
}

/// The exclusive-or of the two pages; `None` if too many of their words differ.
fn difference(page: &Page, base: &Page) -> Option<Page> {
    let mut difference = *page;
    xor(&mut difference, base);
    let differing = difference.chunks_exact(8).filter(|word| *word != [0; 8]).count();
    (differing <= MAX_DELTA_WORDS).then_some(difference)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A page that cannot be compressed.
    pub(crate) fn noise(seed: u64) -> Page {
        let mut state = seed;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    }

    fn roundtrip(page: &Page, base: Option<&Page>) -> (Encoded, usize) {
        let mut codec = Codec::new().unwrap();
        let (kind, bytes) = codec.encode(page, base);
        let bytes = bytes.to_vec();
        let mut back = [0xee; PAGE_BYTES];
        assert!(codec.unpack(&bytes, &mut back));
        if kind == Encoded::Delta {
            xor(&mut back, base.unwrap());
        }
        assert!(back == *page);
        (kind, bytes.len())
    }

    #[test]
    fn each_page_takes_its_smaller_form() {
        let (random, mut changed) = (noise(1), noise(1));
        changed[100..120].fill(0);
        assert_eq!(roundtrip(&random, None), (Encoded::Full, PAGE_BYTES));
        assert_eq!(roundtrip(&noise(2), Some(&random)), (Encoded::Full, PAGE_BYTES));
        let (kind, len) = roundtrip(&changed, Some(&random));
        assert!(kind == Encoded::Delta && len < 100, "{len}");
        let (kind, len) = roundtrip(&[7; PAGE_BYTES], None);
        assert!(kind == Encoded::Full && len < 100, "{len}");
        // A third of the page changes. The compressed difference is much smaller than the page, because the page
        // cannot be compressed.
        let mut third = random;
        third[..1360].copy_from_slice(&noise(9)[..1360]);
        assert_eq!(roundtrip(&third, Some(&random)).0, Encoded::Delta);
        // Half of a compressible page is random. The compressed difference is as large as the compressed page.
        let mut half = [7; PAGE_BYTES];
        half[..2000].copy_from_slice(&random[..2000]);
        assert_eq!(roundtrip(&half, Some(&[7; PAGE_BYTES])).0, Encoded::Full);
    }

    /// A blob as long as a page is read as an uncompressed page, so no packed blob may have that length.
    #[test]
    fn a_page_that_hardly_shrinks_comes_back() {
        let mut lens = Vec::new();
        for equal in 0..400 {
            let mut page = noise(1);
            page[..equal].fill(7);
            lens.push(roundtrip(&page, None).1);
            roundtrip(&page, Some(&noise(2)));
        }
        assert!(lens.contains(&PAGE_BYTES) && lens.contains(&(PAGE_BYTES - 1)), "{lens:?}");
    }

    #[test]
    fn patches_come_back() {
        let words: [&[usize]; 7] =
            [&[], &[0], &[511], &[0, 511], &[255, 256, 257], &[3, 4, 6, 300], &[256, 511]];
        for words in words {
            let mut page = [0; PAGE_BYTES];
            words.iter().for_each(|word| page[word * 8 + word % 8] = 9);
            let mut patch = [0xaa; 256];
            let len = write_patch(&page, &mut patch).unwrap();
            let mut back = [0xee; PAGE_BYTES];
            assert!(read_patch(&patch[1..len], &mut back) && back == page, "{words:?}");
            if !words.is_empty() {
                assert!(!read_patch(&patch[1..len - 1], &mut back), "{words:?} cut off");
            }
        }
        let mut long = vec![0; 3 * PAGE_BYTES];
        let len = write_patch(&noise(5), &mut long).unwrap();
        let mut back = [0; PAGE_BYTES];
        assert!(read_patch(&long[1..len], &mut back) && back == noise(5));
        assert_eq!(write_patch(&noise(5), &mut long[..256]), None);
        assert!(!read_patch(&[255, 0, 255, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0], &mut back), "beyond the end");
    }

    /// FORMAT.md: each group of at most 255 words takes two bytes, and so does each run of 255 zero words before it.
    #[test]
    fn a_patch_is_as_long_as_its_format_says() {
        let range = |words: std::ops::Range<usize>| words.collect::<Vec<_>>();
        let cases = [
            (vec![], 1),
            (vec![0], 1 + 2 + 8),
            (vec![3, 4], 1 + 2 + 16),
            (vec![3, 5], 1 + 4 + 16),
            (vec![255], 1 + 2 + 8),
            (vec![256], 1 + 4 + 8),
            (vec![511], 1 + 6 + 8),
            (range(0..255), 1 + 2 + 8 * 255),
            (range(0..256), 1 + 4 + 8 * 256),
        ];
        for (words, expected) in cases {
            let mut page = [0; PAGE_BYTES];
            words.iter().for_each(|word| page[word * 8] = 1);
            assert_eq!(write_patch(&page, &mut [0; PAGE_BYTES]), Some(expected), "{words:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_page_are_refused() {
        let mut codec = Codec::new().unwrap();
        let mut page = [0; PAGE_BYTES];
        let short = zstd::bulk::compress(&[1; 100], 1).unwrap();
        let long = zstd::bulk::compress(&[1; 5000], 1).unwrap();
        let lz4 = |bytes: &[u8]| [vec![LZ4_TAG], block::compress(bytes)].concat();
        let (whole, short_lz4, long_lz4) = (lz4(&[1; PAGE_BYTES]), lz4(&[1; 100]), lz4(&[1; 5000]));
        assert!(codec.unpack(&whole, &mut page));
        for bytes in
            [&[LZ4_TAG][..], &short_lz4, &long_lz4, &whole[..whole.len() - 1], &[LZ4_TAG, 0x10, 9, 200, 0]]
        {
            assert!(!codec.unpack(bytes, &mut page));
        }
        for bytes in [&[][..], &[0, 1], &[9], &short, &long, &long[..8], &noise(3)[..4095]] {
            assert!(!codec.unpack(bytes, &mut page));
        }
    }
}
