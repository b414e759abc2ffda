//! The store of checkpoints: their list, and the page versions and state of each.
//!
//! A checkpoint is one file in the store's folder (`FORMAT.md`), with the versions of the pages that changed since
//! the previous checkpoint. Readers do not take the writers' lock, and files stay open. So a recorder may thin out
//! checkpoints while a reader uses them. Adding, removing and thinning take the writers' lock at their first use.

use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cache::{MapsCache, PageCache, Recent};
use crate::check::maps_check;
use crate::codec::Codec;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::folder;
use crate::format::Shape;
use crate::index::{Entry, Index};
use crate::map::Maps;
use crate::merges::Merges;

/// A folder of checkpoints. Share the store between threads behind an `Arc`.
///
/// One thread writes at a time; other threads wait. A [`CheckpointDraft`](crate::draft::CheckpointDraft) is a
/// writer from [`Store::add`] until it is finished or dropped. So the thread that has a draft must not add,
/// remove or thin.
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) shape: Shape,
    index: RwLock<Index>,
    writer: Mutex<Writer>,
    pub(crate) pages: Mutex<PageCache>,
    maps: Mutex<MapsCache>,
    codecs: Mutex<Vec<Codec>>,
    /// The damage that was found when the store was opened.
    pub(crate) damage: Vec<StoreError>,
}

/// State that only the writing thread needs.
#[derive(Default)]
pub(crate) struct Writer {
    lock: Option<File>,
    pub next_blob: u64,
    pub next_file: u32,
    pub recent: Recent,
    /// The sizes of recent merges of two checkpoint files.
    pub merges: Merges,
    /// Whether a warning was already logged that a checkpoint cannot be thinned out because of damaged data.
    pub told_damage: bool,
}

impl Store {
    /// Creates a store without checkpoints, and takes its writers' lock. The folder need not exist.
    ///
    /// # Errors
    ///
    /// If the folder already has a store, if the folder cannot be written to, or if RAM or disk has more than 2^30
    /// pages.
    pub fn create(dir: impl Into<PathBuf>, ram_pages: u64, disk_blocks: u64) -> Result<Store> {
        let dir = dir.into();
        let shape = Shape { ram_pages, disk_blocks };
        folder::create(&dir, shape)?;
        let store = Store::with(dir, shape, Index::default());
        drop(store.writer()?);
        Ok(store)
    }

