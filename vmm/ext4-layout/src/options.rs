//! The options of a layout, and the errors of options that do not fit.

use thiserror::Error;

/// Options of a file system. Nothing comes from a clock or from randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size of the disk in bytes, rounded down to a multiple of 128 MiB.
    pub size_bytes: u64,
    /// The room for the guest's writes in bytes, rounded up to a multiple of 128 MiB.
    pub free_bytes: u64,
    /// The number by which the file system is known. The hashes of names in folders depend on the UUID too.
    pub uuid: [u8; 16],
    /// The time at which the file system seems to have been made, in seconds since 1970 UTC.
    pub created_seconds: u32,
}

impl Options {
    /// The default size of the disk in bytes: 1 TiB.
    pub const SIZE_BYTES: u64 = 1 << 40;
    /// The default room for the guest's writes in bytes: 8 GiB.
    pub const FREE_BYTES: u64 = 8 << 30;

    /// Options with default sizes.
    pub fn new(uuid: [u8; 16], created_seconds: u32) -> Options {
        let (size_bytes, free_bytes) = (Options::SIZE_BYTES, Options::FREE_BYTES);
        Options { size_bytes, free_bytes, uuid, created_seconds }
    }

    /// The same options for a disk of another size in bytes. On a small disk, at most a third is for the guest's writes.
    #[must_use]
    pub fn with_size(self, size_bytes: u64) -> Options {
        Options { size_bytes, free_bytes: Options::FREE_BYTES.min(size_bytes / 3), ..self }
    }
}

/// The reason for which a layout cannot be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The size of the disk needs block numbers with more than 32 bits.
    #[error("a disk of {size_bytes} bytes is too large: at most 16 TiB - 128 MiB are possible")]
    TooLarge {
        /// The size in bytes that was asked for.
        size_bytes: u64,
    },
    /// The disk has no room for the files of the host.
    #[error("a disk of {size_bytes} bytes is too small: this layout needs at least {least_bytes} bytes")]
    TooSmall {
        /// The size in bytes that was asked for.
        size_bytes: u64,
        /// The smallest possible size in bytes.
        least_bytes: u64,
    },
    /// The root is not a folder.
    #[error("the root is not a folder")]
    RootIsNoFolder,
}
