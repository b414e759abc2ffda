//! The machine's state between two exits, for engines that count no instructions.
//!
//! The module `stopping` uses these facts to decide at which place between two exits the guest is.

use checkpoint::PageMap;
use cpu::{Counts, CpuState};

use crate::engine::Engine;
use crate::inputs::Stopped;

/// Facts about the guest's place between two exits.
#[derive(Default)]
pub(super) struct Stopping {
    /// The description of the guest's place, if the guest was stopped here without an exit and no event has reported
    /// the stop yet.
    pub stopped: Option<Stopped>,
    /// Whether the CPU's counts were restarted later than at the start of the run ([`crate::Machine::count_anew`]).
    pub counts_anew: bool,
    /// Whether the guest's present place is known to differ from the landing place, which is the recorded place
    /// that a replay looks for.
    pub not_here: bool,
    /// How many times in a row the engine ran beyond the landing place, which is the recorded place that a replay
    /// looks for.
    pub overshots: u32,
    /// The state to restore if the engine runs beyond the landing place.
    pub before: Option<Before>,
}

/// The machine's state at the beginning of a run to a landing place whose branches are counted.
pub(super) struct Before {
    pub cpu: CpuState,
    pub counts: Counts,
    pub ram: PageMap,
    pub not_here: bool,
}

impl Stopping {
    /// Notes that a call of [`crate::Machine::run`] begins.
    pub fn begin(&mut self) {
        self.overshots = 0;
    }

    /// Notes that the machine is at another place now.
    pub fn forget(&mut self) {
        (self.stopped, self.not_here) = (None, false);
    }

    /// Whether the count of branches identifies the place where the guest was stopped.
    pub fn counts_branches(&self, engine: &dyn Engine) -> bool {
        self.stopped.is_some() && engine.counts_branches() && !self.counts_anew
    }
}
