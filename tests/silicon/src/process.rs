//! Child processes do the work. So an instruction that damages its process harms only a child.
#![allow(unsafe_code, reason = "fork, pipe and shared memory have no safe interface")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Progress that a child shares with its parent.
pub struct Progress {
    /// Number of cases that are done.
    pub done: AtomicU64,
    /// The number of the batch that is running.
    pub batch: AtomicU64,
    /// The number of the case that is running.
    pub case: AtomicU64,
}

impl Progress {
    /// Creates a [`Progress`] in memory that forked children share. The memory is never freed.
    pub fn shared() -> io::Result<&'static Progress> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new, zeroed, large enough and aligned, and zeroes are valid atomics.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Progress>(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(&*at.cast::<Progress>()) }
        }
    }
}

/// A running child.
pub struct Child {
    pid: libc::pid_t,
    output: File,
    /// The child's progress.
    pub progress: &'static Progress,
}

/// How a child ended.
pub enum Ended {
    /// The child sent its result to the parent.
    Result(Vec<u8>),
    /// The child died. The text describes how.
    Died(String),
}

impl Child {
    /// Forks. The child runs `work`, sends the result to the parent and exits. The calling process must have only
    /// one thread.
    pub fn spawn(work: impl FnOnce(&'static Progress) -> Vec<u8>) -> io::Result<Child> {
        let progress = Progress::shared()?;
        let mut ends: [RawFd; 2] = [0; 2];
        // SAFETY: `pipe` fills in two descriptors, each of which gets exactly one owner. The child of a single-threaded
        // process may call any function.
        unsafe {
            if libc::pipe(ends.as_mut_ptr()) == -1 {
                return Err(io::Error::last_os_error());
            }
            let (output, mut input) = (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]));
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => {
                    drop(output);
                    // A panic must not unwind into the parent's frames.
                    let result = catch_unwind(AssertUnwindSafe(|| work(progress)));
                    let handed_over = result.is_ok_and(|result| input.write_all(&result).is_ok());
                    libc::_exit(i32::from(!handed_over));
                }
                pid => Ok(Child { pid, output, progress }),
            }
        }
    }

    /// Waits for the child's end.
    pub fn finish(mut self) -> io::Result<Ended> {
        let mut result = Vec::new();
        self.output.read_to_end(&mut result)?;
        let mut status = 0;
        // SAFETY: the call waits for a child of this process.
        if unsafe { libc::waitpid(self.pid, &mut status, 0) } == -1 {
            return Err(io::Error::last_os_error());
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            return Ok(Ended::Result(result));
        }
        let (batch, case) =
            (self.progress.batch.load(Ordering::Relaxed), self.progress.case.load(Ordering::Relaxed));
        let how = if libc::WIFSIGNALED(status) {
            format!("signal {}", libc::WTERMSIG(status))
        } else {
            format!("exit code {}", libc::WEXITSTATUS(status))
        };
        Ok(Ended::Died(format!("{how} in --batch {batch} --case {case}")))
    }
}

/// Makes this process die of SIGALRM, unless the function is called again within `seconds`.
pub fn watchdog(seconds: u32) {
    // SAFETY: the call accesses no memory.
    unsafe { libc::alarm(seconds) };
}
