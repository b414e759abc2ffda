//! Errors, grouped by what the user can do about them, and the exit code of each.

use std::path::PathBuf;

use checkpoint::{StoreError, StoreErrorKind};

use crate::divergence::Divergence;
use crate::position::Position;

/// An error of any operation on a machine or a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {}", reason(source))]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A recording had to stop early.
    #[error("{cause}; the run was stopped at {at}, and {recording} replays up to its last check before that")]
    CutOff {
        /// The cause.
        cause: Box<Error>,
        /// The recording.
        recording: PathBuf,
        /// The point where the recording stopped.
        at: Position,
    },
    /// The guest's images cannot be booted.
    #[error(transparent)]
    Boot(#[from] boot::BootError),
    /// RAM could not be allocated.
    #[error("{0}; a recording needs address space for the guest's memory and 256 MiB more; raise ulimit -v")]
    Ram(#[from] guest_ram::RamError),
    /// The recording cannot be used.
    #[error("{path}: {why}")]
    Recording {
        /// The recording or the file in it.
        path: PathBuf,
        /// The fault, and advice.
        why: String,
    },
    /// The recording's checkpoints cannot be used.
    #[error("{}", with_advice(.0))]
    Checkpoints(StoreError),
    /// A replay differs from the recording.
    #[error(transparent)]
    Divergence(#[from] Box<Divergence>),
    /// The terminal, a socket or the like failed.
    #[error("{what}: {}", reason(source))]
    Host {
        /// The action that failed.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The disk's image file failed while the guest used the disk, so the run ends. Otherwise the guest would see
    /// an error that no replay can repeat.
    #[error("the disk image {path} failed at byte {offset}: {source}")]
    Disk {
        /// The image.
        path: PathBuf,
        /// The byte offset.
        offset: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// A stored state does not fit this machine.
    #[error("the saved state does not fit this machine: {0}")]
    State(String),
    /// The requested position does not exist.
    #[error("{0}")]
    Position(String),
    /// The request does not fit the machine or recording that it was made to.
    #[error("{0}")]
    Usage(String),
    /// A person stopped the program before the answer was known.
    #[error("interrupted")]
    Interrupted,
    /// The engine cannot continue.
    #[error("{0}")]
    Engine(String),
    /// The host lacks something.
    #[error("{0}")]
    Unsupported(String),
}

/// The host's message. If the message is about the limit of file sizes, the function adds the limit.
fn reason(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::FileTooLarge => {
            format!("{source}: the file would exceed the limit of this process; raise `ulimit -f`")
        }
        _ => source.to_string(),
    }
}

/// The error as one sentence, with the host's message if there is one, and with advice. The program prints only
/// this sentence, and not the causes of the error.
fn with_advice(error: &StoreError) -> String {
    let sentence = match (&error.kind, std::error::Error::source(error)) {
        (StoreErrorKind::Io { source, .. }, _) => format!("{error}: {}", reason(source)),
        (_, Some(cause)) => format!("{error}: {cause}"),
        (_, None) => error.to_string(),
    };
    match error.kind {
        StoreErrorKind::Busy => format!("{sentence}; wait until it has ended"),
        _ if lacks_room(error) => {
            format!("{sentence}; make room on the disk; all checkpoints that were complete are kept")
        }
        StoreErrorKind::Damaged { .. } => format!(
            "{sentence}; `ttvm checkpoints RECORDING drop-damaged` drops the checkpoints that need it, and the recording \
             replays without them"
        ),
        _ => format!("{sentence}; move the checkpoints away: the recording replays without them"),
    }
}

/// Whether the disk is full, or a file would exceed a limit.
fn lacks_room(error: &StoreError) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let StoreErrorKind::Io { source, .. } = &error.kind else { return false };
    matches!(source.kind(), FileTooLarge | QuotaExceeded | StorageFull)
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::Checkpoints(error)
    }
}

impl Error {
    /// Makes a function that turns a file operation's error into an [`Error::File`], for `map_err`.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { action, path, source }
    }

    /// Makes the error that a recording cannot be used.
    pub fn recording(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::Recording { path: path.into(), why: why.into() }
    }

    /// The process exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Divergence(_) => exit_code::DIVERGED,
            Error::Checkpoints(error) if lacks_room(error) => exit_code::FAILED,
            // All stored machine states come from recordings, so a bad state means that the recording is unreadable.
            Error::Recording { .. } | Error::Checkpoints(_) | Error::State(_) => {
                exit_code::UNREADABLE_RECORDING
            }
            Error::Unsupported(_) => exit_code::HOST_LACKS_FEATURE,
            Error::Position(_) | Error::Usage(_) => exit_code::USAGE,
            Error::Interrupted => exit_code::INTERRUPTED,
            Error::CutOff { cause, .. } => cause.exit_code(),
            _ => exit_code::FAILED,
        }
    }
}

/// Exit codes of `ttvm`.
pub mod exit_code {
    /// The request was carried out.
    pub const DONE: i32 = 0;
    /// The request could not be carried out.
    pub const FAILED: i32 = 1;
    /// The command line is wrong.
    pub const USAGE: i32 = 2;
    /// Replay diverged from the recording.
    pub const DIVERGED: i32 = 3;
    /// The recording is damaged, has another format, or does not fit its images.
    pub const UNREADABLE_RECORDING: i32 = 4;
    /// The host lacks a feature.
    pub const HOST_LACKS_FEATURE: i32 = 5;
    /// ^C came before the answer was known. Shells use the same code for programs that ^C has ended.
    pub const INTERRUPTED: i32 = 130;
}
