//! Locks the process in: afterwards it reaches only the files and system calls that it named before.
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
//! There are four locks, and each holds by itself if the host lacks another. [`mod@privileges`] gives up capabilities.
//! `no_new_privs` keeps executed programs from gaining any. Landlock leaves the files and folders that were named
//! ([`mod@files`]). seccomp leaves a list of system calls ([`mod@calls`]). There is no way back out. [`fn@probe`] says
//! what a host offers.
//!
//! This package knows nothing of guests. The caller says by [`Needs`] what the process still needs.

#![forbid(unsafe_code)]

mod calls;
mod error;
mod files;
mod needs;
mod privileges;
mod probe;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use error::Error;
pub use files::Files;
pub use needs::Needs;
pub use probe::{Offered, probe};

static IS_LOCKED_IN: AtomicBool = AtomicBool::new(false);

/// Which locks hold. Capabilities and `no_new_privs` always do.
#[derive(Clone, Debug)]
pub struct Locked {
    /// What Landlock keeps away.
    pub files: Files,
    /// Whether seccomp refuses system calls.
    pub calls: bool,
}

/// Locks the process in. It has one thread yet; those that it starts later are locked in too. What the host cannot do is left
/// out, and no error.
///
/// # Errors
/// If there are threads already, or if something fails that is there.
pub fn lock_in(needs: &Needs) -> Result<Locked, Error> {
    let threads = lasting_threads();
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    privileges::give_up(needs)?;
    let files = files::restrict(needs)?;
    let calls = calls::restrict(needs)?;
    IS_LOCKED_IN.store(true, Ordering::Relaxed);
    Ok(Locked { files, calls })
}

/// Leaves the calling thread, and those that it starts from now on, only the system calls for `needs`. Nothing happens in a process
/// that is not locked in.
///
/// # Errors
/// If seccomp fails for another reason than that the host has none.
pub fn narrow(needs: &Needs) -> Result<(), Error> {
    if IS_LOCKED_IN.load(Ordering::Relaxed) {
        calls::restrict_thread(needs)?;
    }
    Ok(())
}

/// How many threads the process has. The kernel may list a thread for a moment after it was joined, so this waits for those that
/// are about to leave.
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
