//! The store's folder: file names, the header, the writers' lock, and giving complete files their names.
//!
//! A file whose name ends in `.part` is unfinished, or a killed writer left it behind. Only a complete file
//! gets its final name.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::format::{FOOTER_BYTES, MAGIC, MAX_PAGES, Shape, VERSION, pack_section};

pub(crate) const HEADER_NAME: &str = "store";
const HEADER_MAGIC: [u8; 8] = *b"ttvmstor";
/// The length of the header in bytes: magic, version, two numbers of pages, CRC-32.
pub(crate) const HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 4;
const LOCK_NAME: &str = "lock";

/// The largest number that fits the eight digits of a name.
pub(crate) const MAX_NUMBER: u32 = 99_999_999;

/// A file in the folder's listing. Two files with equal entries have equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub number: u32,
    pub inode: u64,
    pub len: u64,
}

pub(crate) fn checkpoint_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(checkpoint_name(number))
}

pub(crate) fn checkpoint_name(number: u32) -> String {
    format!("{number:08}.ckpt")
}

/// The finished checkpoint files by number. Omits files that vanish while the listing is made.
pub(crate) fn list(dir: &Path) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir, "list the folder"))? {
        let entry = entry.map_err(StoreError::io(dir, "list the folder"))?;
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(number_of) else { continue };
        if let Ok(data) = entry.metadata() {
            listed.push(Listed { number, inode: data.ino(), len: data.len() });
        }
    }
    listed.sort_unstable();
    Ok(listed)
}

fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".ckpt")?;
    let is_number = digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

/// Removes unfinished files of killed writers. The caller must hold the lock.
pub(crate) fn remove_parts(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir, "list the folder"))? {
        let path = entry.map_err(StoreError::io(dir, "list the folder"))?.path();
        if path.extension().is_some_and(|extension| extension == "part") {
            fs::remove_file(&path).map_err(StoreError::io(&path, "remove an unfinished file"))?;
        }
    }
    Ok(())
}

/// Creates the folder and its header.
pub(crate) fn create(dir: &Path, shape: Shape) -> Result<()> {
    check_shape(dir, shape)?;
    fs::create_dir_all(dir).map_err(StoreError::io(dir, "make the folder"))?;
    let path = dir.join(HEADER_NAME);
    if path.exists() {
        return Err(StoreError::new(dir, StoreErrorKind::AlreadyExists));
    }
    let mut part = Part::create(path)?;
    part.write(&header(shape))?;
    part.sync()?;
    part.rename()
}

fn check_shape(path: &Path, shape: Shape) -> Result<()> {
    let pages = shape.ram_pages.max(shape.disk_blocks);
    match pages <= MAX_PAGES {
        true => Ok(()),
        false => Err(StoreError::new(path, StoreErrorKind::TooLarge(pages))),
    }
}

