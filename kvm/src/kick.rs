//! Kicks the vCPU's thread out of the guest after some time, by a signal to the thread itself.
//!
//! The handler sets `immediate_exit`, so that a signal just before the guest is entered is not lost. The timer keeps
//! firing until it is disarmed, so that a signal at any other moment is not missed either.
//!
//! The branch counter's overflow is a signal with the same effect. While the counter is armed, the timer serves as
//! watchdog for lost overflows.
//!
//! Each thread that runs a vCPU has one timer. The timer is made at first use and deleted when the
//! thread ends.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::ptr::{addr_of_mut, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

use kvm_bindings::kvm_run;
use nix::sys::signal::{SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

thread_local! {
    /// The shared page of the vCPU that this thread is running.
    static RUNNING: Cell<*mut kvm_run> = const { Cell::new(null_mut()) };
    /// Whether this thread's branch counter overflowed.
    static OVERFLOWED: Cell<bool> = const { Cell::new(false) };
    /// The timer that sends [`KICK`] to this thread.
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// The timer's signal.
const KICK: Signal = Signal::SIGALRM;
/// The branch counter's signal, the default of a descriptor.
const OVERFLOW: Signal = Signal::SIGIO;

/// Time between two kicks of a guest that does not leave.
pub(crate) const AGAIN: Duration = Duration::from_micros(500);
/// Time between two reads of the count while an overflow is armed.
const WATCHDOG: Duration = Duration::from_millis(2);

extern "C" fn on_kick(_signal: libc::c_int) {
    let run = RUNNING.get();
    if !run.is_null() {
        // SAFETY: an alarm exists, so its vCPU exists too, and both belong to this thread.
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

/// Forgets an earlier overflow: [`overflow_came`] then reports only later ones.
pub(crate) fn forget_overflow() {
    OVERFLOWED.set(false);
}

/// While an alarm exists, it kicks the calling thread out of the guest. The vCPU must outlive the kick.
#[must_use]
pub(crate) struct Alarm {
    /// The timer and the vCPU belong to the thread.
    stays_here: PhantomData<*mut kvm_run>,
}

impl Alarm {
    /// Kicks the vCPU of `run` out of the guest after `delay`, and then again and again. The calling thread must run
    /// the vCPU.
    pub(crate) fn after(run: *mut kvm_run, delay: Duration) -> io::Result<Alarm> {
        Alarm::start(run, delay.max(Duration::from_micros(1)), AGAIN)
    }

    /// Kicks the vCPU of `run` out of the guest from time to time. The calling thread must run the vCPU.
    pub(crate) fn watchdog(run: *mut kvm_run) -> io::Result<Alarm> {
        Alarm::start(run, WATCHDOG, WATCHDOG)
    }

    fn start(run: *mut kvm_run, first: Duration, interval: Duration) -> io::Result<Alarm> {
        TIMER.with_borrow_mut(|timer| {
            let timer = match timer {
                Some(timer) => timer,
                None => timer.insert(new_timer()?),
            };
            RUNNING.set(run);
            let alarm = Alarm { stays_here: PhantomData };
            let expiration = Expiration::IntervalDelayed(first.into(), interval.into());
            timer.set(expiration, TimerSetTimeFlags::empty())?;
            Ok(alarm)
        })
    }
}

impl Drop for Alarm {
    /// Stops the kicks. An expiration of zero stops a timer.
    fn drop(&mut self) {
        let stop = Expiration::OneShot(Duration::ZERO.into());
        let stopped = TIMER.with_borrow_mut(|timer| {
            timer.as_mut().map_or(Ok(()), |timer| timer.set(stop, TimerSetTimeFlags::empty()))
        });
        debug_assert_eq!(stopped, Ok(()), "a timer that exists can be set");
        RUNNING.set(null_mut());
    }
}

/// A timer that signals the calling thread.
fn new_timer() -> io::Result<Timer> {
    install_handlers()?;
    let to_this_thread =
        SigevNotify::SigevThreadId { signal: KICK, thread_id: gettid().as_raw(), si_value: 0 };
    Ok(Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(to_this_thread))?)
}

/// Installs handlers for the signals of timers and counters, which would otherwise end the process.
pub(crate) fn install_handlers() -> io::Result<()> {
    static INSTALLED: OnceLock<nix::Result<()>> = OnceLock::new();
    let installed =
        INSTALLED.get_or_init(|| install(KICK, on_kick).and_then(|()| install(OVERFLOW, on_overflow)));
    Ok((*installed)?)
}

fn install(signal: Signal, handler: extern "C" fn(libc::c_int)) -> nix::Result<()> {
    // No SA_RESTART, because the signal must interrupt KVM_RUN.
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handlers only change the thread's own cells, which need no initialisation, and the memory that these
    // point to.
    unsafe { sigaction(signal, &action) }.map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const FOREVER: Duration = Duration::from_secs(20);

    /// Waits at most [`FOREVER`] for a kick, which sets the flag in the page. Returns whether the kick came.
    fn is_kicked(run: &mut kvm_run) -> bool {
        let asked = &raw mut run.immediate_exit;
        let until = Instant::now() + FOREVER;
        // SAFETY: the page is borrowed, and a handler on this thread may write the field, hence volatile.
        while unsafe { asked.read_volatile() } == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        // SAFETY: the page is borrowed, so the pointer is valid. Only this thread and its handler access the field.
        unsafe { asked.replace(0) == 1 }
    }

    #[test]
    fn a_thread_is_kicked_again_and_again_while_there_is_an_alarm() {
        let mut run = kvm_run::default();
        let alarm = Alarm::after(&raw mut run, Duration::ZERO).unwrap();
        assert!(is_kicked(&mut run));
        assert!(is_kicked(&mut run));
        drop(alarm);
        run.immediate_exit = 0;
        let watchdog = Alarm::watchdog(&raw mut run).unwrap();
        assert!(is_kicked(&mut run));
        drop(watchdog);
        assert!(RUNNING.get().is_null());
    }
}
