//! Adds a listener to a machine's inputs. The listener does not change the inputs.

use devices::passthrough::{AskV1, DeviceInputV1};
use machine::engine::Leave;
use machine::error::Error;
use machine::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use machine::position::{Count, Moment};

/// Receives the events of a run.
pub trait RunListener {
    /// Called when the run has reached this guest time.
    fn comes_to(&mut self, _time_ns: u64) {}

    /// Called when the guest prints these bytes on its console. `at` is the number of instructions, or of exits,
    /// that the guest has executed until then.
    fn prints(&mut self, at: u64, bytes: &[u8]);

    /// Whether the run must pause ([`Inputs::pauses`]).
    fn pauses(&mut self) -> bool {
        false
    }
}

/// Inputs with a listener. These inputs call the listener's functions when events happen and when the guest prints.
pub struct WithListener<I, L> {
    pub inner: I,
    pub listener: L,
}

impl<C: Count, I: Inputs<C>, L: RunListener> Inputs<C> for WithListener<I, L> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        self.listener.comes_to(view.moment.time_ns);
        self.inner.poll(view)
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        self.inner.next_poll(now)
    }

    fn pauses(&mut self) -> bool {
        self.listener.pauses() || self.inner.pauses()
    }

    fn leave(&self, now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        self.inner.leave(now, deadline_ns)
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.inner.idle(now, deadline_ns)
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.inner.ask_devices(at, ask)
    }

    fn tell_devices(&mut self, at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        self.inner.tell_devices(at, told)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.inner.network_output(frames)
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.listener.prints(now.count.number(), bytes);
        self.inner.console_output(now, bytes)
    }
}
