//! The machine's state between two exits, for engines that count no instructions.
//!
//! `stopping` uses these facts to decide where the machine is.

use checkpoint::PageMap;
use cpu::{Counts, CpuState};

use crate::engine::Engine;
use crate::inputs::Stopped;

/// Where the machine is between two exits.
#[derive(Default)]
pub(super) struct Stopping {
    /// The guest was stopped here without an exit, and no event has reported the stop yet.
    pub stopped: Option<Stopped>,
    /// The CPU's counts did not begin at power-on ([`crate::Machine::count_anew`]).
    pub counts_anew: bool,
    /// The guest stands at a place that looked like the landing place, and is not.
    pub not_here: bool,
    /// How many times in a row the engine ran beyond the landing place.
    pub overshots: u32,
    /// The state to restore if the engine runs too far again.
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
    /// Notes that a run begins.
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