    /// Opens a store, to which another process may be writing. Lists the checkpoints that exist at this moment.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is damaged. Arbitrary bytes in the files cause nothing worse than an error.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Store> {
        let dir = dir.into();
        let shape = folder::read_header(&dir)?;
        let index = crate::open::load(&dir, shape)?;
        Ok(Store::with(dir, shape, index))
    }

    pub(crate) fn with(dir: PathBuf, shape: Shape, index: Index) -> Store {
        Store {
            dir,
            shape,
            index: RwLock::new(index),
            writer: Mutex::default(),
            pages: Mutex::default(),
            maps: Mutex::default(),
            codecs: Mutex::default(),
            damage: Vec::new(),
        }
    }

    /// The number of RAM pages of the machine.
    pub fn ram_pages(&self) -> u64 {
        self.shape.ram_pages
    }

    /// The number of disk blocks of the machine.
    pub fn disk_blocks(&self) -> u64 {
        self.shape.disk_blocks
    }

    /// The store's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The checkpoints in order of their positions.
    pub fn entries(&self) -> Vec<Entry> {
        self.read_index().entries().cloned().collect()
    }

    /// The last checkpoint at or before `position`; `None` if there is none.
    pub fn entry_at_or_before(&self, position: u64) -> Option<Entry> {
        let index = self.read_index();
        let number = index.order.range(..=position).map(|(_, number)| number);
        number
            .rev()
            .find(|number| !index.left_out.contains(number))
            .map(|number| index.files[number].entry.clone())
    }

    /// The size of the store's files in bytes, without a file that is being written.
    pub fn total_bytes(&self) -> u64 {
        self.read_index().total_bytes()
    }

    /// The version of every page at a checkpoint. The call is fast for a position near a recently requested
    /// position.
    ///
    /// # Errors
    ///
    /// If there is no such checkpoint, if a file cannot be read, or if the maps do not have the checkpoint's stored
    /// check.
    pub fn maps_at(&self, position: u64) -> Result<Maps> {
        // While the index is locked, this process deletes no file in the index. Open the files one after the other,
        // because there may be thousands.
        let index = self.read_index();
        let directory = |number: u32| index.open(&self.dir, number)?.directory();
        let (mut maps, start, steps) = self.path_to(&index, position)?;
        let mut back = match start {
            Some(start) if !steps.is_empty() => Some(directory(start)?.back),
            _ => None,
        };
        for (at, &step) in steps.iter().enumerate() {
            if let Some(back) = back.take() {
                back.apply(&mut maps);
            }
            let directory = directory(step)?;
            directory.list.apply(&mut maps);
            // Cache the maps 0, 1, 2, 4, ... checkpoints before the requested one, so that a walk backwards finds maps
            // nearby.
            let distance = steps.len() - 1 - at;
            if distance == 0 || distance.is_power_of_two() {
                self.remember(index.files[&step].footer.position, step, maps.clone());
            }
            back = Some(directory.back);
        }
        drop(index);
        self.check_maps(position, &maps)?;
        Ok(maps)
    }

    /// The stored check of the maps at a checkpoint.
    pub(crate) fn check_at(&self, position: u64) -> Result<u64> {
        let index = self.read_index();
        let number = index.order.get(&position).ok_or_else(|| self.missing(position))?;
        Ok(index.files[number].maps_check)
    }

    /// Compares the check of the maps at a checkpoint with the stored check. Does so only once for each checkpoint.
    fn check_maps(&self, position: u64, maps: &Maps) -> Result<()> {
        let index = self.read_index();
        let number = *index.order.get(&position).ok_or_else(|| self.missing(position))?;
        if lock(&self.maps).is_checked(position, number) {
            return Ok(());
        }
        if index.files[&number].maps_check != maps_check(maps, &index.blobs) {
            let what = "it does not follow the other files: some are missing, or belong to another store";
            let path = folder::checkpoint_path(&self.dir, number);
            return Err(StoreError::damaged(&path, "directory", what));
        }
        lock(&self.maps).set_checked(position, number);
        Ok(())
    }

    /// The maps to start from, and the files to apply, for computing the maps at `position`. Returns the nearest
    /// cached maps at or before `position`, and the numbers of the later files. Between them returns the number of
    /// the maps' own file, if this file has a `back` list.
    fn path_to(&self, index: &Index, position: u64) -> Result<(Maps, Option<u32>, Vec<u32>)> {
        if index.number_at(position).is_none() {
            return Err(self.missing(position));
        }
        let live = |position: u64, file: u32| index.order.get(&position) == Some(&file);
        let (from, maps, start) = match lock(&self.maps).nearest(position, live) {
            Some((from, maps)) => (Bound::Excluded(from), maps, index.order.get(&from)),
            None => (Bound::Unbounded, Maps::new(self.shape.ram_pages, self.shape.disk_blocks), None),
        };
        let start = start.filter(|number| index.files[number].goes_back).copied();
        let files = index.order.range((from, Bound::Included(position)));
        Ok((maps, start, files.map(|(_, &number)| number).collect()))
    }

    /// The incoming maps of a checkpoint after `position`: the maps at `position` after its `back` list.
    pub(crate) fn maps_behind(&self, position: u64) -> Result<Maps> {
        let mut maps = self.maps_at(position)?;
        let open = {
            let index = self.read_index();
            match index.order.get(&position) {
                Some(number) if index.files[number].goes_back => index.open(&self.dir, *number)?,
                _ => return Ok(maps),
            }
        };
        open.directory()?.back.apply(&mut maps);
        Ok(maps)
    }

    pub(crate) fn remember(&self, position: u64, file: u32, maps: Maps) {
        lock(&self.maps).put(position, file, maps);
    }

    /// Marks the maps of a checkpoint as checked. The caller has just written the checkpoint, so its maps need no
    /// check.
    pub(crate) fn trust(&self, position: u64, file: u32) {
        lock(&self.maps).set_checked(position, file);
    }

    pub(crate) fn forget(&self, position: u64) {
        lock(&self.maps).remove(position);
    }

    /// The opaque state that is stored with a checkpoint.
    ///
    /// # Errors
    ///
    /// If there is no such checkpoint, or if its state cannot be read.
    pub fn state_at(&self, position: u64) -> Result<Vec<u8>> {
        let open = {
            let index = self.read_index();
            let number = index.number_at(position).ok_or_else(|| self.missing(position))?;
            index.open(&self.dir, number)?
        };
        open.footer.read_state(&open.file, &open.path)
    }

    pub(crate) fn missing(&self, position: u64) -> StoreError {
        StoreError::new(&self.dir, StoreErrorKind::Missing(position))
    }

    pub(crate) fn read_index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().expect("no thread panics while it changes the store")
    }

    pub(crate) fn write_index(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().expect("no thread panics while it changes the store")
    }

    /// Waits until no other thread of this process writes, and takes the lock against writers in other processes.
    /// If another process has written since the store was opened, loads the store again.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let mut writer = lock(&self.writer);
        if let Some(damage) = self.damage.first() {
            return Err(damage.clone());
        }
        if writer.lock.is_none() {
            let file = folder::lock(&self.dir)?;
            folder::remove_parts(&self.dir)?;
            let mut index = self.write_index();
            if !index.files.values().map(|file| file.listed).eq(folder::list(&self.dir)?) {
                *index = crate::open::load(&self.dir, self.shape)?;
                lock(&self.maps).clear();
                *lock(&self.pages) = PageCache::default();
            }
            writer.next_blob = index.blobs.last() + 1;
            writer.next_file = index.files.last_key_value().map_or(1, |(number, _)| number + 1);
            writer.lock = Some(file);
        }
        Ok(writer)
    }

    /// Runs `use_it` with a codec from the store's pool.
    pub(crate) fn with_codec<T>(&self, use_it: impl FnOnce(&mut Codec) -> Result<T>) -> Result<T> {
        let spare = lock(&self.codecs).pop();
        let mut codec = match spare {
            Some(codec) => codec,
            None => Codec::new().map_err(StoreError::io(&self.dir, "set up compression"))?,
        };
        let result = use_it(&mut codec);
        lock(&self.codecs).push(codec);
        result
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it changes the store")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{PageRef, Space};
    use crate::page::PAGE_BYTES;

    /// A slow reader may cache maps whose checkpoint has been removed in the meantime.
    #[test]
    fn maps_of_a_checkpoint_that_is_gone_are_not_built_upon() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), 4, 0).unwrap();
        // The middle checkpoint has a page in its `back` list.
        for (position, page) in [(10, 0), (30, 1), (20, 2)] {
            let mut draft = store.add(position, 0).unwrap();
            draft.page(Space::Ram, page, &[position as u8; PAGE_BYTES]).unwrap();
            draft.finish(&[], &[]).unwrap();
        }
        let (number, maps) = (store.entries()[1].number, store.maps_at(20).unwrap());
        store.remove(20).unwrap();
        store.remember(20, number, maps);
        let maps = store.maps_at(30).unwrap();
        assert!(
            matches!(maps.ram.get(0), PageRef::Stored(_)) && matches!(maps.ram.get(1), PageRef::Stored(_))
        );
        assert!(maps.ram.get(2).same_as(&PageRef::Base));
    }
}
