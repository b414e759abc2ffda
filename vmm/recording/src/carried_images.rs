//! The images in a recording's folder: copies of the kernel, the initial RAM disk and the boot modules, made when the
//! recording begins. The recording still replays after the user rebuilds the originals.
//!
//! A file may change while it is copied. So we copy each file first and build the machine from the copy. The hash in
//! the manifest is the hash of the copy.

use std::fs::File;
use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use gathered_image::Image;
use machine::config::MachineConfig;
use machine::error::Error;
use machine::start::KernelFile;

use crate::files::{DISK, inside, kernel_file_inside};
use crate::opened::create_images;

/// The largest size in bytes of a file that is copied. A larger file is copied only if the file system lets the copy
/// share the file's blocks.
pub const MAX_COPIED_BYTES: u64 = 256 << 20;

/// The images in one recording's folder.
pub(super) struct CarriedImages {
    folder: PathBuf,
    carried: Vec<KernelFile>,
}

impl CarriedImages {
    /// Begins with an existing folder that has no images yet.
    pub fn in_folder(folder: &Path) -> CarriedImages {
        CarriedImages { folder: folder.to_path_buf(), carried: Vec::new() }
    }

    /// Copies an image into the folder, and opens the copy. Opens the image itself if it is too large to be copied.
    pub fn open(&mut self, which: KernelFile, path: &Path) -> Result<File, Error> {
        let source = plain_file::open(path).map_err(Error::file("read", path))?;
        create_images(&self.folder)?;
        match copy(&source, path, &self.folder.join(kernel_file_inside(which)))? {
            Some(copy) => {
                self.carried.push(which);
                Ok(copy)
            }
            None => Ok(source),
        }
    }

    /// The machine's description for this recording's manifest. The description names each carried image by
    /// its path inside the recording.
    pub fn described(&self, folder: &Path, machine: &MachineConfig) -> MachineConfig {
        let mut machine = machine.clone();
        for &which in self.carried.iter().filter(|_| folder == self.folder) {
            let file = machine.start.booted_mut().file_mut(which);
            file.into_iter().for_each(|file| file.path = kernel_file_inside(which));
        }
        machine
    }
}

/// Makes the image of a disk that is gathered while the guest reads it, in the folder of a recording. Returns the image and
/// its path. `blocks` is the number of blocks on the disk, and `id` tells the image from other images.
pub fn create_gathered_disk(folder: &Path, blocks: u64, id: [u8; 16]) -> Result<(Image, PathBuf), Error> {
    create_images(folder)?;
    let path = folder.join(inside(DISK));
    let image = Image::create(&path, blocks, id).map_err(|error| match error {
        gathered_image::Error::File { action, source } => Error::file(action, &path)(source),
        other => Error::recording(&path, other.to_string()),
    })?;
    Ok((image, path))
}

/// Copies a file, and returns the copy open at its start; `None` if the file is too large.
fn copy(source: &File, path: &Path, to: &Path) -> Result<Option<File>, Error> {
    let size_bytes = source.metadata().map_err(Error::file("read", path))?.len();
    let mut options = File::options();
    let mut copy =
        options.read(true).write(true).create_new(true).open(to).map_err(Error::file("create", to))?;
    // On a file system that can clone files, both files share their blocks until one file is written.
    if rustix::fs::ioctl_ficlone(&copy, source).is_ok() {
        return Ok(Some(copy));
    }
    if size_bytes <= MAX_COPIED_BYTES {
        // The file may have grown since its size was read.
        let copied = std::io::copy(&mut source.take(MAX_COPIED_BYTES + 1), &mut copy);
        if copied.map_err(|source| Error::file("copy an image to", to)(with_advice(source)))?
            <= MAX_COPIED_BYTES
        {
            copy.rewind().map_err(Error::file("read", to))?;
            return Ok(Some(copy));
        }
        (&*source).rewind().map_err(Error::file("read", path))?;
    }
    std::fs::remove_file(to).map_err(Error::file("remove", to))?;
    Ok(None)
}

/// Adds to an error about a full disk what the user can do.
fn with_advice(source: std::io::Error) -> std::io::Error {
    if !matches!(source.kind(), FileTooLarge | QuotaExceeded | StorageFull) {
        return source;
    }
    let advice = "make room; `ttvm record --no-copy-images` leaves the images where they are";
    std::io::Error::new(source.kind(), format!("{source}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_left_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (small, large) = (folder.path().join("small"), folder.path().join("large"));
        std::fs::write(&small, "kernel").unwrap();
        // A sparse file takes no space on the disk.
        File::create(&large).unwrap().set_len(MAX_COPIED_BYTES + 1).unwrap();
        let mut images = CarriedImages::in_folder(folder.path());
        let mut text = String::new();
        let mut copy = images.open(KernelFile::Kernel, &small).unwrap();
        std::fs::write(&small, "another").unwrap();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kernel", "the copy is read, and was made before");
        let mut first = [1];
        images.open(KernelFile::Initrd, &large).unwrap().read_exact(&mut first).unwrap();
        assert_eq!(first, [0]);
        let is_there = |which| folder.path().join(kernel_file_inside(which)).exists();
        assert!(is_there(KernelFile::Kernel));
        // A copy that shares its blocks costs nothing, so the recording carries the image if the file system can share
        // blocks.
        assert_eq!(is_there(KernelFile::Initrd), images.carried.contains(&KernelFile::Initrd));
    }
}
