//! Recovers the intact part of a damaged store.
//!
//! A checkpoint's file lists only changes. So an unreadable file also loses the later checkpoints, unless
//! they list all of the file's changes again. The check of the maps, in every file, shows which checkpoints
//! are still right. A file that refers to a missing version counts as unreadable. Nothing is repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::check::maps_check;
use crate::codec::xor;
use crate::draft::CheckpointDraft;
use crate::error::{Result, StoreError};
use crate::folder::{self, checkpoint_path};
use crate::format::{Directory, Shape};
use crate::index::{Entry, Index, OpenFile};
use crate::map::{Maps, PageMap, PageRef, Space, ZERO_PAGE};
use crate::open;
use crate::read::Place;
use crate::store::Store;
use crate::table::BlobTable;

/// The result of [`Store::drop_damaged`].
#[derive(Debug)]
pub struct Dropped {
    /// The remaining checkpoints.
    pub kept: Vec<Entry>,
    /// The damage that was found. If this list is empty, the store was not changed.
    pub damage: Vec<StoreError>,
    /// Number of dropped checkpoints.
    pub dropped: usize,
}

impl Store {
    /// Opens a store, even if it is damaged. Omits checkpoints that depend on damaged directories; [`Store::damage`]
    /// lists the damage. Damaged pages are noticed when they are read. The files do not change, and nothing can be
    /// added or removed.
    ///
    /// # Errors
    ///
    /// If the store's header is damaged, or a file cannot be read.
    pub fn open_around_damage(dir: impl Into<PathBuf>) -> Result<Store> {
        let dir = dir.into();
        let shape = folder::read_header(&dir)?;
        match crate::open::load(&dir, shape) {
            Err(error) if error.is_damage() => salvage(dir, shape),
            loaded => Ok(Store::with(dir, shape, loaded?)),
        }
    }

    /// The damage that was found when the store was opened.
    pub fn damage(&self) -> &[StoreError] {
        &self.damage
    }

    /// Reads a whole store, and keeps only the checkpoints that are readable as a whole. The kept checkpoints'
    /// files get new numbers. If nothing is damaged, nothing changes.
    ///
    /// # Errors
    ///
    /// If the store's header is damaged, if another process writes to the store, or if a file cannot be read or
    /// written. The store is then unchanged. If only the old store's folder cannot be deleted at the end, the new
    /// store is already in place.
    pub fn drop_damaged(dir: impl Into<PathBuf>) -> Result<Dropped> {
        let dir = dir.into();
        let _lock = folder::lock(&dir)?;
        let store = Store::open_around_damage(&dir)?;
        let mut damage = store.damage.clone();
        let bad = store.bad_versions(&mut damage)?;
        let mut kept = Vec::new();
        for entry in store.entries() {
            match store.reads_whole(&entry, &bad) {
                Ok(true) => kept.push(entry),
                Ok(false) => {}
                Err(error) if error.is_damage() => damage.push(error),
                Err(error) => return Err(error),
            }
        }
        let dropped = folder::list(&dir)?.len() - kept.len();
        if dropped > 0 || !damage.is_empty() {
            kept = store.replace_by(&kept)?;
        }
        Ok(Dropped { kept, damage, dropped })
    }

    /// The ids of the versions that cannot be read. Adds the first error of each file to `damage`.
    fn bad_versions(&self, damage: &mut Vec<StoreError>) -> Result<BTreeSet<u64>> {
        let (mut bad, mut deltas) = (BTreeSet::new(), Vec::new());
        let numbers: Vec<u32> = self.read_index().files.keys().copied().collect();
        for number in numbers {
            let open = self.read_index().open(&self.dir, number)?;
            let mut first = None;
            for (id, offset, blob) in open.directory()?.places() {
                let is_used = self.read_index().blobs.get(id).is_some_and(|row| row.file == number);
                if !is_used {
                    continue;
                }
                let OpenFile { file, path, .. } = &open;
                let (file, path, len) = (file.clone(), path.clone(), usize::from(blob.len));
                let place = Place { id, file, path, offset, len, digest: blob.digest, crc: blob.crc };
                match self.check_version(&place, blob.base.map(|base| base.get())) {
                    Err(error) if error.is_damage() => {
                        bad.insert(id);
                        first.get_or_insert(error);
                    }
                    checked => checked?,
                }
                deltas.extend(blob.base.map(|base| (id, base.get())));
            }
            damage.extend(first);
        }
        bad.extend(
            deltas.iter().filter(|(_, base)| bad.contains(base)).map(|(id, _)| *id).collect::<Vec<_>>(),
        );
        Ok(bad)
    }

    fn check_version(&self, place: &Place, base: Option<u64>) -> Result<()> {
        let mut page = ZERO_PAGE;
        self.with_codec(|codec| place.load(codec, &mut page))?;
        if let Some(base) = base {
            xor(&mut page, &*self.full_page_of(base)?);
        }
        place.check(&page)
    }

    fn reads_whole(&self, entry: &Entry, bad: &BTreeSet<u64>) -> Result<bool> {
        self.state_at(entry.position)?;
        let maps = self.maps_at(entry.position)?;
        let is_good = |map: &PageMap| {
            map.iter_not_base().all(|(_, version)| version.stored().is_none_or(|id| !bad.contains(&id)))
        };
        Ok(is_good(&maps.ram) && is_good(&maps.disk))
    }

