//! The guest's disk: an immutable base image, and the blocks that the guest wrote, which are stored apart from the
//! image. The base is a raw image, or an image that is gathered while the guest reads it.
//!
//! A recorder moves the written blocks into its checkpoints. In a replay, the guest makes the same writes again. The
//! replay keeps the written blocks in memory, or refers to the recorder's copies of the same blocks. Versions of the
//! disk share their blocks.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{Digest, PAGE_BYTES, Page, PageMap, PageRef, Store, digest};
use devices::virtio::{BlockBackend, BlockError, SECTOR_BYTES};
use gathered_image::{Image, Read};

use crate::error::Error;
use crate::image_file::ImageFile;

/// Size in bytes of a block, the unit in which writes are stored.
const BLOCK_BYTES: u64 = PAGE_BYTES as u64;

/// A disk whose base image is never written.
pub struct OverlayDisk {
    base: Base,
    path: PathBuf,
    size_bytes: u64,
    /// The blocks that an earlier run wrote before this run started. If the machine started at power-on, there are
    /// no such blocks.
    start: PageMap,
    /// The location of each block's contents. [`PageRef::Base`] means that this run has not written the block. The
    /// contents are then in `start`, or else in the base image.
    blocks: PageMap,
    /// Blocks written since [`OverlayDisk::take_written`] was last called.
    written: BTreeSet<u64>,
    /// The blocks that the guest read before this run had written them. `None` unless [`OverlayDisk::note_read`] was
    /// called.
    read: Option<BTreeSet<u64>>,
    /// The store with a recording's checkpoints, from which blocks are read.
    store: Option<Arc<Store>>,
    failure: Option<(u64, std::io::Error)>,
}

/// The base image.
enum Base {
    /// A raw image.
    Raw(File),
    /// An image that is gathered block by block.
    Gathered(Image),
}

impl OverlayDisk {
    /// Opens an image.
    pub fn of(image: &ImageFile) -> Result<OverlayDisk, Error> {
        if image.is_gathered() {
            return Ok(OverlayDisk::gathered(image.open_gathered()?, &image.path));
        }
        OverlayDisk::open(&image.path)
    }

    /// Opens a raw image.
    pub fn open(path: &Path) -> Result<OverlayDisk, Error> {
        let base = plain_file::open(path).map_err(Error::file("open", path))?;
        let size_bytes = base.metadata().map_err(Error::file("look at", path))?.len();
        if size_bytes < SECTOR_BYTES as u64 {
            let source = std::io::Error::other("it is smaller than one sector; give a raw disk image");
            return Err(Error::File { action: "use", path: path.to_path_buf(), source });
        }
        Ok(OverlayDisk::over(Base::Raw(base), path, size_bytes))
    }

    /// A disk over an image that is gathered. `path` is the path of the image's file, for messages.
    pub fn gathered(image: Image, path: &Path) -> OverlayDisk {
        let size_bytes = image.blocks() * BLOCK_BYTES;
        OverlayDisk::over(Base::Gathered(image), path, size_bytes)
    }

    fn over(base: Base, path: &Path, size_bytes: u64) -> OverlayDisk {
        let blocks = PageMap::new(size_bytes.div_ceil(BLOCK_BYTES));
        OverlayDisk {
            base,
            path: path.to_path_buf(),
            size_bytes,
            start: blocks.clone(),
            blocks,
            written: BTreeSet::new(),
            read: None,
            store: None,
            failure: None,
        }
    }

    /// Number of blocks.
    pub fn block_count(&self) -> u64 {
        self.blocks.len()
    }

    /// Another disk with the present contents of this disk. Later writes to this disk do not change the other disk.
    pub fn copy(&self) -> Result<OverlayDisk, Error> {
        Ok(OverlayDisk {
            base: match &self.base {
                Base::Raw(file) => Base::Raw(file.try_clone().map_err(Error::file("open", &self.path))?),
                Base::Gathered(image) => Base::Gathered(image.clone()),
            },
            path: self.path.clone(),
            size_bytes: self.size_bytes,
            start: self.start.clone(),
            blocks: self.blocks.clone(),
            written: BTreeSet::new(),
            read: None,
            store: self.store.clone(),
            failure: None,
        })
    }

    /// The size in bytes of the disk that the guest sees: whole sectors.
    pub fn size_bytes(&self) -> u64 {
        self.capacity_sectors() * SECTOR_BYTES as u64
    }

