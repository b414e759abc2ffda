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
