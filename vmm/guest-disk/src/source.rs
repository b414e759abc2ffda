//! Where the bytes of a disk come from.

use std::io::{self, ErrorKind};

/// A disk, or a part of a disk.
pub trait ByteSource {
    /// The size in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads bytes from `offset` on until `to` is full.
    ///
    /// # Errors
    ///
    /// If the range ends after the disk's end, or the bytes cannot be read.
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

impl ByteSource for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        check(self, offset, to.len())?;
        to.copy_from_slice(&self[offset as usize..][..to.len()]);
        Ok(())
    }
}

impl<S: ByteSource + ?Sized> ByteSource for Box<S> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, to)
    }
}

/// Part of a disk, such as a partition. Offsets count from the start of the part.
#[derive(Clone, Debug)]
pub struct Part<S> {
    whole: S,
    start_bytes: u64,
    size_bytes: u64,
}

impl<S: ByteSource> Part<S> {
    /// The part of `whole` that begins at `start_bytes`. A part that reaches beyond the end of `whole` is cut there.
    pub fn of(whole: S, start_bytes: u64, size_bytes: u64) -> Part<S> {
        let left = whole.size_bytes().saturating_sub(start_bytes);
        Part { whole, start_bytes, size_bytes: size_bytes.min(left) }
    }
}

impl<S: ByteSource> ByteSource for Part<S> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        check(self, offset, to.len())?;
        self.whole.read_at(self.start_bytes + offset, to)
    }
}

/// Returns an error if a range ends after the source's end.
pub(crate) fn check<S: ByteSource>(source: &S, offset: u64, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= source.size_bytes() => Ok(()),
        _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "the bytes are after the end of the disk")),
    }
}

/// Reads `N` bytes, or returns `None` if they are after the source's end.
pub(crate) fn bytes_at<const N: usize, S: ByteSource>(
    source: &mut S,
    offset: u64,
) -> io::Result<Option<[u8; N]>> {
    if check(source, offset, N).is_err() {
        return Ok(None);
    }
    let mut bytes = [0; N];
    source.read_at(offset, &mut bytes)?;
    Ok(Some(bytes))
}

/// The `N` bytes at `at`. The range must lie in `bytes`.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_where_the_disk_ends_and_reads_nothing_beyond() {
        let whole: Vec<u8> = (0..100).collect();
        let mut part = Part::of(whole.clone(), 10, 20);
        let mut two = [0; 2];
        part.read_at(18, &mut two).unwrap();
        assert_eq!((part.size_bytes(), two), (20, [28, 29]));
        for offset in [19, 20, u64::MAX] {
            assert!(part.read_at(offset, &mut two).is_err(), "{offset}");
        }
        assert_eq!(Part::of(whole.clone(), 90, u64::MAX).size_bytes(), 10);
        assert_eq!(Part::of(whole, 200, 5).size_bytes(), 0);
    }
}
