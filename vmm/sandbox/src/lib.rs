//! Locks the process in. Afterwards the process can use only the files that it named before, and only the system
//! calls that it needs.
//!
//! ```no_run
//! use sandbox::Needs;
//!
//! // Open files, sockets and devices, and start helpers, before this.
//! let needs = Needs { read: vec!["/srv/images".into()], ..Needs::default() };
//! let locked = sandbox::lock_in(&needs)?;
//! println!("Landlock: {:?}; seccomp: {}", locked.files, locked.calls);
//! // Start threads and run the guest after it.
//! # Ok::<(), sandbox::Error>(())
//! ```
//!
//! There are four locks. Each lock also works if the host lacks another lock. [`mod@privileges`] gives up capabilities.
//! `no_new_privs` keeps executed programs from gaining capabilities. Landlock allows only the named files and folders
//! ([`mod@files`]). seccomp allows only a list of system calls ([`mod@calls`]). No lock can be undone. [`fn@probe`]
//! finds out which locks a host offers.
//!
//! Each thread then keeps only the system calls of its job: see [`ThreadKind`] and [`enter`].
//!
//! This crate does not depend on guests or machines. The caller lists in [`Needs`] what the process still needs.

#![forbid(unsafe_code)]

mod calls;
mod error;
mod files;
mod kinds;
mod needs;
mod privileges;
mod probe;

use std::sync::OnceLock;
use std::time::Duration;

pub use error::Error;
pub use files::Files;
pub use kinds::ThreadKind;
pub use needs::Needs;
pub use probe::{Offered, probe};

/// The needs of the process. Empty until the process is locked in.
static LOCKED_IN: OnceLock<Needs> = OnceLock::new();

/// The locks that are in force. Every host can drop capabilities and set `no_new_privs`, so these two are not listed.
#[derive(Clone, Debug)]
pub struct Locked {
    /// The files that Landlock blocks.
    pub files: Files,
    /// Whether seccomp refuses system calls.
    pub calls: bool,
}

/// Locks the process in. The process must have one thread; later threads are locked in too. A lock that the host lacks
/// is left out without an error.
///
/// # Errors
///
/// If the process has several threads, or if a lock that the host has fails.
pub fn lock_in(needs: &Needs) -> Result<Locked, Error> {
    let threads = lasting_threads();
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    privileges::give_up(needs)?;
    let files = files::restrict(needs)?;
    let calls = calls::restrict(needs)?;
    LOCKED_IN.get_or_init(|| needs.clone());
    Ok(Locked { files, calls })
}

/// Whether the process is locked in.
pub fn is_locked_in() -> bool {
    LOCKED_IN.get().is_some()
}

/// Allows the calling thread, and threads that it starts later, only the system calls for `needs`. Does nothing in a
/// process that is not locked in.
///
/// # Errors
///
/// If the host has seccomp, but adding the filters fails.
pub fn narrow(needs: &Needs) -> Result<(), Error> {
    if LOCKED_IN.get().is_some() {
        calls::restrict_thread(needs)?;
    }
    Ok(())
}

/// Allows the calling thread, and threads that it starts later, only the system calls of its kind. A thread calls this
/// function at its start. Does nothing in a process that is not locked in.
///
/// # Panics
///
/// If the kernel has no memory for the list of calls.
pub fn enter(kind: ThreadKind) {
    if let Some(needs) = LOCKED_IN.get() {
        let taken = kinds::restrict_thread(kind, needs);
        taken.expect("the kernel took longer lists when the process was locked in");
    }
}

/// The number of the process's threads. The kernel may list a thread for a moment after it was joined. So this
/// function waits up to a second for other threads to end.
fn lasting_threads() -> usize {
    const MOST_WAITS: u32 = 200;
    const WAIT: Duration = Duration::from_millis(5);
    let listed = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    for _ in 0..MOST_WAITS {
        if listed() == 1 {
            return 1;
        }
        std::thread::sleep(WAIT);
    }
    listed()
}
