//! What can go wrong with a store: one sentence each, naming the file and the place in it.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store, or one of its files, that could not be used. Cloning shares the cause.
#[derive(Clone, Debug)]
pub struct StoreError {
    /// The file, or the store's folder where no single file is to blame.
    pub path: PathBuf,
    /// What happened to it.
    pub kind: StoreErrorKind,
}

/// What happened to a store's file.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The host refused, for example because its disk is full.
    #[error("cannot {what}")]
    Io {
        /// What was tried, as a verb phrase.
        what: &'static str,
        /// The host's answer.
        source: Arc<io::Error>,
    },
    /// The bytes are not what a writer of this format leaves behind.
    #[error("damaged {place}: {what}")]
    Damaged {
        /// The part of the file.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// A later program wrote this file.
    #[error("has format version {found}; this program reads version {known}")]
    Version {
        /// The version in the file.
        found: u32,
        /// The version that this program reads.
        known: u32,
    },
    /// Another process holds the writers' lock.
    #[error("is being written by another process")]
    Busy,
    /// Another process merged or deleted the file after this store was opened.
    #[error("was replaced by another process; the store must be opened again")]
    Replaced,
    /// `create` found a store in its place.
    #[error("is a checkpoint store already")]
    AlreadyExists,
    /// The machine has more pages than a store can number.
    #[error("cannot number {0} pages")]
    TooLarge(u64),
    /// The opaque bytes for the list of checkpoints are too many.
    #[error("cannot hold a head of {0} bytes")]
    HeadTooLong(usize),
    /// There is a checkpoint at this position already.
    #[error("holds a checkpoint at position {0} already")]
    Taken(u64),
    /// There is no checkpoint at this position.
    #[error("holds no checkpoint at position {0}")]
    Missing(u64),
    /// The page version with this number is (no longer) part of the store.
    #[error("does not hold page version {0}")]
    Gone(u64),
    /// The checkpoint does not fit, whatever else is thinned out.
    #[error("has no room for another checkpoint within its {0} bytes")]
    Full(u64),
    /// The thread that writes in the background is gone.
    #[error("lost its background writer")]
    WriterGone,
}

/// The result of everything that touches a store's files.
pub type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    pub(crate) fn new(path: impl Into<PathBuf>, kind: StoreErrorKind) -> StoreError {
        StoreError { path: path.into(), kind }
    }

    pub(crate) fn damaged(path: &Path, place: impl Into<String>, what: impl Into<String>) -> StoreError {
        StoreError::new(path, StoreErrorKind::Damaged { place: place.into(), what: what.into() })
    }

    /// For `map_err`: the host's answer when `what` was tried with the file at `path`.
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::new(path, StoreErrorKind::Io { what, source: Arc::new(source) })
    }

    /// Whether the file was not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.kind, StoreErrorKind::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the stored bytes are wrong, as opposed to trouble on this host or in the request.
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

    /// What is damaged is dropped or not built upon. A full disk, or a file of a later program, is not damage.
    #[test]
    fn only_wrong_bytes_are_damage() {
        let path = Path::new("file");
        let io = |kind: io::ErrorKind| StoreError::io(path, "read")(kind.into());
        let of = |kind| StoreError::new(path, kind);
        let cases = [
            (StoreError::damaged(path, "state", "its CRC-32 is another"), true, false),
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
