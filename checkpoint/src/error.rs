//! Errors of a store. The message of each error is one sentence, with the file and the place in the file.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error: a store, or one of its files, could not be used. A clone of the error shares the original's cause.
#[derive(Clone, Debug)]
pub struct StoreError {
    /// The file, or the store's folder if no single file caused the error.
    pub path: PathBuf,
    /// The kind of error.
    pub kind: StoreErrorKind,
}

/// The kinds of errors.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The host refused an operation, for example because its disk is full.
    #[error("cannot {what}")]
    Io {
        /// The operation, as a verb phrase.
        what: &'static str,
        /// The host's error.
        source: Arc<io::Error>,
    },
    /// The bytes are not valid in this format.
    #[error("damaged {place}: {what}")]
    Damaged {
        /// The damaged part of the file.
        place: String,
        /// The description of the damage.
        what: String,
    },
    /// A later version of this program wrote this file.
    #[error("has format version {found}; this program reads version {known}")]
    Version {
        /// The format version in the file.
        found: u32,
        /// The format version that this program reads.
        known: u32,
    },
    /// Another process holds the writers' lock.
    #[error("is being written by another process")]
    Busy,
    /// Another process merged or deleted the file after this store was opened.
    #[error("was replaced by another process; open the store again")]
    Replaced,
    /// `create` found an existing store.
    #[error("is a checkpoint store already")]
    AlreadyExists,
    /// The machine has more pages than a store can number.
    #[error("cannot number {0} pages")]
    TooLarge(u64),
    /// The opaque head for the list of checkpoints is too long.
    #[error("cannot hold a head of {0} bytes")]
    HeadTooLong(usize),
    /// There is a checkpoint at this position already.
    #[error("holds a checkpoint at position {0} already")]
    Taken(u64),
    /// There is no checkpoint at this position.
    #[error("holds no checkpoint at position {0}")]
    Missing(u64),
    /// The store does not hold the page version with this number (any more).
    #[error("does not hold page version {0}")]
    Gone(u64),
    /// The checkpoint does not fit, even after thinning out others.
    #[error("has no room for another checkpoint within its {0} bytes")]
    Full(u64),
    /// The background writer's thread has ended.
    #[error("lost its background writer")]
    WriterGone,
}

/// The result of operations on a store's files.
pub type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    pub(crate) fn new(path: impl Into<PathBuf>, kind: StoreErrorKind) -> StoreError {
        StoreError { path: path.into(), kind }
    }

    pub(crate) fn damaged(path: &Path, place: impl Into<String>, what: impl Into<String>) -> StoreError {
        StoreError::new(path, StoreErrorKind::Damaged { place: place.into(), what: what.into() })
    }

    /// For `map_err`: turns the host's error into one that says `what` was tried with the file at `path`.
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::new(path, StoreErrorKind::Io { what, source: Arc::new(source) })
    }

    /// Whether the error is a missing file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.kind, StoreErrorKind::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the cause of the error is that stored bytes are wrong. Otherwise the cause is this host or the
    /// request.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Damaged { .. })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.kind)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damaged data may be dropped, and is never used as a base. A full disk is not damage, and a file that a later
    /// version of the program wrote is not damage.
    #[test]
    fn only_wrong_bytes_are_damage() {
        let path = Path::new("file");
        let io = |kind: io::ErrorKind| StoreError::io(path, "read")(kind.into());
        let of = |kind| StoreError::new(path, kind);
        let cases = [
            (StoreError::damaged(path, "state", "its CRC-32 is wrong"), true, false),
            (io(io::ErrorKind::NotFound), false, true),
            (io(io::ErrorKind::StorageFull), false, false),
            (of(StoreErrorKind::Version { found: 9, known: 1 }), false, false),
            (of(StoreErrorKind::Busy), false, false),
            (of(StoreErrorKind::Missing(7)), false, false),
        ];
        for (error, is_damage, is_not_found) in cases {
            assert_eq!((error.is_damage(), error.is_not_found()), (is_damage, is_not_found), "{error}");
        }
    }
}
