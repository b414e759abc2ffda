//! The store of checkpoints: which there are, and the page versions and state of each.
//!
//! A checkpoint is a file of its own in the store's folder (`FORMAT.md`): the versions of the pages that changed
//! since the checkpoint before it. Reading takes no lock and every file stays open, so that a recorder may
//! thin out what a reader looks at. Adding, removing and thinning take the writers' lock at their first use.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cache::{MapsCache, PageCache, Recent};
use crate::check::maps_check;
use crate::codec::Codec;
use crate::folder::{self, HEADER_BYTES, Listed};
use crate::format::{Directory, Footer, Shape};
use crate::table::BlobTable;
use crate::{Maps, Result, StoreError, StoreErrorKind};

/// Files that a store keeps open. More are opened when they are needed: a process has few to give by default.
const HELD_FILES: usize = 768;

/// A checkpoint in a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of its file: in order of creation, never reused while the store is open.
    pub number: u32,
    /// Where in the run it is: the number of steps before it. No two checkpoints have the same.
    pub position: u64,
    /// Guest time there, in nanoseconds.
    pub time_ns: u64,
    /// Small opaque bytes of the caller, at hand without reading the state.
    pub head: Vec<u8>,
    /// The size of its file.
    pub bytes: u64,
    /// What its file holds.
    pub counts: Counts,
}

/// What a checkpoint's file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// RAM pages that changed since the checkpoint before it.
    pub ram: u64,
    /// Disk blocks that changed since then.
    pub disk: u64,
    /// Of both, those that became zero.
    pub zero: u64,
    /// Versions in the file that are stored as differences.
    pub delta: u64,
    /// Versions in the file that are stored by themselves.
    pub full: u64,
    /// Bytes of the pages that the recorder handed in because they might have changed.
    pub dirtied_bytes: u64,
}

impl Counts {
    pub(crate) fn of(directory: &Directory) -> Counts {
        let ((ram, ram_zero), (disk, disk_zero)) = (directory.list.ram.count(), directory.list.disk.count());
        let delta = directory.blobs.iter().filter(|blob| blob.base.is_some()).count() as u64;
        let full = directory.blobs.len() as u64 - delta;
        let dirtied_bytes = directory.dirtied_bytes;
        Counts { ram, disk, zero: ram_zero + disk_zero, delta, full, dirtied_bytes }
    }
}

/// A folder of checkpoints. Share it between threads behind an `Arc`.
///
/// One thread writes at a time and others wait for it: a [`Draft`](crate::Draft) is a writer from
/// [`Store::add`] until it is finished or dropped, so the thread that has one must not add, remove or thin.
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) shape: Shape,
    inner: RwLock<Inner>,
    writer: Mutex<Writer>,
    pub(crate) pages: Mutex<PageCache>,
    maps: Mutex<MapsCache>,
    codecs: Mutex<Vec<Codec>>,
}

/// The files as they are now.
#[derive(Default)]
pub(crate) struct Inner {
    pub files: BTreeMap<u32, StoredFile>,
    /// File numbers by position.
    pub order: BTreeMap<u64, u32>,
    pub blobs: BlobTable,
    held: usize,
}

/// One checkpoint's file.
#[derive(Clone)]
pub(crate) struct StoredFile {
    pub entry: Entry,
    pub footer: Footer,
    /// Whether it has a list of pages that return to what they were.
    pub goes_back: bool,
    /// Of the maps there.
    pub maps_check: u64,
    pub listed: Listed,
    held: Option<Arc<File>>,
}

/// What only the thread that writes needs.
#[derive(Default)]
pub(crate) struct Writer {
    lock: Option<File>,
    pub next_blob: u64,
    pub next_file: u32,
    pub recent: Recent,
}

/// A checkpoint's file, to be read from.
#[derive(Clone)]
pub(crate) struct OpenFile {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub footer: Footer,
}

impl OpenFile {
    pub fn directory(&self) -> Result<Directory> {
        self.footer.read_directory(&self.file, &self.path)
    }
}

impl Store {
    /// Makes a store without checkpoints in a folder that need not exist, and takes its writers' lock.
    ///
    /// # Errors
    ///
    /// If the folder has a store already or cannot be written to, or a space has more than 2^30 pages.
    pub fn create(dir: impl Into<PathBuf>, ram_pages: u64, disk_blocks: u64) -> Result<Store> {
        let dir = dir.into();
        let shape = Shape { ram_pages, disk_blocks };
        folder::create(&dir, shape)?;
        let store = Store::with(dir, shape, Inner::default());
        drop(store.writer()?);
        Ok(store)
    }

