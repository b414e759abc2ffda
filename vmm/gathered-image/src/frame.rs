//! The frames of the file.

use crate::source::Contents;
use crate::{BLOCK_BYTES, Block};

/// The largest number of blocks in a frame. Each block has a bit in the masks.
pub(crate) const MOST_BLOCKS: u32 = 64;
/// The size of a frame's header in bytes.
pub(crate) const HEADER_BYTES: usize = 40;
/// The largest size of a payload in bytes: zstd makes data that cannot be compressed a little larger.
const MOST_PAYLOAD_BYTES: u32 = MOST_BLOCKS * BLOCK_BYTES as u32 + (16 << 10);
/// zstd's fastest ordinary level.
const LEVEL: i32 = 1;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the first block.
    pub first: u64,
    /// Bit n is set if block `first + n` has only zeros.
    zero: u64,
    /// Bit n is set if block `first + n` is unreadable.
    unreadable: u64,
    /// Number of blocks.
    pub count: u32,
    /// Size of the payload in bytes.
    pub payload_bytes: u32,
    /// CRC-32 of the payload.
    payload_crc: u32,
}

/// Where a frame has a block's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Zero,
    Unreadable,
    /// The block with this number in the payload.
    Payload(usize),
}

impl Header {
    /// The number of the block after the last block.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Where the frame has a block, which must be in the frame.
    pub fn place(&self, block: u64) -> Place {
        let before = (1_u64 << (block - self.first)) - 1;
        let bit = before + 1;
        if self.zero & bit != 0 {
            Place::Zero
        } else if self.unreadable & bit != 0 {
            Place::Unreadable
        } else {
            Place::Payload((before & !self.zero & !self.unreadable).count_ones() as usize)
        }
    }

    /// The number of blocks in the payload.
    fn in_payload(&self) -> usize {
        (self.count - self.zero.count_ones() - self.unreadable.count_ones()) as usize
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.zero.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.unreadable.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses a header of an image with this number of blocks. The error says what is wrong.
    pub fn parse(bytes: &[u8; HEADER_BYTES], blocks: u64) -> Result<Header, &'static str> {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if word(36) != crc32fast::hash(&bytes[..36]) {
            return Err("the header of a frame has a wrong checksum");
        }
        let header = Header {
            first: long(0),
            zero: long(8),
            unreadable: long(16),
            count: word(24),
            payload_bytes: word(28),
            payload_crc: word(32),
        };
        let Header { first, zero, unreadable, count, payload_bytes, .. } = header;
        if !(1..=MOST_BLOCKS).contains(&count) {
            return Err("a frame has an impossible number of blocks");
        }
        if first.checked_add(u64::from(count)).is_none_or(|end| end > blocks) {
            return Err("a frame reaches beyond the end of the disk");
        }
        let within = u64::MAX >> (MOST_BLOCKS - count);
        if (zero | unreadable) & !within != 0 || zero & unreadable != 0 {
            return Err("a frame contradicts itself about its blocks");
        }
        if payload_bytes > MOST_PAYLOAD_BYTES || (header.in_payload() == 0) != (payload_bytes == 0) {
            return Err("a frame has an impossible size");
        }
        Ok(header)
    }

    /// The blocks of a payload, one after the other. The error says what is wrong.
    pub fn unpack(&self, payload: &[u8]) -> Result<Vec<u8>, &'static str> {
        if crc32fast::hash(payload) != self.payload_crc {
            return Err("the blocks of a frame have a wrong checksum");
        }
        let size = self.in_payload() * BLOCK_BYTES;
        if size == 0 {
            return Ok(Vec::new());
        }
        let bytes = zstd::bulk::decompress(payload, size).map_err(|_| "the blocks of a frame are damaged")?;
        if bytes.len() == size { Ok(bytes) } else { Err("the blocks of a frame are incomplete") }
    }
}

