//! The contents of a machine's RAM and disk. This module copies the contents, reports the pages that were written, and
//! restores earlier contents. A map ([`PageMap`]) says where the contents of each page are: in memory, or in a store of
//! checkpoints.

use std::sync::Arc;

use checkpoint::{BlobId, Maps, PAGE_BYTES, Page, PageMap, PageRef, Space, Store};

use crate::disk::OverlayDisk;
use crate::error::Error;
use crate::run::Machine;
use crate::unit::Unit;
use crate::written_pages::Reader;

/// The disk's PCI slot. If the machine has a disk, the disk is the first device on the bus.
const DISK_SLOT: usize = 1;

impl<U: Unit> Machine<U> {
    /// The disk, if the machine has a disk.
    pub fn disk_mut(&mut self) -> Option<&mut OverlayDisk> {
        self.bus.platform.bus_mut().block_backend_mut::<OverlayDisk>(DISK_SLOT)
    }

    /// Attaches the store of checkpoints. Restores and the disk read stored pages from this store.
    pub fn attach_store(&mut self, store: Arc<Store>) {
        if let Some(disk) = self.disk_mut() {
            disk.attach_store(store.clone());
        }
        self.store = Some(store);
    }

    /// Detaches the store. The caller must ensure that no page of RAM's image or of the disk still refers to the
    /// store.
    pub(super) fn detach_store(&mut self) {
        if let Some(disk) = self.disk_mut() {
            disk.detach_store();
        }
        self.store = None;
    }

    /// The attached store, if any.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Number of pages of RAM, and of blocks of the disk.
    pub fn page_counts(&mut self) -> (u64, u64) {
        (self.ram().flags().pages(), self.disk_mut().map_or(0, |disk| disk.block_count()))
    }

    /// Maps with the contents of RAM and disk. The cost depends on the number of pages written since the last call
    /// or restore.
    pub fn maps(&mut self) -> Result<Maps, Error> {
        Ok(self.capture()?.0)
    }

    /// Updates the image of RAM, a map with copies of the pages. Returns the number of pages that were copied.
    pub(super) fn update_image(&mut self) -> Result<usize, Error> {
        self.collect_written()?;
        let mut contents = [0; PAGE_BYTES];
        let mut held = 0;
        for page in self.written.take(Reader::Image) {
            self.ram().read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            if let Some(new) = changed_page(self.image.get(page), &contents) {
                held += usize::from(matches!(new, PageRef::Held(_)));
                self.image.set(page, new);
            }
        }
        Ok(held)
    }

    /// Returns the same maps as [`Machine::maps`], and the number of pages and blocks that were copied or newly
    /// written.
    pub fn capture(&mut self) -> Result<(Maps, usize), Error> {
        let mut held = self.update_image()?;
        held += self.disk_mut().map_or(0, |disk| disk.take_written().len());
        Ok((Maps { ram: self.image.clone(), disk: self.disk_version() }, held))
    }

    /// The number of pages that [`Machine::take_written`] would report.
    pub fn written_count(&mut self) -> Result<u64, Error> {
        self.collect_written()?;
        Ok((self.written.count(Reader::Image) + self.written_blocks()) as u64)
    }

