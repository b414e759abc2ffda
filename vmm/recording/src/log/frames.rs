//! Frames: a record's bytes with their length and two checksums, each of which begins with that of the frame before, so that a frame
//! is whole only in its place.

/// What a log file begins with.
pub(super) const MAGIC: &[u8; 8] = b"TTVMLOG1";
/// No record is larger: console input comes in small pieces.
pub(super) const MAX_FRAME_BYTES: usize = 1 << 20;
/// Length, checksum of the header, checksum of the payload.
const HEADER_BYTES: usize = 12;
/// No frame is larger.
pub(super) const MOST_FRAME_BYTES: usize = HEADER_BYTES + MAX_FRAME_BYTES;

/// What precedes a payload in its frame, and the checksum that the next frame begins with.
pub(super) fn header_of(chain: u32, payload: &[u8]) -> ([u8; HEADER_BYTES], u32) {
    let header = Header::of(chain, payload);
    (header.to_bytes(chain), header.payload_check)
}

/// What precedes each payload. Both checksums begin with that of the frame before, so that a frame is whole only
/// in its place.
pub(super) struct Header {
    pub length: u32,
    pub payload_check: u32,
}

impl Header {
    fn of(chain: u32, payload: &[u8]) -> Header {
        Header { length: payload.len() as u32, payload_check: chained(chain, &[payload]) }
    }

    /// Bytes of the whole frame.
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

    /// `None` when its own checksum is wrong.
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

/// The next frame's header and payload; `None` where the file was cut off. `window` is what follows in the file, to its end or far enough
/// for any frame; `left` bytes are there to the end of the file, of which the last that is not zero is byte number `arrived`.
pub(super) fn next_frame(
    window: &[u8],
    left: u64,
    arrived: u64,
    chain: u32,
) -> Result<Option<(Header, &[u8])>, String> {
    // A file system that lost power can leave zeroes where data did not arrive any more.
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
    // As above: the header arrived, some of the payload did not.
    if arrived <= frame_bytes && payload.ends_with(&[0]) && left > frame_bytes {
        return Ok(None);
    }
    Err("has a wrong checksum".to_string())
}