    /// Reads the bytes from `offset` on, which must be in the disk. For callers other than the guest: a failure is only
    /// returned, so that [`OverlayDisk::take_failure`] does not return it later.
    pub fn read_bytes(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let mut block = [0; PAGE_BYTES];
        for (number, in_block, range) in Self::parts(offset, to.len()) {
            let part = &mut to[range];
            self.read_whole_block(number, &mut block)?;
            part.copy_from_slice(&block[in_block..in_block + part.len()]);
        }
        Ok(())
    }

    /// Sets the blocks that an earlier run had written. The blocks are in memory, and are read in place of the base
    /// image's blocks.
    pub fn set_start(&mut self, start: PageMap) {
        self.start = start;
    }

    /// Starts noting the blocks that the guest reads before this run has written them.
    pub fn note_read(&mut self) {
        self.read.get_or_insert_default();
    }

    /// The blocks noted since [`OverlayDisk::note_read`].
    pub fn take_read(&mut self) -> BTreeSet<u64> {
        self.read.take().unwrap_or_default()
    }

    /// Notes that the guest reads a part of block `number`.
    fn is_read(&mut self, number: u64) {
        if let Some(read) = &mut self.read
            && matches!(self.blocks.get(number), PageRef::Base)
        {
            read.insert(number);
        }
    }

    /// The blocks that this or an earlier run has written over the image, in ascending order.
    pub fn blocks_over_image(&self) -> Vec<u64> {
        self.blocks.over(&self.start).iter_not_base().map(|(block, _)| block).collect()
    }

    /// Attaches the store from which stored blocks are read.
    pub fn attach_store(&mut self, store: Arc<Store>) {
        self.store = Some(store);
    }

    /// Detaches the store. The caller must ensure that no block refers to the store.
    pub fn detach_store(&mut self) {
        self.store = None;
    }

    /// The disk's present contents: the location of each block's contents.
    pub fn version(&self) -> PageMap {
        self.blocks.clone()
    }

    /// Replaces the disk's contents by `version`, which [`OverlayDisk::version`] returned earlier.
    pub fn set_version(&mut self, version: &PageMap) {
        self.blocks.clone_from(version);
        self.written.clear();
    }

    /// Number of blocks written since the last [`OverlayDisk::take_written`].
    pub fn written_count(&self) -> usize {
        self.written.len()
    }

