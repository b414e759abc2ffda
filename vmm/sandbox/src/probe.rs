//! What a host offers, found out by locking in a thread that ends then.

use crate::calls;
use crate::error::Error;
use crate::files::{self, Files};
use crate::needs::Needs;

/// What a host offers.
#[derive(Clone, Debug)]
pub struct Offered {
    /// What Landlock would keep away.
    pub files: Result<Files, String>,
    /// Whether seccomp would refuse system calls.
    pub calls: Result<bool, String>,
}

/// Tries the locks. Nothing is locked in afterwards but that no program can gain privileges, if a thread was already.
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
