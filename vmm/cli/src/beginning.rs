//! A run before it begins, and when it does: the process locks itself in between the two.

use std::path::{Path, PathBuf};

use host::LiveInputs;
use machine::config::MachineConfig;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::unit::Unit;
use recording::Recordable;
use sandbox::Needs;

use crate::go_live::Source;
use crate::sandbox_arg;

/// A run that is about to begin: everything that has to be opened for it is open.
pub struct Planned<U> {
    /// What comes in from outside.
    live: LiveInputs<U>,
    origin: Origin<U>,
}

/// Where the machine comes from.
pub enum Origin<U> {
    /// It was built, and stands at power-on.
    Built(Box<Recordable<U>>, EngineKind),
    /// It goes on from a recording.
    Recorded(Box<Source>),
}

impl<U: Unit> Planned<U> {
    pub fn new(live: LiveInputs<U>, origin: Origin<U>) -> Planned<U> {
        Planned { live, origin }
    }

    /// What the run needs once the process is locked in.
    pub fn needs(&self) -> Needs {
        match &self.origin {
            Origin::Built(guest, engine) => sandbox_arg::of_machine(guest.config(), *engine),
            Origin::Recorded(source) => source.needs(),
        }
    }

    /// The images that a recording in this folder will need and not carry.
    pub fn images_outside(&self, folder: &Path) -> Vec<PathBuf> {
        match &self.origin {
            Origin::Built(guest, _) => outside(&guest.config_in(folder)),
            // It carries its starting state.
            Origin::Recorded(source) => source.disk().into_iter().collect(),
        }
    }

    /// Whether it may turn out that there is nothing to run.
    pub fn may_fail(&self) -> bool {
        matches!(self.origin, Origin::Recorded(_))
    }

    /// The machine. One that goes on from a recording is brought to its place first.
    pub fn begin(self) -> Result<(Recordable<U>, LiveInputs<U>), Error> {
        let guest = match self.origin {
            Origin::Built(guest, _) => *guest,
            Origin::Recorded(source) => source.go_live()?,
        };
        Ok((guest, self.live))
    }
}

/// The images that a recording's manifest names by where they lie on this host.
fn outside(machine: &MachineConfig) -> Vec<PathBuf> {
    machine.images().map(|(_, file)| file.path.clone()).filter(|path| path.is_absolute()).collect()
}
