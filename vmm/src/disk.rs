//! The guest's disk: an immutable base image under the guest's own writes, which are kept apart.
//!
//! Replay executes the writes again, so they are stored nowhere but in memory here. Versions share their
//! blocks, so that a snapshot costs one pointer per written block.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use devices::virtio::{BlockBackend, BlockError, SECTOR_BYTES};

use crate::error::Error;

/// Unit in which written contents are kept apart.
const BLOCK_BYTES: u64 = 4096;

/// Blocks that differ from the base image, by block number. Cloning shares the contents.
pub type DiskVersion = BTreeMap<u64, Arc<[u8]>>;

/// A disk whose base image is never written.
pub struct OverlayDisk {
    base: File,
    path: PathBuf,
    size_bytes: u64,
    written: DiskVersion,
    failure: Option<(u64, std::io::Error)>,
}

impl OverlayDisk {
    /// Opens a raw image.
    pub fn open(path: &Path) -> Result<OverlayDisk, Error> {
        let base = File::open(path).map_err(Error::file("open", path))?;
        let size_bytes = base.metadata().map_err(Error::file("look at", path))?.len();
        if size_bytes < SECTOR_BYTES as u64 {
            let source = std::io::Error::other("it is smaller than one sector; give a raw disk image");
            return Err(Error::File { action: "use", path: path.to_path_buf(), source });
        }
        Ok(OverlayDisk {
            base,
            path: path.to_path_buf(),
            size_bytes,
            written: BTreeMap::new(),
            failure: None,
        })
    }

    /// The guest's writes so far.
    pub fn version(&self) -> DiskVersion {
        self.written.clone()
    }

    /// Goes back to an earlier version.
    pub fn set_version(&mut self, version: &DiskVersion) {
        self.written.clone_from(version);
    }

    /// Hash of the guest's writes.
    pub fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (number, block) in &self.written {
            hasher.update(&number.to_le_bytes());
            hasher.update(block);
        }
        *hasher.finalize().as_bytes()
    }

    /// The first failure of the base image since the last call.
    pub fn take_failure(&mut self) -> Option<Error> {
        let (offset, source) = self.failure.take()?;
        Some(Error::Disk { path: self.path.clone(), offset, source })
    }

    fn base_block(&mut self, number: u64) -> Result<Vec<u8>, BlockError> {
        let mut block = vec![0; BLOCK_BYTES as usize];
        let offset = number * BLOCK_BYTES;
        let length = BLOCK_BYTES.min(self.size_bytes - offset) as usize;
        self.read_base(offset, &mut block[..length])?;
        Ok(block)
    }

    fn read_base(&mut self, offset: u64, to: &mut [u8]) -> Result<(), BlockError> {
        self.base.read_exact_at(to, offset).map_err(|source| {
            let told = std::io::Error::new(source.kind(), source.to_string());
            self.failure.get_or_insert((offset, source));
            BlockError::Host(told)
        })
    }

    /// Calls `each` for every part of a byte range that lies in one block: number, offset in the block, range
    /// of the buffer.
    fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= length {
                return None;
            }
            let at = offset + done as u64;
            let in_block = (at % BLOCK_BYTES) as usize;
            let count = (length - done).min(BLOCK_BYTES as usize - in_block);
            let part = (at / BLOCK_BYTES, in_block, done..done + count);
            done += count;
            Some(part)
        })
    }
}

impl BlockBackend for OverlayDisk {
    fn capacity_sectors(&self) -> u64 {
        self.size_bytes / SECTOR_BYTES as u64
    }

    fn read(&mut self, sector: u64, to: &mut [u8]) -> Result<(), BlockError> {
        let offset = sector * SECTOR_BYTES as u64;
        if self.written.is_empty() {
            return self.read_base(offset, to);
        }
        for (number, in_block, range) in Self::parts(offset, to.len()) {
            let part = &mut to[range];
            match self.written.get(&number) {
                Some(block) => part.copy_from_slice(&block[in_block..in_block + part.len()]),
                None => self.read_base(number * BLOCK_BYTES + in_block as u64, part)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, from: &[u8]) -> Result<(), BlockError> {
        for (number, in_block, range) in Self::parts(sector * SECTOR_BYTES as u64, from.len()) {
            let part = &from[range];
            let mut block = match self.written.get(&number) {
                _ if part.len() == BLOCK_BYTES as usize => Vec::new(),
                Some(block) => block.to_vec(),
                None => self.base_block(number)?,
            };
            if block.is_empty() {
                block.extend_from_slice(part);
            } else {
                block[in_block..in_block + part.len()].copy_from_slice(part);
            }
            self.written.insert(number, block.into());
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        Ok(())
    }

    fn serial(&self) -> &str {
        "ttvm-disk"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn disk() -> (tempfile::NamedTempFile, OverlayDisk) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&(0..20 * 512).map(|n| (n / 512) as u8).collect::<Vec<_>>()).unwrap();
        let disk = OverlayDisk::open(file.path()).unwrap();
        (file, disk)
    }

    #[test]
    fn writes_show_and_the_base_stays() {
        let (file, mut disk) = disk();
        disk.write(7, &[0xaa; 1024]).unwrap();
        let mut bytes = [0; 4 * 512];
        disk.read(6, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[512], bytes[1024], bytes[1536]), (6, 0xaa, 0xaa, 9));
        assert_eq!(std::fs::read(file.path()).unwrap()[7 * 512], 7);
    }

    #[test]
    fn an_old_version_comes_back_whole() {
        let (_file, mut disk) = disk();
        disk.write(0, &[1; 512]).unwrap();
        let (version, hash) = (disk.version(), disk.hash());
        disk.write(0, &[2; 512]).unwrap();
        disk.write(19, &[3; 512]).unwrap();
        assert_ne!(disk.hash(), hash);
        disk.set_version(&version);
        assert_eq!(disk.hash(), hash);
        let mut bytes = [0; 512];
        disk.read(19, &mut bytes).unwrap();
        assert_eq!(bytes, [19; 512]);
    }
}
