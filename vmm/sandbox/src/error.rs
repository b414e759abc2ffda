//! The errors of this crate.

/// Why a process could not be locked in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has several threads; the field is their number. Landlock would restrict only the calling thread.
    #[error("{0} threads run already, and only one of them would be locked in")]
    Threads(usize),
    /// An operation that every host supports failed.
    #[error("cannot {what}: {why}")]
    Failed {
        /// The operation.
        what: &'static str,
        /// The cause.
        why: String,
    },
}

impl Error {
    /// Makes an error, for `map_err`.
    pub(crate) fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |why| Error::Failed { what, why: why.to_string() }
    }
}