    /// Writes a new store with only the checkpoints `kept`, and puts the new store in place of this store. Returns the
    /// new store's entries.
    fn replace_by(&self, kept: &[Entry]) -> Result<Vec<Entry>> {
        let (new, old) = (beside(&self.dir, ".new"), beside(&self.dir, ".damaged"));
        for left_behind in [&new, &old] {
            if left_behind.exists() {
                fs::remove_dir_all(left_behind).map_err(StoreError::io(left_behind, "delete"))?;
            }
        }
        let written = self.write_anew(&new, kept).and_then(|entries| {
            fs::rename(&self.dir, &old).map_err(StoreError::io(&self.dir, "rename"))?;
            fs::rename(&new, &self.dir).map_err(|source| {
                // This rename undoes the first rename. A failure is unlikely, because the first rename has just
                // succeeded.
                let _ = fs::rename(&old, &self.dir);
                StoreError::io(&new, "rename")(source)
            })?;
            Ok(entries)
        });
        if written.is_err() {
            // An incomplete store is useless. If it cannot be deleted, it does no harm.
            let _ = fs::remove_dir_all(&new);
            return written;
        }
        fs::remove_dir_all(&old).map_err(StoreError::io(&old, "delete"))?;
        written
    }

    fn write_anew(&self, dir: &Path, kept: &[Entry]) -> Result<Vec<Entry>> {
        let store = Store::create(dir, self.shape.ram_pages, self.shape.disk_blocks)?;
        let mut before = Maps::new(self.shape.ram_pages, self.shape.disk_blocks);
        for entry in kept {
            let maps = self.maps_at(entry.position)?;
            let mut draft = store.add(entry.position, entry.time_ns)?;
            for space in [Space::Ram, Space::Disk] {
                for (page, version) in maps.space(space).changed_since(before.space(space)) {
                    self.copy_page(&mut draft, space, page, version)?;
                }
            }
            draft.finish(&entry.head, &self.state_at(entry.position)?)?;
            before = maps;
        }
        Ok(store.entries())
    }

    fn copy_page(
        &self,
        draft: &mut CheckpointDraft<'_>,
        space: Space,
        page: u64,
        version: &PageRef,
    ) -> Result<()> {
        let mut contents = ZERO_PAGE;
        match version {
            PageRef::Base => {
                draft.base_page(space, page);
                return Ok(());
            }
            PageRef::Stored(id) => self.read(*id, &mut contents)?,
            PageRef::Zero | PageRef::Held(_) => {}
        }
        draft.page(space, page, &contents).map(drop)
    }
}

/// A folder's name with a suffix.
fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Loads all readable files, and leaves out checkpoints whose maps fail the check.
fn salvage(dir: PathBuf, shape: Shape) -> Result<Store> {
    let (mut index, mut damage) = (Index::default(), Vec::new());
    let mut directories: BTreeMap<u32, Directory> = BTreeMap::new();
    for seen in folder::list(&dir)? {
        let path = checkpoint_path(&dir, seen.number);
        let (file, listed) = open::open(&path, seen.number)?;
        let entered = open::Contents::read(&path, shape, listed, &file)
            .and_then(|contents| open::enter(&mut index, &path, listed, &file, contents));
        match entered {
            Ok(directory) => drop(directories.insert(seen.number, directory)),
            Err(error) if error.is_damage() => damage.push(error),
            Err(error) => return Err(error),
        }
    }
    // Other files may refer to versions in a dropped file, and must then be dropped, too.
    while let Some((number, error)) = misfit(&mut index, &dir, &directories) {
        damage.push(error);
        directories.remove(&number);
        index.remove(number);
    }
    let mut maps = Maps::new(shape.ram_pages, shape.disk_blocks);
    let order: Vec<u32> = index.order.values().copied().collect();
    for number in order {
        let directory = &directories[&number];
        directory.list.apply(&mut maps);
        if maps_check(&maps, &index.blobs) != directory.maps_check {
            index.left_out.insert(number);
        }
        directory.back.apply(&mut maps);
    }
    if damage.is_empty() {
        let what = "some of the files that belong together are missing";
        damage.push(StoreError::damaged(&dir, "store", what));
    }
    let mut store = Store::with(dir, shape, index);
    store.damage = damage;
    Ok(store)
}

/// Enters the blobs of the files in `directories` in the index. Returns the number of a file that does not fit the
/// others, and the reason; `None` if all fit.
fn misfit(
    index: &mut Index,
    dir: &Path,
    directories: &BTreeMap<u32, Directory>,
) -> Option<(u32, StoreError)> {
    index.blobs = BlobTable::default();
    for (&number, directory) in directories {
        if let Err(error) = open::add_blobs(index, &checkpoint_path(dir, number), number, directory) {
            return Some((number, error));
        }
    }
    for (&number, directory) in directories {
        let path = checkpoint_path(dir, number);
        for (id, base) in directory.bases() {
            if index.blobs.get(base).is_none_or(|row| row.base.is_some()) {
                let what = "its base version is missing";
                return Some((number, StoreError::damaged(&path, format!("version {id}"), what)));
            }
        }
        for lists in [&directory.list, &directory.back] {
            if let Some(id) = lists.versions().find(|id| index.blobs.get(*id).is_none()) {
                let what = format!("no file has version {id}");
                return Some((number, StoreError::damaged(&path, "directory", what)));
            }
        }
    }
    None
}
