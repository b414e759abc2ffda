//! What the block device needs from a disk.

use std::any::Any;

/// Bytes in a sector, the unit of all addresses and capacities here.
pub const SECTOR_BYTES: usize = 512;

/// Why a backend could not do what it was asked. The guest sees an I/O error.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The host could not read or write what stores the disk. It breaks determinism: a replay has no way to
    /// fail in the same place.
    #[error("the disk's storage failed")]
    Host(#[source] std::io::Error),
    /// The stored contents are damaged or missing.
    #[error("the disk's storage is damaged: {0}")]
    Damaged(String),
    /// The backend cannot do this at all.
    #[error("the disk's backend does not support the operation")]
    Unsupported,
}

/// The contents of a disk. Called synchronously, with sector ranges that lie inside the capacity and buffers
/// of whole sectors. Equal sequences of calls must give equal contents: what is read after a discard is a
/// fixed function of the calls as well.
///
/// `Any` lets the owner reach its own type again: [`crate::pci::PciBus::block_backend_mut`].
pub trait BlockBackend: Any + Send {
    /// Size in sectors; constant.
    fn capacity_sectors(&self) -> u64;

    /// Reads whole sectors.
    fn read(&mut self, sector: u64, to: &mut [u8]) -> Result<(), BlockError>;

    /// Writes whole sectors. Never called on a read-only disk.
    fn write(&mut self, sector: u64, from: &[u8]) -> Result<(), BlockError>;

    /// Makes earlier writes durable.
    fn flush(&mut self) -> Result<(), BlockError>;

    /// Whether the guest must not write; constant.
    fn read_only(&self) -> bool {
        false
    }

    /// The disk's name in the guest's `/dev/disk/by-id`; only the first 20 bytes count. Constant.
    fn serial(&self) -> &str;

    /// Whether [`BlockBackend::discard`] works; constant.
    fn can_discard(&self) -> bool {
        false
    }

    /// Gives up the contents of `count` sectors.
    fn discard(&mut self, _sector: u64, _count: u64) -> Result<(), BlockError> {
        Err(BlockError::Unsupported)
    }

    /// Makes `count` sectors read as zero; `unmap` permits to give up their storage.
    fn write_zeroes(&mut self, sector: u64, count: u64, _unmap: bool) -> Result<(), BlockError> {
        const CHUNK_SECTORS: u64 = 128;
        let zeroes = [0; CHUNK_SECTORS as usize * SECTOR_BYTES];
        for done in (0..count).step_by(CHUNK_SECTORS as usize) {
            let sectors = CHUNK_SECTORS.min(count - done) as usize;
            self.write(sector + done, &zeroes[..sectors * SECTOR_BYTES])?;
        }
        Ok(())
    }
}
