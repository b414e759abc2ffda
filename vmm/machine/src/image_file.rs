//! The files that a machine is made from. This module reads and hashes these files, and checks that they are still the
//! recorded files.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gathered_image::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

use crate::contents_hash::{ContentsHasher, Scheme};
use crate::error::Error;

/// A file that a machine is made from, by path and contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageFile {
    /// The file's path.
    pub path: PathBuf,
    /// Hash of the file's contents, by one of the [`Scheme`]s.
    pub hash: String,
    /// The file's size.
    pub size_bytes: u64,
}

/// The prefix of a hash that stands for the id of a gathered image.
const GATHERED: &str = "gathered:";

impl ImageFile {
    /// The description of a disk image that is gathered while the guest reads it. The contents of the image are not known when
    /// the run begins. So its id takes the place of the hash.
    pub fn gathered(path: PathBuf, image: &gathered_image::Image) -> ImageFile {
        let id: String = image.id().iter().map(|byte| format!("{byte:02x}")).collect();
        ImageFile { path, hash: format!("{GATHERED}{id}"), size_bytes: image.blocks() * BLOCK_BYTES as u64 }
    }

    /// Whether the image is gathered while the guest reads it.
    pub fn is_gathered(&self) -> bool {
        self.hash.starts_with(GATHERED)
    }

    /// Opens a gathered image, and checks that it is the image of this description.
    pub fn open_gathered(&self) -> Result<gathered_image::Image, Error> {
        let refused = |why: String| Error::recording(&self.path, why);
        let image = gathered_image::Image::open(&self.path)
            .map_err(|error| refused(format!("the disk of this recording cannot be used: {error}")))?;
        if ImageFile::gathered(self.path.clone(), &image) != *self {
            return Err(refused(
                "this is the disk of another recording; put the right file back".to_string(),
            ));
        }
        Ok(image)
    }
}

/// The values by which the file system identifies a file and its last change. While these values stay the same, the
/// contents stay the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// The time when the contents changed last: seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// The time when the contents or the inode changed last.
    changed: (i64, i64),
}

impl FileIdentity {
    /// File systems store times in steps of some milliseconds, and some in steps of a second or two. So if a file
    /// changes twice within a step, the second change may change the contents but not the identity.
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

    /// Whether the last change is so long ago that another change would change the identity.
    fn is_settled(&self) -> bool {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = self.changed.0.max(self.modified.0);
        u64::try_from(last).is_ok_and(|last| Duration::from_secs(last) + Self::STEP < since_1970)
    }
}

/// The files that this process has hashed, with their identities at that time. The same file is not hashed twice,
/// because a disk image may have many gigabytes.
type Hashed = BTreeMap<(PathBuf, Scheme), (FileIdentity, ImageFile)>;
static HASHED: Mutex<Hashed> = Mutex::new(BTreeMap::new());

fn hashed() -> MutexGuard<'static, Hashed> {
    HASHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The identity of an image's file when this process hashed it. `None` if the file changed while it was hashed, or
/// shortly before.
pub fn identity_when_hashed(image: &ImageFile) -> Option<FileIdentity> {
    hashed().get(&(image.path.clone(), Scheme::of(&image.hash))).map(|(identity, _)| *identity)
}

/// Opens an image file for [`read_opened`].
pub(super) fn open_image(path: &Path) -> Result<File, Error> {
    plain_file::open(path).map_err(Error::file("read", path))
}

/// Reads an image file, which may have at most `most_bytes`.
pub(super) fn read_image(path: &Path, most_bytes: u64) -> Result<(ImageFile, Vec<u8>), Error> {
    read_opened(open_image(path)?, path, most_bytes)
}

/// Does the same as [`read_image`], but reads the open file `file`, which has the contents of the file at `path`.
pub(super) fn read_opened(file: File, path: &Path, most_bytes: u64) -> Result<(ImageFile, Vec<u8>), Error> {
    let bytes = plain_file::read_opened(file, most_bytes).map_err(Error::file("read", path))?;
    Ok((described(path, blake3::hash(&bytes).to_hex().to_string(), bytes.len() as u64), bytes))
}

/// Hashes an image file. A file that has not changed since this process last hashed it is not read again.
pub fn hash_image(path: &Path, scheme: Scheme) -> Result<ImageFile, Error> {
    hash_image_with(path, scheme, &mut |_| {})
}

/// Does the same as [`hash_image`]. Calls `progress` now and then with the number of bytes hashed so far.
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

/// The hash of a file, and its size. Does not read holes.
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
                // The file became shorter while it was hashed.
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

/// Reads an image that a recording names. If the image is missing or is not a plain file, the error says that the
/// recording cannot be used.
pub(super) fn read_recorded<T>(
    what: &str,
    recorded: &ImageFile,
    read: impl Fn(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    let missing = |why: String| {
        let why = format!(
            "the {what} of this recording {why}; put back the file with the hash {} ({} bytes), or name its new \
             place with `ttvm relink`, which changes the manifest",
            recorded.hash, recorded.size_bytes
        );
        Error::recording(&recorded.path, why)
    };
    let metadata =
        std::fs::metadata(&recorded.path).map_err(|error| missing(format!("cannot be read: {error}")))?;
    if !metadata.is_file() {
        return Err(missing("is not a regular file".to_string()));
    }
    // A file of another size has other contents, so it need not be read.
    if metadata.len() != recorded.size_bytes {
        return Err(changed(what, recorded));
    }
    read(&recorded.path).map_err(|error| match error {
        Error::File { source, .. } => missing(format!("cannot be read: {source}")),
        other => other,
    })
}

/// Checks that an image is the recorded image.
pub fn same(what: &str, recorded: &ImageFile, now: &ImageFile) -> Result<(), Error> {
    if recorded.hash == now.hash && recorded.size_bytes == now.size_bytes {
        return Ok(());
    }
    Err(changed(what, recorded))
}

/// The error that an image is not the recorded image. The error does not show the hash of the user's file, because a
/// stranger's recording may name any of the user's files.
fn changed(what: &str, recorded: &ImageFile) -> Error {
    let why = format!(
        "the {what} has changed since the recording was made; put back the file with the hash {} ({} bytes)",
        recorded.hash, recorded.size_bytes
    );
    Error::recording(&recorded.path, why)
}
