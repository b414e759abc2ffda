//! seccomp: the allowed system calls, each with its reason. If a process makes a call that is not on the list,
//! SIGSYS ends the process, and the kernel writes the call to its log. No code of ttvm makes such a call, so an
//! attacker must have taken over the process. A few other calls only fail, as on an older kernel. The libraries try
//! these calls, and use other calls if they fail ([`TRIED_BY_LIBRARIES`]).
//!
//! The lists in this file are for the whole process. [`crate::kinds`] has the shorter lists for kinds of threads.
//!
//! See seccomp(2). The list is for x86-64. A call through another of the kernel's interfaces (32-bit, x32) ends the
//! process.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, BpfProgramRef, Error as FilterError, SeccompAction, SeccompCmpArgLen,
    SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::error::Error;
use crate::needs::Needs;

/// Calls on open files.
pub(crate) const FILES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// Calls that name a file. Landlock decides which files the process may use. The list has no calls that make links, or
/// change owners or modes.
pub(crate) const NAMED_FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Calls of a server of files: it opens files below an open folder only, reads links, and asks who may read a file.
const FOLDERS: &[c_long] =
    &[libc::SYS_openat2, libc::SYS_readlinkat, libc::SYS_fstatfs, libc::SYS_faccessat, libc::SYS_faccessat2];

/// Calls that the C library and Rust's library try. If such a call fails, the library does without the call. For
/// example, `clone3` would start a thread; if it fails, the library uses `clone`. Other calls in this list look up
/// the names of folders, or open files with information about the host. At a panic, the backtrace opens the
/// program's own file. No library tries to open a file for writing ([`of_reading`]).
const TRIED_BY_LIBRARIES: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_getcwd,
    libc::SYS_faccessat2,
    libc::SYS_copy_file_range,
];

/// Calls about memory. [`of_protection`] has the rules for mmap and mprotect.
pub(crate) const MEMORY: &[c_long] = &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise];

/// Calls about threads of this process. [`of_clone`] allows the start of threads.
const THREADS: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls about incoming signals. [`of_own_process`] allows outgoing signals.
const SIGNALS: &[c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
];

/// Calls about waiting, time and randomness.
const WAITING: &[c_long] = &[
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
];

/// Calls about the identity of the process.
const IDENTITY: &[c_long] = &[libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid];

/// Calls on existing sockets. The process may not create, bind or connect a socket.
pub(crate) const SOCKETS: &[c_long] = &[libc::SYS_recvfrom, libc::SYS_shutdown];

/// Calls that accept clients on a bound socket.
pub(crate) const CLIENTS: &[c_long] = &[
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // A pipe between two threads of the process. Through this pipe, the thread that refuses clients learns that
    // there is room for a client again.
    libc::SYS_pipe2,
];

/// Calls for KVM: a thread interrupts its own vCPU by a timer, and by the counter of the vCPU's branches.
pub(crate) const KVM: &[c_long] = &[
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_perf_event_open,
    libc::SYS_eventfd2,
    // A thread makes this call so that the signal of its counter goes to the thread itself. For the other uses of
    // fcntl see [`of_descriptors`].
    libc::SYS_fcntl,
];

/// Calls for VFIO: interrupts of devices arrive by event descriptors.
const VFIO: &[c_long] =
    &[libc::SYS_eventfd2, libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait];

/// Calls that wait for a program that was started before the process was locked in.
pub(crate) const HELPER: &[c_long] = &[libc::SYS_wait4, libc::SYS_waitid];

/// Calls for branches (copies of the process): for their reports, their end and the wait for their end.
/// [`of_copies`] allows the copying itself.
const BRANCHES: &[c_long] = &[libc::SYS_pipe2, libc::SYS_getppid, libc::SYS_wait4, libc::SYS_kill];

/// ioctl requests for the terminal's mode and size. TIOCSTI is not allowed, because the process could use it to
/// type commands into the shell that runs afterwards.
const TERMINAL_REQUESTS: &[u64] = &[
    libc::TCGETS,
    libc::TCSETS,
    libc::TCSETSW,
    libc::TCSETSF,
    libc::TCGETS2,
    libc::TCSETS2,
    libc::TCSETSW2,
    libc::TCSETSF2,
    libc::TIOCGWINSZ,
];
/// ioctl requests that set whether operations on a socket or pipe block, and whether executed programs inherit the
/// descriptor.
pub(crate) const FILE_REQUESTS: &[u64] = &[libc::FIONBIO, libc::FIOCLEX];
/// The bits of an ioctl request that identify its driver.
pub(crate) const REQUEST_TYPE: u64 = 0xff00;
pub(crate) const KVM_TYPE: u64 = 0xae00;
pub(crate) const PERF_TYPE: u64 = (b'$' as u64) << 8;
const VFIO_TYPE: u64 = (b';' as u64) << 8;

const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;