    /// The blocks written since the last call, in ascending order.
    pub fn take_written(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.written)
    }

    /// Makes the next [`OverlayDisk::take_written`] return a block again.
    pub fn write_again(&mut self, block: u64) {
        self.written.insert(block);
    }

    /// Replaces a block in memory by its stored copy, if the two are still equal. Since the copy was made, the guest
    /// may have written the block, and a later checkpoint may have stored the block again.
    pub fn adopt(&mut self, block: u64, stored: PageRef) {
        let PageRef::Held(held) = self.blocks.get(block) else { return };
        let is_equal = match (&stored, &self.store) {
            (PageRef::Zero, _) => **held == [0; PAGE_BYTES],
            (PageRef::Stored(blob), Some(store)) => store.digest_of(*blob) == Some(digest(held)),
            _ => false,
        };
        if is_equal {
            self.blocks.set(block, stored);
        }
    }

    /// Replaces each written block by the stored block of `version`, if the two are equal.
    /// [`OverlayDisk::take_written`] then no longer returns the replaced block. Reads the stored blocks, so that a
    /// damaged block is not used.
    pub fn adopt_written(&mut self, version: &PageMap) -> Result<(), Error> {
        let Some(store) = self.store.clone() else { return Ok(()) };
        let (mut equal, mut stored) = (Vec::new(), Vec::new());
        for &block in &self.written {
            match (self.blocks.get(block), version.get(block)) {
                (PageRef::Held(held), PageRef::Zero) if **held == [0; PAGE_BYTES] => equal.push(block),
                (PageRef::Held(_), PageRef::Stored(blob)) => stored.push((block, *blob)),
                _ => {}
            }
        }
        store.read_many(&stored, |block, contents| {
            if matches!(self.blocks.get(block), PageRef::Held(held) if **held == *contents) {
                equal.push(block);
            }
        })?;
        for block in equal {
            self.blocks.set(block, version.get(block).clone());
            self.written.remove(&block);
        }
        Ok(())
    }

    /// Hash of the guest's writes: BLAKE3 of the number (64 bits, little endian) and the [`digest`] of each
    /// written block, in ascending order. Reads all written blocks.
    pub fn hash(&mut self) -> [u8; 32] {
        self.hash_of(Self::digest_of)
    }

    /// Returns the same hash as [`OverlayDisk::hash`], but takes the digests of stored blocks from the store
    /// instead of reading the blocks.
    pub fn known_hash(&mut self) -> [u8; 32] {
        self.hash_of(|disk, number| {
            let known = match (disk.blocks.get(number), &disk.store) {
                (PageRef::Stored(blob), Some(store)) => store.digest_of(*blob),
                _ => None,
            };
            known.unwrap_or_else(|| disk.digest_of(number))
        })
    }

    fn hash_of(&mut self, digest_of: impl Fn(&mut Self, u64) -> Digest) -> [u8; 32] {
        let written: Vec<u64> = self.blocks.iter_not_base().map(|(number, _)| number).collect();
        let mut digests = Vec::with_capacity(written.len() * size_of::<(u64, Digest)>());
        for number in written {
            digests.extend(number.to_le_bytes());
            digests.extend(digest_of(self, number));
        }
        *blake3::hash(&digests).as_bytes()
    }

    fn digest_of(&mut self, number: u64) -> Digest {
        let mut contents = [0; PAGE_BYTES];
        // `read_block` stores a failure, which then stops the run.
        self.read_block(number, &mut contents).map_or(Digest::default(), |()| digest(&contents))
    }

    /// The first failure of the base image or the store since the last call.
    pub fn take_failure(&mut self) -> Option<Error> {
        let (offset, source) = self.failure.take()?;
        Some(Error::Disk { path: self.path.clone(), offset, source })
    }

    /// The contents of one block. The last block may reach beyond the end of the disk.
    pub fn read_block(&mut self, number: u64, to: &mut Page) -> Result<(), BlockError> {
        match self.version_of(number) {
            PageRef::Zero => to.fill(0),
            PageRef::Held(block) => to.copy_from_slice(&block[..]),
            PageRef::Stored(blob) => {
                let blob = *blob;
                let read = match &self.store {
                    Some(store) => store.read(blob, to).map_err(std::io::Error::other),
                    None => Err(std::io::Error::other("the block lies in no store that is open")),
                };
                read.map_err(|source| self.failed(number * BLOCK_BYTES, source))?;
            }
            PageRef::Base => {
                let offset = number * BLOCK_BYTES;
                let length = BLOCK_BYTES.min(self.size_bytes - offset) as usize;
                to[length..].fill(0);
                self.read_base(offset, &mut to[..length])?;
            }
        }
        Ok(())
    }

    /// Does the same as [`OverlayDisk::read_block`], for callers other than the guest. Returns a failure, so that
    /// [`OverlayDisk::take_failure`] does not return it later.
    pub fn read_whole_block(&mut self, number: u64, to: &mut Page) -> Result<(), Error> {
        let Err(error) = self.read_block(number, to) else { return Ok(()) };
        let offset = number * BLOCK_BYTES;
        let source = std::io::Error::other(error.to_string());
        let other = Error::Disk { path: self.path.clone(), offset, source };
        Err(self.take_failure().unwrap_or(other))
    }

    /// The location of a block's contents: in `blocks`, else in `start`, else in the base image.
    fn version_of(&self, number: u64) -> &PageRef {
        match self.blocks.get(number) {
            PageRef::Base => self.start.get(number),
            other => other,
        }
    }

    fn read_base(&mut self, offset: u64, to: &mut [u8]) -> Result<(), BlockError> {
        let image = match &self.base {
            Base::Raw(file) => {
                return file.read_exact_at(to, offset).map_err(|source| self.failed(offset, source));
            }
            Base::Gathered(image) => image.clone(),
        };
        let mut block = [0; PAGE_BYTES];
        for (number, in_block, range) in Self::parts(offset, to.len()) {
            match image.read(number, &mut block) {
                Ok(Read::Done) => {}
                Ok(Read::Unreadable) => return Err(BlockError::Unreadable),
                Err(error) => return Err(self.failed(number * BLOCK_BYTES, std::io::Error::other(error))),
            }
            let part = &mut to[range];
            part.copy_from_slice(&block[in_block..in_block + part.len()]);
        }
        Ok(())
    }

    /// Gathers the blocks of a range that are in the base image, all at once.
    fn gather(&mut self, offset: u64, length: usize) -> Result<(), BlockError> {
        let Base::Gathered(image) = &self.base else { return Ok(()) };
        let image = image.clone();
        let blocks: Vec<u64> = Self::parts(offset, length)
            .map(|(number, ..)| number)
            .filter(|&number| matches!(self.version_of(number), PageRef::Base))
            .collect();
        for run in blocks.chunk_by(|before, next| before + 1 == *next) {
            let gathered = image.gather(run[0], run.len() as u64);
            gathered.map_err(|error| self.failed(run[0] * BLOCK_BYTES, std::io::Error::other(error)))?;
        }
        Ok(())
    }

    fn failed(&mut self, offset: u64, source: std::io::Error) -> BlockError {
        let told = std::io::Error::new(source.kind(), source.to_string());
        self.failure.get_or_insert((offset, source));
        BlockError::Host(told)
    }

    /// Cuts a byte range at block boundaries. Yields for each part the block's number, the offset in the block, and the
    /// range in the buffer.
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
        Self::parts(offset, to.len()).for_each(|(number, ..)| self.is_read(number));
        self.gather(offset, to.len())?;
        if Self::parts(offset, to.len()).all(|(number, ..)| matches!(self.version_of(number), PageRef::Base))
        {
            return self.read_base(offset, to);
        }
        let mut contents = [0; PAGE_BYTES];
        for (number, in_block, range) in Self::parts(offset, to.len()) {
            let part = &mut to[range];
            if matches!(self.version_of(number), PageRef::Base) {
                self.read_base(number * BLOCK_BYTES + in_block as u64, part)?;
            } else {
                self.read_block(number, &mut contents)?;
                part.copy_from_slice(&contents[in_block..in_block + part.len()]);
            }
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, from: &[u8]) -> Result<(), BlockError> {
        for (number, in_block, range) in Self::parts(sector * SECTOR_BYTES as u64, from.len()) {
            let part = &from[range];
            let mut block = [0; PAGE_BYTES];
            if part.len() < PAGE_BYTES {
                self.is_read(number);
                self.read_block(number, &mut block)?;
            }
            block[in_block..in_block + part.len()].copy_from_slice(part);
            self.blocks.set(number, PageRef::Held(Arc::new(block)));
            self.written.insert(number);
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

    use checkpoint::Space;

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
    fn a_copy_keeps_the_contents_when_the_disk_is_written_again() {
        let (_file, mut disk) = disk();
        disk.write(7, &[0xaa; 1024]).unwrap();
        let mut copy = disk.copy().unwrap();
        disk.write(0, &[1; 20 * 512]).unwrap();
        assert_eq!(copy.size_bytes(), 20 * 512);
        let mut bytes = [0; 1026];
        copy.read_bytes(7 * 512 - 1, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[1024], bytes[1025]), (6, 0xaa, 0xaa, 9));
        assert!(copy.read_bytes(0, &mut [0; 512]).is_ok() && copy.written_count() == 0);
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

    #[test]
    fn blocks_that_are_read_before_they_are_written_are_noted() {
        let (_file, mut disk) = disk();
        let mut bytes = [0; 512];
        disk.read(0, &mut bytes).unwrap();
        disk.note_read();
        disk.write(8, &[1; 4096]).unwrap();
        disk.read(9, &mut bytes).unwrap();
        assert!(disk.take_read().is_empty(), "it was wholly written before");
        disk.note_read();
        disk.write(16, &[1; 512]).unwrap();
        assert_eq!(disk.take_read().into_iter().collect::<Vec<_>>(), [2], "the rest of the block stays");
        disk.note_read();
        disk.read(0, &mut bytes).unwrap();
        assert_eq!(disk.take_read().into_iter().collect::<Vec<_>>(), [0]);
        disk.read(1, &mut bytes).unwrap();
        assert!(disk.take_read().is_empty(), "nothing is noted any more");
    }

    /// Stores the blocks written since the last call as a checkpoint.
    fn stored(disk: &mut OverlayDisk, store: &Store, position: u64) -> Vec<(u64, PageRef)> {
        let mut draft = store.add(position, 0).unwrap();
        let mut stored = Vec::new();
        for block in disk.take_written() {
            let mut contents = [0; PAGE_BYTES];
            disk.read_block(block, &mut contents).unwrap();
            stored.push((block, draft.page(Space::Disk, block, &contents).unwrap()));
        }
        draft.finish(&[], &[]).unwrap();
        stored
    }

    #[test]
    fn a_block_lies_in_the_store_while_it_holds_what_was_stored() {
        let (_file, mut disk) = disk();
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::create(folder.path().join("store"), 1, disk.block_count()).unwrap());
        disk.attach_store(store.clone());
        disk.write(0, &[7; 4096]).unwrap();
        disk.write(8, &[8; 4096]).unwrap();
        disk.write(16, &[0; 1024]).unwrap();
        let first = stored(&mut disk, &store, 1);
        assert_eq!(first.iter().map(|(block, _)| *block).collect::<Vec<_>>(), [0, 1, 2]);
        disk.write(0, &[9; 512]).unwrap();
        // A second checkpoint stores the block before `adopt` has replaced it by the first stored copy.
        let second = stored(&mut disk, &store, 2);
        first.into_iter().for_each(|(block, at)| disk.adopt(block, at));
        let mut bytes = [1; 1024];
        disk.read(0, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[512]), (9, 7));
        assert!(matches!(disk.blocks.get(0), PageRef::Held(_)));
        assert!(matches!(disk.blocks.get(1), PageRef::Stored(_)));
        second.into_iter().for_each(|(block, at)| disk.adopt(block, at));
        assert!(matches!(disk.blocks.get(0), PageRef::Stored(_)));
        disk.read(0, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[512]), (9, 7));
        disk.read(8, &mut bytes).unwrap();
        assert_eq!(bytes, [8; 1024]);
    }

    #[test]
    fn written_blocks_lie_in_a_checkpoint_that_holds_the_same_and_is_whole() {
        let (image, mut disk) = disk();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = Arc::new(Store::create(&path, 1, disk.block_count()).unwrap());
        let write = |disk: &mut OverlayDisk| {
            disk.write(0, &[7; 4096]).unwrap();
            disk.write(8, &[0; 4096]).unwrap();
            disk.write(16, &[9; 512]).unwrap();
        };
        write(&mut disk);
        stored(&mut disk, &store, 1);
        let version = store.maps_at(1).unwrap().disk;
        let held = |disk: &OverlayDisk| {
            let blocks = disk.blocks.iter_not_base();
            blocks
                .filter_map(|(block, at)| matches!(at, PageRef::Held(_)).then_some(block))
                .collect::<Vec<_>>()
        };
        write(&mut disk);
        disk.adopt_written(&version).unwrap();
        assert_eq!((held(&disk), disk.written_count()), (vec![0, 1, 2], 3), "no store is attached");
        disk.attach_store(store);
        disk.write(17, &[8; 512]).unwrap();
        let hash = disk.hash();
        disk.adopt_written(&version).unwrap();
        assert_eq!((held(&disk), disk.written_count()), (vec![2], 1), "the last has changed since");
        assert_eq!(disk.hash(), hash);

        // Damages the first blob.
        let file = path.join("00000001.ckpt");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[8] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let mut disk = OverlayDisk::open(image.path()).unwrap();
        disk.attach_store(Arc::new(Store::open(&path).unwrap()));
        write(&mut disk);
        assert!(disk.adopt_written(&version).is_err());
        assert_eq!((held(&disk), disk.written_count()), (vec![0, 1, 2], 3));
    }

    #[test]
    fn the_hash_is_the_same_wherever_the_blocks_lie() {
        let (_file, mut disk) = disk();
        disk.write(0, &[7; 4096]).unwrap();
        disk.write(8, &[0; 4096]).unwrap();
        disk.write(17, &[9; 512]).unwrap();
        let held = disk.hash();
        assert_eq!(disk.known_hash(), held);
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::create(folder.path().join("store"), 1, disk.block_count()).unwrap());
        let mut draft = store.add(1, 1).unwrap();
        let mut stored = Vec::new();
        for block in disk.take_written() {
            let mut contents = [0; PAGE_BYTES];
            disk.read_block(block, &mut contents).unwrap();
            stored.push((block, draft.page(Space::Disk, block, &contents).unwrap()));
        }
        draft.finish(&[], &[]).unwrap();
        disk.attach_store(store);
        stored.into_iter().for_each(|(block, at)| disk.adopt(block, at));
        assert_eq!((disk.hash(), disk.known_hash()), (held, held));
        disk.write(8, &[1; 512]).unwrap();
        assert_ne!(disk.hash(), held);
        assert_eq!(disk.known_hash(), disk.hash());
    }
}
