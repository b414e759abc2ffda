//! The names of the files in a recording.

use std::path::{Path, PathBuf};

use machine::start::KernelFile;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The event log's file name.
pub const EVENTS: &str = "events.log";
/// The directory of the carried images.
pub const IMAGES: &str = "images";
/// The file name of a starting state in the directory of the carried images.
pub const START: &str = "start";
/// The file name of a disk image in the directory of the carried images.
pub const DISK: &str = "disk";
/// The name of the note about the disk image that was hashed last.
pub const DISK_SEEN: &str = "disk.seen";
/// The name of the note that the guest's kernel panicked.
pub const PANICKED: &str = "panicked";
/// The directory of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// The path of a carried image, relative to the recording's directory.
pub fn inside(name: &str) -> PathBuf {
    Path::new(IMAGES).join(name)
}

/// Does the same as [`inside`], but for a file with which the machine starts.
pub fn kernel_file_inside(which: KernelFile) -> PathBuf {
    match which {
        KernelFile::Kernel => inside("kernel"),
        KernelFile::Initrd => inside("initrd"),
        KernelFile::Module(number) => inside(&format!("module-{number}")),
    }
}
