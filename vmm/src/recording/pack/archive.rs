//! What reader and writer of packed recordings agree on.

/// Begins every packed recording; the version follows, outside of the compressed part.
pub const MAGIC: &[u8; 8] = b"TTVMPACK";
/// Version of the layout of packed recordings.
pub const VERSION: u32 = 2;
/// Largest piece of a file that is kept together. Pieces of zeroes are left out.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Most checkpoints that a packed recording may have; recorders keep far fewer.
pub const MAX_CHECKPOINTS: u32 = 1 << 16;
/// Stands for no further checkpoint.
pub const NO_CHECKPOINT: u32 = u32::MAX;
/// Most memory that decompressing may ask for, as a power of two.
pub const WINDOW_LOG_MAX: u32 = 24;
