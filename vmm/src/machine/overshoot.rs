//! Going back where an engine went beyond a place that it was to stop at ([`crate::engine::End::Overshot`]).
//!
//! Between two exits no device changes and nothing comes in, so the machine is as it was once registers and RAM are.

use checkpoint::PageMap;
use cpu::CpuState;

use super::Machine;
use crate::engine::{Leave, Mark};
use crate::error::Error;

/// A place is overshot so many times before its count of branches is taken for wrong.
pub(super) const MOST: u32 = 24;

/// What a run to a counted place begins with.
pub(super) struct Before {
    cpu: CpuState,
    ram: PageMap,
    not_here: bool,
}

impl Machine {
    /// What is to be restored if the run that begins here overshoots, if it can. Costs as much as the pages written since the
    /// last one.
    pub(super) fn before(&mut self, leave: Leave) -> Option<Before> {
        match leave {
            Leave::At(Mark { branches: Some(_), not_here, .. }) if self.engine.overshoots() => {
                self.update_image();
                Some(Before { cpu: self.engine.state(), ram: self.image.clone(), not_here })
            }
            _ => None,
        }
    }

    pub(super) fn go_back(&mut self, before: Before) -> Result<(), Error> {
        self.restore_memory(&before.ram)?;
        self.engine.set_state(&before.cpu);
        self.engine.track_writes_anew();
        self.not_here = before.not_here;
        Ok(())
    }
}
