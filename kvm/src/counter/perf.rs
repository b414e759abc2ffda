//! The processor's own counter, through `perf_event_open(2)`.
//!
//! One event of the calling thread, counting only while the guest runs: overflows of a period that is set anew each time, a
//! signal to the thread when one comes ([`crate::kick`]), and the count, which goes on whatever the period.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{BranchCounter, event};
use crate::error::Error;
use crate::kick;

/// `struct perf_event_attr` as of its first version (64 bytes), which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const PERF_TYPE_RAW: u32 = 4;
/// Not `O_CLOEXEC`, which the call refuses.
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const PINNED: u64 = 1 << 2;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const EXCLUDE_HOST: u64 = 1 << 19;
// _IOW('$', 4, __u64)
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;
/// A period that no guest gets to the end of.
const NEVER: u64 = 1 << 46;

#[repr(C)]
struct OwnerEx {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// Whose branches are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of guests that the thread runs, in all their privilege levels.
    Guest,
    /// The thread's own, outside of the kernel.
    Thread,
}

/// An open event that belongs to one thread.
pub(super) struct PerfEvent {
    fd: OwnedFd,
}

impl PerfEvent {
    /// Opens the event for the calling thread, to which overflows are signalled.
    pub(super) fn open(number: u64, whose: Whose) -> io::Result<PerfEvent> {
        PerfEvent::open_kind(PERF_TYPE_RAW, number, whose)
    }

    fn open_kind(kind: u32, number: u64, whose: Whose) -> io::Result<PerfEvent> {
        let exclude = match whose {
            Whose::Guest => EXCLUDE_HOST,
            Whose::Thread => EXCLUDE_KERNEL,
        };
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config: number,
            sample_period: NEVER,
            flags: PINNED | EXCLUDE_HYPERVISOR | exclude,
            wakeup_events: 1,
            ..Attributes::default()
        };
        // SAFETY: the structure is as long as it says and lives through the call; 0 and -1: this thread, on any processor.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call just made it, and nobody else has it.
        let event = PerfEvent { fd: unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) } };
        event.signal_here()?;
        Ok(event)
    }

    /// Sends a signal to the calling thread at each overflow.
    fn signal_here(&self) -> io::Result<()> {
        let signal = kick::overflow_signal();
        // SAFETY: gettid has no preconditions.
        let owner = OwnerEx { kind: F_OWNER_TID, pid: unsafe { libc::gettid() } };
        let fd = self.fd.as_raw_fd();
        // SAFETY: the descriptor is open, and the structure lives through the call.
        succeeded(unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) })?;
        // SAFETY: the descriptor is open.
        succeeded(unsafe { libc::fcntl(fd, F_SETSIG, signal) })?;
        // SAFETY: the descriptor is open.
        succeeded(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC) })
    }

    /// What was counted since it was opened. An event that lost its place on the processor gives an error.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut count = 0_u64;
        // SAFETY: the buffer is as long as it is said to be.
        let length = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        match length {
            8 => Ok(count),
            0 => {
                Err(io::Error::other("the counter is used by somebody else (a pinned event lost its place)"))
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Overflows after so many more, and then again after as many.
    pub(super) fn set_period(&self, branches: u64) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the number lives through the call.
        succeeded(unsafe { libc::ioctl(self.fd.as_raw_fd(), PERF_EVENT_IOC_PERIOD, &raw const branches) })
    }
}

