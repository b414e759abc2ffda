//! Getting the vCPU's thread out of the guest after some time, by a signal to itself.
//!
//! The handler sets `immediate_exit`, so that a signal which arrives just before the guest is entered is not lost; the timer
//! goes on firing until it is disarmed, so that none that arrives at any other moment is missed.
//!
//! The branch counter's overflow is a signal too, which does the same. While one is armed, the timer is the watchdog that
//! finds those that are lost.

use std::cell::Cell;
use std::ptr::{addr_of_mut, null_mut};
use std::sync::Once;
use std::time::Duration;

use kvm_bindings::kvm_run;

thread_local! {
    /// The shared page of the vCPU that this thread runs, while it runs it.
    static RUNNING: Cell<*mut kvm_run> = const { Cell::new(null_mut()) };
    /// The branch counter of this thread overflowed.
    static OVERFLOWED: Cell<bool> = const { Cell::new(false) };
}

/// How often a guest that does not leave is asked again.
pub(crate) const AGAIN: Duration = Duration::from_micros(500);
/// How often the count is looked at while an overflow is armed.
const WATCHDOG: Duration = Duration::from_millis(2);

extern "C" fn on_kick(_signal: libc::c_int) {
    let run = RUNNING.get();
    if !run.is_null() {
        // SAFETY: `Kick` sets the pointer only while the vCPU lives, and it is this thread's own.
        unsafe { addr_of_mut!((*run).immediate_exit).write_volatile(1) };
    }
}

extern "C" fn on_overflow(signal: libc::c_int) {
    OVERFLOWED.set(true);
    on_kick(signal);
}

/// Whether the calling thread's branch counter overflowed since [`forget_overflow`].
pub(crate) fn overflow_came() -> bool {
    OVERFLOWED.get()
}

/// An overflow that came is no news any more.
pub(crate) fn forget_overflow() {
    OVERFLOWED.set(false);
}

/// The signal that a branch counter is to send to the thread that it counts for.
pub(crate) fn overflow_signal() -> libc::c_int {
    install_handlers();
    libc::SIGRTMIN() + 2
}

/// The timer of one thread.
pub(crate) struct Kick {
    timer: libc::timer_t,
    thread: libc::pid_t,
}

// SAFETY: a timer belongs to the process; the thread that it signals is looked at before each use.
unsafe impl Send for Kick {}

impl Kick {
    /// A timer for the calling thread.
    fn new() -> std::io::Result<Kick> {
        install_handlers();
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        // SAFETY: all-zero is a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal_number();
        event.sigev_notify_thread_id = thread;
        let mut timer = null_mut();
        // SAFETY: both structures live through the call.
        let result = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        if result == 0 { Ok(Kick { timer, thread }) } else { Err(std::io::Error::last_os_error()) }
    }

    /// The timer of the calling thread, in place of one of another.
    pub(crate) fn here(kick: &mut Option<Kick>) -> std::io::Result<&Kick> {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        if kick.as_ref().is_none_or(|kick| kick.thread != thread) {
            *kick = Some(Kick::new()?);
        }
        Ok(kick.as_ref().expect("it was just made"))
    }

    /// Kicks the vCPU of `run` out of the guest after `delay`, and from then on again and again.
    pub(crate) fn arm(&self, run: *mut kvm_run, delay: Duration) {
        RUNNING.set(run);
        self.set(delay.max(Duration::from_micros(1)), AGAIN);
    }

    /// Kicks the vCPU of `run` out of the guest now and then.
    pub(crate) fn watch(&self, run: *mut kvm_run) {
        RUNNING.set(run);
        self.set(WATCHDOG, WATCHDOG);
    }

    /// No more kicks.
    pub(crate) fn disarm(&self) {
        self.set(Duration::ZERO, Duration::ZERO);
        RUNNING.set(null_mut());
    }

    fn set(&self, first: Duration, interval: Duration) {
        let spec = |duration: Duration| libc::timespec {
            tv_sec: duration.as_secs() as libc::time_t,
            tv_nsec: duration.subsec_nanos().into(),
        };
        let value = libc::itimerspec { it_value: spec(first), it_interval: spec(interval) };
        // SAFETY: the timer exists as long as `self`, and both pointers are good for the call.
        let result = unsafe { libc::timer_settime(self.timer, 0, &value, null_mut()) };
        debug_assert_eq!(result, 0, "a timer that exists can be set");
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // SAFETY: the timer exists until here.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn signal_number() -> libc::c_int {
    libc::SIGRTMIN() + 1
}

fn install_handlers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        install(signal_number(), on_kick);
        install(libc::SIGRTMIN() + 2, on_overflow);
    });
}

fn install(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: the handlers only touch the thread's own cells and what they point to; all-zero is a valid sigaction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = 0;
        libc::sigaction(signal, &action, null_mut());
    }
}
