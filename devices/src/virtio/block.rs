//! Virtio block device: one request queue over a [`BlockBackend`].
//!
//! The device completes each request inside the notification. A request that breaks the protocol but has a status byte
//! gets an error status. A request without a status byte is a broken ring.
//!
//! VIRTIO 1.2, section 5.2.

use virtio_bindings::virtio_blk;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use vm_memory::GuestMemory;

use super::block_backend::{BlockBackend, BlockError, SECTOR_BYTES};
use super::chain::{Chain, Cursor, RingError};
use super::device_model::{DeviceModel, Kind, wrong_kind};
use super::feature::feature;
use super::queue::{Served, VirtQueue};
use super::state::DeviceStateV1;
use crate::pci::error::StateError;

const QUEUE_SIZE: u16 = 256;
const KIND: Kind = Kind {
    virtio_type: VIRTIO_ID_BLOCK as u16,
    pci_class: 0x01_80_00,
    queue_sizes: &[QUEUE_SIZE],
    config_bytes: 60,
};

const F_SIZE_MAX: u64 = feature(virtio_blk::VIRTIO_BLK_F_SIZE_MAX);
const F_SEG_MAX: u64 = feature(virtio_blk::VIRTIO_BLK_F_SEG_MAX);
const F_RO: u64 = feature(virtio_blk::VIRTIO_BLK_F_RO);
const F_BLK_SIZE: u64 = feature(virtio_blk::VIRTIO_BLK_F_BLK_SIZE);
const F_FLUSH: u64 = feature(virtio_blk::VIRTIO_BLK_F_FLUSH);
const F_DISCARD: u64 = feature(virtio_blk::VIRTIO_BLK_F_DISCARD);
const F_WRITE_ZEROES: u64 = feature(virtio_blk::VIRTIO_BLK_F_WRITE_ZEROES);

/// The largest number of bytes in a data segment. Together with [`SEG_MAX`], this number bounds the size of a
/// request.
const SIZE_MAX: u32 = 64 << 10;
/// The largest number of data segments in a request: a direct chain also needs header and status.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// The largest number of data bytes in a request.
const MAX_REQUEST_BYTES: u64 = SIZE_MAX as u64 * SEG_MAX as u64;
/// The largest number of sectors in one discard or write-zeroes range.
const MAX_RANGE_SECTORS: u32 = 16 << 11;
const MAX_DISCARD_RANGES: u32 = 8;
const MAX_ZERO_RANGES: u32 = 1;

const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;
const SERIAL_BYTES: usize = virtio_blk::VIRTIO_BLK_ID_BYTES as usize;
const CHUNK_BYTES: usize = 64 << 10;

const T_IN: u32 = virtio_blk::VIRTIO_BLK_T_IN;
const T_OUT: u32 = virtio_blk::VIRTIO_BLK_T_OUT;
const T_FLUSH: u32 = virtio_blk::VIRTIO_BLK_T_FLUSH;
const T_GET_ID: u32 = virtio_blk::VIRTIO_BLK_T_GET_ID;
const T_DISCARD: u32 = virtio_blk::VIRTIO_BLK_T_DISCARD;
const T_WRITE_ZEROES: u32 = virtio_blk::VIRTIO_BLK_T_WRITE_ZEROES;

const S_OK: u8 = virtio_blk::VIRTIO_BLK_S_OK as u8;
const S_IOERR: u8 = virtio_blk::VIRTIO_BLK_S_IOERR as u8;
const S_UNSUPP: u8 = virtio_blk::VIRTIO_BLK_S_UNSUPP as u8;

const RANGE_UNMAP: u32 = virtio_blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;

/// Why a request fails.
enum Failure {
    /// The chain cannot be used at all.
    Ring(RingError),
    /// The driver's request is invalid, for this reason.
    Invalid(&'static str),
    /// The device does not support the request.
    Unsupported,
    Backend(BlockError),
}

impl From<RingError> for Failure {
    fn from(error: RingError) -> Failure {
        Failure::Ring(error)
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        Failure::Backend(error)
    }
}

/// The device.
pub struct Block {
    backend: Box<dyn BlockBackend>,
    /// Bounce buffer for the data of one request. The contents are not used after the request.
    buffer: Box<[u8]>,
}

/// A discard or write-zeroes range.
struct Range {
    sector: u64,
    sectors: u32,
    flags: u32,
}

impl Block {
    /// Makes a disk with the contents of `backend`.
    pub fn new(backend: impl BlockBackend) -> Block {
        Block { backend: Box::new(backend), buffer: vec![0; CHUNK_BYTES].into_boxed_slice() }
    }