/// A frame with these blocks: its header, its bytes in the file, and the unpacked payload.
pub(crate) fn pack(first: u64, blocks: &[Contents]) -> std::io::Result<(Header, Vec<u8>, Vec<u8>)> {
    let (mut zero, mut unreadable, mut unpacked) = (0, 0, Vec::new());
    for (n, block) in blocks.iter().enumerate() {
        match block {
            Contents::Bytes(bytes) if **bytes != [0; BLOCK_BYTES] => unpacked.extend_from_slice(&**bytes),
            Contents::Zero | Contents::Bytes(_) => zero |= 1_u64 << n,
            Contents::Unreadable => unreadable |= 1 << n,
        }
    }
    let payload = if unpacked.is_empty() { Vec::new() } else { zstd::bulk::compress(&unpacked, LEVEL)? };
    let header = Header {
        first,
        zero,
        unreadable,
        count: blocks.len() as u32,
        payload_bytes: payload.len() as u32,
        payload_crc: crc32fast::hash(&payload),
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(payload);
    Ok((header, bytes, unpacked))
}

/// Copies the block with this number in an unpacked payload.
pub(crate) fn copy_block(unpacked: &[u8], number: usize, to: &mut Block) {
    to.copy_from_slice(&unpacked[number * BLOCK_BYTES..][..BLOCK_BYTES]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(byte: u8) -> Contents {
        Contents::Bytes(Box::new([byte; BLOCK_BYTES]))
    }

    #[test]
    fn a_frame_has_its_blocks_again() {
        let blocks = [bytes(1), Contents::Zero, bytes(0), Contents::Unreadable, bytes(5)];
        let (header, packed, unpacked) = pack(70, &blocks).unwrap();
        let (head, payload) = packed.split_first_chunk().unwrap();
        assert_eq!(Header::parse(head, 75), Ok(header));
        assert_eq!(header.unpack(payload).unwrap(), unpacked);
        let places: Vec<Place> = (70..header.end()).map(|block| header.place(block)).collect();
        let expected = [Place::Payload(0), Place::Zero, Place::Zero, Place::Unreadable, Place::Payload(1)];
        assert_eq!(places, expected);
        let mut block = [0; BLOCK_BYTES];
        copy_block(&unpacked, 1, &mut block);
        assert_eq!(block, [5; BLOCK_BYTES]);
    }

    #[test]
    fn a_full_frame_uses_every_bit() {
        let mut blocks = vec![Contents::Zero; 63];
        blocks.push(bytes(9));
        let (header, packed, _) = pack(0, &blocks).unwrap();
        assert_eq!(Header::parse(packed.first_chunk().unwrap(), 64), Ok(header));
        assert_eq!((header.place(62), header.place(63)), (Place::Zero, Place::Payload(0)));
    }

    #[test]
    fn impossible_headers_are_refused() {
        let (good, ..) = pack(10, &[bytes(1), Contents::Zero]).unwrap();
        let parse = |header: Header| Header::parse(&header.to_bytes(), 12);
        assert_eq!(parse(good), Ok(good));
        let cases = [
            (Header { count: 0, ..good }, "number of blocks"),
            (Header { count: 65, ..good }, "number of blocks"),
            (Header { first: 11, ..good }, "beyond the end"),
            (Header { first: u64::MAX, ..good }, "beyond the end"),
            (Header { zero: 4, ..good }, "contradicts itself"),
            (Header { unreadable: 4, ..good }, "contradicts itself"),
            (Header { unreadable: 2, ..good }, "contradicts itself"),
            (Header { payload_bytes: u32::MAX, ..good }, "impossible size"),
            (Header { payload_bytes: 0, ..good }, "impossible size"),
            (Header { unreadable: 1, ..good }, "impossible size"),
        ];
        for (header, why) in cases {
            let told = parse(header).unwrap_err();
            assert!(told.contains(why), "{header:?}: {told}");
        }
        let mut bytes = good.to_bytes();
        bytes[3] ^= 1;
        assert!(Header::parse(&bytes, 12).unwrap_err().contains("checksum"));
    }

    #[test]
    fn damaged_payloads_are_refused() {
        let (header, packed, _) = pack(0, &[bytes(1)]).unwrap();
        let payload = &packed[HEADER_BYTES..];
        assert!(header.unpack(&payload[1..]).unwrap_err().contains("checksum"));
        let lying = |bytes: &[u8]| Header { payload_crc: crc32fast::hash(bytes), ..header }.unpack(bytes);
        assert!(lying(b"no zstd").unwrap_err().contains("damaged"));
        let short = zstd::bulk::compress(&[1; 100], LEVEL).unwrap();
        assert!(lying(&short).unwrap_err().contains("incomplete"));
        let long = zstd::bulk::compress(&[1; 2 * BLOCK_BYTES], LEVEL).unwrap();
        assert!(lying(&long).unwrap_err().contains("damaged"));
    }
}