fn succeeded(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processor's counter of the guest's branches.
pub(crate) struct Perf {
    number: u64,
    event: PerfEvent,
    thread: libc::pid_t,
    /// Counted by events of threads that ran the vCPU before.
    before: u64,
}

impl Perf {
    /// The counter for guests that the calling thread runs.
    pub(super) fn open() -> Result<Perf, Error> {
        let number = event::of_this_processor()
            .ok_or(Error::Lacks("a processor whose conditional branches can be counted exactly"))?;
        let event = PerfEvent::open(number, Whose::Guest).map_err(failed("open the branch counter"))?;
        // SAFETY: gettid has no preconditions.
        Ok(Perf { number, event, thread: unsafe { libc::gettid() }, before: 0 })
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Call(what, error)
}

impl BranchCounter for Perf {
    fn move_here(&mut self) -> Result<(), Error> {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        if thread != self.thread {
            self.before = self.count()?;
            self.event =
                PerfEvent::open(self.number, Whose::Guest).map_err(failed("open the branch counter"))?;
            self.thread = thread;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<u64, Error> {
        Ok(self.before + self.event.count().map_err(failed("read the branch counter"))?)
    }

    fn arm(&mut self, branches: u64) -> Result<(), Error> {
        // Until the period is set an overflow of the one before may come. It costs a look, nothing else.
        kick::forget_overflow();
        self.event.set_period(branches.max(1)).map_err(failed("arm the branch counter"))
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.event.set_period(NEVER).map_err(failed("disarm the branch counter"))?;
        kick::forget_overflow();
        Ok(())
    }

    fn overflowed(&self) -> bool {
        kick::overflow_came()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PAGE_FAULTS: u64 = 2;
    const PAGE_BYTES: usize = 4096;
    const PAGES: usize = 64;

    /// Fresh pages, each of which faults when it is first written to.
    struct Pages(*mut libc::c_void);

    impl Pages {
        fn new() -> Pages {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a mapping of its own, at an address that the kernel chooses.
            let pages =
                unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE_BYTES, protection, flags, -1, 0) };
            assert_ne!(pages, libc::MAP_FAILED);
            // SAFETY: the range was just mapped.
            unsafe { libc::madvise(pages, PAGES * PAGE_BYTES, libc::MADV_NOHUGEPAGE) };
            Pages(pages)
        }

        fn touch(&self, pages: std::ops::Range<usize>) {
            assert!(pages.end <= PAGES);
            for page in pages {
                // SAFETY: the page lies in the mapping.
                unsafe { self.0.cast::<u8>().add(page * PAGE_BYTES).write_volatile(1) };
            }
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: it was mapped like this, and nothing points into it any more.
            unsafe { libc::munmap(self.0, PAGES * PAGE_BYTES) };
        }
    }

    /// Where a processor cannot interrupt itself, the kernel's next tick sends the signal.
    const LATE: Duration = Duration::from_millis(50);
    const FOREVER: Duration = Duration::from_secs(20);

    /// Everything but the event itself, with one that every machine has.
    #[test]
    fn an_event_counts_and_its_overflow_is_signalled() {
        let event = match PerfEvent::open_kind(PERF_TYPE_SOFTWARE, PAGE_FAULTS, Whose::Thread) {
            Ok(event) => event,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)) => {
                return skip::test(format!("this host does not let us count anything: {error}"));
            }
            Err(error) => panic!("{error}"),
        };
        // A software event, unlike the processor's, overflows at once when it was given a period, and goes on by the one it had
        // before.
        let settle = |pages: &Pages, period| {
            for page in 0..2 {
                event.set_period(period).unwrap();
                pages.touch(page..page + 1);
            }
            std::thread::sleep(LATE);
            kick::forget_overflow();
        };
        let wait_for_overflow = || {
            let begun = Instant::now();
            while !kick::overflow_came() && begun.elapsed() < FOREVER {
                std::thread::yield_now();
            }
            kick::overflow_came()
        };
        let (pages, others) = (Pages::new(), Pages::new());
        let before = event.count().unwrap();
        settle(&pages, 30);
        pages.touch(2..20);
        assert!(!kick::overflow_came());
        pages.touch(20..PAGES);
        assert!(wait_for_overflow());
        let counted = event.count().unwrap() - before;
        // Others than these may fault once or twice.
        assert!((PAGES as u64..PAGES as u64 + 8).contains(&counted), "{counted}");
        settle(&others, NEVER);
        others.touch(2..PAGES);
        std::thread::sleep(LATE);
        assert!(!kick::overflow_came());
    }
}
