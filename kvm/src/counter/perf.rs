//! The processor's own counter, through `perf_event_open(2)`.
//!
//! The counter is one event of the calling thread, which counts only while the guest runs. The event's period
//! is set again for each overflow. An overflow sends a signal to the thread ([`crate::kick`]). The count
//! continues regardless of the period.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{Pid, gettid, read};
use perf_event::events::{Event, Raw};
use perf_event::{Builder, ReadFormat};

use super::branch_counter::BranchCounter;
use super::event;
use crate::error::Error;
use crate::kick;

/// A period so long that no guest reaches its end.
const NEVER: u64 = 1 << 46;

// PERF_EVENT_IOC_PERIOD, for which perf-event2 has no method.
nix::ioctl_write_ptr!(ioctl_set_period, b'$', 4, u64);

/// The source of the counted branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Guests that the thread runs, at all privilege levels.
    Guest,
    /// The thread's own code in user mode.
    Thread,
}

/// An open event that belongs to one thread.
///
/// The crate perf-event2 opens the event. All other operations use the descriptor directly, because the crate
/// has no call for the signal and the period. The crate's way of reading also executes conditional branches.
/// The self-tests, which count loops together with the reading, would have to allow for these branches.
pub(super) struct PerfEvent {
    fd: OwnedFd,
}

impl PerfEvent {
    /// Opens the event for the calling thread, which gets a signal at each overflow.
    pub(super) fn open(number: u64, whose: Whose) -> io::Result<PerfEvent> {
        PerfEvent::open_event(Raw::new(number), whose)
    }

    fn open_event(event: impl Event, whose: Whose) -> io::Result<PerfEvent> {
        let counter = builder(event, whose).build()?;
        // SAFETY: the descriptor is open, and `into_raw_fd` gave up the counter's ownership.
        let event = PerfEvent { fd: unsafe { OwnedFd::from_raw_fd(counter.into_raw_fd()) } };
        event.signal_here()?;
        Ok(event)
    }

    /// Sends a signal to the calling thread at each overflow. The signal is SIGIO, the default.
    fn signal_here(&self) -> io::Result<()> {
        kick::install_handlers()?;
        set_owner(&self.fd, gettid())?;
        fcntl(&self.fd, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
        Ok(())
    }

    /// The count since the event was opened. Returns an error if another program took the processor's counter from
    /// the event.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut count = [0; size_of::<u64>()];
        if read(&self.fd, &mut count)? == count.len() {
            return Ok(u64::from_ne_bytes(count));
        }
        let why = "another program took the counter (a pinned event lost its place on the processor)";
        Err(io::Error::new(ErrorKind::UnexpectedEof, why))
    }

    /// Makes the event overflow after this many more branches, and then again after every further `branches`.
    pub(super) fn set_period(&self, branches: u64) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the number lives through the call.
        unsafe { ioctl_set_period(self.fd.as_raw_fd(), &branches) }?;
        Ok(())
    }
}

/// An event that counts from the beginning, on any processor that the thread runs on, and never shares its counter.
fn builder(event: impl Event, whose: Whose) -> Builder<'static> {
    let mut builder = Builder::new(event);
    builder.observe_self().any_cpu().enabled(true).pinned(true).exclude_hv(true);
    builder.read_format(ReadFormat::empty()).sample_period(NEVER).wakeup_events(1);
    match whose {
        Whose::Guest => builder.exclude_kernel(false).exclude_host(true),
        Whose::Thread => builder.exclude_kernel(true).exclude_host(false),
    };
    builder
}

/// Sends the descriptor's signals to this thread with F_SETOWN_EX. With F_SETOWN, any thread of the process
/// could take the signals. Neither nix nor libc has the command F_SETOWN_EX.
fn set_owner(fd: &OwnedFd, thread: Pid) -> nix::Result<()> {
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;
    #[repr(C)]
    struct OwnerEx {
        kind: libc::c_int,
        pid: libc::pid_t,
    }
    let owner = OwnerEx { kind: F_OWNER_TID, pid: thread.as_raw() };
    // SAFETY: the descriptor is open, and the structure has this command's type and lives through the call.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &raw const owner) }).map(drop)
}

/// The processor's counter of the guest's branches.
pub(crate) struct Perf {
    number: u64,
    event: PerfEvent,
    thread: Pid,
    /// Branches counted by events of threads that ran the vCPU before.
    before: u64,
}

