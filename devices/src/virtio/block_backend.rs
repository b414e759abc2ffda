//! The block device's interface to a disk.

use std::any::Any;

/// Bytes in a sector, the unit of all addresses and capacities here.
pub const SECTOR_BYTES: usize = 512;

/// Why a backend failed. The guest sees an I/O error.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The host could not read or write the disk's storage. This breaks determinism: a replay cannot repeat the failure
    /// at the same position.
    #[error("the disk's storage failed")]
    Host(#[source] std::io::Error),
    /// The stored contents are damaged or missing.
    #[error("the disk's storage is damaged: {0}")]
    Damaged(String),
    /// The contents of these sectors cannot be read. The guest gets this error in every run.
    #[error("the disk has an unreadable sector")]
    Unreadable,
    /// The backend does not support the operation.
    #[error("the disk's backend does not support the operation")]
    Unsupported,
}

/// The contents of a disk. Calls are synchronous; sector ranges lie inside the capacity, and buffers have whole
/// sectors. Equal sequences of calls must give equal contents. So a read after a discard must also depend only on the
/// calls.
///
/// `Any` lets the owner recover its own type: [`crate::pci::PciBus::block_backend_mut`].
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

    /// The disk's name in the guest's `/dev/disk/by-id`; only the first 20 bytes are used. Constant.
    fn serial(&self) -> &str;

    /// Whether [`BlockBackend::discard`] works; constant.
    fn can_discard(&self) -> bool {
        false
    }

    /// Discards the contents of `count` sectors.
    fn discard(&mut self, _sector: u64, _count: u64) -> Result<(), BlockError> {
        Err(BlockError::Unsupported)
    }

    /// Makes `count` sectors read as zero; `unmap` allows the backend to free their storage.
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
