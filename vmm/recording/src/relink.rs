//! Changes the images' paths in a recording's manifest, for images that the user has moved.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::files::MANIFEST;
use crate::manifest::Manifest;
use crate::manifest_text::read_manifest;
use crate::opened::must_be_a_directory;
use machine::config::{ImageFile, MachineConfig, hash_image};
use machine::contents_hash::Scheme;
use machine::error::Error;
use machine::start::Start;

/// The new paths of images. An image without a new path keeps its old path.
#[derive(Clone, Debug, Default)]
pub struct MovedImages {
    /// The kernel.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The paths of all boot modules, in the manifest's order. Empty if the modules keep their paths.
    pub modules: Vec<PathBuf>,
    /// The disk image.
    pub disk: Option<PathBuf>,
}

/// Writes these paths into a recording's manifest. If the file at a path is not the recorded image, returns an error
/// and does not change the manifest.
pub fn relink(recording: &Path, moved: &MovedImages) -> Result<(), Error> {
    must_be_a_directory(recording)?;
    let file = recording.join(MANIFEST);
    let mut manifest = read_manifest(&file)?;
    link(recording, &mut manifest.machine, moved)?;
    replace(&file, &manifest)
}

fn link(recording: &Path, machine: &mut MachineConfig, moved: &MovedImages) -> Result<(), Error> {
    let count = |images: usize, named: usize, what: &str| match (images, named) {
        (_, 0) => Ok(()),
        (images, named) if images == named => Ok(()),
        (0, _) => Err(Error::recording(recording, format!("has no {what}: leave it out"))),
        (images, named) => Err(Error::recording(
            recording,
            format!("has {images} of {what}, and you named {named}: name all of them"),
        )),
    };
    // The paths are in the order of `MachineConfig::images_mut`: kernel, initial RAM disk and modules, or else the
    // starting state. The disk is last.
    let mut paths = match &machine.start {
        Start::Kernel(files) => {
            let named = usize::from(moved.initrd.is_some());
            count(usize::from(files.initrd.is_some()), named, "initial RAM disk")?;
            count(files.modules.len(), moved.modules.len(), "boot module")?;
            let modules = (0..files.modules.len()).map(|number| moved.modules.get(number));
            let initrd = files.initrd.iter().map(|_| moved.initrd.as_ref());
            std::iter::once(moved.kernel.as_ref()).chain(initrd).chain(modules).collect()
        }
        Start::State { .. } => {
            if moved.kernel.is_some() || moved.initrd.is_some() || !moved.modules.is_empty() {
                let why = "starts from a saved state and needs no kernel: give only --disk";
                return Err(Error::recording(recording, why));
            }
            vec![None]
        }
    };
    count(usize::from(machine.disk.is_some()), usize::from(moved.disk.is_some()), "disk image")?;
    if moved.disk.is_some() && machine.disk.as_ref().is_some_and(ImageFile::is_gathered) {
        let why =
            "has its disk in its own folder, which was made from a folder of the host: leave out --disk";
        return Err(Error::recording(recording, why));
    }
    paths.extend(machine.disk.iter().map(|_| moved.disk.as_ref()));
    for ((what, image), path) in machine.images_mut().zip(paths) {
        if let Some(path) = path {
            *image = found(what, image, path)?;
        }
    }
    Ok(())
}

/// The image at this path, which must be the recorded image. If it is another file, the error does not show the file's
/// hash, because the user may not be allowed to know the hash.
fn found(what: &str, recorded: &ImageFile, path: &Path) -> Result<ImageFile, Error> {
    let now = hash_image(path, Scheme::of(&recorded.hash))?;
    if (&now.hash, now.size_bytes) == (&recorded.hash, recorded.size_bytes) {
        return Ok(now);
    }
    let (hash, bytes) = (&recorded.hash, recorded.size_bytes);
    let why = format!(
        "is not the {what} of the recording, which has the hash {hash} and {bytes} bytes: name that file"
    );
    Err(Error::recording(path, why))
}

/// Replaces the old manifest in one step.
fn replace(file: &Path, manifest: &Manifest) -> Result<(), Error> {
    let new = file.with_extension("json.new");
    let write = || {
        let mut out = File::create(&new)?;
        out.write_all(manifest.text().as_bytes())?;
        out.sync_all()
    };
    write().map_err(Error::file("write", &new))?;
    std::fs::rename(&new, file).map_err(Error::file("replace", file))
}
