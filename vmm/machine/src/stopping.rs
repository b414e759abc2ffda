//! Stops an engine at a place between two exits, and finds this place again in a replay. The module is for engines
//! that count no instructions.
//!
//! While recording, such an engine stops the guest when a time limit is reached, at any place between two exits. An
//! event then describes this place, which is called a landing place. In a replay the engine stops at each place
//! that may be the landing place. The machine compares the hash of all registers and the digest of RAM to decide
//! whether the guest is at the landing place.
//!
//! An engine that counts branches may run beyond the landing place ([`End::Overshot`]). Between two exits no device
//! changes and no event comes in. So the machine goes back to an earlier place between these exits by restoring
//! only registers and RAM.

use cpu::{Stop, fold_registers};

use crate::between_exits::Before;
use crate::comparable;
use crate::engine::{End, LandingPlace, Leave};
use crate::error::Error;
use crate::inputs::Stopped;
use crate::run::Machine;
use crate::unit::Unit;

/// If the engine runs beyond one landing place this many times, the machine assumes that the place's count of
/// branches is wrong.
const MOST_OVERSHOTS: u32 = 24;

impl<U: Unit> Machine<U> {
    /// Adds the facts that the engine needs to `wanted`, which [`crate::inputs::Inputs::leave`] returned. Stores
    /// the present state if the engine may run beyond the landing place.
    pub(super) fn depart(&mut self, wanted: Leave) -> Result<Leave, Error> {
        self.bus.await_deadline(matches!(wanted, Leave::After { .. }));
        let not_here = std::mem::take(&mut self.stopping.not_here);
        self.stopping.before = None;
        let Leave::At(goal) = wanted else { return Ok(wanted) };
        let gives_up = self.stopping.overshots >= MOST_OVERSHOTS;
        if self.stopping.overshots == MOST_OVERSHOTS {
            log::warn!("the guest never reaches a branch count: ttvm searches for the position without it");
        }
        let branches = goal.branches.filter(|_| !gives_up && !self.stopping.counts_anew);
        if branches.is_some() && self.engine.overshoots() {
            // The cost of `update_image` depends on the number of pages written since the last update.
            self.update_image()?;
            let ram = self.image.clone();
            self.stopping.before =
                Some(Before { cpu: self.engine.state(), counts: self.engine.counts(), ram, not_here });
        }
        Ok(Leave::At(LandingPlace { branches, not_here, ..goal }))
    }

    /// Handles the end of an engine's run. `leave` is the value that told the engine when to end this run. Returns
    /// `None` if there is nothing to report and the machine continues.
    pub(super) fn arrive(&mut self, end: End, leave: Leave) -> Result<Option<Stop>, Error> {
        match (end, leave) {
            (End::Stop(stop), _) => return Ok(Some(stop)),
            (End::Forced, Leave::After { note: true, .. }) => self.stopping.stopped = Some(self.here()?),
            (End::Forced, _) => self.stopping.stopped = Some(Stopped::default()),
            (End::LandingPlace, Leave::At(goal)) => self.compare_with(goal)?,
            (End::LandingPlace, _) => {}
            (End::Overshot, _) => self.go_back()?,
        }
        Ok(None)
    }

    /// Describes the guest's present place. This description and the hash of the registers identify the place.
    fn here(&mut self) -> Result<Stopped, Error> {
        let state = self.engine.state();
        log::trace!("stopped after exit {}: {}", self.moment().count, comparable::shown(&state));
        Ok(Stopped { registers: fold_registers(&state.gpr), ram_digest: self.ram_digest()? })
    }

    /// Compares the CPU's hash and RAM's digest with the values of the landing place. Notes whether the guest is
    /// there.
    fn compare_with(&mut self, goal: LandingPlace) -> Result<(), Error> {
        let stopped = Stopped { registers: goal.registers, ram_digest: goal.ram_digest };
        let registers = self.view().cpu_hash() == goal.cpu_hash;
        self.stopping.not_here = !registers || self.here()? != stopped;
        if self.stopping.not_here {
            let (at, rip) = (self.moment().count, self.engine.cpu().rip());
            log::trace!("stopped after exit {at}: {}", comparable::shown(&self.engine.state()));
            log::debug!(
                "not where it was stopped after exit {at}: at {rip:#x}, registers equal: {registers}"
            );
            return Ok(());
        }
        self.stopping.stopped = Some(stopped);
        self.stopping.overshots = 0;
        Ok(())
    }

    /// Restores the state that was stored at the beginning of the run to the landing place.
    fn go_back(&mut self) -> Result<(), Error> {
        self.stopping.overshots += 1;
        let before = self.stopping.before.take().expect("only engines that were asked can overshoot");
        self.restore_memory(&before.ram)?;
        self.engine.set_state(&before.cpu, before.counts);
        self.engine.track_writes_anew();
        self.stopping.not_here = before.not_here;
        Ok(())
    }
}
