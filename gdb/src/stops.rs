//! Breakpoints and watchpoints as gdb wants them, against those that the target has.
//!
//! gdb takes all of them out at every stop and puts them back before every move. The target hears only of the
//! difference, and only right before it moves.

use std::collections::BTreeSet;

use crate::{DebugTarget, Refusal, Watchpoint};

/// The two sets, and what gdb inserted as which kind.
#[derive(Default)]
pub(crate) struct Stops {
    /// Breakpoints that gdb inserted as software ones (`Z0`).
    pub(crate) software: BTreeSet<u64>,
    /// Breakpoints that gdb inserted as hardware ones (`Z1`): the same thing to the target.
    pub(crate) hardware: BTreeSet<u64>,
    /// Watchpoints that gdb inserted.
    pub(crate) watchpoints: BTreeSet<Watchpoint>,
    target_breakpoints: BTreeSet<u64>,
    target_watchpoints: BTreeSet<Watchpoint>,
}

impl Stops {
    /// The breakpoints that the target has.
    pub(crate) fn target_breakpoints(&self) -> &BTreeSet<u64> {
        &self.target_breakpoints
    }

    /// Makes the target's sets equal to gdb's.
    ///
    /// # Errors
    /// The target's refusal to set one of them. What was set before it stays set and is remembered as such.
    pub(crate) fn apply_all(&mut self, target: &mut dyn DebugTarget) -> Result<(), Refusal> {
        self.apply_breakpoints(target)?;
        self.apply_watchpoints(target)
    }

    /// As [`Self::apply_all`] for the watchpoints only: breakpoints do not matter to a single step.
    pub(crate) fn apply_watchpoints(&mut self, target: &mut dyn DebugTarget) -> Result<(), Refusal> {
        if self.watchpoints == self.target_watchpoints {
            return Ok(());
        }
        self.target_watchpoints.retain(|watchpoint| {
            let keep = self.watchpoints.contains(watchpoint);
            if !keep {
                target.clear_watchpoint(*watchpoint);
            }
            keep
        });
        for watchpoint in &self.watchpoints {
            if !self.target_watchpoints.contains(watchpoint) {
                target.set_watchpoint(*watchpoint)?;
                self.target_watchpoints.insert(*watchpoint);
            }
        }
        Ok(())
    }

    fn apply_breakpoints(&mut self, target: &mut dyn DebugTarget) -> Result<(), Refusal> {
        let (software, hardware) = (&self.software, &self.hardware);
        self.target_breakpoints.retain(|address| {
            let keep = software.contains(address) || hardware.contains(address);
            if !keep {
                target.clear_breakpoint(*address);
            }
            keep
        });
        for address in software.union(hardware) {
            if !self.target_breakpoints.contains(address) {
                target.set_breakpoint(*address)?;
                self.target_breakpoints.insert(*address);
            }
        }
        Ok(())
    }

    /// Leaves the target without any: the client has gone.
    pub(crate) fn clear(&mut self, target: &mut dyn DebugTarget) {
        std::mem::take(&mut self.target_breakpoints)
            .into_iter()
            .for_each(|address| target.clear_breakpoint(address));
        let watchpoints = std::mem::take(&mut self.target_watchpoints);
        watchpoints.into_iter().for_each(|watchpoint| target.clear_watchpoint(watchpoint));
        *self = Self::default();
    }
}
