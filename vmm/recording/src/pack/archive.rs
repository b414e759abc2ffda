//! The layout that the reader and the writer of packed recordings share.

use crate::files::{DISK, START, inside, kernel_file_inside};
use crate::manifest::Manifest;
use machine::config::MachineConfig;
use machine::start::Start;

/// The first bytes of every packed recording. The version follows, and then the compressed part.
pub const MAGIC: &[u8; 8] = b"TTVMPACK";
/// Version of the layout of packed recordings.
pub const VERSION: u32 = 2;
/// The size in bytes of the largest piece of a file. A file is packed in pieces, and pieces of zeroes are left out.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Largest number of checkpoints in a packed recording. A recorded run has far fewer checkpoints.
pub const MAX_CHECKPOINTS: u32 = 1 << 16;
/// The largest event log that can be packed or unpacked.
pub const MAX_LOG_BYTES: u64 = 16 << 30;
/// The number that ends the list of checkpoints.
pub const NO_CHECKPOINT: u32 = u32::MAX;
/// The base-2 logarithm of the largest window, in bytes, that decompressing may use.
pub const WINDOW_LOG_MAX: u32 = 24;

/// The manifest, with each image's path replaced by its path inside a recording. These paths follow from the kind of
/// image alone. So an archive cannot make them point to other places.
pub fn with_images_inside(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    let MachineConfig { start, disk, .. } = &mut manifest.machine;
    match start {
        Start::Kernel(_) => {}
        Start::State { state, .. } => state.path = inside(START),
    }
    let booted = start.booted_mut();
    for which in booted.present() {
        booted.file_mut(which).into_iter().for_each(|file| file.path = kernel_file_inside(which));
    }
    disk.iter_mut().for_each(|file| file.path = inside(DISK));
    manifest
}
