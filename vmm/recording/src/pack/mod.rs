//! Packs a recording into one file, from which another host can replay it: manifest, log, images and checkpoints.
//! `FORMAT.md` describes the file. [`pack`] writes a packed recording. [`unpack`] turns a packed recording into a
//! recording that contains its images.

mod archive;
mod reader;
mod writer;

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use checkpoint::{Store, StoreError};
use reader::check_log_file;
pub use reader::{Contents, Sink, check_log, read_archive};

use crate::files::{CHECKPOINTS, EVENTS, IMAGES, MANIFEST};
use crate::manifest::Manifest;
use crate::opened::Recording;
use machine::config::ImageFile;
use machine::error::Error;
use machine::new_file::NewFile;
use machine::unit::Unit;

/// The default limit in bytes on the size of an unpacked recording, holes included.
pub const DEFAULT_MAX_BYTES: u64 = 64 << 30;

/// Packs a recording into a new file, with or without its checkpoints. Returns the file's size.
pub fn pack<C: Unit>(recording: &Recording<C>, to: &Path, with_checkpoints: bool) -> Result<u64, Error> {
    let checkpoints = if with_checkpoints { recording.whole_checkpoints()? } else { None };
    if let Some(store) = &checkpoints {
        // The pack gets new hashes of the files as they are now. So damaged data must be found before packing.
        store.verify(|_, _| {})?;
    }
    let mut file = NewFile::begin(to)?;
    let mut out = writer::write_archive(recording, checkpoints.as_deref(), BufWriter::new(file.file()), to)?;
    out.flush().map_err(Error::file("write", to))?;
    drop(out);
    Ok(file.finish()?.len())
}

/// Unpacks a packed recording into a new directory.
pub fn unpack(from: &Path, to: &Path, max_bytes: u64) -> Result<(), Error> {
    let file = plain_file::open(from).map_err(Error::file("open", from))?;
    std::fs::create_dir(to).map_err(Error::file("create", to))?;
    let mut sink = Directory { path: to.to_path_buf(), file: None };
    let made = make_directories(to)
        .and_then(|()| read_archive(BufReader::new(file), max_bytes, from, &mut sink))
        // The manifest is written last, so that no reader takes a half unpacked directory for a recording.
        .and_then(|contents| {
            if contents.has_checkpoints {
                Store::open(to.join(CHECKPOINTS)).map_err(|error| damaged_store(from, &error))?;
            } else {
                std::fs::remove_dir(to.join(CHECKPOINTS))
                    .map_err(Error::file("remove", to.join(CHECKPOINTS)))?;
            }
            check_gathered_disk(&contents.manifest, to).map_err(|error| damaged_disk(from, &error))?;
            let manifest = to.join(MANIFEST);
            std::fs::write(&manifest, contents.manifest.text()).map_err(Error::file("write", manifest))
        });
    if made.is_err() {
        // Removes the half unpacked directory, which this function made.
        let _ = std::fs::remove_dir_all(to);
    }
    made
}

fn make_directories(of: &Path) -> Result<(), Error> {
    [IMAGES, CHECKPOINTS].iter().try_for_each(|name| {
        let path = of.join(name);
        std::fs::create_dir(&path).map_err(Error::file("create", path))
    })
}

/// Checks the unpacked image of a disk that was gathered.
fn check_gathered_disk(manifest: &Manifest, folder: &Path) -> Result<(), Error> {
    let Some(disk) = manifest.machine.disk.as_ref().filter(|disk| disk.is_gathered()) else { return Ok(()) };
    let path = folder.join(&disk.path);
    let gathered = ImageFile { path: path.clone(), ..disk.clone() }.open_gathered()?;
    gathered.check().map_err(|error| Error::recording(path, error.to_string()))
}

/// The error for a gathered image that has the right hash, but is no image, or the image of another recording.
fn damaged_disk(archive: &Path, error: &Error) -> Error {
    match error {
        Error::Recording { why, .. } => Error::recording(archive, format!("is damaged: {why}")),
        other => Error::recording(archive, format!("is damaged: {other}")),
    }
}

/// The error for checkpoint files that have the right hashes, but do not make a valid store.
fn damaged_store(archive: &Path, error: &StoreError) -> Error {
    let in_store = error.path.file_name().unwrap_or_default().display();
    Error::recording(archive, format!("is damaged: the file {in_store} of its checkpoints {}", error.kind))
}

/// A sink that unpacks a recording into a directory.
struct Directory {
    path: PathBuf,
    file: Option<(PathBuf, File)>,
}

impl Sink for Directory {
    fn begin(&mut self, name: &Path, size_bytes: u64) -> Result<(), Error> {
        let path = self.path.join(name);
        let file = File::create_new(&path).map_err(Error::file("create", &path))?;
        file.set_len(size_bytes).map_err(Error::file("make room for", &path))?;
        self.file = Some((path, file));
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (path, file) = self.file.as_ref().expect("a file is begun before it is written to");
        file.write_all_at(bytes, offset).map_err(Error::file("write", path))
    }

    fn check_log(&mut self, manifest: &Manifest) -> Result<(), String> {
        check_log_file(&self.path.join(EVENTS), manifest)
    }
}

#[cfg(test)]
mod tests;
