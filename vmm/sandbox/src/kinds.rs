//! Kinds of threads: each kind keeps only the system calls that its job needs.
//!
//! A thread chooses its kind when it starts, and cannot change the kind later. The kernel applies the strictest of
//! a thread's filters. So a kind never allows a call that the process has given up. Signal handlers of this program
//! only change memory, so they need no calls of their own on any thread.

use std::sync::OnceLock;

use libc::c_long;
use seccompiler::{BackendError, SeccompRule};

use crate::calls::{
    self, FILE_REQUESTS, FILES, Filters, HELPER, KVM, KVM_TYPE, MEMORY, NAMED_FILES, PERF_TYPE, REQUEST_TYPE,
    Rules, SOCKETS, equal, masked, of_clone, of_descriptors, of_filters, of_limits, of_names_and_privileges,
    of_other_end, of_own_process, of_protection, of_reading, rule,
};
use crate::error::Error;
use crate::needs::Needs;

/// The job of a thread in a locked-in process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// Writes checkpoints: makes, renames and removes files in the recording's folder. Starts no threads, makes no code,
    /// and uses no sockets.
    CheckpointWriter,
    /// Unpacks pages from files that another thread has opened. Writes only messages.
    PageReader,
    /// Replays a part of a recording for another thread. Opens files only for reading, and writes only messages.
    Replayer,
    /// Serves one gdb on its socket: replays, and writes checkpoints and symbols.
    GdbSession,
    /// Accepts clients and answers them. Opens no files.
    Doorkeeper,
    /// Waits for the end of a helper program that was started before the lock-in, and then ends the process.
    Waiter,
}

/// Calls, and the conditions on their arguments.
type Conditions = Vec<(c_long, Vec<SeccompRule>)>;

/// Calls of every thread: locks, signals, the thread's own end, and the end of the process.
const EVERY_THREAD: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    // The C library's allocator counts the processors when a thread first asks for memory.
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // A log message may contain the time. On some hosts the C library needs a system call to read the time.
    libc::SYS_clock_gettime,
];

/// Calls that change an open file.
const CHANGED_FILES: &[c_long] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// Calls that read an open file.
const READ_FILES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fadvise64,
];

/// Calls that look at named files and list folders.
const LOOKED_AT: &[c_long] = &[libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_getdents64];

/// Calls about time and randomness.
const TIME: &[c_long] = &[libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_getrandom];

/// Calls on a client's socket. Clients connect to a socket that was bound before the process was locked in.
const CLIENTS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_poll,
    libc::SYS_ppoll,
];

/// ioctl requests that end the raw mode of the terminal. Any thread may end the process, and makes these requests
/// before.
const TERMINAL_REQUESTS: &[u64] = &[libc::TCGETS, libc::TCSETS, libc::TCGETS2, libc::TCSETS2];

/// Signals that end the process. The C library and Rust's library reset their actions before the end.
const FATAL: &[libc::c_int] = &[libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS];

impl ThreadKind {
    /// All kinds.
    pub const ALL: [ThreadKind; 6] = [
        ThreadKind::CheckpointWriter,
        ThreadKind::PageReader,
        ThreadKind::Replayer,
        ThreadKind::GdbSession,
        ThreadKind::Doorkeeper,
        ThreadKind::Waiter,
    ];
}

/// Allows the calling thread only the calls of `kind`. `needs` are the needs of the whole process. Returns `false`
/// if the host has no seccomp.
pub(crate) fn restrict_thread(kind: ThreadKind, needs: &Needs) -> Result<bool, Error> {
    // Some kinds of threads start often, so each list is compiled once. The needs of a process never change.
    static COMPILED: [OnceLock<Filters>; ThreadKind::ALL.len()] =
        [const { OnceLock::new() }; ThreadKind::ALL.len()];
    let place = &COMPILED[kind as usize];
    let filters = match place.get() {
        Some(filters) => filters,
        None => {
            let made = calls::made(rules(kind, needs))?;
            place.get_or_init(|| made)
        }
    };
    calls::apply(filters)
}

fn rules(kind: ThreadKind, needs: &Needs) -> Result<Rules, BackendError> {
    let mut rules = of_every_thread()?;
    for (call, conditions) in with_conditions(kind, needs)? {
        rules.entry(call).or_default().extend(conditions);
    }
    let whole = without_conditions(kind, needs);
    rules.extend(whole.into_iter().flatten().map(|&call| (call, Vec::new())));
    Ok(rules)
}

