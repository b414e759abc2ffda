//! A run before it begins, and when it does: the process locks itself in between the two.

use host::LiveInputs;
use machine::config::MachineConfig;
use machine::engine::EngineKind;
use machine::error::Error;
use machine::inputs::PowerOn;
use machine::unit::Unit;
use machine::{Machine, StartingState};
use recording::Recording;
use recording::log::LogWriter;
use sandbox::Needs;
use std::path::Path;

use crate::go_live::{Continued, Source};
use crate::sandbox_arg;

/// A run that is about to begin: everything that has to be opened for it is open.
pub struct Planned<U> {
    /// What comes in from outside.
    pub live: LiveInputs<U>,
    origin: Origin<U>,
}

/// Where the machine comes from.
pub enum Origin<U> {
    /// It was built, and stands at power-on.
    Built(Box<Begun<U>>, EngineKind),
    /// It goes on from a recording.
    Recorded(Box<Source>),
}

/// A machine that runs from here on, and what a recording of it begins with.
pub struct Begun<U> {
    pub machine: Machine<U>,
    pub config: MachineConfig,
    pub power_on: PowerOn,
    /// Where the machine goes on from, if not from power-on.
    pub start: Option<StartingState>,
}

impl<U: Unit> Planned<U> {
    pub fn new(live: LiveInputs<U>, origin: Origin<U>) -> Planned<U> {
        Planned { live, origin }
    }

    /// What the run needs once the process is locked in.
    pub fn needs(&self) -> Needs {
        match &self.origin {
            Origin::Built(begun, engine) => sandbox_arg::of_machine(&begun.config, *engine),
            Origin::Recorded(source) => source.needs(),
        }
    }

    /// Whether it may turn out that there is nothing to run.
    pub fn may_fail(&self) -> bool {
        matches!(self.origin, Origin::Recorded(_))
    }

    /// The machine. One that goes on from a recording is brought to its place first.
    pub fn begin(self) -> Result<(Begun<U>, LiveInputs<U>), Error> {
        let begun = match self.origin {
            Origin::Built(begun, _) => *begun,
            Origin::Recorded(source) => {
                let Continued { machine, config, power_on, start } = source.go_live()?;
                Begun { machine, config, power_on, start: Some(start) }
            }
        };
        Ok((begun, self.live))
    }
}

impl<U: Unit> Begun<U> {
    /// The log of a recording of it in this folder, which is empty.
    pub fn log(&mut self, folder: &Path) -> Result<LogWriter, Error> {
        match self.start.take() {
            Some(start) => Recording::<U>::begin_from(folder, &self.config, &start),
            None => Recording::<U>::begin(folder, &self.config),
        }
    }
}