/// Allowed calls, with conditions on their arguments. A call without conditions is always allowed.
pub(crate) type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Two filters; the kernel takes the stricter result. Under the first filter, every call fails that is not allowed. The
/// second filter ends the process at such a call, except for the calls that libraries try.
pub(crate) type Filters = [BpfProgram; 2];

/// Allows the process only the calls for `needs`. Returns `false` if the host has no seccomp.
pub(crate) fn restrict(needs: &Needs) -> Result<bool, Error> {
    apply_by(&made(rules(needs))?, seccompiler::apply_filter_all_threads)
}

/// Does the same as [`restrict`] for the calling thread only.
pub(crate) fn restrict_thread(needs: &Needs) -> Result<bool, Error> {
    apply(&made(rules(needs))?)
}

/// Makes the two filters from these rules.
pub(crate) fn made(rules: Result<Rules, BackendError>) -> Result<Filters, Error> {
    let made = rules.map_err(Into::into).and_then(filters);
    made.map_err(Error::failed("make the list of system calls"))
}

/// Adds filters to the calling thread. Returns `false` if the host has no seccomp.
pub(crate) fn apply(filters: &Filters) -> Result<bool, Error> {
    apply_by(filters, seccompiler::apply_filter)
}

fn apply_by(
    filters: &Filters,
    apply: fn(BpfProgramRef<'_>) -> Result<(), FilterError>,
) -> Result<bool, Error> {
    for filter in filters {
        match apply(filter) {
            Ok(()) => {}
            Err(FilterError::Seccomp(error)) if is_missing(&error) => return Ok(false),
            Err(error) => return Err(Error::failed("give up system calls")(error)),
        }
    }
    Ok(true)
}

/// Whether the error means that the kernel has no seccomp, or that its seccomp has no filters.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

fn filters(allowed: Rules) -> Result<Filters, Box<dyn std::error::Error>> {
    let mut survived = allowed.clone();
    for &call in TRIED_BY_LIBRARIES {
        // An empty list of rules allows the call with any arguments.
        let is_whole = survived.get(&call).is_some_and(Vec::is_empty);
        if call == libc::SYS_openat && !is_whole {
            survived.entry(call).or_default().extend(of_reading()?);
        } else {
            survived.insert(call, Vec::new());
        }
    }
    // The process adds the second filter when the first filter is already in force. So the first filter must allow
    // the call that adds a filter.
    let mut first = allowed;
    first.entry(libc::SYS_seccomp).or_insert(of_filters()?);
    first.entry(libc::SYS_prctl).or_insert(of_privileges()?);
    let failing = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = |rules, other| -> Result<BpfProgram, Box<dyn std::error::Error>> {
        Ok(SeccompFilter::new(rules, other, SeccompAction::Allow, TargetArch::x86_64)?.try_into()?)
    };
    Ok([filter(first, failing)?, filter(survived, SeccompAction::KillProcess)?])
}

fn rules(needs: &Needs) -> Result<Rules, BackendError> {
    let mut rules = Rules::from([
        (libc::SYS_mmap, of_protection()?),
        (libc::SYS_mprotect, of_protection()?),
        (libc::SYS_clone, of_copies(needs)?),
        (libc::SYS_tgkill, of_own_process()?),
        (libc::SYS_ioctl, of_requests(needs)?),
        (libc::SYS_fcntl, of_descriptors()?),
        (libc::SYS_prctl, of_process(needs)?),
        (libc::SYS_seccomp, of_filters()?),
        // These two calls may only get the status of a file that is already open.
        (libc::SYS_newfstatat, vec![rule(vec![masked(3, EMPTY_PATH, EMPTY_PATH)?])?]),
        (libc::SYS_statx, vec![rule(vec![masked(2, EMPTY_PATH, EMPTY_PATH)?])?]),
        (libc::SYS_prlimit64, of_limits()?),
        (libc::SYS_sendto, of_other_end()?),
    ]);
    let lists = [FILES, MEMORY, THREADS, SIGNALS, WAITING, IDENTITY, SOCKETS];
    let more = [
        (needs.names_files(), NAMED_FILES),
        (!needs.folders.is_empty(), FOLDERS),
        (needs.clients, CLIENTS),
        (needs.kvm, KVM),
        (needs.vfio, VFIO),
        (needs.helper, HELPER),
        (needs.branches, BRANCHES),
    ];
    let more = more.iter().filter(|(is_needed, _)| *is_needed).map(|(_, list)| *list);
    for &call in lists.into_iter().chain(more).flatten() {
        rules.insert(call, Vec::new());
    }
    Ok(rules)
}

/// The rule for limits: the process may read its limits, but not set them.
pub(crate) fn of_limits() -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![rule(vec![equal(0, 0)?, null(2)?])?])
}

/// The rule for sendto: the process may send only to the other end of a connected socket, and may not give an
/// address.
pub(crate) fn of_other_end() -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![rule(vec![null(4)?])?])
}

