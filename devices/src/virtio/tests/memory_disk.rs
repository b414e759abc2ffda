//! A disk in memory that can be told to fail.

use crate::virtio::{BlockBackend, BlockError, SECTOR_BYTES};

/// Sector `n` is initially filled with `1 + n % 255`, never with zeroes.
#[derive(Clone)]
pub struct MemoryDisk {
    pub bytes: Vec<u8>,
    pub flushes: u32,
    pub discards: Vec<(u64, u64)>,
    pub read_only: bool,
    /// Any transfer that touches this sector fails.
    pub bad_sector: Option<u64>,
}

impl MemoryDisk {
    pub fn new(sectors: u64) -> MemoryDisk {
        let bytes = (0..sectors).flat_map(|sector| [1 + (sector % 255) as u8; SECTOR_BYTES]).collect();
        MemoryDisk { bytes, flushes: 0, discards: Vec::new(), read_only: false, bad_sector: None }
    }

    fn range(&self, sector: u64, bytes: usize) -> Result<std::ops::Range<usize>, BlockError> {
        assert!(bytes.is_multiple_of(SECTOR_BYTES));
        let sectors = sector..sector + (bytes / SECTOR_BYTES) as u64;
        if self.bad_sector.is_some_and(|bad| sectors.contains(&bad)) {
            return Err(BlockError::Host(std::io::Error::other("bad sector")));
        }
        let start = sector as usize * SECTOR_BYTES;
        Ok(start..start + bytes)
    }
}

impl BlockBackend for MemoryDisk {
    fn capacity_sectors(&self) -> u64 {
        (self.bytes.len() / SECTOR_BYTES) as u64
    }

    fn read(&mut self, sector: u64, to: &mut [u8]) -> Result<(), BlockError> {
        to.copy_from_slice(&self.bytes[self.range(sector, to.len())?]);
        Ok(())
    }

    fn write(&mut self, sector: u64, from: &[u8]) -> Result<(), BlockError> {
        assert!(!self.read_only, "the device must refuse this");
        let range = self.range(sector, from.len())?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        self.flushes += 1;
        Ok(())
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn serial(&self) -> &str {
        "memory-disk-with-a-long-name"
    }

    fn can_discard(&self) -> bool {
        true
    }

    fn discard(&mut self, sector: u64, count: u64) -> Result<(), BlockError> {
        self.discards.push((sector, count));
        let range = self.range(sector, count as usize * SECTOR_BYTES)?;
        self.bytes[range].fill(0);
        Ok(())
    }
}
