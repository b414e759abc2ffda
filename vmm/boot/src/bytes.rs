//! Little-endian reads from untrusted bytes. Reads outside the slice return `None` and never panic.

/// The `N` bytes at offset `at`.
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: u64) -> Option<[u8; N]> {
    slice_at(bytes, at, N as u64)?.try_into().ok()
}

/// The `length` bytes at `at`.
pub(super) fn slice_at(bytes: &[u8], at: u64, length: u64) -> Option<&[u8]> {
    let end = at.checked_add(length)?;
    bytes.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
}

/// The byte at `at`.
pub(super) fn u8_at(bytes: &[u8], at: u64) -> Option<u8> {
    array_at(bytes, at).map(u8::from_le_bytes)
}

/// The 16-bit value at `at`.
pub(super) fn u16_at(bytes: &[u8], at: u64) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

/// The 32-bit value at `at`.
pub(super) fn u32_at(bytes: &[u8], at: u64) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

/// The 64-bit value at `at`.
pub(super) fn u64_at(bytes: &[u8], at: u64) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

/// Whether the bytes at offset `at` equal `magic`.
pub(super) fn has_at(bytes: &[u8], at: u64, magic: &[u8]) -> bool {
    slice_at(bytes, at, magic.len() as u64) == Some(magic)
}

/// Overwrites part of a buffer. The caller guarantees that the buffer is large enough.
pub(super) fn put(buffer: &mut [u8], at: usize, value: &[u8]) {
    buffer[at..at + value.len()].copy_from_slice(value);
}
