//! Frames: a record's bytes with their length and two checksums. Both checksums start from a checksum of the previous
//! frame, so a frame is valid only in its place.

/// The first bytes of a log file.
pub(super) const MAGIC: &[u8; 8] = b"TTVMLOG1";
/// The largest payload in bytes.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 20;
/// The size in bytes of a header: the payload's length, the payload's checksum and the header's checksum.
const HEADER_BYTES: usize = 12;
/// The size in bytes of the largest frame.
pub(super) const MOST_FRAME_BYTES: usize = HEADER_BYTES + MAX_FRAME_BYTES;

/// A payload's header, and the checksum from which the next frame's checksums start.
pub(super) fn header_of(chain: u32, payload: &[u8]) -> ([u8; HEADER_BYTES], u32) {
    let header = Header::of(chain, payload);
    (header.to_bytes(chain), header.payload_check)
}

/// A frame's header. Both checksums start from a checksum of the previous frame, so a frame is valid only in its place.
pub(super) struct Header {
    pub length: u32,
    pub payload_check: u32,
}

impl Header {
    fn of(chain: u32, payload: &[u8]) -> Header {
        Header { length: payload.len() as u32, payload_check: chained(chain, &[payload]) }
    }

    /// The size in bytes of the whole frame.
    pub fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.length)
    }

    fn to_bytes(&self, chain: u32) -> [u8; HEADER_BYTES] {
        let (length, check) = (self.length.to_le_bytes(), self.payload_check.to_le_bytes());
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&length);
        bytes[4..8].copy_from_slice(&check);
        bytes[8..].copy_from_slice(&chained(chain, &[&length, &check]).to_le_bytes());
        bytes
    }

    /// Parses a header; `None` if its own checksum is wrong.
    fn from_bytes(bytes: &[u8; HEADER_BYTES], chain: u32) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header { length: word(0), payload_check: word(4) };
        (header.to_bytes(chain) == *bytes).then_some(header)
    }
}

fn chained(chain: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&chain.to_le_bytes());
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Returns the next frame's header and payload, or `None` if the file was cut off in or before this frame.
///
/// `window` holds the rest of the file, or enough for any frame. `left` counts the bytes up to the end of the file.
/// `arrived` counts the bytes up to the last byte that is not zero.
pub(super) fn next_frame(
    window: &[u8],
    left: u64,
    arrived: u64,
    chain: u32,
) -> Result<Option<(Header, &[u8])>, String> {
    // After a power loss, a file system can leave zeroes in place of data that was not written.
    let header_bytes = HEADER_BYTES as u64;
    if left < header_bytes || arrived < header_bytes && left > header_bytes {
        return Ok(None);
    }
    let (header, body) = window.split_first_chunk::<HEADER_BYTES>().ok_or("cannot be read")?;
    let header = Header::from_bytes(header, chain).ok_or("has a wrong header or is in the wrong place")?;
    if header.length as usize > MAX_FRAME_BYTES {
        return Err(format!("claims {} bytes", header.length));
    }
    let frame_bytes = header.frame_bytes();
    if left < frame_bytes {
        return Ok(None);
    }
    let payload = body.get(..header.length as usize).ok_or("cannot be read")?;
    if chained(chain, &[payload]) == header.payload_check {
        return Ok(Some((header, payload)));
    }
    // After a power loss, the header may be on the disk while the end of the payload is still zeroes.
    if arrived <= frame_bytes && payload.ends_with(&[0]) && left > frame_bytes {
        return Ok(None);
    }
    Err("has a wrong checksum".to_string())
}
