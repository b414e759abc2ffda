//! A run that is planned but has not begun. The process enters its sandbox between [`Planned::new`] and
//! [`Planned::begin`].

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

/// A run that is about to begin, whose files are all open.
pub struct Planned<U> {
    /// The inputs from outside the machine, such as the console and the network.
    live: LiveInputs<U>,
    origin: Origin<U>,
}

/// Where the machine of a planned run comes from.
pub enum Origin<U> {
    /// The machine was built, and is at power-on.
    Built(Box<Recordable<U>>, EngineKind),
    /// The machine starts from a place in a recording.
    Recorded(Box<Source>),
}

impl<U: Unit> Planned<U> {
    pub fn new(live: LiveInputs<U>, origin: Origin<U>) -> Planned<U> {
        Planned { live, origin }
    }

    /// The rights that the run needs after the process has entered its sandbox.
    pub fn needs(&self) -> Needs {
        match &self.origin {
            Origin::Built(guest, engine) => sandbox_arg::of_machine(guest.config(), *engine),
            Origin::Recorded(source) => source.needs(),
        }
    }

    /// The images that a recording in `folder` would not contain. The recording's manifest names these images by
    /// their paths on this host.
    pub fn images_outside(&self, folder: &Path) -> Vec<PathBuf> {
        match &self.origin {
            Origin::Built(guest, _) => outside(&guest.config_in(folder)),
            // The starting state is in the recording's folder. Only the disk image is outside of this folder.
            Origin::Recorded(source) => source.disk().into_iter().collect(),
        }
    }

    /// Whether [`Planned::begin`] can fail, because it replays a recording.
    pub fn may_fail(&self) -> bool {
        matches!(self.origin, Origin::Recorded(_))
    }

    /// Returns the machine and its inputs. A machine that starts from a recording is first replayed to its position.
    pub fn begin(self) -> Result<(Recordable<U>, LiveInputs<U>), Error> {
        let guest = match self.origin {
            Origin::Built(guest, _) => *guest,
            Origin::Recorded(source) => source.go_live()?,
        };
        Ok((guest, self.live))
    }
}

/// The images that a recording's manifest names by their paths on this host.
fn outside(machine: &MachineConfig) -> Vec<PathBuf> {
    machine.images().map(|(_, file)| file.path.clone()).filter(|path| path.is_absolute()).collect()
}
