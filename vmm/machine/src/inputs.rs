//! The machine's inputs. All values that the machine's own state does not determine come from its inputs.
//!
//! The machine asks its [`Inputs`] at points between instructions. Live inputs ask the host. A recorder writes the
//! events of live inputs into a log. A player returns the same events at the same points. The machine does not know
//! which of these three kinds of inputs it has.

use cpu::Turn;
use devices::passthrough::{AskV1, DeviceInputV1};
use devices::virtio::SentFrame;
use serde::Serialize;

use crate::checks::{CheckParts, CheckRecord};
use crate::comparable::{Likeness, Others, cpu_hash, shown};
use crate::engine::Leave;
use crate::error::Error;
use crate::hashes::short;
use crate::outcome::Outcome;
use crate::position::{Count, Instructions, Moment};

/// An input from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Event {
    /// The date, the seed and the console's size at power-on. This event is always the first event, and never comes
    /// later.
    PowerOn(PowerOn),
    /// Bytes typed at the serial console.
    ConsoleInput(Vec<u8>),
    /// The console's window changed.
    ConsoleResize {
        /// Width in characters.
        columns: u16,
        /// Height in characters.
        rows: u16,
    },
    /// The power button was pressed.
    PowerButton,
    /// The user ended the run at this point.
    Ended,
    /// The guest was stopped at this place without an exit, so that the next events can come in here. The stop
    /// itself is counted as an exit.
    Stopped(Stopped),
    /// Host time passed.
    TimePassed {
        /// Nanoseconds.
        ns: u64,
    },
    /// A signal ended the run at this point.
    Interrupted,
    /// The run reached a limit that the user had set.
    Limit,
    /// The console showed a text at which the user wanted the run to end.
    TextShown,
    /// Ethernet frames came in over the network.
    NetworkInput(Vec<Vec<u8>>),
    /// Input from passed-through devices of the host. An answer comes in while the instruction that asks for it
    /// executes; any other input comes in between two instructions.
    Devices(DeviceInputV1),
    /// The next turns of several processors, in order. The processors take these turns before the machine's policy
    /// chooses further turns.
    Turns(Vec<Turn>),
}

/// Identifies a place where the guest was stopped, among all places between the same two exits. Every record of an
/// event also has RIP and the hash of the registers, which help to find the place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// A hash of the general registers ([`cpu::fold_registers`]). A comparison of this hash is quick, so a search
    /// first compares this hash at each of many places.
    pub registers: u64,
    /// The digest of RAM ([`crate::ram_digest`]).
    pub ram_digest: [u8; 16],
}

impl Event {
    /// The outcome, if the event ends the run.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Event::Ended => Some(Outcome::Ended),
            Event::Interrupted => Some(Outcome::Interrupted),
            Event::Limit => Some(Outcome::Limit),
            Event::TextShown => Some(Outcome::TextShown),
            _ => None,
        }
    }

    /// Whether the event answers an instruction that asks a device.
    pub fn is_answer(&self) -> bool {
        matches!(self, Event::Devices(input) if input.asked.is_some())
    }

    /// The event's kind in one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::PowerOn(_) => "power-on",
            Event::ConsoleInput(_) => "console-input",
            Event::ConsoleResize { .. } => "console-resize",
            Event::PowerButton => "power-button",
            Event::Ended => "ended",
            Event::Interrupted => "interrupted",
            Event::Limit => "limit",
            Event::TextShown => "text-shown",
            Event::Stopped(_) => "stopped",
            Event::TimePassed { .. } => "time-passed",
            Event::NetworkInput(_) => "network-input",
            Event::Devices(_) => "devices",
            Event::Turns(_) => "turns",
        }
    }
}

/// The machine's inputs at power-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PowerOn {
    /// The date at which the real-time clock starts, in seconds since 1970.
    pub unix_seconds: i64,
    /// The seed of the guest's randomness: the kernel's seed and the entropy device's data follow from it.
    pub seed: [u8; 32],
    /// Console width in characters.
    pub columns: u16,
    /// Console height in characters.
    pub rows: u16,
}

/// A fixed date, seed and size. Two runs with these values and the same inputs are equal.
impl Default for PowerOn {
    fn default() -> PowerOn {
        // The real-time clock starts at the first second of 2020.
        PowerOn { unix_seconds: 1_577_836_800, seed: [0; 32], columns: 80, rows: 25 }
    }
}

/// The facts about the machine that its inputs get.
#[derive(Clone, Copy)]
pub struct View<'a, C> {
    /// The machine's present point.
    pub moment: Moment<C>,
    /// Number of bytes that the guest's console can accept now. Zero while no driver reads the console.
    pub console_room: usize,
    /// Number of frames that the network card can accept now. `None` if there is no card, or no driver has started the
    /// card.
    pub network_room: Option<usize>,
    /// The CPU, for checks.
    pub cpu: &'a cpu::Cpu,
    /// Retired conditional branches. In a machine that counts exits, this is zero unless the guest was just stopped
    /// without an exit and the engine counts branches.
    pub branches: u64,
    /// The part of the CPU's state that hashes cover.
    pub likeness: Likeness,
    /// The description of the place, if the guest was just stopped here without an exit and no event has reported the
    /// stop yet.
    pub stopped: Option<Stopped>,
}