    /// Opens a store, which somebody may be writing to. The checkpoints are those of this moment.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is damaged. No bytes in them can do worse than that.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Store> {
        let dir = dir.into();
        let shape = folder::read_header(&dir)?;
        let inner = crate::open::load(&dir, shape)?;
        Ok(Store::with(dir, shape, inner))
    }

    fn with(dir: PathBuf, shape: Shape, inner: Inner) -> Store {
        Store {
            dir,
            shape,
            inner: RwLock::new(inner),
            writer: Mutex::default(),
            pages: Mutex::default(),
            maps: Mutex::default(),
            codecs: Mutex::default(),
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
        self.read_inner().entries().cloned().collect()
    }

    /// The last checkpoint at or before `position`.
    pub fn entry_at_or_before(&self, position: u64) -> Option<Entry> {
        let inner = self.read_inner();
        let (_, number) = inner.order.range(..=position).next_back()?;
        Some(inner.files[number].entry.clone())
    }

    /// The size of the store's files, in bytes, without one that is being written.
    pub fn total_bytes(&self) -> u64 {
        self.read_inner().total_bytes()
    }

    /// The version of every page at a checkpoint. Quick for a position near one that was asked for lately.
    ///
    /// # Errors
    ///
    /// If there is no such checkpoint, a file cannot be read, or the files before it are not those that it was
    /// written after.
    pub fn maps_at(&self, position: u64) -> Result<Maps> {
        let (mut maps, start, steps) = self.path_to(position)?;
        let mut back = match start {
            Some(start) if !steps.is_empty() => Some(start.directory()?.back),
            _ => None,
        };
        for (at, step) in steps.iter().enumerate() {
            if let Some(back) = back.take() {
                back.apply(&mut maps);
            }
            let directory = step.directory()?;
            directory.list.apply(&mut maps);
            // Maps at distances 0, 1, 2, 4, ... before the end make a walk backwards cheap.
            let distance = steps.len() - 1 - at;
            if distance == 0 || distance.is_power_of_two() {
                self.remember(step.footer.position, step.footer.number, maps.clone());
            }
            back = Some(directory.back);
        }
        self.check_maps(position, &maps)?;
        Ok(maps)
    }

    /// Compares the maps at a checkpoint with the check that was written down for them, once.
    fn check_maps(&self, position: u64, maps: &Maps) -> Result<()> {
        let inner = self.read_inner();
        let number = *inner.order.get(&position).ok_or_else(|| self.missing(position))?;
        if lock(&self.maps).is_checked(position, number) {
            return Ok(());
        }
        if inner.files[&number].maps_check != maps_check(maps, &inner.blobs) {
            let what =
                "it does not belong behind the files that are there: some are missing, or of another store";
            let path = folder::checkpoint_path(&self.dir, number);
            return Err(StoreError::damaged(&path, "directory", what));
        }
        lock(&self.maps).set_checked(position, number);
        Ok(())
    }

    /// The nearest cached maps, their file if it has pages that go back, and the files from there to `position`.
    fn path_to(&self, position: u64) -> Result<(Maps, Option<OpenFile>, Vec<OpenFile>)> {
        let inner = self.read_inner();
        if !inner.order.contains_key(&position) {
            return Err(self.missing(position));
        }
        let live = |position: u64, file: u32| inner.order.get(&position) == Some(&file);
        let (from, maps, start) = match lock(&self.maps).nearest(position, live) {
            Some((from, maps)) => (Bound::Excluded(from), maps, inner.order.get(&from)),
            None => (Bound::Unbounded, Maps::new(self.shape.ram_pages, self.shape.disk_blocks), None),
        };
        let start = match start {
            Some(number) if inner.files[number].goes_back => Some(inner.open(&self.dir, *number)?),
            _ => None,
        };
        let files = inner.order.range((from, Bound::Included(position)));
        let steps: Result<Vec<_>> = files.map(|(_, number)| inner.open(&self.dir, *number)).collect();
        Ok((maps, start, steps?))
    }

    /// The maps that a checkpoint behind `position` builds upon: with the pages gone back that do so.
    pub(crate) fn maps_behind(&self, position: u64) -> Result<Maps> {
        let mut maps = self.maps_at(position)?;
        let open = {
            let inner = self.read_inner();
            match inner.order.get(&position) {
                Some(number) if inner.files[number].goes_back => inner.open(&self.dir, *number)?,
                _ => return Ok(maps),
            }
        };
        open.directory()?.back.apply(&mut maps);
        Ok(maps)
    }

    pub(crate) fn remember(&self, position: u64, file: u32, maps: Maps) {
        lock(&self.maps).put(position, file, maps);
    }

    /// Takes it that the maps of a checkpoint are right: they were just written down.
    pub(crate) fn trust(&self, position: u64, file: u32) {
        lock(&self.maps).set_checked(position, file);
    }

    pub(crate) fn forget(&self, position: u64) {
        lock(&self.maps).remove(position);
    }

    /// The opaque state that was stored with a checkpoint.
    ///
    /// # Errors
    ///
    /// If there is no such checkpoint or its state cannot be read.
    pub fn state_at(&self, position: u64) -> Result<Vec<u8>> {
        let open = {
            let inner = self.read_inner();
            let number = inner.order.get(&position).ok_or_else(|| self.missing(position))?;
            inner.open(&self.dir, *number)?
        };
        open.footer.read_state(&open.file, &open.path)
    }

    pub(crate) fn missing(&self, position: u64) -> StoreError {
        StoreError::new(&self.dir, StoreErrorKind::Missing(position))
    }

    pub(crate) fn read_inner(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().expect("no thread panics while it changes the store")
    }

    pub(crate) fn write_inner(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().expect("no thread panics while it changes the store")
    }

    /// Waits for other writers in this process and locks out those in others. Somebody else may have written
    /// since the store was opened: then it is loaded again.
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let mut writer = lock(&self.writer);
        if writer.lock.is_none() {
            let file = folder::lock(&self.dir)?;
            folder::remove_parts(&self.dir)?;
            let mut inner = self.write_inner();
            if !inner.files.values().map(|file| file.listed).eq(folder::list(&self.dir)?) {
                *inner = crate::open::load(&self.dir, self.shape)?;
                lock(&self.maps).clear();
                *lock(&self.pages) = PageCache::default();
            }
            writer.next_blob = inner.blobs.last() + 1;
            writer.next_file = inner.files.last_key_value().map_or(1, |(number, _)| number + 1);
            writer.lock = Some(file);
        }
        Ok(writer)
    }

    /// Runs `use_it` with compression state from the store's supply.
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

