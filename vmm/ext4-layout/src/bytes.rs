//! Little-endian fields of a block.

/// The size of a block in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The bytes of a block.
pub(crate) type Bytes = [u8; BLOCK_BYTES];

pub(crate) fn zeros() -> Box<Bytes> {
    Box::new([0; BLOCK_BYTES])
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Sets the bits `bits` of a bitmap.
pub(crate) fn set_bits(bitmap: &mut [u8], bits: std::ops::Range<usize>) {
    for bit in bits {
        bitmap[bit / 8] |= 1 << (bit % 8);
    }
}