    /// The backend, if it is a `B`.
    pub fn backend_mut<B: BlockBackend>(&mut self) -> Option<&mut B> {
        let backend: &mut dyn std::any::Any = &mut *self.backend;
        backend.downcast_mut()
    }

    fn request<M: GuestMemory>(&mut self, mem: &M, chain: &Chain) -> Result<Served, RingError> {
        let mut input = chain.writable(mem);
        let status_byte = input.split_last_byte()?;
        let room = input.remaining();
        let result = self.execute(&mut chain.readable(mem), &mut input);
        let status = match result {
            Ok(()) => S_OK,
            Err(failure) => failure.status()?,
        };
        status_byte.set(status)?;
        // The used length promises that all bytes before it were written. So the used length includes the status
        // byte only if all data before the status byte was written.
        let written = room - input.remaining();
        Ok(Served::Used(written as u32 + u32::from(written == room)))
    }

    fn execute<M: GuestMemory>(
        &mut self,
        output: &mut Cursor<'_, M>,
        input: &mut Cursor<'_, M>,
    ) -> Result<(), Failure> {
        if output.remaining() < HEADER_BYTES {
            return Err(Failure::Invalid("the header is short"));
        }
        let mut header = [0; HEADER_BYTES as usize];
        output.read(&mut header)?;
        let sector = u64_at(&header, 8);
        match u32_at(&header, 0) {
            T_IN => self.read(sector, input),
            T_OUT => self.write(sector, output),
            T_FLUSH => Ok(self.backend.flush()?),
            T_GET_ID => self.get_id(input),
            T_DISCARD if self.backend.can_discard() => self.discard(output),
            T_WRITE_ZEROES => self.write_zeroes(output),
            _ => Err(Failure::Unsupported),
        }
    }

    fn read<M: GuestMemory>(&mut self, mut sector: u64, input: &mut Cursor<'_, M>) -> Result<(), Failure> {
        self.check_transfer(sector, input.remaining())?;
        while input.remaining() > 0 {
            let chunk = &mut self.buffer[..input.remaining().min(CHUNK_BYTES as u64) as usize];
            self.backend.read(sector, chunk)?;
            input.write(chunk)?;
            sector += (chunk.len() / SECTOR_BYTES) as u64;
        }
        Ok(())
    }

    fn write<M: GuestMemory>(&mut self, mut sector: u64, output: &mut Cursor<'_, M>) -> Result<(), Failure> {
        self.check_writable()?;
        self.check_transfer(sector, output.remaining())?;
        while output.remaining() > 0 {
            let chunk = &mut self.buffer[..output.remaining().min(CHUNK_BYTES as u64) as usize];
            output.read(chunk)?;
            self.backend.write(sector, chunk)?;
            sector += (chunk.len() / SECTOR_BYTES) as u64;
        }
        Ok(())
    }

    fn get_id<M: GuestMemory>(&self, input: &mut Cursor<'_, M>) -> Result<(), Failure> {
        let mut id = [0; SERIAL_BYTES];
        for (to, from) in id.iter_mut().zip(self.backend.serial().bytes()) {
            *to = from;
        }
        let length = input.remaining().min(SERIAL_BYTES as u64) as usize;
        Ok(input.write(&id[..length])?)
    }

    fn discard<M: GuestMemory>(&mut self, output: &mut Cursor<'_, M>) -> Result<(), Failure> {
        // Section 5.2.6.2: a discard with the unmap flag or a reserved flag is unsupported.
        for range in self.ranges(output, MAX_DISCARD_RANGES, 0)? {
            self.backend.discard(range.sector, u64::from(range.sectors))?;
        }
        Ok(())
    }

    fn write_zeroes<M: GuestMemory>(&mut self, output: &mut Cursor<'_, M>) -> Result<(), Failure> {
        for range in self.ranges(output, MAX_ZERO_RANGES, RANGE_UNMAP)? {
            let unmap = range.flags & RANGE_UNMAP != 0;
            self.backend.write_zeroes(range.sector, u64::from(range.sectors), unmap)?;
        }
        Ok(())
    }

    /// Reads and checks all ranges before the first is processed.
    fn ranges<M: GuestMemory>(
        &self,
        output: &mut Cursor<'_, M>,
        max_ranges: u32,
        flags: u32,
    ) -> Result<Vec<Range>, Failure> {
        self.check_writable()?;
        let count = output.remaining() / RANGE_BYTES;
        if !output.remaining().is_multiple_of(RANGE_BYTES) || count == 0 || count > u64::from(max_ranges) {
            return Err(Failure::Invalid("the list of ranges has a wrong length"));
        }
        (0..count).map(|_| self.range(output, flags)).collect()
    }

