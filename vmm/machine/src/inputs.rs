//! The one door through which anything that the machine does not determine itself comes in.
//!
//! The machine asks its [`Inputs`] at points between instructions. Live inputs ask the host; a recorder
//! writes down what live inputs gave; a player gives it again at the same points. The machine cannot tell
//! which of the three it has.

use devices::passthrough::{AskV1, DeviceInputV1};
use devices::virtio::SentFrame;
use serde::Serialize;

use crate::checks::{CheckParts, CheckRecord};
use crate::comparable::{Likeness, cpu_hash, shown};
use crate::engine::Leave;
use crate::error::Error;
use crate::hashes::short;
use crate::outcome::Outcome;
use crate::position::{Count, Instructions, Moment};

/// Something from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Event {
    /// What a machine is given at power-on. Always the first event, and only that.
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
    /// The user ended the run here.
    Ended,
    /// The guest was stopped here although it made no exit, so that the events that follow can come in here.
    /// The stop counts as an exit itself.
    Stopped(Stopped),
    /// Time of the host passed.
    TimePassed {
        /// Nanoseconds.
        ns: u64,
    },
    /// A signal ended the run here.
    Interrupted,
    /// A limit that the user had set ended it.
    Limit,
    /// The console showed a text at which the user had wanted it to end.
    TextShown,
    /// Ethernet frames came in over the network.
    NetworkInput(Vec<Vec<u8>>),
    /// Something came from devices of the host that are passed through. Where it answers an ask, it comes in while the
    /// instruction is executed that asks; else between two, as all other events.
    Devices(DeviceInputV1),
}

/// What tells a place where the guest was stopped from others between the same two exits, besides RIP and the
/// hash of the registers, which all records have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// The general registers, folded ([`cpu::fold_registers`]): quick to compare at each of many candidates.
    pub registers: u64,
    /// The digest of RAM ([`crate::ram_digest`]).
    pub ram_digest: [u8; 16],
}

impl Event {
    /// How it ends the run, if it does.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Event::Ended => Some(Outcome::Ended),
            Event::Interrupted => Some(Outcome::Interrupted),
            Event::Limit => Some(Outcome::Limit),
            Event::TextShown => Some(Outcome::TextShown),
            _ => None,
        }
    }

    /// Whether it answers what an instruction asks in the middle.
    pub fn is_answer(&self) -> bool {
        matches!(self, Event::Devices(input) if input.asked.is_some())
    }

    /// The event's kind in a word.
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
        }
    }
}

/// What a machine is given at power-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PowerOn {
    /// The date that the real-time clock starts with, in seconds since 1970.
    pub unix_seconds: i64,
    /// Seed of everything random: the kernel's seed and the entropy device.
    pub seed: [u8; 32],
    /// Console width in characters.
    pub columns: u16,
    /// Console height in characters.
    pub rows: u16,
}

/// A date, a seed and a size that are always the same: two runs with these and the same inputs are equal.
impl Default for PowerOn {
    fn default() -> PowerOn {
        // The first second of 2020.
        PowerOn { unix_seconds: 1_577_836_800, seed: [0; 32], columns: 80, rows: 25 }
    }
}

/// What the machine shows of itself to its inputs.
#[derive(Clone, Copy)]
pub struct View<'a, C> {
    /// Where the machine is.
    pub moment: Moment<C>,
    /// Bytes that the console takes now: zero while the guest does not listen.
    pub console_room: usize,
    /// Frames that the network card takes now; `None` while no driver listens, or where there is no card.
    pub network_room: Option<usize>,
    /// The CPU, for checks.
    pub cpu: &'a cpu::Cpu,
    /// Retired conditional branches. Where exits are counted they say where the guest was stopped without
    /// one, if the engine counts them; else they are zero.
    pub branches: u64,
    /// What of the CPU's state is hashed.
    pub likeness: Likeness,
    /// The guest was just stopped here without an exit, and no event has said so yet.
    pub stopped: Option<Stopped>,
}

impl<C: Count> View<'_, C> {
    /// First bytes of the hash of the CPU's state.
    pub fn cpu_hash(&self) -> [u8; 8] {
        let state = self.cpu.state();
        if self.likeness == Likeness::AcrossProcessors {
            log::trace!("compared after {}: {}", self.moment.count, shown(&state));
        }
        short(&cpu_hash(&state, self.cpu.counts(), self.likeness))
    }
}

/// What to do while the guest is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Let virtual time pass up to this moment (not beyond the machine's own next deadline).
    Until(u64),
    /// Nothing will ever come: end the run.
    Forever,
}

/// A frame that the guest sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent<C> {
    /// Where: the instruction that sent it is the next one.
    pub at: Moment<C>,
    /// What.
    pub frame: SentFrame,
}

/// Where an instruction is that asks or tells a passed-through device something: it is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt<C> {
    /// By the machine's own count.
    pub at: Moment<C>,
    /// Instructions that the engine counted before it.
    pub instructions: Instructions,
}

/// A source of events.
pub trait Inputs<C: Count> {
    /// The next event that is due exactly here, if any. Called again until it gives none.
    fn poll(&mut self, view: &View<'_, C>) -> Result<Option<Event>, Error>;

    /// Where the machine must ask again at the latest.
    fn next_poll(&self, now: Moment<C>) -> C;

    /// The guest is idle and the machine's next own deadline is `deadline_ns`: says until when time passes.
    fn idle(&mut self, now: Moment<C>, deadline_ns: Option<u64>) -> Result<Idle, Error>;

    /// When the engine leaves the guest if nothing else makes it; the machine's next own deadline is
    /// `deadline_ns`.
    fn leave(&self, _now: Moment<C>, _deadline_ns: Option<u64>) -> Leave {
        Leave::AtExits
    }

    /// How many instructions the guest may execute from here before its next exit; it has executed `executed` since the last one.
    /// An error where a machine that counts exits should have made one long ago. Engines that count no instructions do not ask.
    fn without_exit(&self, _now: Moment<C>, _executed: u64) -> Result<u64, Error> {
        Ok(u64::MAX)
    }

    /// Whether the run is to return here, before the events that are due are taken: to go on later, or to become another. Asked once
    /// at each place where the machine asks for events.
    fn pauses(&mut self) -> bool {
        false
    }

    /// What to check of the machine exactly here, if anything; asked when [`Inputs::poll`] gives no event.
    /// The answer comes by [`Inputs::checked`], and both are asked again.
    fn check_due(&self, _now: Moment<C>) -> Option<CheckParts> {
        None
    }

    /// The check that was asked for.
    fn checked(&mut self, _check: CheckRecord<C>) -> Result<(), Error> {
        Ok(())
    }

    /// Frames that the guest sent, in order.
    fn network_output(&mut self, _frames: Vec<Sent<C>>) -> Result<(), Error> {
        Ok(())
    }

    /// An instruction asks devices outside, in the middle: what comes back is an event, and is the next one. An input
    /// without a value is not all of it: the same is asked again. Where there are no devices all bits are ones.
    fn ask_devices(&mut self, _at: AskedAt<C>, ask: &AskV1) -> Result<DeviceInputV1, Error> {
        Ok(DeviceInputV1::nothing_there(*ask))
    }

    /// An instruction tells devices outside something that nothing comes back from.
    fn tell_devices(&mut self, _at: AskedAt<C>, _told: &AskV1) -> Result<(), Error> {
        Ok(())
    }

    /// Console output of the guest, in order.
    fn console_output(&mut self, _now: Moment<C>, _bytes: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// By reference, so that inputs can be looked at after a run has used them.
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