/// The rule for openat: the process may open files only for reading, and may not create files.
pub(crate) fn of_reading() -> Result<Vec<SeccompRule>, BackendError> {
    let changing = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    Ok(vec![rule(vec![masked(2, changing, libc::O_RDONLY as u64)?])?])
}

/// The rules for prctl: a thread may set its name, and may set `no_new_privs`, which is set already.
pub(crate) fn of_names_and_privileges() -> Result<Vec<SeccompRule>, BackendError> {
    let names = vec![rule(vec![equal(0, libc::PR_SET_NAME as u64)?])?];
    Ok(names.into_iter().chain(of_privileges()?).collect())
}

/// The rule for prctl: a thread may set `no_new_privs`. This flag is set already, but the library sets it again
/// with each filter.
fn of_privileges() -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![rule(vec![equal(0, libc::PR_SET_NO_NEW_PRIVS as u64)?])?])
}

/// The rules for prctl for the whole process. A process that makes branches may also set the signal that ends a
/// branch with its parent.
fn of_process(needs: &Needs) -> Result<Vec<SeccompRule>, BackendError> {
    let of_branches = needs.branches.then_some(libc::PR_SET_PDEATHSIG);
    let of_branches = of_branches.map(|option| rule(vec![equal(0, option as u64)?]));
    of_names_and_privileges()?.into_iter().map(Ok).chain(of_branches).collect()
}

/// The rules for seccomp. A process may add filters, which can only take rights away. The process may not add a
/// filter that passes calls to another process for a decision.
pub(crate) fn of_filters() -> Result<Vec<SeccompRule>, BackendError> {
    let flags = [0, libc::SECCOMP_FILTER_FLAG_TSYNC];
    let operation = u64::from(libc::SECCOMP_SET_MODE_FILTER);
    flags.iter().map(|&flags| rule(vec![equal(0, operation)?, equal(1, flags)?])).collect()
}

/// The rules for mmap and mprotect: memory is never writable and executable at the same time.
pub(crate) fn of_protection() -> Result<Vec<SeccompRule>, BackendError> {
    let both = (libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    let allowed = [libc::PROT_NONE, libc::PROT_WRITE, libc::PROT_EXEC];
    allowed.iter().map(|&bits| rule(vec![masked(2, both, bits as u64)?])).collect()
}

/// `THREAD` has the flags by which clone starts a thread, and `NAMESPACES` the flags by which clone makes new
/// namespaces.
const THREAD: c_int = libc::CLONE_THREAD | libc::CLONE_VM;
const NAMESPACES: c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The rules for clone: the process may start threads, as [`of_clone`] allows. A process with branches may also
/// copy itself.
fn of_copies(needs: &Needs) -> Result<Vec<SeccompRule>, BackendError> {
    let branches = needs.branches.then(|| rule(vec![masked(0, (NAMESPACES | THREAD) as u64, 0)?]));
    of_clone()?.into_iter().map(Ok).chain(branches).collect()
}

/// The rule for clone: the process may start a thread, but no new process, and may not make a new namespace.
pub(crate) fn of_clone() -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![rule(vec![masked(0, (NAMESPACES | THREAD) as u64, THREAD as u64)?])?])
}

/// The rule for signals: the process may send signals only to itself, for example to abort, or to stop when the
/// terminal asks.
pub(crate) fn of_own_process() -> Result<Vec<SeccompRule>, BackendError> {
    let own = u64::from(std::process::id());
    Ok(vec![rule(vec![equal(0, own)?])?])
}

fn of_requests(needs: &Needs) -> Result<Vec<SeccompRule>, BackendError> {
    let single = TERMINAL_REQUESTS.iter().chain(FILE_REQUESTS);
    let single = single.map(|&request| rule(vec![equal(1, request)?]));
    let types = [(needs.kvm, KVM_TYPE), (needs.kvm, PERF_TYPE), (needs.vfio, VFIO_TYPE)];
    let types = types.iter().filter(|(is_needed, _)| *is_needed);
    single.chain(types.map(|&(_, bits)| rule(vec![masked(1, REQUEST_TYPE, bits)?]))).collect()
}

/// The rules for fcntl. A process may copy descriptors and change their flags, but may not choose the process that gets
/// their signals.
pub(crate) fn of_descriptors() -> Result<Vec<SeccompRule>, BackendError> {
    let commands =
        [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    commands.iter().map(|&command| rule(vec![equal(1, command as u64)?])).collect()
}

/// A rule that allows a call if all these conditions hold.
pub(crate) fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

/// The condition that the low 32 bits of an argument are equal to `value`. The kernel reads the argument as 32 bits.
pub(crate) fn equal(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// The condition that the bits of an argument in `mask` are equal to `value`.
pub(crate) fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

/// The condition that a pointer is null.
fn null(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}