impl Perf {
    /// The counter for guests that the calling thread runs.
    pub(super) fn open() -> Result<Perf, Error> {
        let number = event::of_this_processor()
            .ok_or(Error::Lacks("a processor whose conditional branches can be counted exactly"))?;
        let event = PerfEvent::open(number, Whose::Guest).map_err(failed("open the branch counter"))?;
        Ok(Perf { number, event, thread: gettid(), before: 0 })
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Call(what, error)
}

impl BranchCounter for Perf {
    fn move_here(&mut self) -> Result<(), Error> {
        let thread = gettid();
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
        // Until the period is set, an overflow of the previous period may come. Such an overflow only costs
        // one read of the count.
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
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use perf_event::events::Breakpoint;

    use super::*;

    const FOREVER: Duration = Duration::from_secs(20);

    /// Counts stores to a word with a debug register. Unlike other events that every machine has, this one counts
    /// nothing else that the thread does.
    struct Stores {
        word: Box<AtomicU64>,
        event: PerfEvent,
    }

    impl Stores {
        fn new() -> io::Result<Stores> {
            let word = Box::new(AtomicU64::new(0));
            let stores = Breakpoint::write(word.as_ptr() as u64, size_of::<u64>() as u64);
            Ok(Stores { event: PerfEvent::open_event(stores, Whose::Thread)?, word })
        }

        fn store(&self, times: u64) {
            (0..times).for_each(|number| self.word.store(number, Ordering::Relaxed));
        }

        /// Sets a period that begins with the next store. This relies on two properties of the kernel's software
        /// events. An event overflows at the first count after its period was set. After an overflow, the event
        /// continues with the period that it had at the previous overflow. So two overflows are needed, and the
        /// function waits for both.
        fn set_period(&self, period: u64) {
            for _ in 0..2 {
                self.event.set_period(period).unwrap();
                self.store(1);
                self.wait_for_overflow();
            }
        }

        /// Waits for a signal that was sent. The signal comes at once or, if a processor cannot interrupt
        /// itself, with the kernel's next tick.
        fn wait_for_overflow(&self) {
            let begun = Instant::now();
            while !kick::overflow_came() {
                assert!(begun.elapsed() < FOREVER, "no overflow came");
                std::thread::yield_now();
            }
            kick::forget_overflow();
        }
    }

    /// Checks the attributes of the event that counts branches for landings. On most machines no
    /// other test of this event is possible.
    #[test]
    fn the_event_counts_guests_or_the_thread_itself() {
        const PERF_TYPE_RAW: u32 = 4;
        for (whose, host, kernel) in [(Whose::Guest, 0, 1), (Whose::Thread, 1, 0)] {
            let builder = builder(Raw::new(0x1_0000_11c4), whose);
            let attributes = builder.attrs();
            assert_eq!((attributes.type_, attributes.config), (PERF_TYPE_RAW, 0x1_0000_11c4));
            assert_eq!((attributes.exclude_host(), attributes.exclude_kernel()), (1 - host, 1 - kernel));
            assert_eq!((attributes.exclude_guest(), attributes.exclude_user()), (0, 0), "{whose:?}");
            assert_eq!((attributes.exclude_hv(), attributes.pinned(), attributes.disabled()), (1, 1, 0));
            assert_eq!((attributes.freq(), attributes.inherit(), attributes.read_format), (0, 0, 0));
        }
    }

    /// Tests counting and overflow signals with an event that counts stores, in place of the event that counts a
    /// guest's branches. The test does not depend on when a signal comes, because it waits for each expected signal.
    /// Where the test expects no signal, the counter cannot overflow.
    #[test]
    fn an_event_counts_and_its_overflow_is_signalled() {
        let stores = match Stores::new() {
            Ok(stores) => stores,
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EACCES | Errno::EPERM | Errno::ENOSYS) => {
                    return skip::test(format!("this host lets this user count nothing: {error}"));
                }
                _ => panic!("{error}"),
            },
        };
        assert_eq!(stores.event.count().unwrap(), 0);
        stores.set_period(30);
        stores.store(18);
        assert!(!kick::overflow_came());
        assert_eq!(stores.event.count().unwrap(), 20);
        stores.store(40);
        stores.wait_for_overflow();
        stores.set_period(NEVER);
        stores.store(60);
        assert!(!kick::overflow_came());
        assert_eq!(stores.event.count().unwrap(), 122);
    }
}