fn header(shape: Shape) -> Vec<u8> {
    let mut bytes = HEADER_MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(shape.ram_pages.to_le_bytes());
    bytes.extend(shape.disk_blocks.to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// The size in bytes of a store with one checkpoint that has this state and no pages.
pub fn least_bytes(state: &[u8]) -> u64 {
    let (state, _) = pack_section(state);
    HEADER_BYTES as u64 + MAGIC.len() as u64 + state.len() as u64 + FOOTER_BYTES
}

/// Reads the numbers of RAM pages and disk blocks in the header.
pub(crate) fn read_header(dir: &Path) -> Result<Shape> {
    let path = dir.join(HEADER_NAME);
    let len = fs::metadata(&path).map_err(StoreError::io(&path, "open the store's header"))?.len();
    let wrong = |what: &str| StoreError::damaged(&path, "header", what);
    if len != HEADER_BYTES as u64 {
        return Err(wrong("its length is wrong"));
    }
    let bytes = fs::read(&path).map_err(StoreError::io(&path, "read the store's header"))?;
    let word = |at: usize| bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    let (Some(ram_pages), Some(disk_blocks)) = (word(12), word(20)) else {
        return Err(wrong("its length is wrong"));
    };
    let shape = Shape { ram_pages, disk_blocks };
    if !bytes.starts_with(&HEADER_MAGIC) {
        return Err(wrong("it has the wrong magic bytes"));
    }
    if bytes[..HEADER_BYTES - 4] != header(shape)[..HEADER_BYTES - 4] {
        let found = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        return Err(StoreError::new(&path, StoreErrorKind::Version { found, known: VERSION }));
    }
    if bytes != header(shape) {
        return Err(wrong("its CRC-32 is wrong"));
    }
    check_shape(&path, shape)?;
    Ok(shape)
}

/// Takes the writers' lock. The lock is held as long as the returned file is open.
pub(crate) fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK_NAME);
    let file = plain_file::lock_file(&path).map_err(StoreError::io(&path, "open the lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::new(dir, StoreErrorKind::Busy)),
        Err(TryLockError::Error(error)) => Err(StoreError::io(&path, "take the lock")(error)),
    }
}

/// A file that gets its final name once it is complete. If the value is dropped earlier, the file is removed.
pub(crate) struct Part {
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
    written: u64,
}

const BUFFER_BYTES: usize = 256 << 10;

impl Part {
    pub fn create(path: PathBuf) -> Result<Part> {
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let create = || File::options().create_new(true).read(true).write(true).open(&part);
        let file = match create() {
            // A left-over file is removed, not written to, because it may be a link.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&part).and_then(|()| create())
            }
            created => created,
        };
        let file = Some(file.map_err(StoreError::io(&part, "create a file"))?);
        Ok(Part { path, part, file, buffer: Vec::new(), written: 0 })
    }

    /// The number of bytes written so far.
    pub fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let file = self.file.as_mut().expect("it is open until it is finished");
        file.write_all(&self.buffer).map_err(StoreError::io(&self.part, "write"))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Flushes the bytes to the disk, so that naming the file later takes little time.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let file = self.file.as_ref().expect("it is open until it is finished");
        file.sync_data().map_err(StoreError::io(&self.part, "flush"))
    }

    /// The entry that the file will have in the folder's listing, and the open file. Call this function after
    /// writing all bytes.
    pub fn listed(&self, number: u32) -> Result<(Listed, Arc<File>)> {
        let file = self.file.as_ref().expect("it is open until it is finished");
        let file = file.try_clone().map_err(StoreError::io(&self.part, "open"))?;
        let inode = file.metadata().map_err(StoreError::io(&self.part, "look at"))?.ino();
        Ok((Listed { number, inode, len: self.len() }, Arc::new(file)))
    }

    /// Gives the file its final name. If a file with this name exists, it is replaced. The caller must have called
    /// [`Part::sync`].
    pub fn rename(&mut self) -> Result<()> {
        fs::rename(&self.part, &self.path).map_err(StoreError::io(&self.part, "rename"))?;
        self.file = None;
        if let Some(dir) = self.path.parent() {
            sync_folder(dir);
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.file.is_some()
            && let Err(error) = fs::remove_file(&self.part)
        {
            log::warn!("cannot remove {}: {error}", self.part.display());
        }
    }
}

/// Flushes the folder to the disk, so that renamed and removed names survive a power cut. If the host cannot do
/// that, a power cut may lose the last checkpoint. Recording continues despite this risk.
fn sync_folder(dir: &Path) {
    if let Err(error) = File::open(dir).and_then(|folder| folder.sync_all()) {
        log::warn!("cannot flush {}: {error}", dir.display());
    }
}

/// Deletes a checkpoint's file.
pub(crate) fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(StoreError::io(path, "delete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finished_checkpoints_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let names =
            ["00000007.ckpt", "7.ckpt", "00000008.ckpt.part", "00000003.ckpt", "+0000003.ckpt", "store"];
        names.iter().for_each(|name| fs::write(dir.path().join(name), name).unwrap());
        let numbers: Vec<u32> = list(dir.path()).unwrap().iter().map(|file| file.number).collect();
        assert_eq!(numbers, [3, 7]);
        remove_parts(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), names.len() - 1);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = Part::create(dir.path().join("x")).unwrap();
        part.write(&[1; 1 << 20]).unwrap();
        drop(part);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_left_behind_goes_and_a_link_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let [path, part, other] = ["x", "x.part", "other"].map(|name| dir.path().join(name));
        fs::write(&other, b"precious").unwrap();
        for is_link in [true, false] {
            match is_link {
                true => std::os::unix::fs::symlink(&other, &part).unwrap(),
                false => fs::write(&part, b"half of a file that was longer").unwrap(),
            }
            let mut whole = Part::create(path.clone()).unwrap();
            whole.write(b"whole").unwrap();
            whole.sync().unwrap();
            whole.rename().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"whole");
            assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        }
        assert_eq!(fs::read(&other).unwrap(), b"precious");
    }

    #[test]
    fn headers_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { ram_pages: 7, disk_blocks: 1 << 29 };
        create(dir.path(), shape).unwrap();
        assert_eq!(read_header(dir.path()).unwrap(), shape);
        let again = create(dir.path(), shape).unwrap_err();
        assert!(matches!(again.kind, StoreErrorKind::AlreadyExists));
        let path = dir.path().join(HEADER_NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(read_header(dir.path()).is_err(), "byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(read_header(dir.path()).is_err(), "{at} bytes");
        }
        let huge = create(&dir.path().join("huge"), Shape { ram_pages: 1, disk_blocks: MAX_PAGES + 1 });
        assert!(matches!(huge.unwrap_err().kind, StoreErrorKind::TooLarge(_)));
    }

    #[test]
    fn one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        assert!(matches!(lock(dir.path()).unwrap_err().kind, StoreErrorKind::Busy));
        drop(first);
        lock(dir.path()).unwrap();
    }
}
