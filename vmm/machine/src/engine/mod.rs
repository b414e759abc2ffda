//! Engines. An engine executes the guest's instructions.
//!
//! [`Engine`] is the trait through which a machine uses its engine. [`EngineKind`] identifies a kind of engine and
//! builds one. [`soft`] is the software CPU. The package `host` has the KVM engine. The package `engine-contract`
//! has the types by which a machine tells an engine when to stop running the guest ([`Leave`], [`LandingPlace`],
//! [`End`]).
//!
//! Engines do not use devices, inputs or logs. Engines access only RAM and a bus.

pub mod soft;

use cpu::{
    AddressKind, Bus, Counts, Cpu, CpuModel, CpuState, Observer, Tier, Traps, Turn, TurnPolicy, TurnState,
    Watchpoint,
};
pub use engine_contract::{End, LandingPlace, Landings, Leave, Statistics};
use guest_ram::GuestRam;

use crate::error::Error;
use crate::position::Instructions;
use crate::processors::Processors;

/// Builds an engine over RAM, in reset state.
pub type BuildEngine = fn(GuestRam, CpuModel) -> Result<Box<dyn Engine>, Error>;

/// An engine that machines can be built on.
#[derive(Clone, Copy, Debug)]
pub struct EngineKind {
    /// The engine's name. Two kinds with the same name are regarded as equal.
    pub name: &'static str,
    /// Whether the engine counts instructions. If not, it counts exits.
    pub counts_instructions: bool,
    /// Largest number of breakpoints that the engine accepts.
    pub most_breakpoints: usize,
    /// Builds an engine of this kind.
    pub build: BuildEngine,
}

impl PartialEq for EngineKind {
    fn eq(&self, other: &EngineKind) -> bool {
        self.name == other.name
    }
}

/// Executes guest instructions and owns RAM. One thread at a time calls an engine. The guest does not run between
/// calls.
pub trait Engine: Send {
    /// Runs until the CPU has executed exactly `until` instructions, or until the bus, `leave`, or a break- or
    /// watchpoint stops it. Accesses to anything but RAM go to `bus`. The CPU ignores a breakpoint at the place
    /// where `origin` instructions have executed.
    ///
    /// An engine that does not count instructions ignores `until` and `origin`. The bus and `leave` tell such an
    /// engine where to stop.
    fn run(
        &mut self,
        bus: &mut dyn Bus,
        until: Instructions,
        origin: Instructions,
        leave: Leave,
    ) -> Result<End, Error>;
    /// The architectural state, in a canonical form: equal states give equal values.
    fn state(&self) -> CpuState;
    /// The CPU's counts. The counts are part of the machine's state. The engine updates them while it runs the guest.
    fn counts(&self) -> Counts {
        self.cpu().counts()
    }
    /// Chooses the processor in the seat, and replaces the states of the other processors. The processor whose turn it
    /// is has the seat. Must be called before [`Engine::set_state`].
    fn set_parked(&mut self, seat: usize, states: &[CpuState]) {
        assert!(seat == 0 && states.is_empty(), "this engine has one processor");
    }
    /// Gives the seat to a processor between two runs, so that [`Engine::cpu`] returns this processor. Returns the
    /// number of the processor that had the seat. The caller must give the seat back before the next run.
    fn lend_seat(&mut self, _processor: usize) -> usize {
        0
    }
    /// Replaces state and counts. The caller may also have changed RAM before, if the dirty flags of the changed
    /// pages are set.
    fn set_state(&mut self, state: &CpuState, counts: Counts);
    /// Replaces the state of the turns of several processors.
    fn set_turn_state(&mut self, state: Option<&TurnState>) {
        assert!(state.is_none(), "this engine has one processor");
    }
    /// Queues turns for the processors, between two runs. Does nothing in a machine with one processor.
    fn give_turns(&mut self, _bus: &mut dyn Bus, _turns: &[Turn]) {}
    /// Replaces the policy of turns, between two runs. Does nothing in a machine with one processor.
    fn change_turn_policy(&mut self, _policy: TurnPolicy) {}
    /// Sets the number of processors and their policy of turns, before the first run.
    fn set_processors(&mut self, processors: Processors) {
        assert_eq!(processors.count(), 1, "this engine has one processor");
    }
    /// The CPU, so that a debugger can read its state.
    fn cpu(&self) -> &Cpu;
    /// Replaces all breakpoints. If the host cannot set a breakpoint, the next run returns the error.
    fn set_breakpoints(&mut self, points: &[(AddressKind, u64)]);
    /// Replaces all watchpoints.
    fn set_watchpoints(&mut self, points: &[Watchpoint]);
    /// Replaces all traps.
    fn set_traps(&mut self, traps: Traps);
    /// Attaches an observer, or detaches it with `None`. Returns the observer that was attached before. Fails if the
    /// engine cannot observe the guest.
    fn set_observer(
        &mut self,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Option<Box<dyn Observer>>, Error> {
        match observer {
            None => Ok(None),
            Some(_) => Err(Error::Unsupported("only the software engine can be observed".to_string())),
        }
    }
    /// Sets the dirty flag of every page that was written. Must be called before RAM's dirty flags are read. After
    /// a failure the flags may be incomplete, and must not be used.
    fn note_written(&mut self) -> Result<(), Error>;
    /// Whether the engine's states count retired conditional branches.
    fn counts_branches(&self) -> bool;
    /// Whether the engine may run beyond a landing place whose branches are counted ([`End::Overshot`]).
    fn overshoots(&self) -> bool {
        false
    }
    /// Must be called after dirty flags of pages were cleared. Only then does the next write to such a page set its
    /// flag again.
    fn track_writes_anew(&mut self);
    /// Chooses the tier that executes the guest, if the engine has tiers. The choice changes nothing that the guest
    /// can see.
    fn set_tier(&mut self, _tier: Tier) {}
    /// Statistics, if the engine keeps any.
    fn statistics(&self) -> Option<Statistics> {
        None
    }
}
