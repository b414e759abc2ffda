//! The errors of this crate.

/// Why a branch could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The threads of this process cannot be counted.
    #[error("cannot count this program's threads in /proc/self/task: {0}")]
    Threads(#[source] std::io::Error),
    /// This process has several threads, but fork copies one thread only. The field is the number of threads.
    #[error("{0} threads run, and a branch would have only one of them")]
    SeveralThreads(u64),
    /// The host cannot make a pipe for the branch's report.
    #[error("cannot make a pipe for a branch: {0}")]
    Pipe(#[source] std::io::Error),
    /// The host cannot make another process.
    #[error("the host refuses another process: {0}; raise ulimit -u, or use fewer --jobs")]
    Fork(#[source] nix::Error),
}
