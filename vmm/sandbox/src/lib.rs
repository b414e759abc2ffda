//! Locks the process in, once it has opened what it needs: whatever takes it over later has nothing to reach for.
//!
//! ```text
//!   open files, sockets, devices, start helpers ──► lock_in ──► start threads, run the guest
//! ```
//!
//! Four locks, each of which holds by itself where the host lacks another: capabilities are given up ([`mod@privileges`]),
//! no program that is executed gains any (`no_new_privs`), Landlock leaves files and folders that were named ([`mod@files`]),
//! and seccomp leaves a list of system calls ([`mod@calls`]). There is no way back out. [`fn@probe`] says what a host offers.
//!
//! This package knows nothing of guests; what a process still needs, its caller says by [`Needs`].

#![forbid(unsafe_code)]

mod calls;
mod error;
mod files;
mod needs;
mod privileges;
mod probe;

pub use error::Error;
pub use files::Files;
pub use needs::Needs;
pub use probe::{Offered, probe};

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
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    privileges::give_up(needs)?;
    let files = files::restrict(needs)?;
    Ok(Locked { files, calls: calls::restrict(needs)? })
}
