//! The index of a store in memory: its files, and the place of each page version. The index reflects the last
//! reading of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::folder::{self, HEADER_BYTES, Listed};
use crate::format::{Directory, Footer};
use crate::table::BlobTable;

/// The default limit on the number of files that a store keeps open. Other files are opened when they are needed.
const HELD_FILES: usize = 512;

static MOST_HELD: AtomicUsize = AtomicUsize::new(HELD_FILES);

/// Sets how many files each store of this process may keep open from now on, up to 512. The host's default limit on
/// a process's open files may be low. Each thread that reads pages temporarily opens more files: a quarter of this
/// number, and at least eight.
pub fn hold_open_at_most(files: usize) {
    MOST_HELD.store(files.min(HELD_FILES), Ordering::Relaxed);
}

/// Number of files that a thread may open together to read pages.
pub(crate) fn files_at_once() -> usize {
    (MOST_HELD.load(Ordering::Relaxed) / 4).max(8)
}

/// A checkpoint in the list of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the checkpoint's file. Numbers follow the order of creation, and are never reused while
    /// the store is open.
    pub number: u32,
    /// The checkpoint's position in the run: the number of steps or exits before it. No two checkpoints have the
    /// same position.
    pub position: u64,
    /// The checkpoint's guest time in nanoseconds.
    pub time_ns: u64,
    /// A few opaque bytes of the caller, available without reading the state.
    pub head: Vec<u8>,
    /// The size of the checkpoint's file.
    pub bytes: u64,
    /// Numbers about the contents of the checkpoint's file.
    pub counts: Counts,
}

/// Numbers about the contents of a checkpoint's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of RAM pages that changed since the previous checkpoint.
    pub ram: u64,
    /// Number of disk blocks that changed since the previous checkpoint.
    pub disk: u64,
    /// Number of changed pages and blocks whose bytes are now all zero.
    pub zero: u64,
    /// Number of versions in the file that are stored as deltas.
    pub delta: u64,
    /// Number of versions in the file that are stored in full.
    pub full: u64,
    /// Number of bytes of the pages that the recorder handed in because they might have changed.
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

/// The store's files, as they were when the folder was last read.
#[derive(Default)]
pub(crate) struct Index {
    pub files: BTreeMap<u32, StoredFile>,
    /// File numbers by position.
    pub order: BTreeMap<u64, u32>,
    pub blobs: BlobTable,
    /// The numbers of files whose own checkpoints are lost, because their maps fail the check. Later files still need
    /// these files.
    pub left_out: BTreeSet<u32>,
    held: usize,
}

/// The file of one checkpoint.
#[derive(Clone)]
pub(crate) struct StoredFile {
    pub entry: Entry,
    pub footer: Footer,
    /// Whether the file has a `back` list.
    pub goes_back: bool,
    /// The check of the maps at this checkpoint.
    pub maps_check: u64,
    pub listed: Listed,
    held: Option<Arc<File>>,
}

/// A checkpoint's file, open for reading.
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

impl Index {
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        let numbers = self.order.values().filter(|number| !self.left_out.contains(number));
        numbers.map(|number| &self.files[number].entry)
    }

    /// The number of the file of the checkpoint at a position; `None` if no checkpoint is there.
    pub fn number_at(&self, position: u64) -> Option<u32> {
        self.order.get(&position).copied().filter(|number| !self.left_out.contains(number))
    }

    pub fn total_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.files.values().map(|file| file.entry.bytes).sum::<u64>()
    }

    /// Adds a file, or replaces the file with the same number. The caller updates `blobs`.
    pub fn insert(
        &mut self,
        footer: Footer,
        directory: &Directory,
        head: Vec<u8>,
        listed: Listed,
        file: &Arc<File>,
    ) {
        self.remove(footer.number);
        let held = (self.held < MOST_HELD.load(Ordering::Relaxed)).then(|| file.clone());
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

    /// Returns a file for reading. A file that is not held open is opened again.
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

/// Opens a file that was listed before, if it is still the same file.
fn open_again(path: &Path, listed: Listed) -> Result<File> {
    let replaced = || StoreError::new(path, StoreErrorKind::Replaced);
    let file = match plain_file::open(path).map_err(StoreError::io(path, "open")) {
        Err(error) if error.is_not_found() => return Err(replaced()),
        opened => opened?,
    };
    let data = file.metadata().map_err(StoreError::io(path, "look at"))?;
    if (data.ino(), data.len()) == (listed.inode, listed.len) { Ok(file) } else { Err(replaced()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_files_are_held_open_than_a_process_can_give() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut index = Index::default();
        let insert = |index: &mut Index, number: u32| {
            let shape = crate::format::Shape { ram_pages: 1, disk_blocks: 0 };
            let (position, [head, state, directory]) = (u64::from(number), Default::default());
            let footer = Footer { number, position, time_ns: 0, shape, blobs_len: 0, head, state, directory };
            let listed = Listed { number, inode: 0, len: 0 };
            index.insert(footer, &Directory::default(), Vec::new(), listed, &file);
        };
        // The number of references that the index holds. The test itself holds one more, which is subtracted.
        let held = || Arc::strong_count(&file) - 1;
        const MORE: u32 = HELD_FILES as u32 + 10;
        (1..=MORE).for_each(|number| insert(&mut index, number));
        assert_eq!(held(), HELD_FILES);
        // Remove some files that are held open, and some files that are not.
        (1..=5).chain(MORE - 5..=MORE).for_each(|number| index.remove(number));
        assert_eq!(held(), HELD_FILES - 5);
        (MORE + 1..=MORE + 20).for_each(|number| insert(&mut index, number));
        assert_eq!(held(), HELD_FILES);
    }

    #[test]
    fn a_file_that_is_gone_or_another_was_replaced_and_one_that_cannot_be_opened_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let kind = |listed| open_again(&path, listed).map(drop).map_err(|error| error.kind);
        let missing = Listed { number: 1, inode: 1, len: 0 };
        assert!(matches!(kind(missing), Err(StoreErrorKind::Replaced)));
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(matches!(kind(missing), Err(StoreErrorKind::Io { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"text").unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        assert!(kind(Listed { number: 1, inode, len: 4 }).is_ok());
        for other in [Listed { number: 1, inode, len: 5 }, Listed { number: 1, inode: inode + 1, len: 4 }] {
            assert!(matches!(kind(other), Err(StoreErrorKind::Replaced)));
        }
    }
}
