//! Inputs that also choose the turns of the processors. A *given turn* is a turn that comes from these inputs and not
//! from the machine's policy. The module is for a program that looks for a certain order of instructions.
//!
//! ```text
//! turns ──► GivenTurns ──► Event::Turns ──► the CPU's queue ──► the seat
//!              │
//!              └── all other inputs come from the wrapped inputs
//! ```
//!
//! A recorder that wraps these inputs writes the given turns into the log. So the recording can be replayed without the
//! program.

use std::iter::Peekable;

use cpu::Turn;
use devices::passthrough::{AskV1, DeviceInputV1};

use crate::checks::{CheckParts, CheckRecord};
use crate::engine::Leave;
use crate::error::Error;
use crate::inputs::{AskedAt, Event, Idle, Inputs, Sent, View};
use crate::position::{Count, Moment};

/// Inputs that wrap other inputs, and add the turns that the processors take from the machine's present point on. After
/// the last of these turns, the machine's policy chooses the turns.
///
/// A given turn is skipped if its processor cannot run. If no processor of the waiting given turns can run, the
/// policy chooses a turn.
pub struct GivenTurns<I, T: Iterator<Item = Turn>> {
    inputs: I,
    turns: Peekable<T>,
}

impl<I, T: Iterator<Item = Turn>> GivenTurns<I, T> {
    /// Makes inputs that return these turns, and also all events of `inputs`.
    pub fn new(inputs: I, turns: impl IntoIterator<IntoIter = T>) -> GivenTurns<I, T> {
        GivenTurns { inputs, turns: turns.into_iter().peekable() }
    }

    /// The wrapped inputs.
    pub fn into_inner(self) -> I {
        self.inputs
    }
}

impl<C: Count, I: Inputs<C>, T: Iterator<Item = Turn>> Inputs<C> for GivenTurns<I, T> {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        if view.cpu.waiting_turns() < Turn::FEW_WAITING && self.turns.peek().is_some() {
            let next = self.turns.by_ref().take(Turn::MOST_AT_ONCE);
            return Ok(Some(Event::Turns(next.collect())));
        }
        self.inputs.poll(view)
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        self.inputs.next_poll(now)
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        self.inputs.idle(now, deadline_ns)
    }

    fn leave(&self, now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        self.inputs.leave(now, deadline_ns)
    }

    fn without_exit(&self, now: Moment<C>, executed: u64) -> Result<u64, Error> {
        self.inputs.without_exit(now, executed)
    }

    fn pauses(&mut self) -> bool {
        self.inputs.pauses()
    }

    fn check_due(&self, now: Moment<C>) -> Option<CheckParts> {
        self.inputs.check_due(now)
    }

    fn checked(&mut self, check: CheckRecord<C>) -> Result<(), Error> {
        self.inputs.checked(check)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        self.inputs.network_output(frames)
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        self.inputs.ask_devices(at, ask)
    }

    fn tell_devices(&mut self, at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        self.inputs.tell_devices(at, told)
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        self.inputs.console_output(now, bytes)
    }
}
