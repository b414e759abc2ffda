//! `--out`: copies the files that the guest leaves in its folder `/out` to a folder of the host.
//!
//! Names and contents come from the guest. All files are made new, below a folder that ttvm has made. Only folders and regular
//! files are copied.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use guest_disk::{Files, Kind};
use machine::Machine;
use machine::error::Error;
use machine::position::Instructions;
use views::disk::{DiskContents, trouble};

use crate::output::say;

/// The guest's folder.
pub const GUEST_FOLDER: &str = "/out";
/// The largest number of files in a folder, and of folders below one another.
const MOST_FILES: usize = 1_000_000;
const MOST_DEEP: usize = 100;
/// The number of bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Makes the folder of the host, which must not exist.
pub fn make(folder: &Path) -> Result<(), Error> {
    DirBuilder::new().mode(0o755).create(folder).map_err(Error::file("create", folder))
}

/// Copies the guest's files to a folder of the host.
pub fn copy(machine: &mut Machine<Instructions>, folder: &Path) -> Result<(), Error> {
    let mut files = DiskContents::of(machine)?.files(None)?;
    if let Err(error) = files.list(GUEST_FOLDER.as_bytes(), MOST_FILES) {
        // A guest that did not begin has no such folder, or it may have removed the folder.
        say(&format!("ttvm: nothing is copied from the guest's {GUEST_FOLDER}: {error}"));
        return Ok(());
    }
    let skipped = copy_folder(&mut files, GUEST_FOLDER, folder, 0)?;
    if skipped > 0 {
        let what = "they are no folders or files, or have names that are not UTF-8";
        say(&format!("ttvm: {skipped} entries of the guest's {GUEST_FOLDER} are not copied: {what}"));
    }
    Ok(())
}

/// Copies a folder. Returns the number of entries that were not copied.
fn copy_folder(files: &mut Files, from: &str, to: &Path, depth: usize) -> Result<u64, Error> {
    let listing = files.list(from.as_bytes(), MOST_FILES).map_err(trouble)?;
    let mut skipped = 0;
    for entry in listing.entries {
        let (inside, outside) = (format!("{from}/{}", entry.name), to.join(&entry.name));
        match entry.kind {
            _ if !is_plain(&entry.name) => skipped += 1,
            Kind::Regular => copy_file(files, &inside, &outside)?,
            Kind::Folder if depth < MOST_DEEP => {
                make(&outside)?;
                skipped += copy_folder(files, &inside, &outside, depth + 1)?;
            }
            _ => skipped += 1,
        }
    }
    Ok(skipped)
}

/// Whether a name is a name of a file in its folder. A lossy name stands for another name.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0', char::REPLACEMENT_CHARACTER])
}

fn copy_file(files: &mut Files, from: &str, to: &Path) -> Result<(), Error> {
    let mut file = File::create_new(to).map_err(Error::file("create", to))?;
    let mut read = files.read(from.as_bytes()).map_err(trouble)?;
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let count = read.read(&mut bytes).map_err(trouble)?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&bytes[..count]).map_err(Error::file("write", to))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        for name in ["", ".", "..", "a/b", "/etc", "a\0", "\u{fffd}"] {
            assert!(!is_plain(name), "{name:?}");
        }
        assert!(is_plain("a..b") && is_plain("log.txt") && is_plain("-rf"));
    }
}
