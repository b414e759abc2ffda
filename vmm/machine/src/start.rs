//! How a machine starts: the files that [`MachineConfig`](crate::config::MachineConfig) names, and their contents.
//!
//! [`Start`] is the only code that distinguishes the ways of starting. A machine that starts in firmware would need a
//! variant of [`Start`] with the firmware's images, and a variant of [`Images`] with their contents. Such a machine
//! would also need a match arm in `Machine::build` for the CPU's first state.

use std::sync::Arc;

use serde::Serialize;

use crate::disk::OverlayDisk;
use crate::error::Error;
use crate::image_file::ImageFile;
use crate::starting_state::StartingState;

/// The names of the images in messages.
pub(super) const KERNEL: &str = "kernel";
pub(super) const INITRD: &str = "initial RAM disk";
pub(super) const MODULE: &str = "boot module";
pub(super) const STATE: &str = "starting state";

/// How a machine starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Start {
    /// At power-on, with a kernel in its memory.
    Kernel(KernelFiles),
    /// In the state of a machine that has already run.
    State {
        /// The file with the [`StartingState`].
        #[serde(rename = "start")]
        state: ImageFile,
        /// The files from which the machine booted in its earlier run. The machine no longer needs these files.
        #[serde(flatten)]
        booted: KernelFiles,
    },
}

/// A kernel, and the files and the command line with which the kernel starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFiles {
    /// The kernel.
    pub kernel: ImageFile,
    /// The initial RAM disk.
    pub initrd: Option<ImageFile>,
    /// Boot modules.
    pub modules: Vec<ModuleFile>,
    /// The kernel's command line.
    pub cmdline: String,
}

/// One of the [`KernelFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFile {
    /// The kernel.
    Kernel,
    /// The initial RAM disk.
    Initrd,
    /// The boot module with this number, from 0 on.
    Module(usize),
}

/// A boot module (Multiboot) and its command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleFile {
    /// The file.
    pub file: ImageFile,
    /// The text that the kernel gets with the module.
    pub cmdline: String,
}

/// The contents of the images that a machine starts with.
pub enum Images {
    /// The contents for a [`Start::Kernel`].
    Kernel(KernelImages),
    /// The contents for a [`Start::State`].
    State(Arc<StartingState>),
}

/// The contents of [`KernelFiles`].
pub struct KernelImages {
    pub(super) kernel: Vec<u8>,
    pub(super) initrd: Option<Vec<u8>>,
    pub(super) modules: Vec<Vec<u8>>,
    /// The disk image that is gathered in this run. `None` if the disk is opened by its path.
    pub(super) gathered: Option<gathered_image::Image>,
}

impl Start {
    /// The guest's kernel and the files that it was booted with. A machine with a starting state was booted in an
    /// earlier recording.
    pub fn booted(&self) -> &KernelFiles {
        match self {
            Start::Kernel(files) | Start::State { booted: files, .. } => files,
        }
    }

    /// Returns the same as [`Start::booted`], as a mutable reference.
    pub fn booted_mut(&mut self) -> &mut KernelFiles {
        match self {
            Start::Kernel(files) | Start::State { booted: files, .. } => files,
        }
    }

    /// The image files that the machine needs, each with its name in messages.
    pub(super) fn images(&self) -> Vec<(&'static str, &ImageFile)> {
        match self {
            Start::Kernel(files) => files.images().collect(),
            Start::State { state, .. } => vec![(STATE, state)],
        }
    }

    /// Returns the same as [`Start::images`], as mutable references.
    pub(super) fn images_mut(&mut self) -> Vec<(&'static str, &mut ImageFile)> {
        match self {
            Start::Kernel(files) => files.images_mut().collect(),
            Start::State { state, .. } => vec![(STATE, state)],
        }
    }

    /// All image files in the description, including files that the machine no longer needs.
    pub(super) fn files_mut(&mut self) -> Vec<(&'static str, &mut ImageFile)> {
        match self {
            Start::Kernel(files) => files.images_mut().collect(),
            Start::State { state, booted } => booted.images_mut().chain([(STATE, state)]).collect(),
        }
    }
}

impl KernelFiles {
    /// The files that the guest was booted with: the kernel, the initial RAM disk if there is one, and the modules.
    pub fn present(&self) -> impl Iterator<Item = KernelFile> + use<> {
        let initrd = self.initrd.as_ref().map(|_| KernelFile::Initrd);
        let modules = (0..self.modules.len()).map(KernelFile::Module);
        [KernelFile::Kernel].into_iter().chain(initrd).chain(modules)
    }

    /// One of the files, if the guest was booted with such a file.
    pub fn file_mut(&mut self, which: KernelFile) -> Option<&mut ImageFile> {
        match which {
            KernelFile::Kernel => Some(&mut self.kernel),
            KernelFile::Initrd => self.initrd.as_mut(),
            KernelFile::Module(number) => self.modules.get_mut(number).map(|module| &mut module.file),
        }
    }

    fn images(&self) -> impl Iterator<Item = (&'static str, &ImageFile)> {
        std::iter::once((KERNEL, &self.kernel))
            .chain(self.initrd.iter().map(|file| (INITRD, file)))
            .chain(self.modules.iter().map(|module| (MODULE, &module.file)))
    }

    fn images_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut ImageFile)> {
        std::iter::once((KERNEL, &mut self.kernel))
            .chain(self.initrd.iter_mut().map(|file| (INITRD, file)))
            .chain(self.modules.iter_mut().map(|module| (MODULE, &mut module.file)))
    }
}

impl Images {
    /// The machine's disk, whose image is in this file.
    pub(super) fn open_disk(&self, image: &ImageFile) -> Result<OverlayDisk, Error> {
        match self {
            Images::Kernel(KernelImages { gathered: Some(gathered), .. }) => {
                Ok(OverlayDisk::gathered(gathered.clone(), &image.path))
            }
            _ => OverlayDisk::of(image),
        }
    }

    /// The contents for a machine that starts in a state.
    pub fn of_state(state: StartingState) -> Images {
        Images::State(Arc::new(state))
    }
}

impl KernelImages {
    /// The images in the form that the boot code requires. The images were read from `files`.
    pub(super) fn for_boot<'a>(&'a self, files: &'a KernelFiles) -> boot::BootImages<'a> {
        let mut images = boot::BootImages::new(image(&files.kernel, &self.kernel));
        images.initrd = files.initrd.as_ref().zip(self.initrd.as_ref()).map(|(f, bytes)| image(f, bytes));
        images.modules = files
            .modules
            .iter()
            .zip(&self.modules)
            .map(|(m, bytes)| boot::Module { image: image(&m.file, bytes), cmdline: &m.cmdline })
            .collect();
        images.cmdline = &files.cmdline;
        images
    }
}

fn image<'a>(file: &'a ImageFile, bytes: &'a [u8]) -> boot::Image<'a> {
    boot::Image { name: file.path.to_str().unwrap_or("the image"), bytes }
}
