//! What reader and writer of packed recordings agree on.

use crate::files::{START, inside, kernel_file_inside};
use crate::manifest::Manifest;
use machine::config::MachineConfig;
use machine::start::Start;

/// Begins every packed recording; the version follows, outside of the compressed part.
pub const MAGIC: &[u8; 8] = b"TTVMPACK";
/// Version of the layout of packed recordings.
pub const VERSION: u32 = 2;
/// Largest piece of a file that is kept together. Pieces of zeroes are left out.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Most checkpoints that a packed recording may have; recorders keep far fewer.
pub const MAX_CHECKPOINTS: u32 = 1 << 16;
/// The largest event log that is packed or unpacked.
pub const MAX_LOG_BYTES: u64 = 16 << 30;
/// Stands for no further checkpoint.
pub const NO_CHECKPOINT: u32 = u32::MAX;
/// Most memory that decompressing may ask for, as a power of two.
pub const WINDOW_LOG_MAX: u32 = 24;

/// The manifest with the paths that images have inside a recording. They follow from the machine alone, so
/// nothing in an archive can make them point elsewhere.
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
    disk.iter_mut().for_each(|file| file.path = inside("disk"));
    manifest
}
