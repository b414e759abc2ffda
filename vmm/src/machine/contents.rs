//! What RAM and disk of a machine hold: versions of it, what was written since, and going to another version.

use std::sync::Arc;

use checkpoint::{BlobId, Maps, PAGE_BYTES, Page, PageMap, PageRef, Space, Store};

use crate::error::Error;
use crate::machine::disk::OverlayDisk;
use crate::machine::run::Machine;
use crate::machine::unit::Unit;
use crate::machine::written_pages::Reader;

/// The disk, if there is one, is the first device on the bus.
const DISK_SLOT: usize = 1;

impl<U: Unit> Machine<U> {
    pub(super) fn disk_mut(&mut self) -> Option<&mut OverlayDisk> {
        self.bus.platform.bus_mut().block_backend_mut::<OverlayDisk>(DISK_SLOT)
    }

    /// Where stored pages are read from, by restores and by the disk.
    pub fn attach_store(&mut self, store: Arc<Store>) {
        if let Some(disk) = self.disk_mut() {
            disk.attach_store(store.clone());
        }
        self.store = Some(store);
    }

    /// Number of pages that RAM and disk have, each of them.
    pub fn page_counts(&mut self) -> (u64, u64) {
        (self.ram.flags().pages(), self.disk_mut().map_or(0, |disk| disk.block_count()))
    }

    /// The contents of RAM and disk. Costs as much as the pages written since the last call, or restore.
    pub fn maps(&mut self) -> Result<Maps, Error> {
        Ok(self.capture()?.0)
    }

    /// Brings the image of RAM up to date, and gives how many pages memory is held for that was not before.
    pub(super) fn update_image(&mut self) -> Result<usize, Error> {
        self.collect_written()?;
        let mut contents = [0; PAGE_BYTES];
        let mut held = 0;
        for page in self.written.take(Reader::Image) {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            if let Some(new) = changed_page(self.image.get(page), &contents) {
                held += usize::from(matches!(new, PageRef::Held(_)));
                self.image.set(page, new);
            }
        }
        Ok(held)
    }

    /// The contents of RAM and disk, and how many pages memory is held for that was not before.
    pub fn capture(&mut self) -> Result<(Maps, usize), Error> {
        let mut held = self.update_image()?;
        held += self.disk_mut().map_or(0, |disk| disk.take_written().len());
        Ok((Maps { ram: self.image.clone(), disk: self.disk_version() }, held))
    }

    /// Calls `each` with every page of RAM and disk that was written since the last call, [`Machine::maps`]
    /// or restore, and gives their number. For a recorder, which keeps no maps.
    pub fn take_written(
        &mut self,
        mut each: impl FnMut(Space, u64, &Page) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.collect_written()?;
        let mut contents = [0; PAGE_BYTES];
        let mut count = 0;
        for page in self.written.take(Reader::Image) {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
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

    /// Lets [`Machine::take_written`] give these pages again, with what they hold then.
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

    /// Lets [`Machine::take_written`] begin here.
    pub fn begin_written(&mut self) -> Result<(), Error> {
        self.collect_written()?;
        self.written.take(Reader::Image);
        if let Some(disk) = self.disk_mut() {
            disk.take_written();
        }
        Ok(())
    }

    /// Calls `each` with every page of RAM that was written since the last call. False, and no calls, if they
    /// are more than `limit`.
    pub fn take_trail(&mut self, limit: usize, mut each: impl FnMut(u64, &Page)) -> Result<bool, Error> {
        self.collect_written()?;
        let pages = self.written.take(Reader::Trail);
        if pages.len() > limit {
            return Ok(false);
        }
        let mut contents = [0; PAGE_BYTES];
        for page in pages {
            self.ram.read_bytes(page * guest_ram::PAGE_SIZE, &mut contents);
            each(page, &contents);
        }
        Ok(true)
    }

    /// Lets [`Machine::take_trail`] begin here.
    pub fn begin_trail(&mut self) -> Result<(), Error> {
        self.collect_written()?;
        self.written.take(Reader::Trail);
        Ok(())
    }

    /// Number of disk blocks written since they were last taken.
    pub fn written_blocks(&mut self) -> usize {
        self.disk_mut().map_or(0, |disk| disk.written_count())
    }

    /// The contents of a disk block, whose end may lie behind the end of the disk.
    pub fn read_block(&mut self, block: u64, to: &mut Page) -> Result<(), Error> {
        let Some(disk) = self.disk_mut() else {
            return Err(Error::State("the machine has no disk".to_string()));
        };
        disk.read_whole_block(block, to)
    }

    /// Lets disk blocks that were taken lie where they have been stored, unless they hold something else now.
    pub fn adopt_blocks(&mut self, blocks: impl IntoIterator<Item = (u64, PageRef)>) {
        if let Some(disk) = self.disk_mut() {
            blocks.into_iter().for_each(|(block, stored)| disk.adopt(block, stored));
        }
    }

    /// The contents of the disk.
    pub fn disk_version(&mut self) -> PageMap {
        self.disk_mut().map_or_else(|| PageMap::new(0), |disk| disk.version())
    }

    pub(super) fn ram_digest(&mut self) -> Result<[u8; 16], Error> {
        self.collect_written()?;
        Ok(self.digest.update(&self.ram, self.written.take(Reader::Digest)))
    }

    pub(super) fn collect_written(&mut self) -> Result<(), Error> {
        self.engine.note_written()?;
        self.written.collect(self.ram.flags());
        self.engine.track_writes_anew();
        Ok(())
    }

    /// Replaces the machine's own maps by `maps`, those of a recording's checkpoint at exactly this point,
    /// without looking whether they are equal. Copies that the machine held in memory are dropped.
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
        let ram = self.ram.clone();
        let put = |page: u64, contents: &Page| ram.replace_bytes(page * guest_ram::PAGE_SIZE, contents);
        let mut stored: Vec<(u64, BlobId)> = Vec::new();
        for page in merged(&written, &differing) {
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
        // What was replaced is news to the digest, but not to the image.
        self.collect_written()?;
        self.written.take(Reader::Image);
        self.image = to.clone();
        Ok(())
    }

    /// Hash of what the guest wrote to its disk.
    pub fn disk_hash(&mut self) -> [u8; 32] {
        self.disk_mut().map(OverlayDisk::hash).unwrap_or_default()
    }

    /// As [`Machine::disk_hash`], by what the store knows of its blocks.
    pub(super) fn known_disk_hash(&mut self) -> [u8; 32] {
        self.disk_mut().map(OverlayDisk::known_hash).unwrap_or_default()
    }
}

/// What a page has become that was `old`; `None` where it is still the same.
fn changed_page(old: &PageRef, contents: &Page) -> Option<PageRef> {
    match old {
        PageRef::Held(page) if **page == *contents => None,
        _ if *contents == [0; PAGE_BYTES] => (!matches!(old, PageRef::Zero)).then_some(PageRef::Zero),
        _ => Some(PageRef::Held(Arc::new(*contents))),
    }
}

/// Two ascending lists as one, without doubles.
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