impl<C: Count> View<'_, C> {
    /// First bytes of the hash of the CPU's state.
    pub fn cpu_hash(&self) -> [u8; 8] {
        let state = self.cpu.state();
        if self.likeness == Likeness::AcrossProcessors {
            log::trace!("compared after {}: {}", self.moment.count, shown(&state));
        }
        let (cpus, turns) = (self.cpu.parked_states(), self.cpu.turn_state());
        let others = Others { cpus: &cpus, turns: turns.as_ref() };
        short(&cpu_hash(&state, self.cpu.counts(), others, self.likeness))
    }
}

/// The answer of the inputs while the guest is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Let virtual time pass up to this time in nanoseconds, but not beyond the machine's own next deadline.
    Until(u64),
    /// End the run, because no event will come in.
    Forever,
}

/// A frame that the guest sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent<C> {
    /// The point before the instruction that sent the frame.
    pub at: Moment<C>,
    /// The frame.
    pub frame: SentFrame,
}

/// The place before an instruction that reads from a passed-through device or writes to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt<C> {
    /// The point in the machine's own unit.
    pub at: Moment<C>,
    /// Instructions that the engine counted before this instruction.
    pub instructions: Instructions,
}

/// A source of events.
pub trait Inputs<C: Count> {
    /// The next event that is due exactly at this point, if any. The machine calls this function until it returns
    /// `None`.
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error>;

    /// The count at which the machine must call [`Inputs::poll`] again at the latest.
    fn next_poll(&self, now: Moment<C>) -> C;

    /// The guest is idle, and the machine's own next deadline is `deadline_ns`. Returns the time up to which the guest
    /// stays idle.
    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error>;

    /// When the engine must stop running the guest if nothing else stops the guest earlier. The machine's own next
    /// deadline is `deadline_ns`.
    fn leave(&self, _now: Moment<C>, _deadline_ns: Option<u64>) -> Leave {
        Leave::AtExits
    }

    /// How many instructions the guest may still execute before its next exit. The guest has executed `executed`
    /// instructions since its last exit. Returns an error if a machine that counts exits should have made an exit
    /// long ago. Engines that count no instructions ignore the returned number.
    fn without_exit(&self, _now: Moment<C>, _executed: u64) -> Result<u64, Error> {
        Ok(u64::MAX)
    }

    /// Whether [`crate::Machine::run`] returns here, before it takes the events that are due. The caller may
    /// continue later, or replace the machine. The machine calls this function once at each place where it asks for
    /// events.
    fn pauses(&mut self) -> bool {
        false
    }

    /// The parts of the machine to check exactly here, if any. The machine calls this function when
    /// [`Inputs::poll`] returns no event. The machine calls [`Inputs::checked`] with the result, and then `poll`
    /// and `check_due` again.
    fn check_due(&self, _now: Moment<C>) -> Option<CheckParts> {
        None
    }

    /// Takes the result of the check that was due.
    fn checked(&mut self, _check: CheckRecord<C>) -> Result<(), Error> {
        Ok(())
    }

    /// Takes frames that the guest sent, in the order of sending.
    fn network_output(&mut self, _frames: Vec<Sent<C>>) -> Result<(), Error> {
        Ok(())
    }

    /// The machine calls this function when an instruction reads from a passed-through device. Returns the device's
    /// next input. If this input has no value, the machine calls the function again with the same question. By
    /// default, all bits of the answer are ones.
    fn ask_devices(&mut self, _at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        Ok(DeviceInputV1::nothing_there(*ask))
    }

    /// The machine calls this function when an instruction writes to a passed-through device, and needs no answer.
    fn tell_devices(&mut self, _at: AskedAt<C>, _told: &AskV1) -> Result<(), Error> {
        Ok(())
    }

    /// Takes the guest's next console output.
    fn console_output(&mut self, _now: Moment<C>, _bytes: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// A mutable reference to inputs implements [`Inputs`], too. So a caller can pass a reference to a run, and use the
/// inputs after the run.
impl<C: Count, I: Inputs<C> + ?Sized> Inputs<C> for &mut I {
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error> {
        (**self).poll(view)
    }

    fn next_poll(&self, now: Moment<C>) -> C {
        (**self).next_poll(now)
    }

    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error> {
        (**self).idle(now, deadline_ns)
    }

    fn leave(&self, now: Moment<C>, deadline_ns: Option<u64>) -> Leave {
        (**self).leave(now, deadline_ns)
    }

    fn without_exit(&self, now: Moment<C>, executed: u64) -> Result<u64, Error> {
        (**self).without_exit(now, executed)
    }

    fn pauses(&mut self) -> bool {
        (**self).pauses()
    }

    fn check_due(&self, now: Moment<C>) -> Option<CheckParts> {
        (**self).check_due(now)
    }

    fn checked(&mut self, check: CheckRecord<C>) -> Result<(), Error> {
        (**self).checked(check)
    }

    fn network_output(&mut self, frames: Vec<Sent<C>>) -> Result<(), Error> {
        (**self).network_output(frames)
    }

    fn ask_devices(&mut self, at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        (**self).ask_devices(at, ask)
    }

    fn tell_devices(&mut self, at: AskedAt<C>, told: &AskV1) -> Result<(), Error> {
        (**self).tell_devices(at, told)
    }

    fn console_output(&mut self, now: Moment<C>, bytes: &[u8]) -> Result<(), Error> {
        (**self).console_output(now, bytes)
    }
}