    /// Calls `each` with every page of RAM and disk written since the last call, [`Machine::maps`] or restore. Returns
    /// the number of pages. The function is for recorders, which do not use maps.
    pub fn take_written(
        &mut self,
        mut each: impl FnMut(Space, u64, &Page) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.collect_written()?;
        let mut contents = [0; PAGE_BYTES];
        let mut count = 0;
        for page in self.written.take(Reader::Image) {
            self.ram().read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            each(Space::Ram, page, &contents)?;
            count += 1;
        }
        if let Some(disk) = self.disk_mut() {
            for block in disk.take_written() {
                disk.read_whole_block(block, &mut contents)?;
                each(Space::Disk, block, &contents)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Makes the next [`Machine::take_written`] report these pages again, with the contents that they then have.
    pub fn write_again(&mut self, pages: impl IntoIterator<Item = (Space, u64)>) {
        for (space, page) in pages {
            match space {
                Space::Ram => self.written.look_again(Reader::Image, page),
                Space::Disk => {
                    if let Some(disk) = self.disk_mut() {
                        disk.write_again(page);
                    }
                }
            }
        }
    }

    /// Makes the next [`Machine::take_written`] report only pages written from now on.
    pub fn begin_written(&mut self) -> Result<(), Error> {
        self.collect_written()?;
        self.written.take(Reader::Image);
        // Frees the image of RAM, because a caller of `take_written` does not use the image.
        self.image = PageMap::zeroed(self.image.len());
        if let Some(disk) = self.disk_mut() {
            disk.take_written();
        }
        Ok(())
    }

    /// The number of pages that [`Machine::take_trail`] would report.
    pub fn trail_count(&mut self) -> Result<usize, Error> {
        self.collect_written()?;
        Ok(self.written.count(Reader::Trail))
    }

    /// Calls `each` with every page of RAM written since the last call. The trail of states before a recording's
    /// end is made from these pages.
    pub fn take_trail(&mut self, mut each: impl FnMut(u64, &Page)) -> Result<(), Error> {
        self.collect_written()?;
        let mut contents = [0; PAGE_BYTES];
        for page in self.written.take(Reader::Trail) {
            self.ram().read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            each(page, &contents);
        }
        Ok(())
    }

    /// Makes the next [`Machine::take_trail`] report only pages written from now on.
    pub fn begin_trail(&mut self) -> Result<(), Error> {
        self.collect_written()?;
        self.written.take(Reader::Trail);
        Ok(())
    }

    /// Number of disk blocks written since the last [`Machine::take_written`].
    pub fn written_blocks(&mut self) -> usize {
        self.disk_mut().map_or(0, |disk| disk.written_count())
    }

    /// The contents of a disk block. The last block may reach beyond the end of the disk.
    pub fn read_block(&mut self, block: u64, to: &mut Page) -> Result<(), Error> {
        let Some(disk) = self.disk_mut() else {
            return Err(Error::State("the machine has no disk".to_string()));
        };
        disk.read_whole_block(block, to)
    }

    /// Replaces disk blocks in memory by their stored copies in a checkpoint. Skips blocks that the guest has
    /// changed since that checkpoint.
    pub fn adopt_blocks(&mut self, blocks: impl IntoIterator<Item = (u64, PageRef)>) {
        if let Some(disk) = self.disk_mut() {
            blocks.into_iter().for_each(|(block, stored)| disk.adopt(block, stored));
        }
    }

    /// Replaces written blocks that [`Machine::take_written`] has not reported yet by the stored blocks of `version`.
    /// Skips blocks whose contents differ.
    pub fn adopt_written_blocks(&mut self, version: &PageMap) -> Result<(), Error> {
        self.disk_mut().map_or(Ok(()), |disk| disk.adopt_written(version))
    }

    /// The disk's present contents, as a map.
    pub fn disk_version(&mut self) -> PageMap {
        self.disk_mut().map_or_else(|| PageMap::new(0), |disk| disk.version())
    }

    pub(super) fn ram_digest(&mut self) -> Result<[u8; 16], Error> {
        self.collect_written()?;
        Ok(self.digest.update(self.engine.cpu().ram(), self.written.take(Reader::Digest)))
    }

    pub(super) fn collect_written(&mut self) -> Result<(), Error> {
        self.engine.note_written()?;
        self.written.collect(self.engine.cpu().ram().flags());
        self.engine.track_writes_anew();
        Ok(())
    }

    /// Replaces the machine's maps by `maps`, the maps of a recording's checkpoint at exactly this point. This
    /// frees the machine's own copies of pages in memory. Does not check that the contents are equal.
    pub fn rebase(&mut self, maps: &Maps) -> Result<(), Error> {
        self.collect_written()?;
        self.written.take(Reader::Image);
        self.image = maps.ram.clone();
        if let Some(disk) = self.disk_mut() {
            disk.set_version(&maps.disk);
        }
        Ok(())
    }

    pub(super) fn restore_memory(&mut self, to: &PageMap) -> Result<(), Error> {
        self.collect_written()?;
        let written = self.written.take(Reader::Image);
        let differing: Vec<u64> = to.changed_since(&self.image).map(|(page, _)| page).collect();
        let pages: Vec<u64> = merged(&written, &differing).collect();
        if let Err(error) = self.put_pages(&pages, to) {
            // Each of these pages may have its old or its new contents in RAM, so the next restore must write all
            // of them again.
            pages.iter().for_each(|&page| self.written.look_again(Reader::Image, page));
            return Err(error);
        }
        // Marks the replaced pages as written, because the digest does not cover their new contents yet. The image
        // needs no update for these pages.
        self.collect_written()?;
        self.written.take(Reader::Image);
        self.image = to.clone();
        Ok(())
    }

    /// Copies the contents that these pages have in the map `to` into RAM.
    fn put_pages(&self, pages: &[u64], to: &PageMap) -> Result<(), Error> {
        let put = |page: u64, contents: &Page| {
            self.ram().replace_bytes(page * guest_ram::PAGE_SIZE, contents);
        };
        let mut stored: Vec<(u64, BlobId)> = Vec::new();
        for &page in pages {
            match to.get(page) {
                PageRef::Zero => put(page, &[0; PAGE_BYTES]),
                PageRef::Held(contents) => put(page, contents),
                PageRef::Stored(blob) => stored.push((page, *blob)),
                PageRef::Base => return Err(Error::State("RAM has no base image".to_string())),
            }
        }
        if !stored.is_empty() {
            let Some(store) = &self.store else {
                return Err(Error::State("its pages lie in checkpoints that are not open".to_string()));
            };
            store.read_many(&stored, put)?;
        }
        Ok(())
    }

    /// Hash of what the guest wrote to its disk.
    pub fn disk_hash(&mut self) -> [u8; 32] {
        self.disk_mut().map(OverlayDisk::hash).unwrap_or_default()
    }

    /// Returns the same hash as [`Machine::disk_hash`], but takes the digests of stored blocks from the store
    /// without reading the blocks.
    pub(super) fn known_disk_hash(&mut self) -> [u8; 32] {
        self.disk_mut().map(OverlayDisk::known_hash).unwrap_or_default()
    }
}

/// The new version of a page whose last version was `old`; `None` if the page has not changed.
fn changed_page(old: &PageRef, contents: &Page) -> Option<PageRef> {
    match old {
        PageRef::Held(page) if **page == *contents => None,
        _ if *contents == [0; PAGE_BYTES] => (!matches!(old, PageRef::Zero)).then_some(PageRef::Zero),
        _ => Some(PageRef::Held(Arc::new(*contents))),
    }
}

/// Merges two ascending lists, without duplicates.
fn merged(left: &[u64], right: &[u64]) -> impl Iterator<Item = u64> {
    let (mut left, mut right) = (left.iter().copied().peekable(), right.iter().copied().peekable());
    std::iter::from_fn(move || {
        let next = match (left.peek(), right.peek()) {
            (Some(&l), Some(&r)) => l.min(r),
            (Some(&n), None) | (None, Some(&n)) => n,
            (None, None) => return None,
        };
        left.next_if_eq(&next);
        right.next_if_eq(&next);
        Some(next)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use devices::virtio::BlockBackend;

    use super::*;
    use crate::config::{MachineConfig, MachineOptions};
    use crate::inputs::PowerOn;
    use crate::position::Instructions;

    /// The size of the disk: ten blocks and a half.
    const DISK_BYTES: usize = 10 * PAGE_BYTES + 2048;

    fn machine(directory: &Path) -> Machine<Instructions> {
        let image = directory.join("disk");
        std::fs::write(&image, (0..DISK_BYTES).map(|at| (at / 512) as u8).collect::<Vec<_>>()).unwrap();
        let options = MachineOptions {
            kernel: tiny_guest::write_kernel(directory, 10),
            disk: Some(image),
            memory_bytes: 4 << 20,
            ..MachineOptions::default()
        };
        let (config, images) = MachineConfig::from_options(&options).unwrap();
        let power_on = PowerOn { unix_seconds: 0, seed: [1; 32], columns: 80, rows: 25 };
        Machine::new(&config, &images, &power_on).unwrap()
    }

    fn write(machine: &mut Machine<Instructions>, sector: u64, byte: u8, sectors: usize) {
        machine.disk_mut().unwrap().write(sector, &vec![byte; sectors * 512]).unwrap();
    }

    fn read(machine: &mut Machine<Instructions>) -> Vec<u8> {
        let mut bytes = vec![0; DISK_BYTES];
        machine.disk_mut().unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    /// Four groups of writes to a disk, each applied over the groups before. A write is (first sector, value of each
    /// byte, number of sectors). The writes cover a part of a block, several blocks, zeroes, the half block at the end,
    /// and blocks that were written before.
    const WRITES: [&[(u64, u8, usize)]; 4] =
        [&[], &[(3, 0xaa, 1), (14, 0xbb, 20)], &[(16, 0, 8), (81, 0xcc, 3)], &[(3, 0xdd, 2), (16, 0xee, 1)]];

    #[test]
    fn every_version_of_a_written_disk_can_be_gone_to() {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = machine(directory.path());
        let base = std::fs::read(directory.path().join("disk")).unwrap();
        let mut versions = Vec::new();
        for writes in WRITES {
            writes.iter().for_each(|&(sector, byte, count)| write(&mut machine, sector, byte, count));
            let (state, maps) = (machine.state(), machine.maps().unwrap());
            versions.push((state, maps, read(&mut machine), machine.disk_hash()));
        }
        assert_eq!(versions[0].2, base);
        assert!(versions.windows(2).all(|pair| pair[0].3 != pair[1].3));
        for at in [0, 3, 1, 2, 0, 2, 3, 1] {
            let (state, maps, bytes, hash) = &versions[at];
            machine.restore(state, maps).unwrap();
            assert_eq!((&read(&mut machine), machine.disk_hash()), (bytes, *hash), "version {at}");
        }
        assert_eq!(std::fs::read(directory.path().join("disk")).unwrap(), base);
    }

    #[test]
    fn a_restore_that_fails_leaves_nothing_behind_in_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = machine(directory.path());
        let (pages, blocks) = machine.page_counts();
        let folder = directory.path().join("store");
        let store = Arc::new(Store::create(&folder, pages, blocks).unwrap());
        machine.attach_store(store.clone());
        let page_at = |page: u64| page * guest_ram::PAGE_SIZE;
        let (state, first, hashes) = (machine.state(), machine.maps().unwrap(), machine.hashes());
        let mut draft = store.add(1, 0).unwrap();
        draft.page(Space::Ram, 700, &[7; PAGE_BYTES]).unwrap();
        draft.page(Space::Ram, 800, &[8; PAGE_BYTES]).unwrap();
        draft.finish(&[], &[]).unwrap();
        let mut maps = store.maps_at(1).unwrap();
        maps.ram = maps.ram.over(&first.ram);
        // Damages the first blob, while the store has the file open.
        let file = folder.join("00000001.ckpt");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[8] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        machine.ram().replace_bytes(page_at(700), &[9; PAGE_BYTES]);
        assert!(machine.restore(&state, &maps).is_err());
        machine.restore(&state, &first).unwrap();
        assert_eq!(machine.hashes(), hashes);
        assert_eq!(machine.known_hashes().unwrap(), hashes);
    }

    #[test]
    fn a_written_disk_comes_back_from_checkpoints() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorded = machine(directory.path());
        let (pages, blocks) = recorded.page_counts();
        let store = Arc::new(Store::create(directory.path().join("store"), pages, blocks).unwrap());
        recorded.attach_store(store.clone());
        recorded.begin_written().unwrap();
        let initial = recorded.maps().unwrap().ram;
        let mut versions = Vec::new();
        for (position, writes) in WRITES.iter().enumerate() {
            writes.iter().for_each(|&(sector, byte, count)| write(&mut recorded, sector, byte, count));
            let mut draft = store.add(position as u64, 0).unwrap();
            let mut disk = Vec::new();
            recorded
                .take_written(|space, page, contents| {
                    let stored = draft.page(space, page, contents)?;
                    if space == Space::Disk {
                        disk.push((page, stored));
                    }
                    Ok(())
                })
                .unwrap();
            draft.finish(&[], &[]).unwrap();
            recorded.adopt_blocks(disk);
            versions.push((read(&mut recorded), recorded.disk_hash(), recorded.known_hashes().unwrap().disk));
        }
        // The replayed machine is built from the files only, as in another process.
        let mut replayed = machine(directory.path());
        let store = Arc::new(Store::open(directory.path().join("store")).unwrap());
        replayed.attach_store(store.clone());
        let state = replayed.state();
        for at in [2, 0, 3, 1] {
            let mut maps = store.maps_at(at as u64).unwrap();
            maps.ram = maps.ram.over(&initial);
            replayed.restore(&state, &maps).unwrap();
            let (bytes, hash, known) = &versions[at];
            assert_eq!(
                (&read(&mut replayed), replayed.disk_hash(), hash),
                (bytes, *hash, known),
                "version {at}"
            );
        }
    }
}
