//! Breakpoints and watchpoints that gdb wants, compared with those in the target.
//!
//! gdb removes all of them at every stop and inserts them again before every move. The target gets only the changes,
//! right before it moves.

use std::collections::{BTreeMap, BTreeSet};

use crate::condition::Condition;
use crate::target::{DebugTarget, Refusal, Watchpoint};

/// The breakpoints and watchpoints of gdb, and the breakpoints and watchpoints of the target.
#[derive(Default)]
pub(crate) struct StopSets {
    /// Breakpoints that gdb inserted as software breakpoints (`Z0`).
    pub(crate) software: BTreeSet<u64>,
    /// Breakpoints that gdb inserted as hardware breakpoints (`Z1`). The target treats hardware
    /// and software breakpoints alike.
    pub(crate) hardware: BTreeSet<u64>,
    /// Watchpoints that gdb inserted.
    pub(crate) watchpoints: BTreeSet<Watchpoint>,
    /// The conditions from gdb. The key is the breakpoint's address, and whether it is a hardware breakpoint.
    pub(crate) conditions: BTreeMap<(u64, bool), Vec<Condition>>,
    target_breakpoints: BTreeSet<u64>,
    /// The conditions that the target has now. Breakpoints without an entry have no conditions.
    target_conditions: BTreeMap<u64, Vec<Condition>>,
    target_watchpoints: BTreeSet<Watchpoint>,
}

impl StopSets {
    /// The breakpoints that the target has.
    pub(crate) fn target_breakpoints(&self) -> &BTreeSet<u64> {
        &self.target_breakpoints
    }

    /// Whether the target has a breakpoint that gdb has removed.
    pub(crate) fn has_removed(&self) -> bool {
        let mut of_target = self.target_breakpoints.iter();
        of_target.any(|address| !self.software.contains(address) && !self.hardware.contains(address))
    }

    /// Makes the target's sets equal to gdb's. `steps_off` is the address from which gdb steps. gdb has removed a
    /// breakpoint at this address, but the target keeps it, because other code that runs during the step can hit it.
    ///
    /// # Errors
    /// The target's refusal to set a stop. Earlier stops stay set and are remembered as set.
    pub(crate) fn apply_all(
        &mut self,
        target: &mut dyn DebugTarget,
        steps_off: Option<u64>,
    ) -> Result<(), Refusal> {
        self.apply_breakpoints(target, steps_off)?;
        self.apply_watchpoints(target)
    }

    fn apply_watchpoints(&mut self, target: &mut dyn DebugTarget) -> Result<(), Refusal> {
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

    fn apply_breakpoints(
        &mut self,
        target: &mut dyn DebugTarget,
        steps_off: Option<u64>,
    ) -> Result<(), Refusal> {
        let (software, hardware) = (&self.software, &self.hardware);
        self.target_breakpoints.retain(|address| {
            let keep =
                software.contains(address) || hardware.contains(address) || steps_off == Some(*address);
            if !keep {
                if self.target_conditions.remove(address).is_some() {
                    target.set_conditions(*address, &[]);
                }
                target.clear_breakpoint(*address);
            }
            keep
        });
        for address in software.union(hardware) {
            if !self.target_breakpoints.contains(address) {
                target.set_breakpoint(*address)?;
                self.target_breakpoints.insert(*address);
            }
            let wanted = self.wanted_conditions(*address);
            if self.target_conditions.get(address) != wanted.as_ref() {
                target.set_conditions(*address, wanted.as_deref().unwrap_or_default());
                match wanted {
                    Some(conditions) => self.target_conditions.insert(*address, conditions),
                    None => self.target_conditions.remove(address),
                };
            }
        }
        Ok(())
    }

    /// The conditions at an address. A run stops if one of the conditions is true. `None` if a breakpoint at this
    /// address has no conditions.
    fn wanted_conditions(&self, address: u64) -> Option<Vec<Condition>> {
        let mut wanted = Vec::new();
        for (set, hardware) in [(&self.software, false), (&self.hardware, true)] {
            if set.contains(&address) {
                wanted.extend_from_slice(self.conditions.get(&(address, hardware))?);
            }
        }
        Some(wanted)
    }

    /// Removes everything from the target, because the client has gone.
    pub(crate) fn clear(&mut self, target: &mut dyn DebugTarget) {
        for address in std::mem::take(&mut self.target_conditions).into_keys() {
            target.set_conditions(address, &[]);
        }
        std::mem::take(&mut self.target_breakpoints)
            .into_iter()
            .for_each(|address| target.clear_breakpoint(address));
        let watchpoints = std::mem::take(&mut self.target_watchpoints);
        watchpoints.into_iter().for_each(|watchpoint| target.clear_watchpoint(watchpoint));
        *self = Self::default();
    }
}
