//! A note in the recording that says which disk image was hashed last, and the identity of the image's file. If the
//! file has not changed, opening the recording need not hash the image again.
//!
//! The note is a cache: without the note, the image is hashed once more. Packs leave the note out. A note from another
//! host does no harm, because its inode and times match no file on this host.

use std::path::Path;

use machine::config::{FileIdentity, ImageFile, MachineConfig, identity_when_hashed};
use machine::error::Error;
use serde::{Deserialize, Serialize};

use crate::files::DISK_SEEN;

/// The largest note that is read.
const MAX_NOTE_BYTES: u64 = 4096;

#[derive(PartialEq, Serialize, Deserialize)]
struct Note {
    /// Hash of the contents, as in the manifest.
    hash: String,
    /// The identity of the image's file when it was hashed.
    file: FileIdentity,
}

/// Writes the note about a disk image that this process has hashed. Failing to write the note does no harm.
pub(super) fn note(folder: &Path, disk: &ImageFile) {
    let Some(file) = identity_when_hashed(disk) else { return };
    let note = Note { hash: disk.hash.clone(), file };
    let text = serde_json::to_string(&note).expect("plain data in memory always serializes");
    if let Err(error) = std::fs::write(folder.join(DISK_SEEN), text) {
        log::debug!("the next opening hashes the disk image once more: {error}");
    }
}

/// Checks that the disk image is the recorded image. Hashes the image only if the note does not describe the image's
/// present file.
pub(super) fn check(folder: &Path, machine: &MachineConfig) -> Result<(), Error> {
    let Some(disk) = &machine.disk else { return Ok(()) };
    if is_noted(folder, disk) {
        return Ok(());
    }
    machine.check_disk()?;
    note(folder, disk);
    Ok(())
}

fn is_noted(folder: &Path, disk: &ImageFile) -> bool {
    let noted = plain_file::read(&folder.join(DISK_SEEN), MAX_NOTE_BYTES).ok();
    let noted = noted.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
    let now = FileIdentity::of(&disk.path).ok().map(|file| Note { hash: disk.hash.clone(), file });
    noted.is_some() && noted == now
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::time::{Duration, SystemTime};

    use machine::config::hash_image;
    use machine::contents_hash::Scheme;

    use super::*;

    /// Writes an image, and sets its time of modification to an hour ago.
    fn write_old(path: &Path, contents: &[u8]) {
        std::fs::write(path, contents).unwrap();
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_times(FileTimes::new().set_modified(hour_ago))
            .unwrap();
    }

    #[test]
    fn an_image_is_as_noted_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        write_old(&path, &[1; 512]);
        let disk = hash_image(&path, Scheme::Sparse).unwrap();
        let file = FileIdentity::of(&path).unwrap();
        let text = serde_json::to_string(&Note { hash: disk.hash.clone(), file }).unwrap();
        std::fs::write(folder.path().join(DISK_SEEN), text).unwrap();
        assert!(is_noted(folder.path(), &disk));
        let other = ImageFile { hash: "0".repeat(64), ..disk.clone() };
        assert!(!is_noted(folder.path(), &other), "another image was recorded");
        // Other contents, but the same size and time of modification.
        write_old(&path, &[2; 512]);
        assert!(!is_noted(folder.path(), &disk));
        std::fs::write(folder.path().join(DISK_SEEN), "{").unwrap();
        assert!(!is_noted(folder.path(), &disk));
    }

    #[test]
    fn an_image_that_has_just_changed_is_not_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [1; 512]).unwrap();
        let disk = hash_image(&path, Scheme::Sparse).unwrap();
        note(folder.path(), &disk);
        assert!(!folder.path().join(DISK_SEEN).exists());
    }
}
