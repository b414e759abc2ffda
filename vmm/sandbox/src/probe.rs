//! Finds out which locks a host offers, by locking in a thread that then ends.

use crate::calls;
use crate::error::Error;
use crate::files::{self, Files};
use crate::needs::Needs;

/// The locks that a host offers.
#[derive(Clone, Debug)]
pub struct Offered {
    /// The files that Landlock would block.
    pub files: Result<Files, String>,
    /// Whether seccomp would refuse system calls.
    pub calls: Result<bool, String>,
}

/// Tries the locks in a thread, which then ends. Afterwards the process is not locked in.
pub fn probe() -> Offered {
    let thread = std::thread::spawn(|| {
        let text = |error: Error| error.to_string();
        let nothing = Needs::default();
        Offered {
            files: files::restrict(&nothing).map_err(text),
            calls: calls::restrict_thread(&nothing).map_err(text),
        }
    });
    thread.join().expect("the locks report what fails")
}
