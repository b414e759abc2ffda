//! Errors of this package, each one sentence.

use std::io;

/// The reason why a disk or a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk's bytes cannot be read.
    #[error("cannot read the guest's disk: {0}")]
    Read(#[from] io::Error),
    /// There is no file system whose files this package reads.
    #[error("{0}")]
    NoFiles(String),
    /// The file system is damaged, or uses a feature that is not supported.
    #[error("the file system on the guest's disk cannot be read: {0}")]
    FileSystem(String),
    /// The path names no file of the wanted kind.
    #[error("{path}: {why}")]
    Path {
        /// The path.
        path: String,
        /// The reason.
        why: String,
    },
}