    fn range<M: GuestMemory>(&self, output: &mut Cursor<'_, M>, flags: u32) -> Result<Range, Failure> {
        let mut bytes = [0; RANGE_BYTES as usize];
        output.read(&mut bytes)?;
        let range =
            Range { sector: u64_at(&bytes, 0), sectors: u32_at(&bytes, 8), flags: u32_at(&bytes, 12) };
        if range.flags & !flags != 0 {
            return Err(Failure::Unsupported);
        }
        if range.sectors > MAX_RANGE_SECTORS {
            return Err(Failure::Invalid("a range is too long"));
        }
        self.check_sectors(range.sector, u64::from(range.sectors))?;
        Ok(range)
    }

    fn check_transfer(&self, sector: u64, bytes: u64) -> Result<(), Failure> {
        if !bytes.is_multiple_of(SECTOR_BYTES as u64) || bytes > MAX_REQUEST_BYTES {
            return Err(Failure::Invalid("the data is no whole number of sectors, or too long"));
        }
        self.check_sectors(sector, bytes / SECTOR_BYTES as u64)
    }

    fn check_sectors(&self, sector: u64, count: u64) -> Result<(), Failure> {
        let inside = sector.checked_add(count).is_some_and(|end| end <= self.backend.capacity_sectors());
        if inside { Ok(()) } else { Err(Failure::Invalid("it goes past the end of the disk")) }
    }

    fn check_writable(&self) -> Result<(), Failure> {
        if self.backend.read_only() { Err(Failure::Invalid("the disk is read-only")) } else { Ok(()) }
    }
}

impl Failure {
    /// The status to report, or an error if the chain itself is broken.
    fn status(self) -> Result<u8, RingError> {
        match self {
            Failure::Ring(error) => Err(error),
            Failure::Unsupported => Ok(S_UNSUPP),
            Failure::Invalid(why) => {
                log::debug!("virtio block: refused a request: {why}");
                Ok(S_IOERR)
            }
            Failure::Backend(BlockError::Unreadable) => Ok(S_IOERR),
            Failure::Backend(error) => {
                let source = std::error::Error::source(&error);
                log::error!("virtio block: {error}{}", source.map(|e| format!(": {e}")).unwrap_or_default());
                Ok(S_IOERR)
            }
        }
    }
}

impl DeviceModel for Block {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn features(&self) -> u64 {
        let read_only = self.backend.read_only();
        let mut features = F_SIZE_MAX | F_SEG_MAX | F_BLK_SIZE | F_FLUSH;
        features |= if read_only { F_RO } else { F_WRITE_ZEROES };
        if self.backend.can_discard() && !read_only {
            features |= F_DISCARD;
        }
        features
    }

    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; KIND.config_bytes as usize];
        let mut put =
            |offset: usize, value: &[u8]| config[offset..offset + value.len()].copy_from_slice(value);
        put(0, &self.backend.capacity_sectors().to_le_bytes());
        put(8, &SIZE_MAX.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &(SECTOR_BYTES as u32).to_le_bytes());
        put(34, &1_u16.to_le_bytes()); // num_queues
        put(36, &MAX_RANGE_SECTORS.to_le_bytes()); // max_discard_sectors
        put(40, &MAX_DISCARD_RANGES.to_le_bytes()); // max_discard_seg
        put(44, &1_u32.to_le_bytes()); // discard_sector_alignment
        put(48, &MAX_RANGE_SECTORS.to_le_bytes()); // max_write_zeroes_sectors
        put(52, &MAX_ZERO_RANGES.to_le_bytes()); // max_write_zeroes_seg
        put(56, &[1]); // write_zeroes_may_unmap
        config
    }

    fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        _agreed: u64,
        _index: usize,
        queue: &mut VirtQueue,
    ) -> Result<bool, RingError> {
        queue.serve(mem, |chain| self.request(mem, chain))
    }

    fn state(&self) -> DeviceStateV1 {
        DeviceStateV1::Block {
            capacity_sectors: self.backend.capacity_sectors(),
            read_only: self.backend.read_only(),
        }
    }

    fn check(&self, state: &DeviceStateV1) -> Result<(), StateError> {
        match state {
            DeviceStateV1::Block { .. } if *state == self.state() => Ok(()),
            DeviceStateV1::Block { .. } => {
                Err(StateError::new("the disk has another size or write protection"))
            }
            _ => Err(wrong_kind()),
        }
    }

    fn install(&mut self, _state: &DeviceStateV1) {}
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}