/// The calls that a thread of this kind may make with any arguments.
fn without_conditions(kind: ThreadKind, needs: &Needs) -> Vec<&'static [c_long]> {
    let kvm = if needs.kvm { KVM } else { &[] };
    match kind {
        ThreadKind::CheckpointWriter => {
            let own = &[libc::SYS_openat, libc::SYS_rename, libc::SYS_unlink];
            vec![READ_FILES, CHANGED_FILES, LOOKED_AT, own]
        }
        ThreadKind::PageReader => vec![READ_FILES],
        ThreadKind::Replayer => vec![READ_FILES, LOOKED_AT, TIME, kvm, &[libc::SYS_rt_sigaction]],
        ThreadKind::GdbSession => {
            let own = &[libc::SYS_rt_sigaction, libc::SYS_listen];
            vec![FILES, NAMED_FILES, TIME, kvm, SOCKETS, CLIENTS, own]
        }
        ThreadKind::Doorkeeper => {
            // This thread reads the kernel's tables of connections, which are already open files. The thread's hash map
            // of clients needs random numbers.
            let own = &[libc::SYS_pread64, libc::SYS_read, libc::SYS_close, libc::SYS_getrandom];
            vec![SOCKETS, CLIENTS, own]
        }
        ThreadKind::Waiter => vec![HELPER, &[libc::SYS_write, libc::SYS_close]],
    }
}

/// The calls that a thread of this kind may make only with some arguments, and the rules for the arguments.
fn with_conditions(kind: ThreadKind, needs: &Needs) -> Result<Conditions, BackendError> {
    let descriptors = (libc::SYS_fcntl, of_descriptors()?);
    let sent = (libc::SYS_sendto, of_other_end()?);
    Ok(match kind {
        ThreadKind::CheckpointWriter => vec![descriptors],
        ThreadKind::PageReader | ThreadKind::Waiter => Vec::new(),
        ThreadKind::Replayer => {
            let device = if needs.kvm { of_device()? } else { Vec::new() };
            let opened = [(libc::SYS_openat, of_reading()?), (libc::SYS_openat, device)];
            [replaying(needs)?, opened.into(), vec![descriptors]].concat()
        }
        ThreadKind::GdbSession => [replaying(needs)?, vec![descriptors, sent]].concat(),
        ThreadKind::Doorkeeper => vec![descriptors, sent, (libc::SYS_ioctl, of_file_requests()?)],
    })
}

/// The rules of every thread. A thread may write messages to standard error.
fn of_every_thread() -> Result<Rules, BackendError> {
    let to_standard_error = || Ok(vec![rule(vec![equal(0, libc::STDERR_FILENO as u64)?])?]);
    let data = || Ok(vec![rule(vec![masked(2, libc::PROT_EXEC as u64, 0)?])?]);
    let ends = FATAL.iter().map(|&signal| rule(vec![equal(0, signal as u64)?])).collect::<Result<_, _>>()?;
    // In builds with assertions, Rust's library reads the flags of a descriptor before it closes the descriptor.
    let looked_at = vec![rule(vec![equal(1, libc::F_GETFD as u64)?])?];
    let mode = |&request| rule(vec![equal(0, libc::STDIN_FILENO as u64)?, equal(1, request)?]);
    let mut rules = Rules::from([
        (libc::SYS_mmap, data()?),
        (libc::SYS_mprotect, data()?),
        (libc::SYS_write, to_standard_error()?),
        (libc::SYS_writev, to_standard_error()?),
        (libc::SYS_rt_sigaction, ends),
        (libc::SYS_tgkill, of_own_process()?),
        (libc::SYS_prlimit64, of_limits()?),
        (libc::SYS_fcntl, looked_at),
        (libc::SYS_ioctl, TERMINAL_REQUESTS.iter().map(mode).collect::<Result<_, _>>()?),
    ]);
    rules.extend(EVERY_THREAD.iter().chain(MEMORY).map(|&call| (call, Vec::new())));
    Ok(rules)
}

/// The rules for threads that replay a guest. Such a thread may make executable code, start threads, and use KVM if the
/// process needs KVM.
fn replaying(needs: &Needs) -> Result<Conditions, BackendError> {
    let mut requests = of_file_requests()?;
    for bits in [KVM_TYPE, PERF_TYPE].into_iter().filter(|_| needs.kvm) {
        requests.push(rule(vec![masked(1, REQUEST_TYPE, bits)?])?);
    }
    Ok(vec![
        (libc::SYS_mmap, of_protection()?),
        (libc::SYS_mprotect, of_protection()?),
        (libc::SYS_clone, of_clone()?),
        (libc::SYS_prctl, of_names_and_privileges()?),
        (libc::SYS_seccomp, of_filters()?),
        (libc::SYS_ioctl, requests),
    ])
}

/// The rule for openat of a device: a thread may open a device only for both reading and writing, and may not
/// create one.
fn of_device() -> Result<Vec<SeccompRule>, BackendError> {
    let how = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    Ok(vec![rule(vec![masked(2, how, libc::O_RDWR as u64)?])?])
}

fn of_file_requests() -> Result<Vec<SeccompRule>, BackendError> {
    FILE_REQUESTS.iter().map(|&request| rule(vec![equal(1, request)?])).collect()
}
