//! Branches. A branch is a copy of a process (fork(2)). All branches of a process begin with the same memory and then
//! run independently.
//!
//! ```no_run
//! use branches::{Branch, Ending, OneThread};
//!
//! let one_thread = OneThread::watch()?;
//! // Read, replay and build things here. Then every branch has them, and their memory is shared until it is written.
//! let branch = Branch::begin(&one_thread, |_| b"what the branch found".to_vec())?;
//! assert_eq!(branch.wait(), Ending::Reported(b"what the branch found".to_vec()));
//! # Ok::<(), branches::Error>(())
//! ```
//!
//! The process that forks is the *template*. The kernel copies only the page tables. A page is copied when the template
//! or the branch writes to the page. So even a process with much memory forks in milliseconds.
//!
//! The template must have one thread: a branch has only the thread that forked, and a lock of another thread would stay
//! locked for ever. While branches live, the template must not use files or devices that the branches use. [`run_all`]
//! runs a number of branches, and limits how many run at once. A branch begins when the branch before it *stands*, which
//! means that its preparations are done ([`Start::stands`]). So the preparations of many branches do not compete for the
//! host's cores.
//!
//! This crate does not depend on guests or machines. No other code of ttvm calls fork.

mod all;
mod error;
mod one_thread;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub use all::{Plan, run_all};
pub use error::Error;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getppid};
pub use one_thread::OneThread;

/// The longest report of a branch. A pipe takes this much without a reader, so a branch never waits for the template.
pub const MAX_REPORT_BYTES: usize = 32 << 10;

/// The exit code of a branch whose body panicked. Other Rust programs use the same code.
const PANICKED: i32 = 101;
/// The exit code of a branch whose report is too long or cannot be sent, or whose template has ended.
const FAILED: i32 = 1;

/// The byte that a branch sends before its report, once the branch stands.
const STANDS: u8 = b's';

/// A running branch. If the template ends first, the kernel ends the branch.
pub struct Branch {
    process: Pid,
    /// The template's end of the pipe that takes [`STANDS`] and then the report.
    from_branch: PipeReader,
    /// Whether the template has read [`STANDS`].
    stands: bool,
}

/// The start of a branch, as the branch itself sees it.
pub struct Start {
    forked: Instant,
    to_template: PipeWriter,
    stands: bool,
}

impl Start {
    /// Tells the template that the branch stands: its preparations are done. Returns the time since the fork.
    pub fn stands(&mut self) -> Duration {
        if !std::mem::replace(&mut self.stands, true) {
            // If the template has ended, nobody needs the byte.
            let _ = self.to_template.write_all(&[STANDS]);
        }
        self.forked.elapsed()
    }
}

/// How a branch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The body returned this report.
    Reported(Vec<u8>),
    /// The branch ended with this exit code, and without a report.
    Exited(i32),
    /// This signal ended the branch.
    Killed(&'static str),
    /// The kernel did not report how the branch ended.
    Lost,
}

impl Branch {
    /// Begins a branch that runs `body`. The branch ends when `body` returns its report, which has at most
    /// [`MAX_REPORT_BYTES`]. A branch has copies of all open descriptors. All branches share the file offset of each
    /// file that was open before.
    pub fn begin(one_thread: &OneThread, body: impl FnOnce(&mut Start) -> Vec<u8>) -> Result<Branch, Error> {
        one_thread.wait()?;
        let (from_branch, to_template) = std::io::pipe().map_err(Error::Pipe)?;
        // Without this flush, the branch might print buffered text of this process a second time.
        let _ = std::io::stdout().flush();
        let (template, start) =
            (nix::unistd::getpid(), Start { forked: Instant::now(), to_template, stands: false });
        // SAFETY: this process has only one thread, as was just checked. So no other thread holds a lock that stays
        // locked in the branch, and the branch may run any code. The branch ends inside `live`, which never
        // returns.
        match unsafe { fork() }.map_err(Error::Fork)? {
            ForkResult::Parent { child } => Ok(Branch { process: child, from_branch, stands: false }),
            ForkResult::Child => {
                drop(from_branch);
                live(template, start, body)
            }
        }
    }

    /// Asks the branch to end, by SIGTERM.
    pub fn ask_to_end(&self) {
        // A branch that has ended already needs no signal. The branch keeps its process number until the parent has
        // waited for the branch.
        let _ = kill(self.process, Signal::SIGTERM);
    }

    /// Waits until the branch has ended.
    pub fn wait(mut self) -> Ending {
        if !self.stands {
            self.read_that_it_stands();
        }
        let mut report = Vec::new();
        let limit = MAX_REPORT_BYTES as u64 + 1;
        // If the report cannot be read, nothing is lost: the branch's exit code then says how it ended.
        let _ = self.from_branch.by_ref().take(limit).read_to_end(&mut report);
        loop {
            return match waitpid(self.process, None) {
                Err(nix::Error::EINTR) => continue,
                // If a process ignores SIGCHLD, the kernel does not report how its children end.
                Err(nix::Error::ECHILD) if (1..=MAX_REPORT_BYTES).contains(&report.len()) => {
                    Ending::Reported(report)
                }
                Ok(WaitStatus::Exited(_, 0)) if report.len() <= MAX_REPORT_BYTES => Ending::Reported(report),
                Ok(WaitStatus::Exited(_, code)) => Ending::Exited(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => Ending::Killed(signal.as_str()),
                _ => Ending::Lost,
            };
        }
    }

    /// A descriptor that becomes readable when the branch stands, and again when it ends or reports.
    fn wakes(&self) -> BorrowedFd<'_> {
        self.from_branch.as_fd()
    }

    /// Waits until the branch stands or ends. Returns whether it stands.
    fn read_that_it_stands(&mut self) -> bool {
        self.stands = self.from_branch.read_exact(&mut [0]).is_ok();
        self.stands
    }
}

/// Runs `body` in the branch, sends its report, and ends the process. The branch does not drop or flush values that it
/// copied from the template.
fn live(template: Pid, mut start: Start, body: impl FnOnce(&mut Start) -> Vec<u8>) -> ! {
    // If this call fails, a branch continues to run after its template has ended.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let has_template = getppid() == template;
    let code = match has_template.then(|| catch_unwind(AssertUnwindSafe(|| body(&mut start)))) {
        None => FAILED,
        Some(Err(_)) => PANICKED,
        Some(Ok(report)) if report.len() > MAX_REPORT_BYTES => FAILED,
        Some(Ok(report)) => {
            start.stands();
            start.to_template.write_all(&report).map_or(FAILED, |()| 0)
        }
    };
    // SAFETY: `_exit` ends the process, and runs no other code of this program.
    unsafe { libc::_exit(code) }
}
