//! The errors of this crate.

/// Why a branch could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The threads of this process cannot be counted.
    #[error("cannot count this program's threads in /proc/self/task: {0}")]
    Threads(#[source] std::io::Error),
    /// Other threads run, which a branch would not have. The field is the number of threads.
    #[error("{0} threads run, and a branch would have only one of them")]
    SeveralThreads(u64),
    /// There is no pipe for the report.
    #[error("cannot make a pipe for a branch: {0}")]
    Pipe(#[source] std::io::Error),
    /// The host makes no process.
    #[error("the host refuses another process: {0}; raise ulimit -u, or use fewer --jobs")]
    Fork(#[source] nix::Error),
}
