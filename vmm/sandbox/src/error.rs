//! What can go wrong.

/// Why a process could not be locked in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Landlock would hold for one of the threads only.
    #[error("{0} threads run already, and only one of them would be locked in")]
    Threads(usize),
    /// Something that every host can do failed.
    #[error("cannot {what}: {why}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        why: String,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |why| Error::Failed { what, why: why.to_string() }
    }
}
