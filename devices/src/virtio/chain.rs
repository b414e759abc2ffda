//! Descriptor chains, walked and checked before a device sees them, and cursors over their buffers.
//!
//! VIRTIO 1.2, section 2.7.

use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// Longest chain accepted, direct or indirect. Drivers stay below the queue size, except for some that put longer
/// chains into indirect tables.
const MAX_DESCRIPTORS: usize = 1024;

/// A driver's violation of the ring rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    #[error("part of the ring lies outside of RAM")]
    RingOutsideRam,
    #[error("the available index is more than the queue size ahead")]
    AvailableIndex,
    #[error("a chain has no descriptors, does not end or leaves its table")]
    BrokenChain,
    #[error("a chain has more than {MAX_DESCRIPTORS} descriptors")]
    LongChain,
    #[error("a device-readable buffer follows a device-writable one")]
    ReadableAfterWritable,
    #[error("a buffer lies outside of RAM")]
    BufferOutsideRam,
    #[error("a request lacks a buffer that it must have")]
    MissingBuffer,
}

/// A contiguous range of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    address: u64,
    length: u32,
}

/// A well-formed chain: all its buffers lie in RAM, and the readable buffers come first.
#[derive(Default)]
pub(crate) struct Chain {
    /// Index of the first descriptor. The driver identifies the chain by this index.
    pub head: u16,
    spans: Vec<Span>,
    readable: usize,
}

impl Chain {
    /// Walks a chain, and stores its buffers in `self`, whose storage is reused.
    ///
    /// The iterator of `virtio-queue` ends loops and other bad chains early. The last descriptor of a chain that
    /// was ended early says that another descriptor follows.
    pub fn parse<M: GuestMemory>(
        &mut self,
        mem: &M,
        descriptors: DescriptorChain<&M>,
    ) -> Result<(), RingError> {
        *self = Chain { head: descriptors.head_index(), spans: std::mem::take(&mut self.spans), readable: 0 };
        self.spans.clear();
        let mut complete = false;
        for (i, descriptor) in descriptors.enumerate() {
            if i == MAX_DESCRIPTORS {
                return Err(RingError::LongChain);
            }
            complete = !descriptor.has_next();
            let span = Span { address: descriptor.addr().0, length: descriptor.len() };
            self.push(mem, span, descriptor.is_write_only())?;
        }
        if complete { Ok(()) } else { Err(RingError::BrokenChain) }
    }

    fn push<M: GuestMemory>(&mut self, mem: &M, span: Span, writable: bool) -> Result<(), RingError> {
        if !writable && self.readable < self.spans.len() {
            return Err(RingError::ReadableAfterWritable);
        }
        if span.length == 0 {
            return Ok(());
        }
        let access = if writable { Permissions::Write } else { Permissions::Read };
        if !mem.check_range(GuestAddress(span.address), span.length as usize, access) {
            return Err(RingError::BufferOutsideRam);
        }
        self.spans.push(span);
        self.readable += usize::from(!writable);
        Ok(())
    }

    /// The bytes the device may read.
    pub fn readable<'a, M: GuestMemory>(&'a self, mem: &'a M) -> Cursor<'a, M> {
        Cursor::new(mem, &self.spans[..self.readable])
    }

    /// The bytes the device may write.
    pub fn writable<'a, M: GuestMemory>(&'a self, mem: &'a M) -> Cursor<'a, M> {
        Cursor::new(mem, &self.spans[self.readable..])
    }
}

/// A position in a list of buffers. The position moves forward as bytes are copied.
pub(crate) struct Cursor<'a, M> {
    mem: &'a M,
    spans: &'a [Span],
    /// Bytes of the first span that are already used.
    offset: u32,
    remaining: u64,
}

impl<'a, M: GuestMemory> Cursor<'a, M> {
    fn new(mem: &'a M, spans: &'a [Span]) -> Cursor<'a, M> {
        let remaining = spans.iter().map(|span| u64::from(span.length)).sum();
        Cursor { mem, spans, offset: 0, remaining }
    }

    /// Bytes left.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Removes the last byte and returns a cursor over that byte.
    pub fn split_last_byte(&mut self) -> Result<LastByte<'a, M>, RingError> {
        let last = self.spans.last().ok_or(RingError::MissingBuffer)?;
        self.remaining = self.remaining.checked_sub(1).ok_or(RingError::MissingBuffer)?;
        // The span was checked to lie in RAM and is not empty.
        Ok(LastByte { mem: self.mem, address: last.address + u64::from(last.length) - 1 })
    }

    /// Copies the next bytes out of guest memory. The caller checks that enough bytes are left.
    pub fn read(&mut self, to: &mut [u8]) -> Result<(), RingError> {
        let mut done = 0;
        while done < to.len() {
            let (address, length) = self.next_piece(to.len() - done)?;
            let piece = &mut to[done..done + length];
            self.mem.read_slice(piece, address).map_err(|_| RingError::BufferOutsideRam)?;
            done += length;
        }
        Ok(())
    }

    /// Copies bytes into guest memory. The caller checks that there is room.
    pub fn write(&mut self, from: &[u8]) -> Result<(), RingError> {
        let mut done = 0;
        while done < from.len() {
            let (address, length) = self.next_piece(from.len() - done)?;
            let piece = &from[done..done + length];
            self.mem.write_slice(piece, address).map_err(|_| RingError::BufferOutsideRam)?;
            done += length;
        }
        Ok(())
    }

    /// The next contiguous piece of at most `wanted` (not zero) bytes.
    fn next_piece(&mut self, wanted: usize) -> Result<(GuestAddress, usize), RingError> {
        let (span, rest) = self.spans.split_first().ok_or(RingError::MissingBuffer)?;
        let left_in_span = u64::from(span.length - self.offset);
        let length = left_in_span.min(wanted as u64).min(self.remaining);
        if length == 0 {
            return Err(RingError::MissingBuffer);
        }
        let address = GuestAddress(span.address + u64::from(self.offset));
        self.offset += length as u32;
        self.remaining -= length;
        if self.offset == span.length {
            (self.spans, self.offset) = (rest, 0);
        }
        Ok((address, length as usize))
    }
}

/// The last writable byte of a chain, the status of a block request.
pub(crate) struct LastByte<'a, M> {
    mem: &'a M,
    address: u64,
}

impl<M: GuestMemory> LastByte<'_, M> {
    /// Writes the chain's last byte into guest memory.
    pub fn set(&self, value: u8) -> Result<(), RingError> {
        self.mem.write_slice(&[value], GuestAddress(self.address)).map_err(|_| RingError::BufferOutsideRam)
    }
}