impl Inner {
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.order.values().map(|number| &self.files[number].entry)
    }

    pub fn total_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.files.values().map(|file| file.entry.bytes).sum::<u64>()
    }

    /// Adds a file, or replaces the one with its number. The blobs are the caller's business.
    pub fn insert(
        &mut self,
        footer: Footer,
        directory: &Directory,
        head: Vec<u8>,
        listed: Listed,
        file: &Arc<File>,
    ) {
        self.remove(footer.number);
        let held = (self.held < HELD_FILES).then(|| file.clone());
        self.held += usize::from(held.is_some());
        let Footer { number, position, time_ns, .. } = footer;
        let entry =
            Entry { number, position, time_ns, head, bytes: listed.len, counts: Counts::of(directory) };
        let (goes_back, maps_check) = (!directory.back.is_empty(), directory.maps_check);
        self.order.insert(position, number);
        self.files.insert(number, StoredFile { entry, footer, goes_back, maps_check, listed, held });
    }

    pub fn remove(&mut self, number: u32) {
        if let Some(file) = self.files.remove(&number) {
            self.held -= usize::from(file.held.is_some());
            self.order.remove(&file.entry.position);
        }
    }

    /// A file to read from: the one that was open, or the same again.
    pub fn open(&self, dir: &Path, number: u32) -> Result<OpenFile> {
        let stored = &self.files[&number];
        let path = folder::checkpoint_path(dir, number);
        let file = match &stored.held {
            Some(file) => file.clone(),
            None => Arc::new(open_again(&path, stored.listed)?),
        };
        Ok(OpenFile { file, path, footer: stored.footer })
    }
}

/// Opens a file that was seen before, if it is still the one.
fn open_again(path: &Path, listed: Listed) -> Result<File> {
    use std::os::unix::fs::MetadataExt;
    let replaced = || StoreError::new(path, StoreErrorKind::Replaced);
    let file = match File::open(path).map_err(StoreError::io(path, "open")) {
        Err(error) if error.is_not_found() => return Err(replaced()),
        opened => opened?,
    };
    let data = file.metadata().map_err(StoreError::io(path, "look at"))?;
    if (data.ino(), data.len()) == (listed.inode, listed.len) { Ok(file) } else { Err(replaced()) }
}
