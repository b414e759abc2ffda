//! What a machine knows of the place between two exits where an engine stopped that counts no instructions.
//!
//! `stopping` decides by it.

use checkpoint::PageMap;
use cpu::{Counts, CpuState};

use crate::engine::Engine;
use crate::inputs::Stopped;

/// Where the machine is between two exits.
#[derive(Default)]
pub(super) struct Stopping {
    /// The guest was stopped here without an exit, and no event has said so yet.
    pub stopped: Option<Stopped>,
    /// The CPU's counts did not begin at power-on ([`crate::Machine::count_anew`]).
    pub counts_anew: bool,
    /// The place where the guest stands was taken for the landing place, and is not.
    pub not_here: bool,
    /// How often in a row the engine ran beyond the landing place.
    pub overshots: u32,
    /// What is restored if it does so again.
    pub before: Option<Before>,
}

/// What a run to a counted place begins with.
pub(super) struct Before {
    pub cpu: CpuState,
    pub counts: Counts,
    pub ram: PageMap,
    pub not_here: bool,
}

impl Stopping {
    /// A run begins.
    pub fn begin(&mut self) {
        self.overshots = 0;
    }

    /// The machine is somewhere else now.
    pub fn forget(&mut self) {
        (self.stopped, self.not_here) = (None, false);
    }

    /// Whether the count of branches tells the place where the guest was stopped.
    pub fn counts_branches(&self, engine: &dyn Engine) -> bool {
        self.stopped.is_some() && engine.counts_branches() && !self.counts_anew
    }
}
