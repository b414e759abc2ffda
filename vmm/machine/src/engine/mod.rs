//! What executes the guest.
//!
//! [`Engine`] is what the machine needs of an engine, and [`EngineKind`] names one and builds it. [`soft`] is the
//! software CPU; other packages bring others. The words in which a machine tells an engine when to leave the guest
//! ([`Leave`], [`LandingPlace`], [`End`]) are in the package `engine-contract`.
//!
//! Engines know no devices, inputs or logs: they see RAM and a bus.

pub mod soft;

use cpu::{AddressKind, Bus, Counts, Cpu, CpuModel, CpuState, Observer, Tier, Traps, Watchpoint};
pub use engine_contract::{End, LandingPlace, Landings, Leave, Statistics};
use guest_ram::GuestRam;

use crate::error::Error;
use crate::position::Instructions;

/// Builds an engine over RAM, in reset state.
pub type BuildEngine = fn(GuestRam, CpuModel) -> Result<Box<dyn Engine>, Error>;

/// An engine that machines can be built on.
#[derive(Clone, Copy, Debug)]
pub struct EngineKind {
    /// Its name. Two kinds of the same name are the same.
    pub name: &'static str,
    /// Whether it counts instructions. An engine that does not counts exits.
    pub counts_instructions: bool,
    /// The most breakpoints that it takes.
    pub most_breakpoints: usize,
    /// Builds one.
    pub build: BuildEngine,
}

impl PartialEq for EngineKind {
    fn eq(&self, other: &EngineKind) -> bool {
        self.name == other.name
    }
}

/// Executes guest instructions and owns RAM. One thread at a time; the guest stands still between calls.
pub trait Engine: Send {
    /// Runs until the CPU has executed `until` instructions, exactly, or something stops it first: the bus,
    /// `leave`, a break- or watchpoint. Accesses to anything but RAM go to `bus`. A breakpoint where it has
    /// executed `origin` is passed over.
    ///
    /// An engine that does not count instructions stops where the bus or `leave` says.
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        until: Instructions,
        origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error>;
    /// The architectural state, canonical.
    fn state(&self) -> CpuState;
    /// What was counted. The counts are the machine's: the engine keeps them while it runs the guest.
    fn counts(&self) -> Counts {
        self.cpu().counts()
    }
    /// Replaces state and counts; RAM may have been replaced too, by writes that its page flags saw.
    fn set_state(&mut self, state: &CpuState, counts: Counts);
    /// The CPU as a debugger looks at it.
    fn cpu(&self) -> &Cpu;
    /// Replaces all breakpoints. If the host fails at it, the next run says so.
    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]);
    /// Replaces all watchpoints.
    fn set_watchpoints(&mut self, points: &[Watchpoint]);
    /// Replaces all traps.
    fn set_traps(&mut self, traps: Traps);
    /// Attaches an observer, or none; returns the one that was attached. Fails if the engine cannot tell what the guest does.
    fn set_observer(
        &mut self,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Option<Box<dyn Observer>>, Error> {
        match observer {
            None => Ok(None),
            Some(_) => Err(Error::Unsupported("only the software engine can be observed".to_string())),
        }
    }
    /// To be called before the page flags of RAM are looked at: sets the flag of every page that was written.
    /// After a failure the flags may lack pages, and nothing may be made of them.
    fn note_written(&mut self) -> Result<(), Error>;
    /// Whether its states count retired conditional branches.
    fn counts_branches(&self) -> bool;
    /// Whether it may run beyond a landing place whose branches are counted ([`End::Overshot`]).
    fn overshoots(&self) -> bool {
        false
    }
    /// To be called after dirty flags of pages were cleared: from then on the first write to a page sets its
    /// flag again.
    fn track_writes_anew(&mut self);
    /// Chooses what executes the guest, where there is a choice. Nothing that the guest can see depends on it.
    fn set_tier(&mut self, _tier: Tier) {}
    /// Statistics, if the engine keeps any.
    fn statistics(&self) -> Option<Statistics> {
        None
    }
}
