//! The files that a machine is made from: their contents, and whether they are still what was recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::contents_hash::{ContentsHasher, Scheme};
use crate::error::Error;

/// A file that a machine is made from, by path and contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageFile {
    /// Where it was found.
    pub path: PathBuf,
    /// Hash of its contents, by one of the [`Scheme`]s.
    pub hash: String,
    /// Its size.
    pub size_bytes: u64,
}

/// A file as its file system knows it. A file with the identity that it had earlier has the contents that it had then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// When its contents changed last: seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// When its contents or its inode changed last.
    changed: (i64, i64),
}

impl FileIdentity {
    /// File systems note times in steps of some milliseconds, and some in seconds. A file that changes twice within a step has
    /// one identity for two contents.
    const STEP: Duration = Duration::from_secs(2);

    /// The identity of the file at a path.
    pub fn of(path: &Path) -> std::io::Result<FileIdentity> {
        let metadata = std::fs::metadata(path)?;
        Ok(FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether its last change is so long ago that another one would show.
    fn is_settled(&self) -> bool {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = self.changed.0.max(self.modified.0);
        u64::try_from(last).is_ok_and(|last| Duration::from_secs(last) + Self::STEP < since_1970)
    }
}

/// What this process has hashed, and the identities that the files had: a disk image may have many gigabytes.
type Hashed = BTreeMap<(PathBuf, Scheme), (FileIdentity, ImageFile)>;
static HASHED: Mutex<Hashed> = Mutex::new(BTreeMap::new());

fn hashed() -> MutexGuard<'static, Hashed> {
    HASHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The identity that an image's file had when this process hashed it; `None` if it changed meanwhile, or just before.
pub fn identity_when_hashed(image: &ImageFile) -> Option<FileIdentity> {
    hashed().get(&(image.path.clone(), Scheme::of(&image.hash))).map(|(identity, _)| *identity)
}

/// Opens an image file for [`read_opened`].
pub(super) fn open_image(path: &Path) -> Result<File, Error> {
    plain_file::open(path).map_err(Error::file("read", path))
}

/// Reads an image file, which has so many bytes at most.
pub(super) fn read_image(path: &Path, most_bytes: u64) -> Result<(ImageFile, Vec<u8>), Error> {
    read_opened(open_image(path)?, path, most_bytes)
}

/// As [`read_image`], of a file that is open and has the contents of the one at this path.
pub(super) fn read_opened(file: File, path: &Path, most_bytes: u64) -> Result<(ImageFile, Vec<u8>), Error> {
    let bytes = plain_file::read_opened(file, most_bytes).map_err(Error::file("read", path))?;
    Ok((described(path, blake3::hash(&bytes).to_hex().to_string(), bytes.len() as u64), bytes))
}

/// An image file, with the hash of its contents. A file that has not changed since is not read again.
pub fn hash_image(path: &Path, scheme: Scheme) -> Result<ImageFile, Error> {
    hash_image_with(path, scheme, &mut |_| {})
}

/// As [`hash_image`]; `progress` is told now and then how many bytes were hashed.
pub fn hash_image_with(
    path: &Path,
    scheme: Scheme,
    progress: &mut dyn FnMut(u64),
) -> Result<ImageFile, Error> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let key = (absolute, scheme);
    let before = FileIdentity::of(path).ok().filter(FileIdentity::is_settled);
    if let (Some(before), Some((identity, image))) = (before, hashed().get(&key))
        && *identity == before
    {
        return Ok(image.clone());
    }
    let image = hash_contents(path, scheme, progress)?;
    let after = FileIdentity::of(path).ok();
    if let Some(identity) = before.filter(|&before| Some(before) == after) {
        hashed().insert(key, (identity, image.clone()));
    }
    Ok(image)
}

fn hash_contents(path: &Path, scheme: Scheme, progress: &mut dyn FnMut(u64)) -> Result<ImageFile, Error> {
    let file = plain_file::open(path).map_err(Error::file("open", path))?;
    let (hash, size_bytes) = hash_file(&file, scheme, progress).map_err(Error::file("read", path))?;
    Ok(described(path, hash, size_bytes))
}

/// The hash of a file, and its size. Holes are not read.
fn hash_file(file: &File, scheme: Scheme, progress: &mut dyn FnMut(u64)) -> std::io::Result<(String, u64)> {
    let mut hasher = ContentsHasher::new(scheme);
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let (data, hole) = plain_file::next_data(file, at)?;
        hasher.zeros(data - at);
        at = data;
        if at == hole {
            return Ok((hasher.finish(), at));
        }
        while at < hole {
            let length = (hole - at).min(buffer.len() as u64) as usize;
            let count = file.read_at(&mut buffer[..length], at)?;
            if count == 0 {
                // Somebody cut it off.
                return Ok((hasher.finish(), at));
            }
            hasher.update(&buffer[..count]);
            at += count as u64;
            progress(at);
        }
    }
}

fn described(path: &Path, hash: String, size_bytes: u64) -> ImageFile {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    ImageFile { path, hash, size_bytes }
}

/// Looks at an image that a recording names. That it is not there, or is something that one could read from
/// for ever, is the recording's trouble.
pub(super) fn read_recorded<T>(
    what: &str,
    recorded: &ImageFile,
    read: impl Fn(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    let missing = |why: String| {
        let why = format!(
            "the {what} of this recording {why}; put back the file with the hash {} ({} bytes), \
             or say where it lies now with ttvm relink, which changes the recording's manifest",
            recorded.hash, recorded.size_bytes
        );
        Error::recording(&recorded.path, why)
    };
    let metadata =
        std::fs::metadata(&recorded.path).map_err(|error| missing(format!("cannot be read: {error}")))?;
    if !metadata.is_file() {
        return Err(missing("is no ordinary file".to_string()));
    }
    // Another size is another file, however long it would take to read.
    if metadata.len() != recorded.size_bytes {
        return Err(changed(what, recorded));
    }
    read(&recorded.path).map_err(|error| match error {
        Error::File { source, .. } => missing(format!("cannot be read: {source}")),
        other => other,
    })
}

/// Whether an image is the one that was recorded.
pub fn same(what: &str, recorded: &ImageFile, now: &ImageFile) -> Result<(), Error> {
    if recorded.hash == now.hash && recorded.size_bytes == now.size_bytes {
        return Ok(());
    }
    Err(changed(what, recorded))
}

/// The hash of what is there is not said: a stranger's recording may name any file of the user's.
fn changed(what: &str, recorded: &ImageFile) -> Error {
    let why = format!(
        "the {what} has changed since the recording was made; put back the file with the hash {} ({} bytes)",
        recorded.hash, recorded.size_bytes
    );
    Error::recording(&recorded.path, why)
}
